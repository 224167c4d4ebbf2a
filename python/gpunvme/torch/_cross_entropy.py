# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any
# mypy: disable-error-code="import-not-found"
"""What cross entropy has of Python: a function, fake implementations, gradients."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.library import register_fake

from ._registration import differentiate, int32_of, refuse_second_gradient

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def cross_entropy(input: Tensor, target: Tensor, *, ignore_index: int = -100,
                  reduction: Literal["none", "mean", "sum"] = "mean") -> Tensor:
    """``torch.nn.functional.cross_entropy`` of classes, without weights and label smoothing.

    ``input`` is (classes), (rows, classes) or (rows, classes, …), in float32, float16 or bfloat16;
    ``target`` has these sizes without the classes, in int64 or int32. The loss is float32 whatever
    ``input`` is, and sums are in float32: as PyTorch's under autocast, without a copy of the
    logits. The gradient has the type of ``input``. Softmax is computed again for it, so nothing as
    large as the logits is kept. The mean is over the rows whose target is not ``ignore_index``; of
    none it is NaN. ValueError: tensors that don't fit each other; on the CPU, a target that is no
    class: on a GPU its loss and gradient are NaN. It has no gradients of gradients.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction {reduction!r}: there are {', '.join(_REDUCTIONS)}")
    logits = input.movedim(1, -1) if input.dim() > 2 else input
    loss: Tensor = torch.ops.optimized.cross_entropy(
        logits, int32_of("target", target), _REDUCTIONS[reduction], ignore_index)
    return loss


@register_fake("optimized::cross_entropy")
def _(logits: Tensor, targets: Tensor, reduction: int = 1, ignore_index: int = -100) -> Tensor:
    return logits.new_empty(() if reduction else targets.shape, dtype=torch.float32)


@register_fake("optimized::cross_entropy_backward")
def _(grad_loss: Tensor, logits: Tensor, targets: Tensor, reduction: int,
      ignore_index: int) -> Tensor:
    return logits.new_empty(logits.shape)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, *options: int) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.options = options
        loss: Tensor = torch.ops.optimized.cross_entropy(logits, targets, *options)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return torch.ops.optimized.cross_entropy_backward(
            grad, *ctx.saved_tensors, *ctx.options), None, None, None


def _recorded(logits: Tensor, targets: Tensor, reduction: int = 1,
              ignore_index: int = -100) -> Any:
    return _CrossEntropy.apply(logits, targets, reduction, ignore_index)


differentiate("cross_entropy", _recorded)
refuse_second_gradient("cross_entropy_backward")
