# SPDX-License-Identifier: BSD-3-Clause
"""Matrix multiplication and the linear layer."""

from __future__ import annotations

import ctypes
from typing import Any, Literal

from .. import _lib
from ..buffers import Array
from ..errors import ops_error
from ..reports import Metrics
from ._call import (
    COMPUTES,
    DEVICES,
    DTYPE_NAMES,
    DTYPES,
    FP8_DTYPES,
    Call,
    Compute,
    Device,
    Matrix,
    array_of,
    check,
    look_up,
    made_like,
    matrix_of,
    ok,
    ptr_of,
    refuse_made,
    result_of,
    rows_of,
    same_dtype,
    vector_of,
)

_ACTIVATIONS = {
    None: _lib.OPS_ACT_NONE,
    "relu": _lib.OPS_ACT_RELU,
    "gelu": _lib.OPS_ACT_GELU,
    "gelu_tanh": _lib.OPS_ACT_GELU_TANH,
    "silu": _lib.OPS_ACT_SILU,
}

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

_SCALINGS = {
    "tensor": _lib.MATMUL_SCALE_TENSOR,
    "row": _lib.MATMUL_SCALE_ROW,
    "block": _lib.MATMUL_SCALE_BLOCK,
}
_BLOCK = 128  # elements of k, and rows or columns, that share a scale by block

Scaling = Literal["tensor", "row", "block"]


def _problem(a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float,
             compute: str, scales: dict[str, Any]) -> _lib.Matmul:
    return _lib.Matmul(
        m=c.rows, n=c.columns, k=a.columns, batch=max(c.batch, 1),
        a=a.ptr, b=b.ptr, c=c.ptr, lda=a.ld, ldb=b.ld, ldc=c.ld,
        stride_a=a.stride, stride_b=b.stride, stride_c=c.stride,
        alpha=alpha, beta=beta,
        transpose_a=a.transposed, transpose_b=b.transposed, transpose_c=c.transposed,
        dtype=(DTYPES | FP8_DTYPES)[a.array.typestr],
        dtype_b=(DTYPES | FP8_DTYPES)[b.array.typestr], out_dtype=DTYPES[c.array.typestr],
        compute=look_up("compute", COMPUTES, compute), **scales,
    )


def _scales_of(name: str, obj: Any, scaling: str, operand: Matrix, lines: int, k: int,
               block: int) -> Array | None:
    """Contiguous float32: as many as an operand with so many rows of A or columns of B wants."""
    if obj is None:
        return None
    array = array_of(name, obj)
    if array.typestr != "<f4":
        raise ops_error(_lib.OPS_ERR_DTYPE, f"{name} has elements of {array.typestr}, not float32")
    count, batch = array.nbytes // 4, max(operand.batch, 1)
    want = 1 if scaling == "tensor" else batch * lines if scaling == "row" else \
        batch * -(-lines // block) * -(-k // _BLOCK)
    check(count == want and array.contiguous,
          f"{name} is {array.shape}: by {scaling} there are {want} contiguous scales")
    return array


def matmul(a: Any, b: Any, *, out: Any = None, alpha: float = 1.0, beta: float = 0.0,
           compute: Compute = "f32", scale_a: Any = None, scale_b: Any = None,
           scaling: Scaling = "tensor", fast_sums: bool = False, variant: str | None = None,
           threads: int = 0, stream: Any = None, deterministic: bool = False) -> Any:
    """``alpha * a @ b + beta * out``: of two matrices, or of a batch of them (three dimensions).

    ``out`` has the type of the operands, or float32; with ``beta`` it must be given. One matrix
    may be multiplied with each of a batch. ``compute="tf32"`` multiplies float32 with 10 bits of
    mantissa where the GPU is faster by it.

    Operands may be float8_e4m3fn or float8_e5m2 (of torch, or arrays whose dtype has that name),
    one of them each if need be. The result is then float32, or has the type of ``out``: float32,
    float16 or bfloat16. Elements of ``a`` and ``b`` are multiplied by ``scale_a`` and ``scale_b``:
    float32, where the operands are, one for a tensor (``scaling="tensor"``), one for
    each row of a and column of b (``"row"``), or (m, ceil(k / 128)) of a and (ceil(n / 128),
    ceil(k / 128)) of b (``"block"``). A GPU is fast if a is row-major and b the transpose of such.
    ``fast_sums`` leaves sums in its tensor cores, which keep some 14 bits.
    """
    left, right = matrix_of("a", a, (2, 3), fp8=True), matrix_of("b", b, (2, 3), fp8=True)
    fp8 = left.array.typestr in FP8_DTYPES
    check(left.columns == right.rows,
           f"a has {left.columns} columns and b has {right.rows} rows")
    if not (fp8 and right.array.typestr in FP8_DTYPES):
        same_dtype(a=left.array, b=right.array)
    batch = max(left.batch, right.batch)
    check({left.batch, right.batch} <= {0, 1, batch},
           f"a is a batch of {left.batch} and b one of {right.batch}")
    scales = [
        _scales_of("scale_a", scale_a, scaling, left, left.rows, left.columns, 1),
        _scales_of("scale_b", scale_b, scaling, right, right.columns, left.columns, _BLOCK),
    ]
    left, right = _spread(left, batch), _spread(right, batch)
    if out is None and beta:
        raise ops_error(_lib.OPS_ERR_INVALID, "beta adds to out: give it")
    shape = (left.rows, right.columns)
    shape_out = (batch, *shape) if batch else shape
    result = result_of(out, a, shape_out, "<f4" if fp8 else left.array.typestr, stream)
    made = matrix_of("out", result, (2, 3))
    check(made.array.shape == shape_out, f"out is {made.array.shape}: {shape_out} is made")
    fields = {"scale_a": ptr_of(scales[0]), "scale_b": ptr_of(scales[1]), "fast_sums": fast_sums,
              "scaling": look_up("scaling", _SCALINGS, scaling)}
    call = Call((left.array, right.array, *scales), (made.array,), variant, threads, stream,
                deterministic)
    call.run("gpunvme_matmul", _problem(left, right, made, alpha, beta, compute, fields))
    return result


def _spread(matrix: Matrix, batch: int) -> Matrix:
    """One matrix for all of a batch."""
    return matrix._replace(stride=0) if matrix.batch < 2 and batch > 1 else matrix


def linear(x: Any, weight: Any, bias: Any = None, *, activation: Activation | None = None,
           out: Any = None, preact: Any = None, compute: Compute = "f32",
           variant: str | None = None, threads: int = 0, stream: Any = None,
           deterministic: bool = False) -> Any:
    """``act(x @ weight.T + bias)``.

    ``x`` is (…, in), ``weight`` (out, in), ``bias`` (out), and the result (…, out).
    ``preact`` is an array like the result that gets what the activation is applied to, as
    linear_backward() wants it.
    """
    rows, matrix = rows_of("x", x), rows_of("weight", weight)
    check(len(matrix.array.shape) == 2 and rows.columns == matrix.columns,
           f"x has rows of {rows.columns}, weight is {matrix.array.shape}")
    added = None if bias is None else vector_of("bias", bias, matrix.rows)
    shape = (*rows.array.shape[:-1], matrix.rows)
    result = result_of(out, x, shape, rows.array.typestr, stream)
    y = rows_of("out", result)
    check(y.array.shape == shape, f"out is {y.array.shape}: {shape} is made")
    z = None if preact is None else rows_of("preact", preact)
    check(z is None or z.array.shape == shape, f"preact is not {shape}")
    same_dtype(x=rows.array, weight=matrix.array, bias=added, out=y.array,
                preact=z.array if z else None)
    problem = _lib.Linear(
        rows=rows.rows, out=matrix.rows, x=rows.ptr, weight=matrix.ptr,
        bias=added.ptr if added else None, y=y.ptr, preact=z.ptr if z else None,
        ldx=rows.ld, ldw=matrix.ld, ldy=y.ld, ld_preact=z.ld if z else 0,
        activation=look_up("activation", _ACTIVATIONS, activation),
        dtype=DTYPES[rows.array.typestr], compute=look_up("compute", COMPUTES, compute),
        **{"in": rows.columns},
    )
    operands = [rows.array, matrix.array, *([added] if added else [])]
    written = [y.array, *([z.array] if z else [])]
    call = Call(operands, written, variant, threads, stream, deterministic)
    call.run("gpunvme_linear_forward", problem)
    return result


def linear_backward(
    grad_y: Any, x: Any = None, weight: Any = None, preact: Any = None, *,
    activation: Activation | None = None, grad_x: Any = True, grad_weight: Any = True,
    grad_bias: Any = True, accumulate: bool = False, compute: Compute = "f32",
    variant: str | None = None, threads: int = 0, stream: Any = None, deterministic: bool = False,
) -> tuple[Any, Any, Any]:
    """The gradients of linear(): (grad_x, grad_weight, grad_bias).

    Each of the three is an array to write to, True to have one made, or False to leave it out (None
    is returned then). ``weight`` is needed for grad_x, ``x`` for grad_weight, ``preact`` unless
    there is no activation. ``accumulate`` adds to grad_weight and grad_bias, which are given then,
    and may be float32 whatever the other types.
    """
    grad = rows_of("grad_y", grad_y)
    inputs = None if x is None else rows_of("x", x)
    matrix = None if weight is None else rows_of("weight", weight)
    z = None if preact is None else rows_of("preact", preact)
    check(grad_x is False or matrix is not None, "grad_x needs weight")
    check(grad_weight is False or inputs is not None, "grad_weight needs x")
    check(activation is None or z is not None, f"{activation} backwards needs preact")
    refuse_made(accumulate, grad_weight=grad_weight, grad_bias=grad_bias)
    width = inputs.columns if inputs else matrix.columns if matrix else 0
    lead = grad.array.shape[:-1]
    for name, found, shape in (
        ("x", inputs, (*lead, width)),
        ("weight", matrix, (grad.columns, width)),
        ("preact", z, grad.array.shape),
    ):
        check(found is None or found.array.shape == shape, f"{name} is not {shape}")
    typestr = grad.array.typestr
    same_dtype(grad_y=grad.array, x=inputs.array if inputs else None,
                weight=matrix.array if matrix else None, preact=z.array if z else None)

    results = tuple(made_like(given, grad_y, shape, typestr, stream) for given, shape in
                    ((grad_x, (*lead, width)), (grad_weight, (grad.columns, width)),
                     (grad_bias, (grad.columns,))))
    gx = None if results[0] is None else rows_of("grad_x", results[0])
    gw = None if results[1] is None else rows_of("grad_weight", results[1])
    gb = None if results[2] is None else vector_of("grad_bias", results[2], grad.columns)
    check(gx is None or gx.array.shape == (*lead, width), f"grad_x is not {(*lead, width)}")
    check(gw is None or gw.array.shape == (grad.columns, width),
           f"grad_weight is not {(grad.columns, width)}")
    same_dtype(grad_y=grad.array, grad_x=gx.array if gx else None)
    same_dtype(grad_weight=gw.array if gw else None, grad_bias=gb)
    parameter = gw.array if gw else gb
    problem = _lib.LinearGrad(
        rows=grad.rows, out=grad.columns, x=inputs.ptr if inputs else None,
        weight=matrix.ptr if matrix else None, grad_y=grad.ptr, preact=z.ptr if z else None,
        grad_x=gx.ptr if gx else None, grad_weight=gw.ptr if gw else None,
        grad_bias=gb.ptr if gb else None,
        ldx=inputs.ld if inputs else 0, ldw=matrix.ld if matrix else 0, ld_grad_y=grad.ld,
        ld_preact=z.ld if z else 0, ld_grad_x=gx.ld if gx else 0,
        ld_grad_weight=gw.ld if gw else 0,
        activation=look_up("activation", _ACTIVATIONS, activation),
        dtype=DTYPES[typestr], grad_dtype=DTYPES[parameter.typestr if parameter else typestr],
        compute=look_up("compute", COMPUTES, compute), accumulate=accumulate,
        **{"in": width},
    )
    operands = [m.array for m in (grad, inputs, matrix, z) if m is not None]
    written = [m.array for m in (gx, gw) if m is not None] + ([gb] if gb else [])
    call = Call(operands, written, variant, threads, stream, deterministic)
    call.run("gpunvme_linear_backward", problem)
    return results


def _shape(m: int, n: int, k: int, batch: int, dtype: str, compute: str, device: str,
           variant: str | None) -> tuple[_lib.Matmul, _lib.OpsExec]:
    number = look_up("dtype", DTYPE_NAMES, dtype)
    problem = _lib.Matmul(m=m, n=n, k=k, batch=batch, lda=k, ldb=n, ldc=n, stride_a=m * k,
                          stride_b=k * n, stride_c=m * n, alpha=1, dtype=number, out_dtype=number,
                          compute=look_up("compute", COMPUTES, compute))
    return problem, _lib.OpsExec(device=look_up("device", DEVICES, device),
                                 variant=None if variant is None else variant.encode())


def matmul_metrics(m: int, n: int, k: int, batch: int = 1, *, dtype: str = "f32",
                   compute: Compute = "f32", device: Device = "cpu",
                   variant: str | None = None) -> Metrics:
    """What a variant does to memory for an (m, k) by (k, n) product. Nothing is computed."""
    problem, exec_ = _shape(m, n, k, batch, dtype, compute, device, variant)
    found = _lib.MatmulMetrics()
    ok(_lib.ops().gpunvme_matmul_analyze(ctypes.byref(problem), ctypes.byref(exec_),
                                         ctypes.byref(found)))
    return Metrics(*(getattr(found, name) for name, *_ in found._fields_))


def matmul_variant(m: int, n: int, k: int, batch: int = 1, *, dtype: str = "f32",
                   compute: Compute = "f32", device: Device = "cpu") -> str:
    """The variant that matmul() takes for an (m, k) by (k, n) product."""
    problem, exec_ = _shape(m, n, k, batch, dtype, compute, device, None)
    name = ctypes.c_char_p()
    ok(_lib.ops().gpunvme_matmul_choose(ctypes.byref(problem), ctypes.byref(exec_),
                                        ctypes.byref(name)))
    return (name.value or b"").decode()
