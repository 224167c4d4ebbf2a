# SPDX-License-Identifier: BSD-3-Clause
"""Memory of the library's own, for transfers."""

from __future__ import annotations

import ctypes
import operator
import os
import weakref
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _lib
from ._lib import lib
from .errors import argument, check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _free(buf: _lib.Buf, pid: int) -> None:
    if pid == os.getpid():  # a child can't use its parent's CUDA
        lib.gpunvme_mem_free(ctypes.byref(buf))


def _current() -> int:
    """The number of the thread's current GPU; 0 without one."""
    gpu = ctypes.c_uint()
    lib.gpunvme_mem_gpu_current(ctypes.byref(gpu))
    return gpu.value


def _allocate(owner: object, nbytes: int, mem: int, gpu: int) -> _lib.Buf:
    """Memory that is freed with ``owner``."""
    buf = _lib.Buf()
    nbytes = operator.index(nbytes)
    if nbytes <= 0:
        raise argument(f"memory of {nbytes} bytes")
    check(lib.gpunvme_mem_alloc_on(gpu, nbytes, mem, ctypes.byref(buf)))
    weakref.finalize(owner, _free, buf, os.getpid()).atexit = False
    return buf


class _HostMemory:
    """The base of a numpy array."""

    def __init__(self, nbytes: int, mem: int, gpu: int) -> None:
        buf = _allocate(self, nbytes, mem, gpu)
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (buf.cpu, False),
        }


class DeviceMemory:
    """An array in GPU memory, packed, freed when nothing refers to it any more.

    torch.from_dlpack(), cupy.asarray() and Numba take it without a copy. ``ptr`` is its address,
    ``device`` the number of its GPU, ``typestr`` numpy's name of the type ("<V2" is bfloat16).
    """

    def __init__(self, shape: tuple[int, ...], typestr: str = "|u1",
                 device: int | None = None) -> None:
        self.device = _current() if device is None else device
        self.shape = shape
        self.typestr = typestr
        self.nbytes = int(typestr[2:])
        for size in shape:
            self.nbytes *= size
        self.ptr: int = _allocate(self, self.nbytes, _lib.MEM_GPU, self.device).gpu

    def __repr__(self) -> str:
        return f"<gpunvme.DeviceMemory {self.shape} {self.typestr} on cuda:{self.device}>"

    def __array__(self, *_args: object, **_options: object) -> NDArray[Any]:
        raise TypeError("memory of a GPU is no numpy array: copy_to_host() makes one of a copy")

    def copy_to_host(self) -> NDArray[Any]:
        """A copy, as a numpy array of the same shape and type."""
        import numpy

        copy = numpy.empty(self.shape, self.typestr)
        check(lib.gpunvme_mem_copy(copy.ctypes.data, _lib.MEM_HOST, self.ptr, _lib.MEM_GPU,
                                   self.nbytes))
        return copy

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.typestr,
            "data": (self.ptr, False),
            "strides": None,
            "stream": None,  # nothing is in flight on one
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device  # kDLCUDA

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule. Nothing is in flight on a stream, so ``stream`` is not used."""
        from . import dlpack

        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("gpunvme exports memory where it is, without a copy")
        return dlpack.exported(self, self.ptr, self.device, self.shape, self.typestr)


@overload
def empty(nbytes: int, device: Literal["cpu", "pinned"] = "cpu") -> NDArray[np.uint8]: ...
@overload
def empty(nbytes: int, device: str) -> NDArray[np.uint8] | DeviceMemory: ...
def empty(nbytes: int, device: str = "cpu") -> NDArray[np.uint8] | DeviceMemory:
    """Zeroed memory for transfers: "cpu", "pinned" (host memory that GPUs reach) or "cuda:0".

    Host memory is a numpy array of bytes, page-aligned; GPU memory is a DeviceMemory, which torch,
    CuPy and Numba take without a copy. "cuda" is the thread's current GPU; where there is no GPU,
    host memory stands in for "cuda:0". It is freed when nothing refers to it any more.
    """
    import numpy

    kind, colon, index = device.partition(":")
    if kind not in ("cpu", "pinned", "cuda") or (colon and (kind != "cuda" or not index.isdigit())):
        raise argument(f'device "{device}": there are "cpu", "pinned", "cuda" and "cuda:N"')
    gpu = int(index) if index else _current()
    if kind == "cuda" and not lib.gpunvme_mem_gpu_is_host():
        return DeviceMemory((nbytes,), device=gpu)
    mem = {"cpu": _lib.MEM_HOST, "pinned": _lib.MEM_PINNED, "cuda": _lib.MEM_GPU}[kind]
    return numpy.asarray(_HostMemory(nbytes, mem, gpu))
