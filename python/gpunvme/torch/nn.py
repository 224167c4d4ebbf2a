# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-subclassing-any, allow-untyped-decorators, disable-error-code="import-not-found"
"""Modules made of ``torch.ops.optimized``; parameters and state_dict are those of torch.nn."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..ops import variants
from ._attention import flash_attention
from ._embedding import embedding
from ._moe import moe
from ._norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm

__all__ = ["Embedding", "LayerNorm", "Linear", "LinearGELU", "MoE", "OptimizedTransformer",
           "RMSNorm"]


class Linear(torch.nn.Linear):
    """``torch.nn.Linear``, computed by ``torch.ops.optimized.linear``."""

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = torch.ops.optimized.linear(input, self.weight, self.bias)
        return y


class LinearGELU(torch.nn.Linear):
    """``torch.nn.Linear`` and ``torch.nn.GELU()`` behind it, as one operator."""

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = torch.ops.optimized.linear_gelu(input, self.weight, self.bias)
        return y


class Embedding(torch.nn.Embedding):
    """``torch.nn.Embedding``, computed by ``gpunvme.torch.embedding``.

    With ``max_norm``, ``scale_grad_by_freq`` or ``sparse`` it is computed by PyTorch.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.max_norm is not None or self.scale_grad_by_freq or self.sparse:
            y: Tensor = super().forward(input)
            return y
        return embedding(input, self.weight, self.padding_idx)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, computed by ``gpunvme.torch.rms_norm``.

    ``forward(x, residual)`` is add_rms_norm(): (the norm of ``x + residual``, the sum).
    """

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        if residual is None:
            return rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return add_rms_norm(x, residual, self.normalized_shape, self.weight, self.eps)


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, on a GPU computed by ``gpunvme.torch.layer_norm``.

    ``forward(input, residual)`` is add_layer_norm(): (the norm of ``input + residual``, the sum).
    On the CPU both are computed by PyTorch's own kernels, which are faster there.
    """

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:
        if not input.is_cuda:
            total = input if residual is None else input + residual
            y = super().forward(total)
            return y if residual is None else (y, total)
        norm = self.normalized_shape, self.weight, self.bias, self.eps
        return (layer_norm(input, *norm) if residual is None
                else add_layer_norm(input, residual, *norm))


class MoE(torch.nn.Module):
    """A mixture of experts with its router, computed by ``gpunvme.torch.moe``.

    Takes and returns (…, d_model). ``router`` is a linear layer without bias; ``w_gate`` and
    ``w_up`` are (n_experts, d_ff, d_model), ``w_down`` is (n_experts, d_model, d_ff), all
    initialized as torch.nn.Linear's weight is. Each token goes to ``top_k`` experts.
    """

    w_gate: torch.nn.Parameter
    w_up: torch.nn.Parameter
    w_down: torch.nn.Parameter

    def __init__(self, d_model: int, d_ff: int, n_experts: int, top_k: int = 2,
                 renormalize: bool = True, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if not 1 <= top_k <= n_experts:
            raise ValueError(f"top_k {top_k} of {n_experts} experts")
        self.top_k, self.renormalize = top_k, renormalize
        self.router = Linear(d_model, n_experts, bias=False, device=device, dtype=dtype)
        for name, rows, columns in (("w_gate", d_ff, d_model), ("w_up", d_ff, d_model),
                                    ("w_down", d_model, d_ff)):
            weight = torch.empty(n_experts, rows, columns, device=device, dtype=dtype)
            setattr(self, name, torch.nn.Parameter(weight))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.router.reset_parameters()
        for weight in (self.w_gate, self.w_up, self.w_down):
            bound = weight.shape[2] ** -0.5
            torch.nn.init.uniform_(weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return moe(x, self.router(x), self.w_gate, self.w_up, self.w_down, self.top_k,
                   self.renormalize)


class OptimizedTransformer(torch.nn.Module):
    """A layer of a transformer, norms first: attention, then two linear layers with GELU.

    Takes and returns (batch, sequence, d_model). ``d_ff`` is 4 d_model unless given;
    ``forward(x, is_causal=True)`` lets each place see only those before it. Its linear layers are
    ours, and so is attention on a GPU: of float16 or bfloat16, with heads of up to 128 channels in
    eights, where the build has kernels for that GPU. Otherwise attention is
    torch.nn.functional.scaled_dot_product_attention. On a GPU the norms are ours as well, and the
    second adds what attention returns.
    """

    def __init__(self, d_model: int = 768, n_heads: int = 12, d_ff: int | None = None,
                 device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model {d_model} is not a multiple of n_heads {n_heads}")
        d_ff = 4 * d_model if d_ff is None else d_ff
        self.n_heads = n_heads
        self.norm1 = LayerNorm(d_model, device=device, dtype=dtype)
        self.qkv = Linear(d_model, 3 * d_model, device=device, dtype=dtype)
        self.out = Linear(d_model, d_model, device=device, dtype=dtype)
        self.norm2 = LayerNorm(d_model, device=device, dtype=dtype)
        self.up = LinearGELU(d_model, d_ff, device=device, dtype=dtype)
        self.down = Linear(d_ff, d_model, device=device, dtype=dtype)

    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        normed, x = self.norm2(self.out(self._attention(self.norm1(x), is_causal)), x)
        y: Tensor = x + self.down(self.up(normed))
        return y

    def _attention(self, x: Tensor, is_causal: bool) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        if _suits_flash_attention(q):
            return flash_attention(q, k, v, causal=is_causal).flatten(2)
        found = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=is_causal)
        return found.transpose(1, 2).flatten(2)


def _suits_flash_attention(q: Tensor) -> bool:
    channels = q.shape[3]
    return (q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and channels <= 128
            and channels % 8 == 0 and _gpu_has_attention())


@torch.compiler.assume_constant_result
def _gpu_has_attention() -> bool:
    """Whether the fast rungs run here, forward and backward."""
    return all(any(v.available and v.name in ("flash2", "hopper") for v in variants(op, "cuda"))
               for op in _ATTENTION)


_ATTENTION: tuple[Literal["attention", "attention_backward"], ...] = ("attention",
                                                                      "attention_backward")
