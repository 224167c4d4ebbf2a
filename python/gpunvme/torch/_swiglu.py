# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any
# mypy: disable-error-code="import-not-found"
"""What SwiGLU has of Python: a function, fake implementations, gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake

from ._registration import differentiate, refuse_second_gradient


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``torch.nn.functional.silu(gate) * up`` in one pass, with gradients.

    Both have one shape, and one type: float32, float16 or bfloat16. They are used as they lie if
    they are rows of contiguous elements at equal distances: so ``gate, up = x.chunk(2, -1)`` costs
    nothing. Returns a contiguous tensor of that shape and type. ValueError: tensors that don't fit
    each other. It has no gradients of gradients.
    """
    y: Tensor = torch.ops.optimized.swiglu(gate, up)
    return y


@register_fake("optimized::swiglu")
def _(gate: Tensor, up: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)


@register_fake("optimized::swiglu_backward")
def _(grad_y: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return swiglu(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = torch.ops.optimized.swiglu_backward(grad, *ctx.saved_tensors)
        return tuple(t if is_needed else None for t, is_needed in zip(found, ctx.needs_input_grad))


differentiate("swiglu", _Swiglu.apply)
refuse_second_gradient("swiglu_backward")
