# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a table by number, and the table's gradient."""

from __future__ import annotations

from typing import Any

from .. import _lib
from ._call import (
    DTYPES,
    Call,
    check,
    integers_of,
    refuse_made,
    result_of,
    rows_of,
    same_dtype,
)


def embedding(ids: Any, weight: Any, *, out: Any = None, variant: str | None = None,
              threads: int = 0, stream: Any = None, deterministic: bool = False) -> Any:
    """``weight[ids]``: (…, channels) of ``ids``, int32 of (…), and ``weight``, (rows, channels).

    An id that is no row is an OpsArgumentError on the CPU; on a GPU its result is NaN.
    """
    table, numbers = rows_of("weight", weight), integers_of("ids", ids)
    check(len(table.array.shape) == 2, f"weight is {table.array.shape}, not a matrix")
    shape = (*numbers.shape, table.columns)
    result = result_of(out, weight, shape, table.array.typestr, stream)
    y = rows_of("out", result)
    check(y.array.shape == shape, f"out is {y.array.shape}: {shape} is made")
    same_dtype(weight=table.array, out=y.array)
    Call([table.array, numbers], [y.array], variant, threads, stream, deterministic).run(
        "gpunvme_embedding_forward", _lib.Embedding(
            rows=y.rows, vocab=table.rows, dim=table.columns, weight=table.ptr, ids=numbers.ptr,
            y=y.ptr, ld_weight=table.ld, ldy=y.ld, dtype=DTYPES[table.array.typestr]))
    return result


def embedding_backward(grad_y: Any, ids: Any, rows: int | None = None, *, grad_weight: Any = True,
                       accumulate: bool = False, variant: str | None = None, threads: int = 0,
                       stream: Any = None, deterministic: bool = False) -> Any:
    """The gradient of embedding()'s table, which has so many ``rows``.

    ``grad_weight`` is a matrix to write to, of the type of ``grad_y`` or of float32; ``rows`` may
    be left out then. Rows that no id names become zeros, or with ``accumulate``, which adds to
    ``grad_weight``, are not touched.
    """
    refuse_made(accumulate, grad_weight=grad_weight)
    grad = rows_of("grad_y", grad_y)
    numbers = integers_of("ids", ids, grad.array.shape[:-1])
    check(rows is not None or grad_weight is not True, "rows is missing")
    result = result_of(None if grad_weight is True else grad_weight, grad_y,
                       (rows or 0, grad.columns), grad.array.typestr, stream)
    table = rows_of("grad_weight", result)
    check(len(table.array.shape) == 2 and table.columns == grad.columns
          and rows in (None, table.rows), f"grad_weight is {table.array.shape}")
    Call([grad.array, numbers], [table.array], variant, threads, stream, deterministic).run(
        "gpunvme_embedding_backward", _lib.EmbeddingGrad(
            rows=grad.rows, vocab=table.rows, dim=grad.columns, grad_y=grad.ptr, ids=numbers.ptr,
            grad_weight=table.ptr, ld_grad_y=grad.ld, ld_grad_weight=table.ld,
            dtype=DTYPES[grad.array.typestr], grad_dtype=DTYPES[table.array.typestr],
            accumulate=accumulate))
    return result
