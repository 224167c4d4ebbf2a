# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.ops.moe() and its gradients, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpunvme import ops

from test_ops import close, normal, wide
from test_ops_training import available, numeric

TOKENS, EXPERTS, TOP_K, DIM, HIDDEN = 7, 5, 2, 8, 6


def softmax(logits: Any) -> Any:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def reference(x: Any, logits: Any, w_gate: Any, w_up: Any, w_down: Any, renormalize: bool,
              chosen: Any = None) -> Any:
    """By its definition, of float64; with ``chosen`` the choice is that."""
    if chosen is None:
        chosen = np.argsort(-logits, -1, kind="stable")[..., :TOP_K]
    y = np.zeros_like(x)
    for at in np.ndindex(x.shape[:-1]):
        found = logits[at][chosen[at]]
        weights = softmax(found) if renormalize else softmax(logits[at])[chosen[at]]
        for weight, e in zip(weights, chosen[at]):
            gate = w_gate[e] @ x[at]
            y[at] += weight * (w_down[e] @ (gate / (1 + np.exp(-gate)) * (w_up[e] @ x[at])))
    return y


def operands(*lead: int, dtype: Any = np.float32) -> list[Any]:
    return [normal(1, *lead, DIM, dtype=dtype), normal(2, *lead, EXPERTS, dtype=dtype),
            normal(3, EXPERTS, HIDDEN, DIM, dtype=dtype),
            normal(4, EXPERTS, HIDDEN, DIM, dtype=dtype),
            normal(5, EXPERTS, DIM, HIDDEN, dtype=dtype)]


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("variant", available("moe_forward"))
def test_moe_is_its_formula(variant: str, dtype: Any, renormalize: bool) -> None:
    given = operands(2, TOKENS, dtype=dtype)
    y = ops.moe(*given, TOP_K, renormalize=renormalize, variant=variant)
    assert y.dtype == dtype and y.shape == given[0].shape
    assert close(y, reference(*wide(*given), renormalize), 200)


def test_logits_may_be_float32_and_gate_and_up_halves_of_one_array() -> None:
    x, logits, _, _, w_down = operands(TOKENS, dtype=np.float16)
    both = normal(6, EXPERTS, 2 * HIDDEN, DIM, dtype=np.float16)
    logits = logits.astype(np.float32)
    y = ops.moe(x, logits, both[:, :HIDDEN], both[:, HIDDEN:], w_down, TOP_K)
    x, logits, both, w_down = wide(x, logits, both, w_down)
    assert close(y, reference(x, logits, both[:, :HIDDEN], both[:, HIDDEN:], w_down, True), 200)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("variant", available("moe_backward"))
def test_moe_backward_is_the_gradient(variant: str, renormalize: bool) -> None:
    given = operands(TOKENS)
    chosen = np.empty((TOKENS, TOP_K), np.int32)
    weights = np.empty((TOKENS, TOP_K), np.float32)
    gate, up = (np.empty((TOKENS, TOP_K, HIDDEN), np.float32) for _ in range(2))
    grad = normal(9, TOKENS, DIM)
    ops.moe(*given, TOP_K, renormalize=renormalize, chosen=chosen, weights=weights, gate=gate,
            up=up)
    found = ops.moe_backward(grad, *given, chosen, weights, gate, up, renormalize=renormalize,
                             variant=variant)
    exact = wide(*given)
    for i, of in enumerate(found):
        def loss(value: Any, i: int = i) -> Any:
            there = [*exact[:i], value, *exact[i + 1:]]
            return (reference(*there, renormalize, chosen) * grad).sum()

        assert np.abs(of - numeric(loss, exact[i])).max() < 1e-3 * max(1, np.abs(of).max())


def test_gradients_of_experts_may_be_added_to() -> None:
    given = operands(TOKENS)
    chosen = np.empty((TOKENS, TOP_K), np.int32)
    weights = np.empty((TOKENS, TOP_K), np.float32)
    gate, up = (np.empty((TOKENS, TOP_K, HIDDEN), np.float32) for _ in range(2))
    y = ops.moe(*given, TOP_K, chosen=chosen, weights=weights, gate=gate, up=up)
    made = ops.moe_backward(y, *given, chosen, weights, gate, up)
    more = [np.ones_like(t) for t in given[2:]]
    found = ops.moe_backward(y, *given, chosen, weights, gate, up, grad_x=False, grad_logits=False,
                             grad_w_gate=more[0], grad_w_up=more[1], grad_w_down=more[2],
                             accumulate=True)
    assert found[0] is None and found[1] is None
    for a, b in zip(more, made[2:]):
        assert np.allclose(a, b + 1, rtol=1e-5, atol=1e-5)


def test_moe_refuses_what_does_not_fit() -> None:
    x, logits, w_gate, w_up, w_down = operands(TOKENS)
    with pytest.raises(ops.OpsError, match="logits are"):
        ops.moe(x, logits[:, :4], w_gate, w_up, w_down, TOP_K)
    with pytest.raises(ops.OpsError, match="w_down is"):
        ops.moe(x, logits, w_gate, w_up, w_gate, TOP_K)
    with pytest.raises(ops.OpsError, match="top_k is 6"):
        ops.moe(x, logits, w_gate, w_up, w_down, EXPERTS + 1)
    with pytest.raises(ops.OpsError, match="different types"):
        ops.moe(x.astype(np.float16), logits, w_gate, w_up, w_down, TOP_K)
