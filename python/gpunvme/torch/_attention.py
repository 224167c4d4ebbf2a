# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="import-not-found"
"""What attention has of Python: a function, fake implementations, gradients, autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd, register_fake

from ._registration import autocast, differentiate, int32_of, refuse_second_gradient


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False,
                    scale: float | None = None, window: tuple[int, int] = (-1, -1),
                    softcap: float = 0.0) -> Tensor:
    """``softmax(scale * q @ k.T) @ v`` of each sequence and head, with gradients and autocast.

    ``q`` is (batch, rows, heads, channels); ``k`` and ``v`` have rows of their own, as many heads
    or a divisor of them, and ``v`` may have other channels. float32, float16 or bfloat16, all
    alike. Tensors are used as they lie if their channels are contiguous: so a transposed (batch,
    heads, rows, channels) costs nothing. The last query is aligned to the last key: ``causal``
    hides the keys behind a query, ``window`` those that are more than (left, right) rows away (-1:
    no limit). ``scale`` is 1 / sqrt(channels) if None; with ``softcap`` scores are at most so
    large, by tanh. Returns (batch, rows, heads, channels of v), contiguous. ValueError: operands
    that don't fit each other. It has no gradients of gradients.
    """
    out: Tensor = torch.ops.optimized.flash_attention(q, k, v, causal, scale, *window, softcap)
    return out


def flash_attention_varlen(q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor,
                           q_len: int, k_len: int, *, causal: bool = False,
                           scale: float | None = None, window: tuple[int, int] = (-1, -1),
                           softcap: float = 0.0) -> Tensor:
    """flash_attention() of sequences of different lengths, without padding.

    ``q`` is (rows, heads, channels), with all sequences behind each other: number b has the rows
    ``q_offsets[b]`` to ``q_offsets[b + 1]`` - 1, and so have ``k`` and ``v`` by ``k_offsets``. Both
    are integers, one more than sequences, that do not decrease, on the tensors' device. ``q_len``
    and ``k_len`` are at least the longest sequence's rows of each. Rows that belong to no sequence
    are not read; their results and gradients are 0. All else is as there. Offsets that make no
    sense are a ValueError on the CPU. On a GPU, which is not waited for, they are not checked, and
    what they address beyond the tensors is undefined.
    """
    out: Tensor = torch.ops.optimized.flash_attention_varlen(
        q, k, v, int32_of("q_offsets", q_offsets), int32_of("k_offsets", k_offsets), q_len, k_len,
        causal, scale, *window, softcap)
    return out


def flash_attention_fp8(q: Tensor, k: Tensor, v: Tensor, *, q_descale: Tensor | None = None,
                        k_descale: Tensor | None = None, v_descale: Tensor | None = None,
                        causal: bool = False, scale: float | None = None,
                        window: tuple[int, int] = (-1, -1), softcap: float = 0.0) -> Tensor:
    """flash_attention() of float8_e4m3fn, with a result of bfloat16 and without gradients.

    Elements are multiplied by ``q_descale``, ``k_descale`` and ``v_descale``, which are positive
    float32 of (batch, heads of k); None is 1. All else is as there. On GPUs of sm_90a tensor cores
    compute it for up to 128 channels, if rows of q, k and v begin at multiples of 16 bytes.
    """
    out: Tensor = torch.ops.optimized.flash_attention_fp8(
        q, k, v, q_descale, k_descale, v_descale, causal, scale, *window, softcap)
    return out


@register_fake("optimized::flash_attention_fp8")
def _(q: Tensor, k: Tensor, v: Tensor, *_options: Any) -> Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]), dtype=torch.bfloat16)


@register_fake("optimized::flash_attention")
@register_fake("optimized::flash_attention_varlen")
def _(q: Tensor, k: Tensor, v: Tensor, *_options: Any) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@register_fake("optimized::flash_attention_lse")
@register_fake("optimized::flash_attention_varlen_lse")
def _(q: Tensor, k: Tensor, v: Tensor, *_options: Any) -> tuple[Tensor, Tensor]:
    return (q.new_empty((*q.shape[:-1], v.shape[-1])),
            q.new_empty(q.shape[:-1], dtype=torch.float32))


@register_fake("optimized::flash_attention_backward")
@register_fake("optimized::flash_attention_varlen_backward")
def _(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor,
      *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (q.new_empty(t.shape if is_needed else (0,))
                  for t, is_needed in zip((q, k, v), rest[-3:]))
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = [x for x in inputs if isinstance(x, Tensor)]  # they come first
    ctx.options = inputs[len(tensors):]
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _record(name: str) -> None:
    """Keeps what the gradients need where they will be wanted."""
    with_lse = getattr(torch.ops.optimized, f"{name}_lse")
    backward = getattr(torch.ops.optimized, f"{name}_backward")
    schema = getattr(torch.ops.optimized, name).default._schema
    defaults = [a.default_value for a in schema.arguments]

    def gradients(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:3]
        others = (None,) * (len(ctx.needs_input_grad) - 3)
        if grad is None:
            return None, None, None, *others
        found = backward(grad, *ctx.saved_tensors, *ctx.options, *needed)
        return *(t if is_needed else None for t, is_needed in zip(found, needed)), *others

    def recorded(*args: Any) -> Tensor:
        out: Tensor = with_lse(*args, *defaults[len(args):])[0]
        return out

    register_autograd(f"optimized::{name}_lse", gradients, setup_context=_save)
    refuse_second_gradient(f"{name}_backward")
    differentiate(name, recorded)
    autocast(name)


_record("flash_attention")
_record("flash_attention_varlen")
