# SPDX-License-Identifier: BSD-3-Clause
"""Normalization of rows, forward and backward."""

from __future__ import annotations

from typing import Any, Literal

from .. import _lib
from ..buffers import Array
from ._call import (
    DTYPES,
    Call,
    alike,
    arrays_of,
    check,
    floats_of,
    look_up,
    made_like,
    parameter_dtype,
    ptr_of,
    refuse_made,
    result_of,
    rows_of,
    same_dtype,
    vector_of,
)

_KINDS = {"rms": _lib.NORM_RMS, "layer": _lib.NORM_LAYER}

NormKind = Literal["rms", "layer"]


def norm(x: Any, weight: Any = None, bias: Any = None, *, kind: NormKind = "rms", eps: float = 1e-5,
         residual: Any = None, out: Any = None, sum: Any = None, mean: Any = None,
         rstd: Any = None, variant: str | None = None, threads: int = 0, stream: Any = None,
         deterministic: bool = False) -> Any:
    """RMSNorm or LayerNorm of the rows of ``x + residual``.

    ``kind="rms"`` is ``h / sqrt(mean(h**2) + eps) * weight + bias``, ``kind="layer"``
    ``(h - mean(h)) / sqrt(var(h) + eps) * weight + bias``, over the last dimension. ``weight`` and
    ``bias`` have that size, in the type of ``x`` or in float32. Arrays that you give get more
    results: ``sum`` is ``h``, rounded to the type of ``x`` (it may be ``residual`` or ``x``
    itself); ``mean`` (LayerNorm only) and ``rstd``, float32 of a number a row, are for
    norm_backward().
    """
    rows = rows_of("x", x)
    shape = rows.array.shape
    result = result_of(out, x, shape, rows.array.typestr, stream)
    added, y, total = alike(shape, residual=residual, out=result, sum=sum)
    same_dtype(x=rows.array, **arrays_of(residual=added, out=y, sum=total))
    parameters = [None if given is None else vector_of(name, given, rows.columns)
                  for name, given in (("weight", weight), ("bias", bias))]
    statistics = [None if given is None else floats_of(name, given, shape[:-1])
                  for name, given in (("mean", mean), ("rstd", rstd))]
    assert y is not None
    problem = _lib.Norm(
        rows=rows.rows, cols=rows.columns, x=rows.ptr, residual=ptr_of(added),
        weight=ptr_of(parameters[0]), bias=ptr_of(parameters[1]), y=y.ptr, sum=ptr_of(total),
        mean=ptr_of(statistics[0]), rstd=ptr_of(statistics[1]), ldx=rows.ld,
        ld_residual=added.ld if added else 0, ldy=y.ld, ld_sum=total.ld if total else 0, eps=eps,
        kind=look_up("kind", _KINDS, kind), dtype=DTYPES[rows.array.typestr],
        weight_dtype=parameter_dtype(rows.array, weight=parameters[0], bias=parameters[1]),
    )
    operands: list[Array | None] = [rows.array, added.array if added else None, *parameters]
    written = [y.array, total.array if total else None, *statistics]
    Call(operands, written, variant, threads, stream, deterministic).run(
        "gpunvme_norm_forward", problem)
    return result


def norm_backward(
    grad_y: Any, x: Any, weight: Any = None, *, rstd: Any, mean: Any = None,
    kind: NormKind = "rms", grad_sum: Any = None, grad_x: Any = True, grad_weight: Any = True,
    grad_bias: Any = True, accumulate: bool = False, variant: str | None = None, threads: int = 0,
    stream: Any = None, deterministic: bool = False,
) -> tuple[Any, Any, Any]:
    """The gradients of norm(): (grad_x, grad_weight, grad_bias).

    ``x`` is what was normalized: norm()'s ``x``, or its ``sum`` if there was a residual, and then
    grad_x is the gradient of both. ``mean`` (LayerNorm only) and ``rstd`` are norm()'s.
    ``grad_sum`` is the gradient that reached ``sum`` by another way; grad_x has it added. Each of
    the three results is an array to write to, True to have one made, or False to leave it out
    (None is returned then). ``accumulate`` adds to grad_weight and grad_bias, which are given then,
    and may be float32 whatever the other types.
    """
    refuse_made(accumulate, grad_weight=grad_weight, grad_bias=grad_bias)
    grad = rows_of("grad_y", grad_y)
    shape, width = grad.array.shape, grad.columns
    results = (made_like(grad_x, grad_y, shape, grad.array.typestr, stream),
               *(made_like(given, grad_y, (width,), grad.array.typestr, stream)
                 for given in (grad_weight, grad_bias)))
    inputs, other, gx = alike(shape, x=x, grad_sum=grad_sum, grad_x=results[0])
    check(inputs is not None, "x is missing")
    assert inputs is not None
    same_dtype(grad_y=grad.array, **arrays_of(x=inputs, grad_sum=other, grad_x=gx))
    scale = None if weight is None else vector_of("weight", weight, width)
    gw, gb = (None if made is None else vector_of(name, made, width)
              for name, made in (("grad_weight", results[1]), ("grad_bias", results[2])))
    same_dtype(grad_weight=gw, grad_bias=gb)
    statistics = [None if given is None else floats_of(name, given, shape[:-1])
                  for name, given in (("mean", mean), ("rstd", rstd))]
    problem = _lib.NormGrad(
        rows=grad.rows, cols=width, grad_y=grad.ptr, x=inputs.ptr, weight=ptr_of(scale),
        mean=ptr_of(statistics[0]), rstd=ptr_of(statistics[1]), grad_sum=ptr_of(other),
        grad_x=ptr_of(gx), grad_weight=ptr_of(gw), grad_bias=ptr_of(gb), ld_grad_y=grad.ld,
        ldx=inputs.ld, ld_grad_sum=other.ld if other else 0, ld_grad_x=gx.ld if gx else 0,
        kind=look_up("kind", _KINDS, kind), dtype=DTYPES[grad.array.typestr],
        weight_dtype=parameter_dtype(grad.array, weight=scale),
        grad_dtype=parameter_dtype(grad.array, grad_weight=gw, grad_bias=gb),
        accumulate=accumulate,
    )
    operands = [grad.array, inputs.array, other.array if other else None, scale, *statistics]
    Call(operands, [gx.array if gx else None, gw, gb], variant, threads, stream,
         deterministic).run("gpunvme_norm_backward", problem)
    return results
