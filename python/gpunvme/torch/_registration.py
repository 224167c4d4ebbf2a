# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any
# mypy: disable-error-code="import-not-found"
"""What the operators have of Python: fake implementations, gradients, autocast, effects.

The library registers schemas and kernels (csrc/torch). This must be imported once, after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library.effects import EffectType
from torch.autograd import forward_ad
from torch.library import Library, register_autograd, register_fake

from ..buffers import not_plain

optimized = Library("optimized", "FRAGMENT")
_nvme_ops = Library("nvme_ops", "FRAGMENT")


def int32_of(name: str, t: Tensor) -> Tensor:
    """Numbers of classes or rows as the operators take them: int64 as int32.

    Those beyond 32 bits become the outermost, which are refused as well.
    """
    if t.dtype == torch.int32:
        return t
    if t.dtype != torch.int64:
        raise ValueError(f"{name} is {t.dtype}: int64 and int32 are taken")
    limits = torch.iinfo(torch.int32)
    return t.clamp(limits.min, limits.max).to(torch.int32)


# ---- nvme_ops ---------------------------------------------------------------------------------


def _read_tensor(uri: str, offset: int, shape: Sequence[int], dtype: torch.dtype,
                 device: torch.device) -> Tensor:
    t = torch.empty(shape, dtype=dtype, device=device)
    torch.ops.nvme_ops.read_into_tensor(t, uri, offset)
    return t


_nvme_ops.impl("read_tensor", _read_tensor, "CompositeExplicitAutograd")


@register_fake("nvme_ops::read_tensor")
def _(uri: str, offset: int, shape: Sequence[int], dtype: torch.dtype,
      device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


@register_fake("nvme_ops::read_into_tensor")
@register_fake("nvme_ops::write_tensor")
def _(t: Tensor, uri: str, offset: int) -> None:
    return None


def _read_into_tensor(keyset: Any, t: Tensor, uri: str, offset: int) -> None:
    """Tells autograd that the tensor has changed, as it knows of PyTorch's own operators."""
    if torch.is_grad_enabled() and t.requires_grad:
        raise ValueError("nvme_ops: reading into a tensor that requires gradients would make them "
                         "wrong: use torch.no_grad(), or the tensor's detach()")
    torch.ops.nvme_ops.read_into_tensor.default.redispatch(
        keyset & torch._C._after_ADInplaceOrView_keyset, t, uri, offset)
    torch.autograd.graph.increment_version(t)


_nvme_ops.impl("read_into_tensor", _read_into_tensor, "ADInplaceOrView", with_keyset=True)


def _refuse(_: Any, t: Tensor, uri: str, offset: int) -> None:
    raise ValueError(f"nvme_ops: {not_plain(t) or 'a tensor without plain bytes'}")


for _name in ("read_into_tensor", "write_tensor"):
    for _key in ("AutogradNestedTensor", "MkldnnCPU", "QuantizedCPU", "QuantizedCUDA", "SparseCPU",
                 "SparseCUDA", "SparseCsrCPU", "SparseCsrCUDA"):
        _nvme_ops.impl(_name, _refuse, _key, with_keyset=True)

# A compiler may neither leave out a write nor exchange it with a read.
for _name in ("read_tensor", "write_tensor"):
    torch.library._register_effectful_op(f"nvme_ops::{_name}", EffectType.ORDERED)

# ---- Shapes -----------------------------------------------------------------------------------


@register_fake("optimized::matmul")
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


@register_fake("optimized::linear")
def _(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@register_fake("optimized::linear_gelu")
def _(x: Tensor, weight: Tensor, bias: Tensor | None = None, tanh: bool = False) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@register_fake("optimized::linear_gelu_preact")
def _(x: Tensor, weight: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:-1], weight.shape[0])
    return x.new_empty(shape), x.new_empty(shape)


@register_fake("optimized::linear_backward")
def _(grad_y: Tensor, x: Tensor, weight: Tensor, preact: Tensor | None, tanh: bool, need_x: bool,
      need_weight: bool, need_bias: bool) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if need_x else (0,)),
        x.new_empty(weight.shape if need_weight else (0,)),
        x.new_empty((weight.shape[0] if need_bias else 0,)),
    )


# ---- Gradients --------------------------------------------------------------------------------


def _has_tangent(arg: Any) -> bool:
    return isinstance(arg, Tensor) and forward_ad.unpack_dual(arg).tangent is not None


def differentiate(name: str, recorded: Callable[..., Any]) -> None:
    """Calls ``recorded`` where a gradient will be needed, else the kernel.

    torch.library.register_autograd() does the same, for 3 µs more a call. Derivatives of forward
    mode are an error: without it they would be zero.
    """
    op = getattr(torch.ops.optimized, name).default

    def call(keyset: Any, *args: Any) -> Any:
        if forward_ad._current_level >= 0 and any(map(_has_tangent, args)):
            raise NotImplementedError(f"optimized::{name} has no derivatives of forward mode")
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return recorded(*args)
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    optimized.impl(name, call, "Autograd", with_keyset=True)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        c: Tensor = torch.ops.optimized.matmul(a, b)
        return c

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        matmul = torch.ops.optimized.matmul
        grad_a = matmul(grad, b.mT) if ctx.needs_input_grad[0] else None
        grad_b = None
        if ctx.needs_input_grad[1]:
            if b.dim() == 2 and a.dim() > 2:
                a, grad = a.flatten(0, -2), grad.flatten(0, -2)
            grad_b = matmul(a.mT, grad)
        return grad_a, grad_b


differentiate("matmul", _Matmul.apply)


def _gradients(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, preact: Tensor | None,
               tanh: bool) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[:3]
    found = torch.ops.optimized.linear_backward(grad, x, weight, preact, tanh, *needed)
    return tuple(tensor if is_needed else None for tensor, is_needed in zip(found, needed))


def refuse_second_gradient(name: str) -> None:
    """Gradients of gradients are an error. PyTorch would warn, and go on with zeroes."""
    def refuse(ctx: Any, *_: Tensor | None) -> None:
        raise NotImplementedError(f"optimized::{name} has no gradients: there are no gradients of "
                                  "gradients")

    register_autograd(f"optimized::{name}", refuse)


refuse_second_gradient("linear_backward")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y: Tensor = torch.ops.optimized.linear(x, weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return _gradients(ctx, grad, x, weight, None, False)


differentiate("linear", lambda x, weight, bias=None: _Linear.apply(x, weight, bias))


def _save_gelu(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _bias, ctx.tanh = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gelu_backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    x, weight, preact = ctx.saved_tensors
    return (*_gradients(ctx, grad, x, weight, preact, ctx.tanh), None)


register_autograd("optimized::linear_gelu_preact", _gelu_backward, setup_context=_save_gelu)


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None = None,
                 tanh: bool = False) -> Tensor:
    """Keeps what the activation is applied to, as its gradient needs it."""
    y: Tensor = torch.ops.optimized.linear_gelu_preact(x, weight, bias, tanh)[0]
    return y


differentiate("linear_gelu", _linear_gelu)

# ---- Autocast: operands in the type of the region, as of PyTorch's own matrix products ----------

AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA)


def cast_operands(name: str, device: str, fixed: torch.dtype | None) -> Callable[..., Any]:
    """A kernel for autocast on a device."""
    op = getattr(torch.ops.optimized, name).default

    def call(_: Any, *args: Any) -> Any:
        dtype = fixed or torch.get_autocast_dtype(device)
        cast = [
            arg.to(dtype)
            if isinstance(arg, Tensor) and arg.is_floating_point() and arg.device.type == device
            else arg
            for arg in args
        ]
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            return op(*cast)

    return call


def autocast(name: str, dtype: torch.dtype | None = None,
             devices: Sequence[str] = ("cpu", "cuda")) -> None:
    """Computes in ``dtype`` where autocast is on (None: in autocast's own)."""
    for device in devices:
        optimized.impl(name, cast_operands(name, device, dtype), f"Autocast{device.upper()}",
                       with_keyset=True)


for _name in ("matmul", "linear", "linear_gelu"):
    autocast(_name)
