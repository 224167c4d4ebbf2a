# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any
# mypy: disable-error-code="import-not-found"
"""What an embedding has of Python: a function, fake implementations, gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import register_fake

from ._registration import differentiate, int32_of, refuse_second_gradient


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """``torch.nn.functional.embedding``: the rows of ``weight`` that ``input`` numbers.

    ``input`` is int64 or int32 of any shape, ``weight`` (rows, channels) in float32, float16 or
    bfloat16. Returns (…, channels). The gradient of ``weight`` is dense; its sums are in float32.
    The row ``padding_idx`` (negative: from the end) gets none. ValueError: a number that is no row,
    on the CPU; on a GPU its result is NaN, and the gradient leaves it out. It has no gradients of
    gradients.
    """
    if padding_idx is None:
        padding_idx = -1
    elif not -weight.shape[0] <= padding_idx < weight.shape[0]:
        raise ValueError(f"padding_idx {padding_idx}: weight has {weight.shape[0]} rows")
    elif padding_idx < 0:
        padding_idx += weight.shape[0]
    y: Tensor = torch.ops.optimized.embedding(int32_of("input", input), weight, padding_idx)
    return y


@register_fake("optimized::embedding")
def _(ids: Tensor, weight: Tensor, padding_idx: int = -1) -> Tensor:
    return weight.new_empty((*ids.shape, weight.shape[1]))


@register_fake("optimized::embedding_backward")
def _(grad_y: Tensor, ids: Tensor, rows: int, padding_idx: int) -> Tensor:
    return grad_y.new_empty((rows, grad_y.shape[-1]))


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
        ctx.save_for_backward(ids)  # the table may change before the gradient is computed
        ctx.options = weight.shape[0], padding_idx
        y: Tensor = torch.ops.optimized.embedding(ids, weight, padding_idx)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ids, = ctx.saved_tensors
        return None, torch.ops.optimized.embedding_backward(grad, ids, *ctx.options), None


def _recorded(ids: Tensor, weight: Tensor, padding_idx: int = -1) -> Any:
    return _Embedding.apply(ids, weight, padding_idx)


differentiate("embedding", _recorded)
refuse_second_gradient("embedding_backward")
