# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any
# mypy: disable-error-code="import-not-found"
"""What mixtures of experts have of Python: a function, fake implementations, gradients, autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake

from ._registration import AUTOCAST, differentiate, optimized, refuse_second_gradient


def moe(x: Tensor, logits: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, top_k: int,
        renormalize: bool = True) -> Tensor:
    """A mixture of experts, with gradients: the weighted sum of SwiGLU networks for each token.

    ``x`` is (…, dim), ``logits`` (…, experts) of its type or float32, ``w_gate`` and ``w_up``
    (experts, hidden, dim), ``w_down`` (experts, dim, hidden), in float32, float16 or bfloat16: each
    expert is ``w_down @ (silu(w_gate @ x) * (w_up @ x))``. ``gate_up.chunk(2, 1)`` of one tensor is
    used as it lies. A token goes to the ``top_k`` experts of its highest logits, of equal ones to
    the lower index, and none is dropped. The weights are the softmax over these logits, or without
    ``renormalize`` over all of them. A NaN is the highest, and makes its token NaN.

    Returns a contiguous tensor like ``x``. On a GPU nothing waits for the host, so it may be
    captured in a graph. For the gradients it keeps gate and up, (…, top_k, hidden) each; the logits
    get theirs through the weights. Under autocast x and the experts are cast, logits are float32.
    ValueError: tensors that don't fit each other. It has no gradients of gradients.
    """
    y: Tensor = torch.ops.optimized.moe(x, logits, w_gate, w_up, w_down, top_k, renormalize)
    return y


@register_fake("optimized::moe")
def _(x: Tensor, logits: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, top_k: int,
      renormalize: bool = True) -> Tensor:
    return x.new_empty(x.shape)


@register_fake("optimized::moe_kept")
def _(x: Tensor, logits: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, top_k: int,
      renormalize: bool) -> tuple[Tensor, ...]:
    slots = (*x.shape[:-1], top_k)
    rows = (*slots, w_gate.shape[1])
    return (x.new_empty(x.shape), x.new_empty(slots, dtype=torch.int32),
            x.new_empty(slots, dtype=torch.float32), x.new_empty(rows), x.new_empty(rows))


@register_fake("optimized::moe_backward")
def _(grad_y: Tensor, x: Tensor, logits: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor,
      chosen: Tensor, weights: Tensor, gate: Tensor, up: Tensor, top_k: int, renormalize: bool,
      *needed: bool) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape if is_needed else (0,))
                 for t, is_needed in zip((x, logits, w_gate, w_up, w_down), needed))


class _Moe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor,
                top_k: int, renormalize: bool) -> Tensor:
        operands = x, logits, w_gate, w_up, w_down
        y, *kept = torch.ops.optimized.moe_kept(*operands, top_k, renormalize)
        ctx.save_for_backward(*operands, *kept)
        ctx.options = top_k, renormalize
        result: Tensor = y
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:5]
        found = torch.ops.optimized.moe_backward(grad, *ctx.saved_tensors, *ctx.options, *needed)
        return (*(t if is_needed else None for t, is_needed in zip(found, needed)), None, None)


def _recorded(x: Tensor, logits: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, top_k: int,
              renormalize: bool = True) -> Any:
    return _Moe.apply(x, logits, w_gate, w_up, w_down, top_k, renormalize)


differentiate("moe", _recorded)
refuse_second_gradient("moe_backward")


def _autocast(device: str) -> Callable[..., Any]:
    def call(_: Any, x: Tensor, logits: Tensor, *args: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        experts = [t.to(dtype) for t in args[:3]]
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            return torch.ops.optimized.moe(x.to(dtype), logits.float(), *experts, *args[3:])

    return call


for _device in ("cpu", "cuda"):
    optimized.impl("moe", _autocast(_device), f"Autocast{_device.upper()}", with_keyset=True)
