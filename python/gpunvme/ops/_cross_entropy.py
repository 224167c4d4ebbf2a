# SPDX-License-Identifier: BSD-3-Clause
"""Softmax cross entropy, and its gradient in the same pass."""

from __future__ import annotations

from typing import Any, Literal

from .. import _lib
from ._call import (
    DTYPES,
    Call,
    alike,
    arrays_of,
    floats_of,
    integers_of,
    look_up,
    ptr_of,
    result_of,
    rows_of,
    same_dtype,
)

_REDUCTIONS = {"mean": _lib.REDUCTION_MEAN, "sum": _lib.REDUCTION_SUM, "none": _lib.REDUCTION_NONE}

Reduction = Literal["mean", "sum", "none"]


def cross_entropy(logits: Any, targets: Any, *, reduction: Reduction = "mean",
                  ignore_index: int | None = None, grad_loss: Any = None, out: Any = None,
                  lse: Any = None, grad: Any = None, variant: str | None = None, threads: int = 0,
                  stream: Any = None, deterministic: bool = False) -> Any:
    """``log(sum(exp(logits))) - logits[target]`` of each row.

    ``logits`` is (…, classes), ``targets`` int32 of (…). The result is float32: of shape (…) for
    ``reduction="none"``, otherwise one number, of shape (). Rows whose target is ``ignore_index``
    have the loss 0, and a mean does not count them; the mean of no rows is NaN. Another target that
    is no class is an OpsArgumentError on the CPU; on a GPU the row's loss and gradient are NaN.

    ``grad`` is an array like ``logits``, or ``logits`` itself, that gets their gradient, computed
    in the same pass. ``grad_loss`` is the gradient of the result, float32 of its shape (None: 1).
    ``lse`` is a float32 array like ``targets`` that gets the logarithms of the sums.
    """
    rows = rows_of("logits", logits)
    lead = rows.array.shape[:-1]
    numbers = integers_of("targets", targets, lead)
    kind = look_up("reduction", _REDUCTIONS, reduction)
    shape = lead if kind == _lib.REDUCTION_NONE else ()
    result = result_of(out, logits, shape, "<f4", stream)
    loss = floats_of("out", result, shape)
    of_loss = None if grad_loss is None else floats_of("grad_loss", grad_loss, shape)
    sums = None if lse is None else floats_of("lse", lse, lead)
    (made,) = alike(rows.array.shape, grad=grad)
    same_dtype(logits=rows.array, **arrays_of(grad=made))
    problem = _lib.CrossEntropy(
        rows=rows.rows, vocab=rows.columns, logits=rows.ptr, targets=numbers.ptr,
        grad_loss=ptr_of(of_loss), loss=loss.ptr, lse=ptr_of(sums), grad=ptr_of(made),
        ld_logits=rows.ld, ld_grad=made.ld if made else 0, reduction=kind,
        dtype=DTYPES[rows.array.typestr], ignore=ignore_index is not None,
        ignore_index=ignore_index or 0,
    )
    Call([rows.array, numbers, of_loss], [loss, sums, made.array if made else None], variant,
         threads, stream, deterministic).run("gpunvme_cross_entropy", problem)
    return result
