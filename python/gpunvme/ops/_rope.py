# SPDX-License-Identifier: BSD-3-Clause
"""Rotary position embedding by itself, forward and backward."""

from __future__ import annotations

from typing import Any

from .. import _lib
from ..buffers import Array
from ._attention import Rope
from ._call import DTYPES, Call, array_of, check, integers_of, ptr_of, result_of, same_dtype


def _row_step(name: str, array: Array) -> int:
    """Elements from a token's heads, which are contiguous, to the next one's."""
    shape, strides = array.shape, array.strides
    width = shape[-2] * shape[-1]
    if array.contiguous or not len(shape) == 3:
        check(array.contiguous, f"{name} is not contiguous")
        return width
    check(strides[2] == 1 and strides[1] == shape[2], f"{name}: a row's heads are not contiguous")
    return strides[0]


def rotate(x: Any, rope: Rope, *, positions: Any = None, backward: bool = False, out: Any = None,
           variant: str | None = None, threads: int = 0, stream: Any = None,
           deterministic: bool = False) -> Any:
    """Heads of ``x``, (…, heads, channels), rotated; ``out`` may be ``x`` itself.

    ``positions`` is int32 of (…); None: 0, 1, 2 and so on, through all but the last two dimensions.
    Of x with three dimensions, rows may be apart: Q and K can be rotated where they lie beside V.
    ``backward`` rotates by the negative angle: the gradient of x, if the result's is given as x.
    A position that is negative or not in rope's tables is an OpsArgumentError on the CPU; on a GPU
    the result is NaN.
    """
    operand = array_of("x", x)
    check(len(operand.shape) >= 2, f"x is {operand.shape}: it has no heads of channels")
    *shape, heads, dim = operand.shape
    rows = 1
    for size in shape:
        rows *= size
    places = None if positions is None else integers_of("positions", positions, tuple(shape))
    described, tables = rope._described(False)
    result = result_of(out, x, operand.shape, operand.typestr, stream)
    y = array_of("out", result)
    check(y.shape == operand.shape, f"out is {y.shape}, not {operand.shape}")
    same_dtype(x=operand, out=y)
    Call([operand, places, *tables], [y], variant, threads, stream, deterministic).run(
        "gpunvme_rotate", _lib.Rotate(
            rows=rows, heads=heads, dim=dim, x=operand.ptr, y=y.ptr,
            ldx=_row_step("x", operand), ldy=_row_step("out", y), positions=ptr_of(places),
            rope=described, dtype=DTYPES[operand.typestr], backward=backward))
    return result
