# SPDX-License-Identifier: BSD-3-Clause
"""What transfers and operators take as memory.

A buffer is anything with the buffer protocol (numpy, bytearray, mmap, ctypes arrays),
``__cuda_array_interface__`` (torch, CuPy and Numba on a GPU) or ``__dlpack__`` (torch on the CPU,
JAX); or an address: an int, a ctypes pointer, or what has ``__int__``, such as pycuda's
DeviceAllocation. An address comes with a size. Whether memory of the host is mapped there is
checked; whether it is the memory that was meant can't be.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import operator
import re
import sys
from typing import Any, NamedTuple

from . import _lib
from ._lib import lib
from .errors import argument, check


class PyBuffer(ctypes.Structure):
    """Py_buffer: an export of the buffer protocol, released with this object."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]

    def __del__(self, release: Any = ctypes.pythonapi.PyBuffer_Release) -> None:
        release(ctypes.addressof(self))  # does nothing where nothing was exported


ctypes.pythonapi.PyBuffer_Release.argtypes = [ctypes.c_void_p]
ctypes.pythonapi.PyBuffer_Release.restype = None
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_SIMPLE, _WRITABLE = 0, 1

_char_from, _address = ctypes.c_char.from_buffer, ctypes.addressof

# Their own bytes are a buffer as well, but nobody means these.
_POINTERS = (ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer)


class View(NamedTuple):
    """Contiguous memory."""

    ptr: int
    nbytes: int
    mem: int  # _lib.MEM_*
    keep: object  # holds it
    stream: int | None = None  # CUDA's, that its owner says it may be in use on


class Array(NamedTuple):
    """The elements of an array; ``shape`` and ``strides`` count elements."""

    ptr: int
    mem: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    typestr: str  # as numpy has it: "<f4"; "<V2" is bfloat16
    readonly: bool
    keep: object
    stream: int | None = None

    @property
    def itemsize(self) -> int:
        return int(self.typestr[2:])

    @property
    def nbytes(self) -> int:
        nbytes = self.itemsize
        for size in self.shape:
            nbytes *= size
        return nbytes

    @property
    def contiguous(self) -> bool:
        want = packed(self.shape)
        return 0 in self.shape or all(
            size == 1 or self.strides[i] == want[i] for i, size in enumerate(self.shape)
        )


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major array, in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    return tuple(strides)


def not_plain(obj: Any) -> str | None:
    """Why a tensor of torch has no plain bytes; None if it has, and for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(obj, torch.Tensor):
        return None
    if obj.is_nested:
        return "a nested tensor has no plain bytes: use the tensors of its unbind()"
    if obj.layout is not torch.strided:
        return f"a tensor of layout {obj.layout} has no plain bytes: use its to_dense()"
    if obj.is_quantized:
        return (f"the bytes of a {obj.dtype} tensor mean nothing without its scale: use its "
                "int_repr() or dequantize()")
    return None


def check_storage(obj: Any) -> None:
    """Refuses a tensor of torch that reaches beyond its storage, which has been made smaller."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(obj, torch.Tensor) or obj.layout is not torch.strided:
        return
    try:
        room = obj.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # a subclass without memory of its own
        return
    last = sum((n - 1) * step for n, step in zip(obj.shape, obj.stride()))
    end = (obj.storage_offset() + last + 1) * obj.itemsize
    if obj.numel() and end > room:
        raise argument(f"a {type(obj).__name__} that ends at byte {end} of its storage, which has "
                       f"{room} bytes: it was resized")


def checksum(view: View) -> int:
    """gpunvme_mem_checksum(); a kernel does it on a GPU. Does not wait for work on streams."""
    if view.mem != _lib.MEM_GPU:
        return int(lib.gpunvme_mem_checksum_host(view.ptr, view.nbytes))
    buf = _lib.Buf(gpu=view.ptr, nbytes=view.nbytes, mem=view.mem)
    found = ctypes.c_uint64()
    check(lib.gpunvme_mem_checksum(ctypes.byref(buf), 0, view.nbytes, ctypes.byref(found), None))
    return found.value


def _from_interface(obj: object, interface: dict[str, Any], mem: int) -> Array:
    """Of ``__array_interface__`` or ``__cuda_array_interface__``."""
    ptr, readonly = interface["data"]
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    strides = interface.get("strides")
    if typestr[1] == "O":
        raise argument(f"a {type(obj).__name__} of Python objects has no bytes of its own")
    if interface.get("mask") is not None:
        raise argument(f"a {type(obj).__name__} with a mask has no plain bytes")
    if strides is not None:
        strides = tuple(step // int(typestr[2:]) for step in strides)
    stream = interface.get("stream")
    return Array(ptr, mem, shape, strides or packed(shape), typestr, readonly, obj, stream)


def describe(obj: Any) -> Array | None:
    """What array ``obj`` is; None where it has none of the three interfaces of arrays."""
    if (why := not_plain(obj)) is not None:
        raise argument(why)
    check_storage(obj)
    try:
        interface = getattr(obj, "__cuda_array_interface__", None)
    except RuntimeError as why:  # torch, of tensors that require gradients
        raise argument(f"a {type(obj).__name__}: {why}") from None
    except KeyError:  # torch, of float8, which has no name there: DLPack has
        interface = None
    if interface is not None:
        return _from_interface(obj, interface, _lib.MEM_GPU)
    interface = getattr(obj, "__array_interface__", None)
    if interface is not None and not _is_number(obj):
        return _from_interface(obj, interface, _lib.MEM_HOST)
    return _from_dlpack(obj) if hasattr(obj, "__dlpack__") else None


def _is_number(obj: object) -> bool:
    """Whether it is a number of numpy's, whose interface is that of a copy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.generic)


def _from_dlpack(obj: Any) -> Array:
    from . import dlpack  # takes a while: where it is needed

    kinds = {dlpack.CPU: _lib.MEM_HOST, dlpack.CUDA_HOST: _lib.MEM_PINNED,
             dlpack.CUDA: _lib.MEM_GPU}
    try:
        found = dlpack.imported(obj)
    except (BufferError, RuntimeError, ValueError) as why:  # ValueError: torch's device "meta"
        raise argument(f"a {type(obj).__name__} can't be exported by DLPack: {why}") from None
    if found.device not in kinds:
        raise argument(f"a {type(obj).__name__} is in memory of DLPack's device {found.device}, "
                       "which is neither the host's nor CUDA's")
    strides = found.strides or packed(found.shape)
    return Array(found.ptr, kinds[found.device], found.shape, strides, found.typestr,
                 found.readonly, found.capsule)


def kind_of(ptr: int) -> int:
    """The kind of memory (``_lib.MEM_*``) at an address, as CUDA knows it."""
    mem, gpu = ctypes.c_int(), ctypes.c_int()
    check(lib.gpunvme_mem_kind_of(ptr, ctypes.byref(mem), ctypes.byref(gpu)))
    return mem.value


_libc = ctypes.CDLL(None, use_errno=True)
_msync, _madvise = _libc.msync, _libc.madvise
_msync.argtypes = _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MS_ASYNC, _POPULATE_READ, _POPULATE_WRITE = 1, 22, 23


def check_mapped(address: int, nbytes: int, writable: bool) -> None:
    """Refuses a range of host memory that is not mapped whole, or begins in read-only memory."""
    page = address & -mmap.PAGESIZE
    # MS_ASYNC does nothing but look whether all of the range is mapped.
    if nbytes > 0 and (address + nbytes > 1 << 64
                       or (_msync(page, address + nbytes - page, _MS_ASYNC)
                           and ctypes.get_errno() == errno.ENOMEM)):
        raise argument(f"address {address:#x}: no memory of {nbytes} bytes is there")
    # Pages of devices, and kernels before 5.14, know neither.
    if writable and _madvise(page, 1, _POPULATE_WRITE) and ctypes.get_errno() == errno.EINVAL \
            and not _madvise(page, 1, _POPULATE_READ):
        raise argument(f"address {address:#x}: the memory there is read-only")


def address_of(obj: Any) -> int | None:
    """The address that an int, a ctypes pointer or what has ``__int__`` stands for."""
    if isinstance(obj, _POINTERS):
        return ctypes.cast(obj, ctypes.c_void_p).value or 0
    is_real = hasattr(obj, "__float__") and not hasattr(obj, "__index__")
    return int(obj) if hasattr(obj, "__int__") and not is_real else None


def writable_bytes(obj: Any) -> tuple[int, int, object] | None:
    """(address, bytes, what holds it) of writable host memory; None for other buffers.

    The fast way for most buffers; view() is for all.
    """
    if isinstance(obj, _POINTERS):
        return None
    try:
        memory = memoryview(obj)
        held = _char_from(memory)
    except (TypeError, BufferError, ValueError):
        return None
    if "O" in memory.format:
        _refuse_objects(obj)
    return _address(held), memory.nbytes, held


def _refuse_objects(obj: Any) -> None:
    """Refuses elements that are Python objects: bytes in their place would be wild pointers."""
    try:
        found = memoryview(obj).format
    except (TypeError, BufferError, ValueError):  # numpy's datetime64 has no format
        return
    if "O" in re.sub(":.*?:", "", found):  # without the names of fields
        raise argument(f"a {type(obj).__name__} of Python objects has no bytes of its own")


def view(obj: Any, writable: bool, nbytes: int | None = None) -> View:
    """The memory of a buffer, or its first ``nbytes`` bytes.

    ``writable``: bytes will be put there. Raises ArgumentError for what is no buffer, is not
    contiguous, read-only, too small or empty.
    """
    if nbytes is not None:
        nbytes = operator.index(nbytes)
    if (tensor := _of_tensor(obj)) is not None:
        room = tensor.nbytes
        found = tensor if nbytes is None else tensor._replace(nbytes=nbytes)
    elif (plain := writable_bytes(obj)) is not None:
        ptr, room, held = plain
        found = View(ptr, room if nbytes is None else nbytes, _lib.MEM_HOST, held)
    else:
        found, room = _exported(obj, writable, nbytes)
    if not 0 < found.nbytes <= room:
        raise argument(f"{found.nbytes} bytes of a buffer that has {room}")
    return found


def _of_tensor(obj: Any) -> View | None:
    """view() of an ordinary tensor of torch, whose own descriptions take 10 us; None: of others."""
    torch = sys.modules.get("torch")
    if torch is None or type(obj) is not getattr(torch, "Tensor", None):
        return None
    try:
        if (obj.layout is not torch.strided or obj.requires_grad or obj.is_conj() or obj.is_neg()
                or obj.is_quantized or obj.is_nested or not obj.is_contiguous()
                or not (obj.is_cuda or obj.is_cpu)):
            return None
        mem = (_lib.MEM_GPU if obj.is_cuda
               else _lib.MEM_PINNED if obj.is_pinned() else _lib.MEM_HOST)
        nbytes, storage = obj.nbytes, obj.untyped_storage()
        if obj.storage_offset() * obj.itemsize + nbytes > storage.nbytes():
            check_storage(obj)
        return View(obj.data_ptr(), nbytes, mem, storage)
    except RuntimeError:  # it has no memory of its own, as within vmap()
        return None


def _exported(obj: Any, writable: bool, nbytes: int | None) -> tuple[View, int]:
    """view() of anything, and how much room there is."""
    if isinstance(obj, _POINTERS):
        return _of_arrays(obj, writable, nbytes, TypeError())
    export = PyBuffer()
    try:
        _get_buffer(obj, ctypes.byref(export), _WRITABLE if writable else _SIMPLE)
    except (TypeError, BufferError, ValueError) as why:
        return _of_arrays(obj, writable, nbytes, why)
    _refuse_objects(obj)
    room: int = export.len
    size = room if nbytes is None else nbytes
    return View(export.buf or 0, size, _lib.MEM_HOST, export), room


def _of_arrays(
    obj: Any, writable: bool, nbytes: int | None, why: Exception
) -> tuple[View, int]:
    """view() without the buffer protocol."""
    name = type(obj).__name__
    array = describe(obj)
    if array is None:
        address = address_of(obj)
        if address is None:
            if not isinstance(why, TypeError):
                raise argument(f"a {name}: {why}") from None
            raise argument(f"a {name} is no buffer: give an array, bytes or an address") from None
        if nbytes is None:
            raise argument(f"address {address:#x}: an address comes with a size")
        if not 4096 <= address < 1 << 64:
            raise argument(f"address {address:#x}: no memory is there")
        mem = kind_of(address)
        if mem != _lib.MEM_GPU:
            check_mapped(address, nbytes, writable)
        return View(address, nbytes, mem, obj), nbytes
    if writable and array.readonly:
        raise argument(f"a {name} that is read-only can't be read into")
    if not array.contiguous:
        raise argument(f"a {name} that is not contiguous: give a contiguous copy of it")
    room = array.nbytes
    size = room if nbytes is None else nbytes
    return View(array.ptr, size, array.mem, array.keep, array.stream), room


def stream_handle(stream: Any) -> int:
    """CUDA's handle of a stream of torch, CuPy, pycuda, Numba or cuda.core, or of an int."""
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr", "handle"):  # torch; CuPy; pycuda and Numba
        if hasattr(stream, name):
            handle = getattr(stream, name)
            return int(getattr(handle, "value", handle) or 0)
    raise argument(f"a {type(stream).__name__} is no CUDA stream: give a stream or its handle")
