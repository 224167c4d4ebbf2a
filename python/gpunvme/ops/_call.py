# SPDX-License-Identifier: BSD-3-Clause
"""Operands of operators, and how one is called: device, stream, variant, workspace."""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any, Literal, NamedTuple, Sequence

import numpy as np

from .. import _lib
from ..buffers import Array, describe, stream_handle
from ..errors import ops_error
from ..memory import DeviceMemory, _current

DTYPES = {"<f4": _lib.OPS_F32, "<f2": _lib.OPS_F16, "<V2": _lib.OPS_BF16, "|V2": _lib.OPS_BF16}
DTYPE_NAMES = {"f32": _lib.OPS_F32, "f16": _lib.OPS_F16, "bf16": _lib.OPS_BF16}
# numpy has no letters for these: in an Array's typestr they are told apart by its first character.
FP8 = {"float8_e4m3fn": "4V1", "float8_e5m2": "5V1"}
FP8_DTYPES = {"4V1": _lib.OPS_E4M3, "5V1": _lib.OPS_E5M2}
NAMES = {"<f4": "float32", "<f2": "float16", "<V2": "bfloat16", "|V2": "bfloat16",
         **{typestr: name for name, typestr in FP8.items()}}
COMPUTES = {"f32": _lib.OPS_COMPUTE_F32, "tf32": _lib.OPS_COMPUTE_TF32}
DEVICES = {"cpu": _lib.OPS_CPU, "cuda": _lib.OPS_CUDA}

Compute = Literal["f32", "tf32"]
Device = Literal["cpu", "cuda"]


def look_up(what: str, table: dict[Any, int], key: Any) -> int:
    if key not in table:
        known = ", ".join(str(name) for name in table)
        raise ops_error(_lib.OPS_ERR_INVALID, f"{what} {key!r}: there are {known}")
    return table[key]


# ---- Operands ---------------------------------------------------------------------------------


class Matrix(NamedTuple):
    """A matrix, or a batch of them, as the library wants it: with contiguous rows."""

    ptr: int
    batch: int  # 0: a single one
    rows: int  # as the caller sees them
    columns: int
    ld: int
    stride: int
    transposed: bool  # what is stored is its transpose
    array: Array


def array_of(name: str, obj: Any, fp8: bool = False) -> Array:
    found = describe(obj)
    if found is None:
        raise ops_error(_lib.OPS_ERR_INVALID, f"{name}: a {type(obj).__name__} is no array")
    if fp8 and found.itemsize == 1:
        dtype = str(getattr(obj, "dtype", "")).rpartition(".")[2]  # "torch." comes before it
        if dtype in FP8:
            return found._replace(typestr=FP8[dtype])
    if found.typestr not in DTYPES:
        raise ops_error(_lib.OPS_ERR_DTYPE, f"{name} has elements of {found.typestr}: "
                        "float32, float16 and bfloat16 are known")
    return found


def matrix_of(name: str, obj: Any, ranks: Sequence[int] = (2,), fp8: bool = False) -> Matrix:
    array = array_of(name, obj, fp8)
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
    return Matrix(array.ptr, n, rows, columns, ld, stride, transposed, array)


def rows_of(name: str, obj: Any) -> Matrix:
    """A matrix of rows: the last dimension, contiguous, and all others as one."""
    array = array_of(name, obj)
    if not array.shape:
        raise ops_error(_lib.OPS_ERR_SHAPE, f"{name} has no dimension")
    if len(array.shape) == 2:
        matrix = matrix_of(name, obj)
        if matrix.transposed:
            raise ops_error(_lib.OPS_ERR_SHAPE, f"{name}: its rows are not contiguous")
        return matrix
    if not array.contiguous:
        raise ops_error(_lib.OPS_ERR_SHAPE, f"{name} is not contiguous")
    columns = array.shape[-1]
    rows = 1
    for size in array.shape[:-1]:
        rows *= size
    return Matrix(array.ptr, 0, rows, columns, max(columns, 1), 0, False, array)


def check(condition: bool, detail: str) -> None:
    if not condition:
        raise ops_error(_lib.OPS_ERR_SHAPE, detail)


def vector_of(name: str, obj: Any, size: int) -> Array:
    array = array_of(name, obj)
    check(array.shape == (size,) and array.contiguous, f"{name} is not {size} contiguous elements")
    return array


def floats_of(name: str, obj: Any, shape: tuple[int, ...]) -> Array:
    """Contiguous float32 of a shape."""
    array = array_of(name, obj)
    if array.typestr != "<f4":
        raise ops_error(_lib.OPS_ERR_DTYPE, f"{name} has elements of {array.typestr}, not float32")
    check(array.shape == shape and array.contiguous, f"{name} is not {shape} contiguous float32")
    return array


def integers_of(name: str, obj: Any, shape: tuple[int, ...] | None = None) -> Array:
    """Contiguous int32, of a shape or of any."""
    array = describe(obj)
    if array is None or array.typestr != "<i4":
        what = type(obj).__name__ if array is None else array.typestr
        raise ops_error(_lib.OPS_ERR_DTYPE, f"{name} has elements of {what}, not int32")
    check(array.contiguous and shape in (None, array.shape),
          f"{name} is {array.shape}, not {shape} contiguous int32")
    return array


def alike(shape: tuple[int, ...], **objects: Any) -> list[Matrix | None]:
    """Matrices of rows, all of a shape; None stays None."""
    found = [None if obj is None else rows_of(name, obj) for name, obj in objects.items()]
    for name, matrix in zip(objects, found):
        check(matrix is None or matrix.array.shape == shape,
              f"{name} is {matrix.array.shape if matrix else ()}, not {shape}")
    return found


def arrays_of(**matrices: Matrix | None) -> dict[str, Array]:
    """The arrays of those that are there, for same_dtype()."""
    return {name: matrix.array for name, matrix in matrices.items() if matrix is not None}


def ptr_of(operand: Matrix | Array | None) -> int | None:
    return None if operand is None else operand.ptr


def parameter_dtype(like: Array, **parameters: Array | None) -> int:
    """The type of parameters, which have one together; that of ``like`` if there are none."""
    same_dtype(**parameters)
    return DTYPES[next((p for p in parameters.values() if p is not None), like).typestr]


def made_like(given: Any, like: Any, shape: tuple[int, ...], typestr: str, stream: Any) -> Any:
    """A result that the caller gives, has made (True) or leaves out (False: None)."""
    return None if given is False else result_of(
        None if given is True else given, like, shape, typestr, stream)


def refuse_made(accumulate: bool, **results: Any) -> None:
    if accumulate and any(given is True for given in results.values()):
        raise ops_error(_lib.OPS_ERR_INVALID, f"accumulate adds to {' and '.join(results)}: "
                        "give them, or leave them out")


def result_of(given: Any, like: Any, shape: tuple[int, ...], typestr: str, stream: Any) -> Any:
    """``given``, or an array like an operand, for work on ``stream``."""
    if given is not None:
        return given
    if _is_torch(like):
        return _tensor_like(like, shape, typestr, stream)
    array = describe(like)
    if array is not None and array.mem == _lib.MEM_GPU:
        return DeviceMemory(shape, typestr)
    if isinstance(like, np.ndarray):
        return np.empty(shape, like.dtype if typestr != "<f4" else np.float32)
    if typestr.endswith("V2"):
        raise ops_error(_lib.OPS_ERR_DTYPE, "numpy has no bfloat16 to make a result of: give out=")
    return np.empty(shape, typestr)


def same_dtype(**arrays: Array | None) -> None:
    kinds = {name: array.typestr for name, array in arrays.items() if array is not None}
    if len(set(kinds.values())) > 1:
        text = ", ".join(f"{name} {NAMES.get(typestr, typestr)}" for name, typestr in kinds.items())
        raise ops_error(_lib.OPS_ERR_DTYPE, f"operands of different types: {text}")


def _is_torch(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def _tensor_like(like: Any, shape: tuple[int, ...], typestr: str, stream: Any) -> Any:
    """A tensor of torch, whose memory is used on ``stream`` first."""
    torch = sys.modules["torch"]
    dtype = torch.float32 if typestr == "<f4" else like.dtype
    if stream is None or not like.is_cuda:
        return like.new_empty(shape, dtype=dtype)
    handle = stream_handle(stream)
    with torch.cuda.stream(torch.cuda.ExternalStream(handle, like.device) if handle
                           else torch.cuda.default_stream(like.device)):
        return like.new_empty(shape, dtype=dtype)


# ---- Calls ------------------------------------------------------------------------------------

_scratch = threading.local()  # workspaces of this thread, by device, GPU and stream


class Call:
    """Where and how a call runs, and the arrays that it uses."""

    def __init__(self, operands: Sequence[Array | None], results: Sequence[Array | None],
                 variant: str | None, threads: int, stream: Any, deterministic: bool) -> None:
        arrays = [array for array in operands if array is not None]
        written = [array for array in results if array is not None]
        mems = {array.mem == _lib.MEM_GPU for array in (*arrays, *written)}
        if len(mems) > 1:
            raise ops_error(_lib.OPS_ERR_DEVICE, "arrays on the host and on a GPU in one call")
        if any(array.readonly for array in written):
            raise ops_error(_lib.OPS_ERR_INVALID, "a result that is read-only")
        on_gpu = mems.pop()
        self.exec = _lib.OpsExec(
            device=_lib.OPS_CUDA if on_gpu else _lib.OPS_CPU,
            threads=threads,
            stream=_current_stream(arrays) if stream is None else stream_handle(stream),
            variant=None if variant is None else variant.encode(),
            flags=_lib.OPS_DETERMINISTIC if deterministic else 0,
        )

    def run(self, name: str, problem: ctypes.Structure) -> None:
        ops = _lib.ops()
        exec_ = ctypes.byref(self.exec)
        nbytes = ctypes.c_size_t()
        workspace = getattr(ops, f"{name}_workspace")
        ok(workspace(ctypes.byref(problem), exec_, ctypes.byref(nbytes)))
        if nbytes.value:
            self.exec.workspace = self._workspace(nbytes.value)
            self.exec.workspace_nbytes = nbytes.value
        ok(getattr(ops, name)(ctypes.byref(problem), exec_))

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


def _current_stream(arrays: Sequence[Array]) -> int:
    """The stream that the owners of operands use: CuPy names it; torch's is its current one."""
    for array in arrays:
        if array.stream is not None:
            return array.stream
        if array.mem == _lib.MEM_GPU and _is_torch(array.keep):
            tensor: Any = array.keep
            return int(sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream)
    return 0


def ok(status: int) -> None:
    if status:
        raise ops_error(status)
