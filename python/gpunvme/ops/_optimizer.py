# SPDX-License-Identifier: BSD-3-Clause
"""Updates of many parameters at once: AdamW, and the norm of all gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _lib
from ..buffers import Array
from ..errors import ops_error
from ._call import DTYPES, Call, array_of, check, floats_of, parameter_dtype, ptr_of, result_of


class AdamWTensor(NamedTuple):
    """One parameter for adamw(): arrays of the same shape, contiguous.

    ``m`` and ``v`` are the moments, float32, zeros before the first step. ``weight`` is float32; or
    of another type, best with ``master``, the same in float32: ``weight`` is that rounded then.
    """

    grad: Any
    weight: Any
    m: Any
    v: Any
    master: Any = None


def _contiguous(name: str, obj: Any) -> Array:
    array = array_of(name, obj)
    check(array.contiguous, f"{name} is not contiguous")
    return array


def _common(arrays: Sequence[Array], name: str) -> int:
    """The type that all of them have."""
    return parameter_dtype(arrays[0], **{f"{name} {i}": array for i, array in enumerate(arrays)})


def _at_least_one(tensors: Sequence[Any]) -> None:
    if not tensors:
        raise ops_error(_lib.OPS_ERR_INVALID, "tensors is empty")


def adamw(tensors: Sequence[AdamWTensor], step: int, *, lr: float = 1e-3,
          betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
          grad_scale: Any = None, stochastic: bool = False, seed: int = 0,
          variant: str | None = None, threads: int = 0, stream: Any = None,
          deterministic: bool = False) -> None:
    """One step of AdamW for all ``tensors``, as torch.optim.AdamW does it; ``step`` counts from 1.

    All gradients have one type, and all weights. Gradients are multiplied by ``grad_scale`` first,
    a float32 of shape () where the tensors are, as grad_norm() makes it. ``stochastic`` rounds
    bfloat16 weights up or down so that they are right on the average, by random numbers that
    ``seed``, the step and the position determine.
    """
    _at_least_one(tensors)
    described = (_lib.AdamwTensor * len(tensors))()
    grads, weights, states = [], [], []
    for into, tensor in zip(described, tensors):
        grad, weight = _contiguous("grad", tensor.grad), _contiguous("weight", tensor.weight)
        check(grad.shape == weight.shape, f"grad is {grad.shape}, not {weight.shape}")
        m, v = floats_of("m", tensor.m, weight.shape), floats_of("v", tensor.v, weight.shape)
        master = None if tensor.master is None else floats_of("master", tensor.master, weight.shape)
        into.count = grad.nbytes // grad.itemsize
        into.grad, into.weight, into.m, into.v = grad.ptr, weight.ptr, m.ptr, v.ptr
        into.master = ptr_of(master)
        grads.append(grad)
        weights.append(weight)
        states += [m, v] if master is None else [m, v, master]
    scale = None if grad_scale is None else floats_of("grad_scale", grad_scale, ())
    problem = _lib.Adamw(
        tensors=ctypes.addressof(described), ntensors=len(tensors), grad_scale=ptr_of(scale),
        step=step, seed=seed, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps,
        weight_decay=weight_decay, dtype=_common(weights, "weight"),
        grad_dtype=_common(grads, "grad"), stochastic=stochastic,
    )
    Call([*grads, scale], [*weights, *states], variant, threads, stream, deterministic).run(
        "gpunvme_adamw", problem)


def grad_norm(grads: Sequence[Any], max_norm: float | None = None, *, variant: str | None = None,
              threads: int = 0, stream: Any = None, deterministic: bool = False) -> tuple[Any, Any]:
    """(norm, scale): the root of the sum of squares of all elements of all ``grads``, and
    ``min(1, max_norm / (norm + 1e-6))`` for adamw() (None without ``max_norm``).

    ``grads`` are contiguous and of one type. Both results are float32 of shape (), where they are.
    """
    _at_least_one(grads)
    arrays = [_contiguous("grad", grad) for grad in grads]
    described = (_lib.GradTensor * len(arrays))()
    for into, array in zip(described, arrays):
        into.count, into.grad = array.nbytes // array.itemsize, array.ptr
    norm = result_of(None, grads[0], (), "<f4", stream)
    scale = None if max_norm is None else result_of(None, grads[0], (), "<f4", stream)
    made = [None if result is None else floats_of("result", result, ()) for result in (norm, scale)]
    Call(arrays, made, variant, threads, stream, deterministic).run(
        "gpunvme_grad_norm", _lib.GradNorm(
            tensors=ctypes.addressof(described), ntensors=len(arrays), norm=ptr_of(made[0]),
            scale=ptr_of(made[1]), max_norm=max_norm or 0.0, dtype=_common(arrays, "grad")))
    return norm, scale
