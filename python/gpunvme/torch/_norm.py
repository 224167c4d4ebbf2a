# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="import-not-found"
"""What norms have of Python: functions, fake implementations, gradients, autocast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd, register_fake

from ._registration import (
    autocast,
    cast_operands,
    differentiate,
    optimized,
    refuse_second_gradient,
)


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
             eps: float | None = None) -> Tensor:
    """``torch.nn.functional.rms_norm``: ``input / sqrt(mean(input**2) + eps) * weight``.

    The mean is over the last dimensions, which have the sizes ``normalized_shape``. ``input`` is
    float32, float16 or bfloat16; ``weight`` has the sizes ``normalized_shape``, in that type or in
    float32. ``eps`` is float32's (1.2e-7) if None. Returns a contiguous tensor like ``input``;
    sums are in float32. ValueError: tensors that don't fit each other. It has no gradients of
    gradients.
    """
    x, parameters = _flat(input, normalized_shape, weight)
    y: Tensor = torch.ops.optimized.rms_norm(x, *parameters, eps)
    return _shaped(y, input)


def layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """``torch.nn.functional.layer_norm``: ``(input - mean) / sqrt(var + eps) * weight + bias``.

    As rms_norm(). ``bias`` has the type of ``weight``. Under autocast it computes in float32 on a
    GPU, as PyTorch's.
    """
    x, parameters = _flat(input, normalized_shape, weight, bias)
    y: Tensor = torch.ops.optimized.layer_norm(x, *parameters, eps)
    return _shaped(y, input)


def add_rms_norm(input: Tensor, residual: Tensor, normalized_shape: Sequence[int],
                 weight: Tensor | None = None,
                 eps: float | None = None) -> tuple[Tensor, Tensor]:
    """``sum = input + residual`` and its rms_norm(), in one pass: ``(norm, sum)``.

    The sum is for the next residual; gradients of both go to ``input`` and ``residual``, which
    have one shape. If their types differ, both are converted as PyTorch's addition does.
    """
    x, other, parameters = _flat_sum(input, residual, normalized_shape, weight)
    y, total = torch.ops.optimized.add_rms_norm(x, other, *parameters, eps)
    return _shaped(y, input), _shaped(total, input)


def add_layer_norm(input: Tensor, residual: Tensor, normalized_shape: Sequence[int],
                   weight: Tensor | None = None, bias: Tensor | None = None,
                   eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """``sum = input + residual`` and its layer_norm(), in one pass: ``(norm, sum)``.

    As add_rms_norm().
    """
    x, other, parameters = _flat_sum(input, residual, normalized_shape, weight, bias)
    y, total = torch.ops.optimized.add_layer_norm(x, other, *parameters, eps)
    return _shaped(y, input), _shaped(total, input)


def _flat(x: Tensor, normalized_shape: Sequence[int],
          *parameters: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
    """With what is normalized as one dimension."""
    sizes = tuple(normalized_shape)
    if not sizes or tuple(x.shape[-len(sizes):]) != sizes or any(
            p is not None and tuple(p.shape) != sizes for p in parameters):
        shapes = [tuple(p.shape) for p in parameters if p is not None]
        raise ValueError(f"normalized_shape {sizes}: input {tuple(x.shape)}, parameters {shapes}")
    if len(sizes) == 1:
        return x, list(parameters)
    return x.flatten(-len(sizes)), [None if p is None else p.flatten() for p in parameters]


def _shaped(y: Tensor, like: Tensor) -> Tensor:
    return y if y.dim() == like.dim() else y.view(like.shape)


def _flat_sum(x: Tensor, residual: Tensor, normalized_shape: Sequence[int],
              *parameters: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    if x.dtype != residual.dtype:
        dtype = torch.promote_types(x.dtype, residual.dtype)
        x, residual = x.to(dtype), residual.to(dtype)
    flat, found = _flat(x, normalized_shape, *parameters)
    return flat, _flat(residual, normalized_shape)[0], found


# ---- Shapes -----------------------------------------------------------------------------------


@register_fake("optimized::rms_norm")
@register_fake("optimized::layer_norm")
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@register_fake("optimized::add_rms_norm")
@register_fake("optimized::add_layer_norm")
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


@register_fake("optimized::norm_statistics")
def _(x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None,
      eps: float | None, layer: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, none = x.shape[:-1], (0,)
    return (x.new_empty(x.shape), x.new_empty(none if residual is None else x.shape),
            x.new_empty(rows if layer else none, dtype=torch.float32),
            x.new_empty(rows, dtype=torch.float32))


@register_fake("optimized::norm_backward")
def _(grad_y: Tensor, grad_sum: Tensor | None, x: Tensor, weight: Tensor | None,
      mean: Tensor | None, rstd: Tensor, bias: Tensor | None, need_x: bool, need_weight: bool,
      need_bias: bool) -> tuple[Tensor, Tensor, Tensor]:
    dx, dw, db = (x.new_empty((0,)) if t is None or not is_needed else t.new_empty(t.shape)
                  for t, is_needed in ((x, need_x), (weight, need_weight), (bias, need_bias)))
    return dx, dw, db


# ---- Gradients --------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, bias, _eps, layer = inputs
    _, total, mean, rstd = output
    ctx.save_for_backward(x if residual is None else total, weight, mean if layer else None, rstd,
                          bias)
    ctx.mark_non_differentiable(mean, rstd, *(() if residual is not None else (total,)))
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_sum: Tensor | None,
               *_: None) -> tuple[Tensor | None, ...]:
    x, residual, weight, bias = ctx.needs_input_grad[:4]
    if grad is None:  # nobody used what was normalized
        return grad_sum, grad_sum if residual else None, *(None,) * 4
    saved = ctx.saved_tensors
    dx, dw, db = torch.ops.optimized.norm_backward(grad, grad_sum, *saved, x or residual, weight,
                                                   bias)
    return (dx if x else None, dx if residual else None, dw if weight else None,
            db if bias else None, None, None)


register_autograd("optimized::norm_statistics", _gradients, setup_context=_save)
refuse_second_gradient("norm_backward")

_statistics = torch.ops.optimized.norm_statistics


def _rms(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    y: Tensor = _statistics(x, None, weight, None, eps, False)[0]
    return y


def _layer(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
           eps: float = 1e-5) -> Tensor:
    y: Tensor = _statistics(x, None, weight, bias, eps, True)[0]
    return y


def _add_rms(x: Tensor, residual: Tensor, weight: Tensor | None = None,
             eps: float | None = None) -> Any:
    return _statistics(x, residual, weight, None, eps, False)[:2]


def _add_layer(x: Tensor, residual: Tensor, weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5) -> Any:
    return _statistics(x, residual, weight, bias, eps, True)[:2]


differentiate("rms_norm", _rms)
differentiate("layer_norm", _layer)
differentiate("add_rms_norm", _add_rms)
differentiate("add_layer_norm", _add_layer)


# ---- Autocast: as PyTorch's, which only has LayerNorm's on GPUs ---------------------------------

autocast("layer_norm", torch.float32, ["cuda"])
_in_float32 = cast_operands("add_layer_norm", "cuda", torch.float32)


def _add_layer_autocast(keyset: Any, x: Tensor, residual: Tensor, *norm: Any) -> Any:
    """The sum keeps its type."""
    if x.dtype == torch.float32:
        return _in_float32(keyset, x, residual, *norm)
    total = x + residual
    return torch.ops.optimized.layer_norm(total, *norm), total


optimized.impl("add_layer_norm", _add_layer_autocast, "AutocastCUDA", with_keyset=True)
