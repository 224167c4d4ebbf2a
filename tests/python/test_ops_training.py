# SPDX-License-Identifier: BSD-3-Clause
"""Operators that training has beside products and attention, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpunvme import ops

from test_buffers import DLPackOnly
from test_ops import close, normal, wide

EPS = 1e-5


def available(op: Any) -> list[str]:
    return [v.name for v in ops.variants(op) if v.available]


def numeric(f: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The gradient of a number by differences, in float64."""
    found = np.empty_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = 1e-5
        found[i] = (f(x + step) - f(x - step)) / 2e-5
    return found


def normed(kind: str, h: Any, weight: Any, bias: Any) -> Any:
    if kind == "layer":
        h = h - h.mean(-1, keepdims=True)
    return h / np.sqrt((h * h).mean(-1, keepdims=True) + EPS) * weight + bias


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("variant", available("norm_forward"))
def test_norm_is_its_formula(kind: Any, dtype: Any, variant: str) -> None:
    x, weight, bias = normal(1, 2, 3, 40, dtype=dtype), normal(2, 40), normal(3, 40)
    y = ops.norm(x, weight, bias, kind=kind, variant=variant)
    assert y.dtype == dtype and close(y, normed(kind, *wide(x, weight, bias)), 20)


def test_norm_adds_a_residual_and_keeps_the_sum() -> None:
    x, residual = normal(1, 5, 16), normal(2, 5, 16)
    want = x + residual
    y = ops.norm(x, residual=residual, sum=residual, out=np.empty_like(x))
    assert (residual == want).all()
    assert close(y, normed("rms", want.astype(np.float64), 1, 0), 20)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("variant", available("norm_backward"))
def test_norm_backward_is_the_gradient(kind: Any, variant: str) -> None:
    x, weight, bias, grad, other = (normal(1, 2, 3, 8), normal(2, 8), normal(3, 8),
                                    normal(4, 2, 3, 8), normal(5, 2, 3, 8))
    mean, rstd = np.empty((2, 2, 3), np.float32)
    ops.norm(x, weight, bias, kind=kind, eps=EPS, mean=mean if kind == "layer" else None, rstd=rstd)
    found = ops.norm_backward(grad, x, weight, mean=mean if kind == "layer" else None, rstd=rstd,
                              kind=kind, grad_sum=other, variant=variant)
    given = wide(x, weight, bias)
    g, o = wide(grad, other)
    for i, got in enumerate(found):
        def loss(t: Any, i: int = i) -> Any:
            return (g * normed(kind, *given[:i], t, *given[i + 1:])).sum() + (
                (o * t).sum() if i == 0 else 0)
        np.testing.assert_allclose(got, numeric(loss, given[i]), rtol=1e-3, atol=1e-3)


def test_norm_s_gradients_are_added_to_those_given() -> None:
    x, grad = normal(1, 4, 8), normal(2, 4, 8)
    rstd, weight, bias = np.empty(4, np.float32), np.ones(8, np.float32), np.ones(8, np.float32)
    ops.norm(x, rstd=rstd)
    _, want, _ = ops.norm_backward(grad, x, rstd=rstd)
    none, gw, gb = ops.norm_backward(grad, x, rstd=rstd, grad_x=False, grad_weight=weight,
                                     grad_bias=bias, accumulate=True)
    assert none is None and gw is weight and gb is bias
    np.testing.assert_allclose(gw, want + 1, rtol=1e-6)
    with pytest.raises(ValueError, match="accumulate"):
        ops.norm_backward(grad, x, rstd=rstd, accumulate=True)


def test_norm_takes_arrays_of_other_libraries() -> None:
    x = normal(1, 4, 8)
    assert (ops.norm(DLPackOnly(x)) == ops.norm(x)).all()


def test_norm_refuses_what_does_not_fit() -> None:
    x = normal(1, 4, 8)
    for options, message in (
        ({"weight": np.ones(7, np.float32)}, "weight"), ({"residual": normal(1, 4, 7)}, "residual"),
        ({"kind": "batch"}, "kind"), ({"rstd": np.ones(3, np.float32)}, "rstd"),
        ({"rstd": np.ones(4, np.float16)}, "float32"), ({"out": np.ones((4, 8), np.float16)},
                                                        "types"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.norm(x, **options)


def gated(gate: Any, up: Any) -> Any:
    return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("variant", available("swiglu_forward"))
def test_swiglu_is_its_formula_of_columns_of_one_matrix(dtype: Any, variant: str) -> None:
    both = normal(1, 7, 20, dtype=dtype)
    gate, up = both[:, :10], both[:, 10:]
    y = ops.swiglu(gate, up, variant=variant)
    assert y.dtype == dtype and close(y, gated(*wide(gate, up)), 4)


@pytest.mark.parametrize("variant", available("swiglu_backward"))
def test_swiglu_backward_is_the_gradient_and_may_replace_its_operands(variant: str) -> None:
    grad, gate, up = normal(1, 2, 3, 5), normal(2, 2, 3, 5), normal(3, 2, 3, 5)
    g, wide_gate, wide_up = wide(grad, gate, up)
    of_gate, of_up = ops.swiglu_backward(grad, gate, up, grad_gate=gate, grad_up=up,
                                         variant=variant)
    assert of_gate is gate and of_up is up
    np.testing.assert_allclose(gate, numeric(lambda t: (g * gated(t, wide_up)).sum(), wide_gate),
                               rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(up, numeric(lambda t: (g * gated(wide_gate, t)).sum(), wide_up),
                               rtol=1e-3, atol=1e-4)


def test_swiglu_refuses_what_does_not_fit() -> None:
    x = normal(1, 4, 8)
    with pytest.raises(ValueError, match="up"):
        ops.swiglu(x, x[:, :7])
    with pytest.raises(ValueError, match="types"):
        ops.swiglu(x, x.astype(np.float16))


def rotated(x: Any, positions: Any, dim: int, sign: float) -> Any:
    """The first ``dim`` channels, halves as pairs."""
    half = dim // 2
    angle = sign * positions[..., None, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:dim]
    turned = np.concatenate([a * np.cos(angle) - b * np.sin(angle),
                             a * np.sin(angle) + b * np.cos(angle)], -1)
    return np.concatenate([turned, x[..., dim:]], -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("variant", available("rope"))
def test_rotate_is_its_formula_and_backward_undoes_it(dtype: Any, variant: str) -> None:
    x, positions = normal(1, 2, 3, 4, 24, dtype=dtype), np.array([[0, 5, 900], [1, 2, 3]], np.int32)
    rope = ops.Rope(16)
    y = ops.rotate(x, rope, positions=positions, variant=variant)
    assert y.dtype == dtype and close(y, rotated(*wide(x), positions, 16, 1), 8)
    back = ops.rotate(y, rope, positions=positions, backward=True, out=y, variant=variant)
    assert back is y and close(back, wide(x)[0], 8)


def test_rotate_takes_heads_that_lie_beside_others() -> None:
    both = normal(1, 5, 12, 8)
    before, x = both.copy(), both[:, 3:9]
    ops.rotate(x, ops.Rope(8), out=x)
    assert close(x, rotated(before[:, 3:9].astype(np.float64), np.arange(5), 8, 1), 8)
    assert (both[:, :3] == before[:, :3]).all() and (both[:, 9:] == before[:, 9:]).all()
    with pytest.raises(ValueError, match="positions"):
        ops.rotate(x, ops.Rope(8), positions=np.arange(4, dtype=np.int32))
    with pytest.raises(ValueError, match=r"positions\[2\]"):
        ops.rotate(x, ops.Rope(8), positions=np.array([0, 1, -1, 2, 3], np.int32))


def losses(logits: Any, targets: Any) -> Any:
    rows = np.arange(len(targets))
    return np.log(np.exp(logits).sum(-1)) - logits[rows, targets]


@pytest.mark.parametrize("variant", available("cross_entropy"))
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_and_its_gradient_leave_out_ignored_rows(reduction: Any,
                                                               variant: str) -> None:
    logits, targets = normal(1, 5, 9), np.array([3, 0, -100, 8, 2], np.int32)
    counted = targets >= 0
    (wide_logits,) = wide(logits)
    weights = np.float64([1, 2, 3, 4, 5]) if reduction == "none" else np.full(5, 2.0)
    of_loss = np.asarray(weights if reduction == "none" else 2, np.float32)

    def each(t: Any) -> Any:
        return np.where(counted, losses(t, np.where(counted, targets, 0)), 0)

    divisor = 4 if reduction == "mean" else 1
    grad, lse = np.empty_like(logits), np.empty(5, np.float32)
    loss = ops.cross_entropy(logits, targets, reduction=reduction, ignore_index=-100,
                             grad_loss=of_loss, grad=grad, lse=lse, variant=variant)
    want = each(wide_logits) if reduction == "none" else each(wide_logits).sum() / divisor
    assert loss.shape == np.shape(want)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(lse, np.log(np.exp(wide_logits).sum(-1)), rtol=1e-5)
    wanted = numeric(lambda t: (weights * each(t)).sum() / divisor, wide_logits)
    np.testing.assert_allclose(grad, wanted, rtol=1e-3, atol=1e-5)


def test_cross_entropy_s_gradient_may_replace_the_logits() -> None:
    logits, targets = normal(1, 2, 3, 7), np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    grad = np.empty_like(logits)
    want = ops.cross_entropy(logits, targets, grad=grad)
    assert ops.cross_entropy(logits, targets, grad=logits) == want
    assert (logits == grad).all()


def test_cross_entropy_refuses_what_does_not_fit() -> None:
    logits, targets = normal(1, 4, 8), np.zeros(4, np.int32)
    for arguments, options, message in (
        ((logits, np.full(4, 8, np.int32)), {}, "target"), ((logits, targets[:3]), {}, "targets"),
        ((logits, targets.astype(np.int64)), {}, "int32"),
        ((logits, targets), {"reduction": "max"}, "reduction"),
        ((logits, targets), {"grad": normal(1, 4, 7)}, "grad"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.cross_entropy(*arguments, **options)


@pytest.mark.parametrize("variant", available("embedding_forward"))
def test_embedding_has_the_rows_of_the_table(variant: str) -> None:
    weight, ids = normal(1, 10, 12)[:, :7], np.array([[3, 0, 9], [3, 3, 1]], np.int32)
    assert (ops.embedding(ids, weight, variant=variant) == weight[ids]).all()


@pytest.mark.parametrize("variant", available("embedding_backward"))
def test_embedding_backward_sums_rows_by_their_ids(variant: str) -> None:
    grad, ids = normal(1, 2, 3, 7), np.array([[3, 0, 9], [3, 3, 1]], np.int32)
    want = np.zeros((10, 7))
    np.add.at(want, ids, grad)
    np.testing.assert_allclose(ops.embedding_backward(grad, ids, 10, variant=variant), want,
                               rtol=1e-5, atol=1e-6)
    table = np.ones((10, 7), np.float32)
    assert ops.embedding_backward(grad, ids, grad_weight=table, accumulate=True,
                                  variant=variant) is table
    np.testing.assert_allclose(table, want + 1, rtol=1e-5, atol=1e-5)


def test_embedding_refuses_what_does_not_fit() -> None:
    weight, ids = normal(1, 10, 7), np.array([3, 10], np.int32)
    with pytest.raises(ValueError, match="10"):
        ops.embedding(ids, weight)
    with pytest.raises(ValueError, match="int32"):
        ops.embedding(ids.astype(np.int64), weight)
    with pytest.raises(ValueError, match="rows"):
        ops.embedding_backward(normal(1, 2, 7), ids)
    with pytest.raises(ValueError, match="grad_weight"):
        ops.embedding_backward(normal(1, 2, 7), ids, grad_weight=normal(1, 10, 6))


@pytest.mark.parametrize("variant", available("adamw"))
def test_adamw_is_its_formula(variant: str) -> None:
    shapes: list[tuple[int, ...]] = [(3, 5), (70,), ()]
    weights = [normal(i, *shape) for i, shape in enumerate(shapes)]
    moments = [np.zeros((2, *shape), np.float32) for shape in shapes]
    wants = wide(*weights)
    first, second = ([np.zeros(shape) for shape in shapes] for _ in range(2))
    for step in (1, 2, 3):
        grads = [np.asarray(normal(10 * step + i, *shape)) for i, shape in enumerate(shapes)]
        ops.adamw([ops.AdamWTensor(g, w, m[0, ...], m[1, ...])
                   for g, w, m in zip(grads, weights, moments)], step, lr=0.1, weight_decay=0.5,
                  grad_scale=np.asarray(2, np.float32), variant=variant)
        for i, g in enumerate(wide(*grads)):
            first[i] = 0.9 * first[i] + 0.1 * 2 * g
            second[i] = 0.999 * second[i] + 0.001 * 4 * g * g
            wants[i] = wants[i] * (1 - 0.1 * 0.5) - 0.1 * (first[i] / (1 - 0.9**step)) / (
                np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8)
    for got, want in zip(weights, wants):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_adamw_s_weight_is_its_master_rounded() -> None:
    master, grad = normal(1, 50), normal(2, 50, dtype=np.float16)
    weight, moments = np.empty(50, np.float16), np.zeros((2, 50), np.float32)
    before = master.copy()
    ops.adamw([ops.AdamWTensor(grad, weight, *moments, master)], 1)
    assert (weight == master.astype(np.float16)).all() and (master != before).all()


def test_the_norm_of_gradients_is_that_of_all_and_limits_them() -> None:
    grads = [normal(1, 3, 5), normal(2, 1000)]
    want = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
    norm, scale = ops.grad_norm(grads, 1.0)
    np.testing.assert_allclose(norm, want, rtol=1e-5)
    np.testing.assert_allclose(scale, 1 / want, rtol=1e-5)
    assert ops.grad_norm(grads)[1] is None


def test_optimizers_refuse_what_does_not_fit() -> None:
    x, moments = normal(1, 8), np.zeros((2, 8), np.float32)
    with pytest.raises(ValueError, match="empty"):
        ops.adamw([], 1)
    with pytest.raises(ValueError, match="grad"):
        ops.adamw([ops.AdamWTensor(x[:7], x, *moments)], 1)
    with pytest.raises(ValueError, match="step"):
        ops.adamw([ops.AdamWTensor(x, x.copy(), *moments)], 0)
    with pytest.raises(ValueError, match="types"):
        ops.grad_norm([x, x.astype(np.float16)])
