# SPDX-License-Identifier: BSD-3-Clause
"""Mixtures of experts, forward and backward."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _lib
from ..buffers import Array
from ._call import (
    COMPUTES,
    DTYPES,
    Call,
    Compute,
    Matrix,
    alike,
    check,
    floats_of,
    integers_of,
    look_up,
    made_like,
    matrix_of,
    ptr_of,
    refuse_made,
    result_of,
    rows_of,
    same_dtype,
)


class _Layer(NamedTuple):
    """The operands that both directions have."""

    x: Matrix
    logits: Matrix
    experts: dict[str, Matrix]
    lead: tuple[int, ...]
    slots: int
    fields: dict[str, Any]


def experts_of(name: str, obj: Any, shape: tuple[int, ...] | None = None) -> Matrix:
    matrix = matrix_of(name, obj, (3,))
    check(shape in (None, matrix.array.shape), f"{name} is {matrix.array.shape}, not {shape}")
    check(not matrix.transposed, f"{name}: its rows are not contiguous")
    return matrix


def _layer(x: Any, logits: Any, w_gate: Any, w_up: Any, w_down: Any, top_k: int,
           renormalize: bool, compute: Compute) -> _Layer:
    rows, scores = rows_of("x", x), rows_of("logits", logits)
    lead = rows.array.shape[:-1]
    gate = experts_of("w_gate", w_gate)
    experts, hidden, dim = gate.array.shape
    check(rows.columns == dim and scores.array.shape == (*lead, experts),
          f"x is {rows.array.shape}, logits are {scores.array.shape}, w_gate is "
          f"{gate.array.shape}: it takes (…, dim), (…, experts) and (experts, hidden, dim)")
    matrices = {"w_gate": gate, "w_up": experts_of("w_up", w_up, gate.array.shape),
                "w_down": experts_of("w_down", w_down, (experts, dim, hidden))}
    same_dtype(x=rows.array, **{name: m.array for name, m in matrices.items()})
    fields: dict[str, Any] = {
        "tokens": rows.rows, "experts": experts, "top_k": top_k, "dim": dim, "hidden": hidden,
        "x": rows.ptr, "ldx": rows.ld, "logits": scores.ptr, "ld_logits": scores.ld,
        "dtype": DTYPES[rows.array.typestr], "logits_dtype": DTYPES[scores.array.typestr],
        "compute": look_up("compute", COMPUTES, compute),
        "weighting": _lib.MOE_CHOSEN if renormalize else _lib.MOE_ALL,
        **_fields(matrices),
    }
    return _Layer(rows, scores, matrices, lead, rows.rows * top_k, fields)


def _fields(matrices: dict[str, Matrix]) -> dict[str, int]:
    return {key: value for name, m in matrices.items()
            for key, value in ((name, m.ptr), (f"ld_{name}", m.ld), (f"stride_{name}", m.stride))}


def _kept(layer: _Layer, top_k: int, chosen: Any, weights: Any, gate: Any,
          up: Any) -> dict[str, Array | None]:
    """What the forward pass keeps for the backward pass."""
    shape = (*layer.lead, top_k)
    rows: dict[str, Array | None] = {
        "chosen": None if chosen is None else integers_of("chosen", chosen, shape),
        "weights": None if weights is None else floats_of("weights", weights, shape),
    }
    matrices = alike((*shape, layer.fields["hidden"]), gate=gate, up=up)
    for name, matrix in zip(("gate", "up"), matrices):
        check(matrix is None or matrix.array.contiguous, f"{name} is not contiguous")
        rows[name] = matrix.array if matrix else None
        same_dtype(x=layer.x.array, **{name: rows[name]})
    return rows


def moe(x: Any, logits: Any, w_gate: Any, w_up: Any, w_down: Any, top_k: int, *,
        renormalize: bool = True, out: Any = None, chosen: Any = None, weights: Any = None,
        gate: Any = None, up: Any = None, compute: Compute = "f32", variant: str | None = None,
        threads: int = 0, stream: Any = None, deterministic: bool = False) -> Any:
    """A mixture of experts: the weighted sum of ``top_k`` SwiGLU networks for each token.

    ``x`` is (…, dim), ``logits`` (…, experts) of its type or float32, ``w_gate`` and ``w_up``
    (experts, hidden, dim), ``w_down`` (experts, dim, hidden): each expert is ``w_down @
    (silu(w_gate @ x) * (w_up @ x))``. A token goes to the experts of its highest logits, of equal
    ones to the lower index; a NaN is the highest. The weights are the softmax over these logits, or
    without ``renormalize`` over all. The result is like ``x``.

    moe_backward() needs what these arrays get: ``chosen`` int32 and ``weights`` float32, both of
    (…, top_k), ``gate`` and ``up`` like ``x`` of (…, top_k, hidden).
    """
    layer = _layer(x, logits, w_gate, w_up, w_down, top_k, renormalize, compute)
    result = result_of(out, x, layer.x.array.shape, layer.x.array.typestr, stream)
    y = rows_of("out", result)
    check(y.array.shape == layer.x.array.shape,
          f"out is {y.array.shape}: {layer.x.array.shape} is made")
    same_dtype(x=layer.x.array, out=y.array)
    kept = _kept(layer, top_k, chosen, weights, gate, up)
    problem = _lib.Moe(**layer.fields, y=y.ptr, ldy=y.ld,
                       **{name: ptr_of(array) for name, array in kept.items()})
    Call([layer.x.array, layer.logits.array, *(m.array for m in layer.experts.values())],
         [y.array, *kept.values()], variant, threads, stream, deterministic).run(
             "gpunvme_moe_forward", problem)
    return result


def moe_backward(grad_y: Any, x: Any, logits: Any, w_gate: Any, w_up: Any, w_down: Any,
                 chosen: Any, weights: Any, gate: Any, up: Any, *, renormalize: bool = True,
                 grad_x: Any = True, grad_logits: Any = True, grad_w_gate: Any = True,
                 grad_w_up: Any = True, grad_w_down: Any = True, accumulate: bool = False,
                 compute: Compute = "f32", variant: str | None = None, threads: int = 0,
                 stream: Any = None, deterministic: bool = False) -> tuple[Any, ...]:
    """The gradients of moe(): of x, logits, w_gate, w_up and w_down.

    ``chosen``, ``weights``, ``gate`` and ``up`` are what moe() stored. Each of the five is an array
    to write to, True to have one made, or False to leave it out (None is returned then).
    ``accumulate`` adds to those of the experts' matrices, which are given then, and may be float32
    whatever the other types.
    """
    numbers = integers_of("chosen", chosen)
    check(bool(numbers.shape), "chosen has no dimension")
    top_k = numbers.shape[-1]
    layer = _layer(x, logits, w_gate, w_up, w_down, top_k, renormalize, compute)
    (grad,) = alike(layer.x.array.shape, grad_y=grad_y)
    assert grad is not None
    same_dtype(x=layer.x.array, grad_y=grad.array)
    kept = _kept(layer, top_k, chosen, weights, gate, up)
    given = {"grad_w_gate": grad_w_gate, "grad_w_up": grad_w_up, "grad_w_down": grad_w_down}
    refuse_made(accumulate, **given)
    typestr = layer.x.array.typestr
    made_x = made_like(grad_x, x, layer.x.array.shape, typestr, stream)
    made_logits = made_like(grad_logits, logits, layer.logits.array.shape,
                            layer.logits.array.typestr, stream)
    of_experts = {
        name: made_like(value, {"grad_w_gate": w_gate, "grad_w_up": w_up}.get(name, w_down),
                        layer.experts[name[5:]].array.shape, typestr, stream)
        for name, value in given.items()}
    (to_x,) = alike(layer.x.array.shape, grad_x=made_x)
    (to_logits,) = alike(layer.logits.array.shape, grad_logits=made_logits)
    matrices = {name: experts_of(name, obj, layer.experts[name[5:]].array.shape)
                for name, obj in of_experts.items() if obj is not None}
    same_dtype(x=layer.x.array, grad_x=to_x.array if to_x else None)
    same_dtype(logits=layer.logits.array, grad_logits=to_logits.array if to_logits else None)
    same_dtype(**{name: m.array for name, m in matrices.items()})
    grad_dtype = next((m.array for m in matrices.values()), layer.x.array).typestr
    problem = _lib.MoeGrad(
        **layer.fields, **_fields(matrices), grad_y=grad.ptr, ld_grad_y=grad.ld,
        grad_x=ptr_of(to_x), ld_grad_x=to_x.ld if to_x else 0, grad_logits=ptr_of(to_logits),
        ld_grad_logits=to_logits.ld if to_logits else 0, grad_dtype=DTYPES[grad_dtype],
        accumulate=accumulate, **{name: ptr_of(array) for name, array in kept.items()})
    Call([grad.array, layer.x.array, layer.logits.array,
          *(m.array for m in layer.experts.values()), *kept.values()],
         [to_x.array if to_x else None, to_logits.array if to_logits else None,
          *(m.array for m in matrices.values())],
         variant, threads, stream, deterministic).run("gpunvme_moe_backward", problem)
    return (made_x, made_logits, *of_experts.values())
