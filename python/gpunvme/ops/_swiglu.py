# SPDX-License-Identifier: BSD-3-Clause
"""SwiGLU by itself, forward and backward."""

from __future__ import annotations

from typing import Any

from .. import _lib
from ._call import DTYPES, Call, alike, arrays_of, result_of, rows_of, same_dtype


def swiglu(gate: Any, up: Any, *, out: Any = None, variant: str | None = None, threads: int = 0,
           stream: Any = None, deterministic: bool = False) -> Any:
    """``silu(gate) * up``, element by element.

    Both have the same shape and type. Of matrices, rows must be contiguous: they may be columns of
    one matrix.
    """
    left = rows_of("gate", gate)
    result = result_of(out, gate, left.array.shape, left.array.typestr, stream)
    right, y = alike(left.array.shape, up=up, out=result)
    same_dtype(gate=left.array, **arrays_of(up=right, out=y))
    assert right is not None and y is not None
    Call([left.array, right.array], [y.array], variant, threads, stream, deterministic).run(
        "gpunvme_swiglu_forward", _lib.Swiglu(
            rows=left.rows, cols=left.columns, gate=left.ptr, up=right.ptr, y=y.ptr,
            ld_gate=left.ld, ld_up=right.ld, ldy=y.ld, dtype=DTYPES[left.array.typestr]))
    return result


def swiglu_backward(grad_y: Any, gate: Any, up: Any, *, grad_gate: Any = None, grad_up: Any = None,
                    variant: str | None = None, threads: int = 0, stream: Any = None,
                    deterministic: bool = False) -> tuple[Any, Any]:
    """The gradients of swiglu(): (grad_gate, grad_up), into arrays of yours if given.

    ``grad_gate`` may be ``gate`` itself, and ``grad_up`` ``up``.
    """
    grad = rows_of("grad_y", grad_y)
    shape = grad.array.shape
    results = tuple(result_of(given, grad_y, shape, grad.array.typestr, stream)
                    for given in (grad_gate, grad_up))
    left, right, gg, gu = alike(shape, gate=gate, up=up, grad_gate=results[0], grad_up=results[1])
    same_dtype(grad_y=grad.array, **arrays_of(gate=left, up=right, grad_gate=gg, grad_up=gu))
    assert left is not None and right is not None and gg is not None and gu is not None
    Call([grad.array, left.array, right.array], [gg.array, gu.array], variant, threads, stream,
         deterministic).run("gpunvme_swiglu_backward", _lib.SwigluGrad(
             rows=grad.rows, cols=grad.columns, grad_y=grad.ptr, gate=left.ptr, up=right.ptr,
             grad_gate=gg.ptr, grad_up=gu.ptr, ld_grad_y=grad.ld, ld_gate=left.ld,
             ld_up=right.ld, ld_grad_gate=gg.ld, ld_grad_up=gu.ld,
             dtype=DTYPES[grad.array.typestr]))
    return results[0], results[1]
