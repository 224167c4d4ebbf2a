# SPDX-License-Identifier: BSD-3-Clause
"""Operators: matrix multiplication, the linear layer and attention, on the CPU and on CUDA GPUs.

    from gpunvme import ops

    c = ops.matmul(a, b)                         # numpy arrays: a new one
    ops.matmul(a, b, out=c, variant="openmp")    # into one of yours, by a rung of the ladder
    y = ops.linear(x, weight, bias, activation="gelu")
    y = ops.attention(q, k, v, causal=True)      # on the CPU so far

Arrays are numpy's, or anything with ``__cuda_array_interface__`` or ``__dlpack__`` (torch, CuPy,
JAX), of float32, float16 or bfloat16; all of a call on one device. Rows or columns must be
contiguous: a transposed view costs nothing. What is made is a numpy array on the CPU and a
gpunvme.DeviceMemory on a GPU, which torch and CuPy take; bring ``out`` for anything else.

All functions take ``variant`` (variants() lists them; None: the best), ``threads`` (CPU: at most so
many), ``stream`` (GPU: where the work is put) and ``deterministic`` (the same bits in every run).
On the CPU a call returns when the result is there; on a GPU it is enqueued.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any, Callable, Literal, NamedTuple, Sequence

import numpy as np

from . import _lib
from .buffers import Array, describe, stream_handle
from .errors import OpsError, ops_error
from .memory import DeviceMemory, _current
from .reports import Capability, Metrics, Timing, Variant

_DTYPES = {"<f4": _lib.OPS_F32, "<f2": _lib.OPS_F16, "<V2": _lib.OPS_BF16, "|V2": _lib.OPS_BF16}
_DTYPE_NAMES = {"f32": _lib.OPS_F32, "f16": _lib.OPS_F16, "bf16": _lib.OPS_BF16}
_COMPUTES = {"f32": _lib.OPS_COMPUTE_F32, "tf32": _lib.OPS_COMPUTE_TF32}
_ACTIVATIONS = {
    None: _lib.OPS_ACT_NONE,
    "relu": _lib.OPS_ACT_RELU,
    "gelu": _lib.OPS_ACT_GELU,
    "gelu_tanh": _lib.OPS_ACT_GELU_TANH,
    "silu": _lib.OPS_ACT_SILU,
}
_OPS = {
    "matmul": _lib.OPS_MATMUL,
    "linear_forward": _lib.OPS_LINEAR_FORWARD,
    "linear_backward": _lib.OPS_LINEAR_BACKWARD,
    "attention": _lib.OPS_ATTENTION,
    "attention_backward": _lib.OPS_ATTENTION_BACKWARD,
    "attention_paged": _lib.OPS_ATTENTION_PAGED,
    "kv_append": _lib.OPS_KV_APPEND,
}
_DEVICES = {"cpu": _lib.OPS_CPU, "cuda": _lib.OPS_CUDA}

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Compute = Literal["f32", "tf32"]
Device = Literal["cpu", "cuda"]


def _look_up(what: str, table: dict[Any, int], key: Any) -> int:
    if key not in table:
        known = ", ".join(str(name) for name in table)
        raise ops_error(_lib.OPS_ERR_INVALID, f"{what} {key!r}: there are {known}")
    return table[key]


# ---- Operands ---------------------------------------------------------------------------------


class _Matrix(NamedTuple):
    """A matrix, or a batch of them, as the library wants it: with contiguous rows."""

    ptr: int
    batch: int  # 0: a single one
    rows: int  # as the caller sees them
    columns: int
    ld: int
    stride: int
    transposed: bool  # what is stored is its transpose
    array: Array


def _array(name: str, obj: Any) -> Array:
    found = describe(obj)
    if found is None:
        raise ops_error(_lib.OPS_ERR_INVALID, f"{name}: a {type(obj).__name__} is no array")
    if found.typestr not in _DTYPES:
        raise ops_error(_lib.OPS_ERR_DTYPE, f"{name} has elements of {found.typestr}: "
                        "float32, float16 and bfloat16 are known")
    return found


def _matrix(name: str, obj: Any, ranks: Sequence[int] = (2,)) -> _Matrix:
    array = _array(name, obj)
    if len(array.shape) not in ranks:
        raise ops_error(_lib.OPS_ERR_SHAPE, f"{name} has {len(array.shape)} dimensions")
    *batch, rows, columns = array.shape
    row_step, column_step = array.strides[-2:]
    stride = array.strides[0] if batch else 0
    transposed = columns > 1 and column_step != 1
    if transposed and (rows > 1 and row_step != 1):
        raise ops_error(_lib.OPS_ERR_SHAPE, f"{name}: neither its rows nor its columns are "
                        "contiguous: give a contiguous copy")
    ld = column_step if transposed else row_step
    width = rows if transposed else columns
    if (columns if transposed else rows) < 2:
        ld = max(width, 1)
    n = batch[0] if batch else 0
    return _Matrix(array.ptr, n, rows, columns, ld, stride, transposed, array)


def _rows(name: str, obj: Any) -> _Matrix:
    """A matrix of rows: the last dimension, contiguous, and all others as one."""
    array = _array(name, obj)
    if not array.shape:
        raise ops_error(_lib.OPS_ERR_SHAPE, f"{name} has no dimension")
    if len(array.shape) == 2:
        matrix = _matrix(name, obj)
        if matrix.transposed:
            raise ops_error(_lib.OPS_ERR_SHAPE, f"{name}: its rows are not contiguous")
        return matrix
    if not array.contiguous:
        raise ops_error(_lib.OPS_ERR_SHAPE, f"{name} is not contiguous")
    columns = array.shape[-1]
    rows = 1
    for size in array.shape[:-1]:
        rows *= size
    return _Matrix(array.ptr, 0, rows, columns, max(columns, 1), 0, False, array)


def _check(condition: bool, detail: str) -> None:
    if not condition:
        raise ops_error(_lib.OPS_ERR_SHAPE, detail)


def _vector(name: str, obj: Any, size: int) -> Array:
    array = _array(name, obj)
    _check(array.shape == (size,) and array.contiguous, f"{name} is not {size} contiguous elements")
    return array


def _result(given: Any, like: Any, shape: tuple[int, ...], typestr: str) -> Any:
    """``given``, or an array like an operand."""
    if given is not None:
        return given
    array = describe(like)
    if array is not None and array.mem == _lib.MEM_GPU:
        return DeviceMemory(shape, typestr)
    if isinstance(like, np.ndarray):
        return np.empty(shape, like.dtype if typestr != "<f4" else np.float32)
    if typestr.endswith("V2"):
        raise ops_error(_lib.OPS_ERR_DTYPE, "numpy has no bfloat16 to make a result of: give out=")
    return np.empty(shape, typestr)


# ---- Calls ------------------------------------------------------------------------------------

_scratch = threading.local()  # workspaces of this thread, by device, GPU and stream


class _Call:
    """Where and how a call runs, and the arrays that it uses."""

    def __init__(self, arrays: Sequence[Array], written: Sequence[Array], variant: str | None,
                 threads: int, stream: Any, deterministic: bool) -> None:
        mems = {array.mem == _lib.MEM_GPU for array in (*arrays, *written)}
        if len(mems) > 1:
            raise ops_error(_lib.OPS_ERR_DEVICE, "arrays on the host and on a GPU in one call")
        if any(array.readonly for array in written):
            raise ops_error(_lib.OPS_ERR_INVALID, "a result that is read-only")
        on_gpu = mems.pop()
        named = next((a.stream for a in arrays if a.stream is not None), 0)
        self.exec = _lib.OpsExec(
            device=_lib.OPS_CUDA if on_gpu else _lib.OPS_CPU,
            threads=threads,
            stream=stream_handle(stream) if stream is not None else named,
            variant=None if variant is None else variant.encode(),
            flags=_lib.OPS_DETERMINISTIC if deterministic else 0,
        )

    def run(self, name: str, problem: ctypes.Structure) -> None:
        ops = _lib.ops()
        exec_ = ctypes.byref(self.exec)
        nbytes = ctypes.c_size_t()
        workspace = getattr(ops, f"{name}_workspace")
        _ok(workspace(ctypes.byref(problem), exec_, ctypes.byref(nbytes)))
        if nbytes.value:
            self.exec.workspace = self._workspace(nbytes.value)
            self.exec.workspace_nbytes = nbytes.value
        _ok(getattr(ops, name)(ctypes.byref(problem), exec_))

    def _workspace(self, nbytes: int) -> int:
        """Memory that the next call on the same stream may use again: it comes behind this one."""
        on_gpu = self.exec.device == _lib.OPS_CUDA
        # The default stream has the same handle on all GPUs.
        key = str((self.exec.device, _current() if on_gpu else 0, self.exec.stream))
        memory = getattr(_scratch, key, None)
        align = _lib.OPS_WORKSPACE_ALIGN
        if memory is None or memory.nbytes < nbytes + align:
            size = nbytes + align
            memory = DeviceMemory((size,)) if on_gpu else np.empty(size, np.uint8)
            setattr(_scratch, key, memory)
        ptr = memory.ptr if isinstance(memory, DeviceMemory) else memory.ctypes.data
        return int(-(-ptr // align) * align)


def _ok(status: int) -> None:
    if status:
        raise ops_error(status)


def _problem(a: _Matrix, b: _Matrix, c: _Matrix, alpha: float, beta: float,
             compute: str) -> _lib.Matmul:
    return _lib.Matmul(
        m=c.rows, n=c.columns, k=a.columns, batch=max(c.batch, 1),
        a=a.ptr, b=b.ptr, c=c.ptr, lda=a.ld, ldb=b.ld, ldc=c.ld,
        stride_a=a.stride, stride_b=b.stride, stride_c=c.stride,
        alpha=alpha, beta=beta,
        transpose_a=a.transposed, transpose_b=b.transposed, transpose_c=c.transposed,
        dtype=_DTYPES[a.array.typestr], out_dtype=_DTYPES[c.array.typestr],
        compute=_look_up("compute", _COMPUTES, compute),
    )


def matmul(a: Any, b: Any, *, out: Any = None, alpha: float = 1.0, beta: float = 0.0,
           compute: Compute = "f32", variant: str | None = None, threads: int = 0,
           stream: Any = None, deterministic: bool = False) -> Any:
    """``alpha * a @ b + beta * out``: of two matrices, or of a batch of them (three dimensions).

    ``out`` has the type of the operands, or float32; with ``beta`` it must be given. One matrix
    may be multiplied with each of a batch. ``compute="tf32"`` multiplies float32 with 10 bits of
    mantissa where the GPU is faster by it.
    """
    left, right = _matrix("a", a, (2, 3)), _matrix("b", b, (2, 3))
    _check(left.columns == right.rows,
           f"a has {left.columns} columns and b has {right.rows} rows")
    _same_dtype(a=left.array, b=right.array)
    batch = max(left.batch, right.batch)
    _check({left.batch, right.batch} <= {0, 1, batch},
           f"a is a batch of {left.batch} and b one of {right.batch}")
    left, right = _spread(left, batch), _spread(right, batch)
    if out is None and beta:
        raise ops_error(_lib.OPS_ERR_INVALID, "beta adds to out: give it")
    shape = (left.rows, right.columns)
    shape_out = (batch, *shape) if batch else shape
    result = _result(out, a, shape_out, left.array.typestr)
    made = _matrix("out", result, (2, 3))
    _check(made.array.shape == shape_out, f"out is {made.array.shape}: {shape_out} is made")
    call = _Call((left.array, right.array), (made.array,), variant, threads, stream, deterministic)
    call.run("gpunvme_matmul", _problem(left, right, made, alpha, beta, compute))
    return result


def _spread(matrix: _Matrix, batch: int) -> _Matrix:
    """One matrix for all of a batch."""
    return matrix._replace(stride=0) if matrix.batch < 2 and batch > 1 else matrix


def _same_dtype(**arrays: Array | None) -> None:
    kinds = {name: array.typestr for name, array in arrays.items() if array is not None}
    if len(set(kinds.values())) > 1:
        text = ", ".join(f"{name} {typestr}" for name, typestr in kinds.items())
        raise ops_error(_lib.OPS_ERR_DTYPE, f"operands of different types: {text}")


def linear(x: Any, weight: Any, bias: Any = None, *, activation: Activation | None = None,
           out: Any = None, preact: Any = None, compute: Compute = "f32",
           variant: str | None = None, threads: int = 0, stream: Any = None,
           deterministic: bool = False) -> Any:
    """``act(x @ weight.T + bias)``.

    ``x`` is (…, in), ``weight`` (out, in), ``bias`` (out), and the result (…, out).
    ``preact`` is an array like the result that gets what the activation is applied to, as
    linear_backward() wants it.
    """
    rows, matrix = _rows("x", x), _rows("weight", weight)
    _check(len(matrix.array.shape) == 2 and rows.columns == matrix.columns,
           f"x has rows of {rows.columns}, weight is {matrix.array.shape}")
    added = None if bias is None else _vector("bias", bias, matrix.rows)
    shape = (*rows.array.shape[:-1], matrix.rows)
    result = _result(out, x, shape, rows.array.typestr)
    y = _rows("out", result)
    _check(y.array.shape == shape, f"out is {y.array.shape}: {shape} is made")
    z = None if preact is None else _rows("preact", preact)
    _check(z is None or z.array.shape == shape, f"preact is not {shape}")
    _same_dtype(x=rows.array, weight=matrix.array, bias=added, out=y.array,
                preact=z.array if z else None)
    problem = _lib.Linear(
        rows=rows.rows, out=matrix.rows, x=rows.ptr, weight=matrix.ptr,
        bias=added.ptr if added else None, y=y.ptr, preact=z.ptr if z else None,
        ldx=rows.ld, ldw=matrix.ld, ldy=y.ld, ld_preact=z.ld if z else 0,
        activation=_look_up("activation", _ACTIVATIONS, activation),
        dtype=_DTYPES[rows.array.typestr], compute=_look_up("compute", _COMPUTES, compute),
        **{"in": rows.columns},
    )
    operands = [rows.array, matrix.array, *([added] if added else [])]
    written = [y.array, *([z.array] if z else [])]
    call = _Call(operands, written, variant, threads, stream, deterministic)
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
    grad = _rows("grad_y", grad_y)
    inputs = None if x is None else _rows("x", x)
    matrix = None if weight is None else _rows("weight", weight)
    z = None if preact is None else _rows("preact", preact)
    _check(grad_x is False or matrix is not None, "grad_x needs weight")
    _check(grad_weight is False or inputs is not None, "grad_weight needs x")
    _check(activation is None or z is not None, f"{activation} backwards needs preact")
    if accumulate and (grad_weight is True or grad_bias is True):
        raise ops_error(_lib.OPS_ERR_INVALID, "accumulate adds to grad_weight and grad_bias: "
                        "give them, or leave them out")
    width = inputs.columns if inputs else matrix.columns if matrix else 0
    lead = grad.array.shape[:-1]
    for name, found, shape in (
        ("x", inputs, (*lead, width)),
        ("weight", matrix, (grad.columns, width)),
        ("preact", z, grad.array.shape),
    ):
        _check(found is None or found.array.shape == shape, f"{name} is not {shape}")
    typestr = grad.array.typestr
    _same_dtype(grad_y=grad.array, x=inputs.array if inputs else None,
                weight=matrix.array if matrix else None, preact=z.array if z else None)

    def made(given: Any, shape: tuple[int, ...]) -> Any:
        return None if given is False else _result(
            None if given is True else given, grad_y, shape, typestr)

    results = (made(grad_x, (*lead, width)), made(grad_weight, (grad.columns, width)),
               made(grad_bias, (grad.columns,)))
    gx = None if results[0] is None else _rows("grad_x", results[0])
    gw = None if results[1] is None else _rows("grad_weight", results[1])
    gb = None if results[2] is None else _vector("grad_bias", results[2], grad.columns)
    _check(gx is None or gx.array.shape == (*lead, width), f"grad_x is not {(*lead, width)}")
    _check(gw is None or gw.array.shape == (grad.columns, width),
           f"grad_weight is not {(grad.columns, width)}")
    _same_dtype(grad_y=grad.array, grad_x=gx.array if gx else None)
    _same_dtype(grad_weight=gw.array if gw else None, grad_bias=gb)
    parameter = gw.array if gw else gb
    problem = _lib.LinearGrad(
        rows=grad.rows, out=grad.columns, x=inputs.ptr if inputs else None,
        weight=matrix.ptr if matrix else None, grad_y=grad.ptr, preact=z.ptr if z else None,
        grad_x=gx.ptr if gx else None, grad_weight=gw.ptr if gw else None,
        grad_bias=gb.ptr if gb else None,
        ldx=inputs.ld if inputs else 0, ldw=matrix.ld if matrix else 0, ld_grad_y=grad.ld,
        ld_preact=z.ld if z else 0, ld_grad_x=gx.ld if gx else 0,
        ld_grad_weight=gw.ld if gw else 0,
        activation=_look_up("activation", _ACTIVATIONS, activation),
        dtype=_DTYPES[typestr], grad_dtype=_DTYPES[parameter.typestr if parameter else typestr],
        compute=_look_up("compute", _COMPUTES, compute), accumulate=accumulate,
        **{"in": width},
    )
    operands = [m.array for m in (grad, inputs, matrix, z) if m is not None]
    written = [m.array for m in (gx, gw) if m is not None] + ([gb] if gb else [])
    call = _Call(operands, written, variant, threads, stream, deterministic)
    call.run("gpunvme_linear_backward", problem)
    return results


# ---- Attention --------------------------------------------------------------------------------


def _tensor(name: str, obj: Any) -> Array:
    """sequences x rows x heads x channels; channels are contiguous."""
    array = _array(name, obj)
    _check(len(array.shape) == 4, f"{name} has {len(array.shape)} dimensions: sequence, row, head "
           "and channel are wanted")
    _check(array.shape[3] < 2 or array.strides[3] == 1, f"{name}: its channels are not contiguous")
    return array


def _strides(array: Array) -> _lib.AttentionStrides:
    return _lib.AttentionStrides(*array.strides[:3])


def _lengths(name: str, obj: Any, batch: int) -> Array | None:
    array = None if obj is None else describe(obj)
    _check(obj is None or (array is not None and array.typestr == "<i4" and array.contiguous
                           and array.shape == (batch,)), f"{name} is not {batch} int32")
    return array


def _sinks(name: str, obj: Any, heads: int) -> Array | None:
    array = None if obj is None else _vector(name, obj, heads)
    if array is not None and array.typestr != "<f4":
        raise ops_error(_lib.OPS_ERR_DTYPE, f"{name} has elements of {array.typestr}, not float32")
    return array


def _ptr(array: Array | None) -> int | None:
    return None if array is None else array.ptr


class _Attention(NamedTuple):
    """A call's descriptor without results, and the arrays that it points to."""

    problem: _lib.Attention
    q: Array
    k: Array
    v: Array
    arrays: list[Array]


def _attention(q: Any, k: Any, v: Any, causal: bool, window: tuple[int | None, int | None] | None,
               scale: float | None, softcap: float, sinks: Any, q_lengths: Any,
               k_lengths: Any) -> _Attention:
    queries, keys, values = _tensor("q", q), _tensor("k", k), _tensor("v", v)
    _same_dtype(q=queries, k=keys, v=values)
    batch, q_len, heads, dim = queries.shape
    _, k_len, kv_heads, dim_v = values.shape
    _check(keys.shape == (batch, k_len, kv_heads, dim) and values.shape[0] == batch,
           f"q is {queries.shape}, k {keys.shape} and v {values.shape}")
    extra = [_sinks("sinks", sinks, heads), _lengths("q_lengths", q_lengths, batch),
             _lengths("k_lengths", k_lengths, batch)]
    left, right = (_FAR if side is None else side for side in window or (None, None))
    number = _DTYPES[queries.typestr]
    problem = _lib.Attention(
        batch=batch, heads=heads, kv_heads=kv_heads, dim=dim, dim_v=dim_v, q_len=q_len,
        k_len=k_len, q=queries.ptr, k=keys.ptr, v=values.ptr, q_strides=_strides(queries),
        k_strides=_strides(keys), v_strides=_strides(values), sinks=_ptr(extra[0]),
        q_lengths=_ptr(extra[1]), k_lengths=_ptr(extra[2]), window=window is not None,
        window_left=left, window_right=right, scale=scale or 0.0, softcap=softcap, causal=causal,
        dtype=number, out_dtype=number,
    )
    arrays = [queries, keys, values, *(a for a in extra if a is not None)]
    return _Attention(problem, queries, keys, values, arrays)


_FAR = 2**63 - 1  # no limit to a side of a window


def _lse(name: str, obj: Any, q: Array) -> Array:
    array = _array(name, obj)
    _check(array.shape == q.shape[:3] and array.typestr == "<f4",
           f"{name} is not {q.shape[:3]} float32")
    return array


def attention(q: Any, k: Any, v: Any, *, causal: bool = False,
              window: tuple[int | None, int | None] | None = None, scale: float | None = None,
              softcap: float = 0.0, sinks: Any = None, q_lengths: Any = None, k_lengths: Any = None,
              out: Any = None, lse: Any = None, variant: str | None = None, threads: int = 0,
              stream: Any = None, deterministic: bool = False) -> Any:
    """``softmax(scale * q @ k.T) @ v`` of each sequence and head.

    ``q`` is (sequences, rows, heads, channels), ``k`` and ``v`` have rows and, where queries share
    them, fewer heads of their own; ``v`` may have other channels. Any view will do whose channels
    are contiguous. The last query is aligned to the last key: ``causal`` hides the keys behind a
    query, ``window`` those that are more than (left, right) away (None: no limit). ``scale`` is
    1 / sqrt(channels) if None. ``sinks`` are float32, a logit a head that has no value.
    ``q_lengths`` and ``k_lengths`` are int32, the rows that are used of each sequence; of ``out``
    the others are left as they are. ``lse`` is a float32 array of (sequences, rows, heads) that
    gets the logarithms of the sums, as attention_backward() wants them.
    """
    x = _attention(q, k, v, causal, window, scale, softcap, sinks, q_lengths, k_lengths)
    shape = (*x.q.shape[:3], x.v.shape[3])
    result = _result(out, q, shape, x.q.typestr)
    made = _tensor("out", result)
    _check(made.shape == shape, f"out is {made.shape}: {shape} is made")
    sums = None if lse is None else _lse("lse", lse, x.q)
    x.problem.out, x.problem.out_strides = made.ptr, _strides(made)
    x.problem.out_dtype = _DTYPES[made.typestr]
    if sums is not None:
        x.problem.lse, x.problem.lse_strides = sums.ptr, _strides(sums)
    written = [made, *([sums] if sums is not None else [])]
    call = _Call(x.arrays, written, variant, threads, stream, deterministic)
    call.run("gpunvme_attention", x.problem)
    return result


def attention_backward(
    grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
    softcap: float = 0.0, sinks: Any = None, q_lengths: Any = None, k_lengths: Any = None,
    grad_q: Any = None, grad_k: Any = None, grad_v: Any = None, grad_sinks: Any = None,
    variant: str | None = None, threads: int = 0, stream: Any = None, deterministic: bool = False,
) -> tuple[Any, Any, Any]:
    """The gradients of attention(): (grad_q, grad_k, grad_v), into arrays of yours if given.

    ``out`` and ``lse`` are what attention() made; all else is what it was given. ``grad_sinks`` is
    a float32 array that gets the gradient of the sinks.
    """
    x = _attention(q, k, v, causal, window, scale, softcap, sinks, q_lengths, k_lengths)
    shape = (*x.q.shape[:3], x.v.shape[3])
    grad, forward, sums = _tensor("grad_out", grad_out), _tensor("out", out), _lse("lse", lse, x.q)
    for name, found in (("grad_out", grad), ("out", forward)):
        _check(found.shape == shape, f"{name} is {found.shape}, not {shape}")
    _same_dtype(grad_out=grad, out=forward)
    x.problem.out, x.problem.out_strides = forward.ptr, _strides(forward)
    x.problem.out_dtype = _DTYPES[forward.typestr]
    x.problem.lse, x.problem.lse_strides = sums.ptr, _strides(sums)
    results = tuple(_result(given, like, array.shape, array.typestr) for given, like, array in
                    ((grad_q, q, x.q), (grad_k, k, x.k), (grad_v, v, x.v)))
    made = [_tensor(name, result) for name, result in zip(("grad_q", "grad_k", "grad_v"), results)]
    for name, found, like in zip(("grad_q", "grad_k", "grad_v"), made, (x.q, x.k, x.v)):
        _check(found.shape == like.shape and found.typestr == like.typestr,
               f"{name} is not like what it is the gradient of")
    of_sinks = _sinks("grad_sinks", grad_sinks, x.q.shape[2])
    problem = _lib.AttentionGrad(
        forward=x.problem, grad_out=grad.ptr, grad_q=made[0].ptr, grad_k=made[1].ptr,
        grad_v=made[2].ptr, grad_sinks=_ptr(of_sinks), grad_out_strides=_strides(grad),
        grad_q_strides=_strides(made[0]), grad_k_strides=_strides(made[1]),
        grad_v_strides=_strides(made[2]),
    )
    written = [*made, *([of_sinks] if of_sinks is not None else [])]
    call = _Call([*x.arrays, grad, forward, sums], written, variant, threads, stream, deterministic)
    call.run("gpunvme_attention_backward", problem)
    return results


# ---- What there is ----------------------------------------------------------------------------


def variants(op: Literal["matmul", "linear_forward", "linear_backward", "attention",
                         "attention_backward", "attention_paged", "kv_append"] = "matmul",
             device: Device = "cpu") -> list[Variant]:
    """The ladder of an operator on a device, from the plainest to the fastest."""
    found: list[Variant] = []
    variant = _lib.OpsVariant()
    while not _lib.ops().gpunvme_ops_variant(
        _look_up("op", _OPS, op), _look_up("device", _DEVICES, device), len(found),
        ctypes.byref(variant),
    ):
        found.append(Variant(
            name=variant.name.decode(),
            needs=variant.needs.decode(),
            changes=variant.changes.decode(),
            dtypes=tuple(name for name, number in _DTYPE_NAMES.items()
                         if variant.dtypes >> number & 1),
            deterministic=bool(variant.deterministic),
            available=bool(variant.available),
        ))
    return found


def capability(device: Device = "cpu", index: int = 0) -> Capability:
    """What a device can do."""
    found = _lib.OpsCapability()
    _ok(_lib.ops().gpunvme_ops_capability(_look_up("device", _DEVICES, device), index,
                                          ctypes.byref(found)))
    return Capability(found.name.decode(), found.features.decode(), found.units,
                      found.cache_nbytes)


def _shape(m: int, n: int, k: int, batch: int, dtype: str, compute: str, device: str,
           variant: str | None) -> tuple[_lib.Matmul, _lib.OpsExec]:
    number = _look_up("dtype", _DTYPE_NAMES, dtype)
    problem = _lib.Matmul(m=m, n=n, k=k, batch=batch, lda=k, ldb=n, ldc=n, stride_a=m * k,
                          stride_b=k * n, stride_c=m * n, alpha=1, dtype=number, out_dtype=number,
                          compute=_look_up("compute", _COMPUTES, compute))
    return problem, _lib.OpsExec(device=_look_up("device", _DEVICES, device),
                                 variant=None if variant is None else variant.encode())


def matmul_metrics(m: int, n: int, k: int, batch: int = 1, *, dtype: str = "f32",
                   compute: Compute = "f32", device: Device = "cpu",
                   variant: str | None = None) -> Metrics:
    """What a variant does to memory for an (m, k) by (k, n) product. Nothing is computed."""
    problem, exec_ = _shape(m, n, k, batch, dtype, compute, device, variant)
    found = _lib.MatmulMetrics()
    _ok(_lib.ops().gpunvme_matmul_analyze(ctypes.byref(problem), ctypes.byref(exec_),
                                          ctypes.byref(found)))
    return Metrics(*(getattr(found, name) for name, *_ in found._fields_))


def matmul_variant(m: int, n: int, k: int, batch: int = 1, *, dtype: str = "f32",
                   compute: Compute = "f32", device: Device = "cpu") -> str:
    """The variant that matmul() takes for an (m, k) by (k, n) product."""
    problem, exec_ = _shape(m, n, k, batch, dtype, compute, device, None)
    name = ctypes.c_char_p()
    _ok(_lib.ops().gpunvme_matmul_choose(ctypes.byref(problem), ctypes.byref(exec_),
                                         ctypes.byref(name)))
    return (name.value or b"").decode()


def timing(call: Callable[[], object], flops: float = 0.0, rounds: int = 5) -> Timing:
    """Times ``call``, run once before. For the CPU: on a GPU a call returns before its work."""
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    times.sort()
    median = times[len(times) // 2]
    return Timing(median, times[0], flops / median / 1e9)


__all__ = [
    "OpsError",
    "attention",
    "attention_backward",
    "capability",
    "linear",
    "linear_backward",
    "matmul",
    "matmul_metrics",
    "matmul_variant",
    "timing",
    "variants",
]
