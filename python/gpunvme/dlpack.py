# SPDX-License-Identifier: BSD-3-Clause
"""DLPack's structures and capsules, both ways: arrays of others, and memory of ours."""

from __future__ import annotations

import atexit
import ctypes
import weakref
from ctypes import (
    c_char_p,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any, NamedTuple

from . import _lib

CPU, CUDA, CUDA_HOST = 1, 2, 3  # DLDeviceType
_KINDS = {0: "i", 1: "u", 2: "f", 4: "V", 5: "c", 6: "b"}  # DLDataTypeCode; bfloat16 is "V2"
_READONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


# Capsules by their address: the same functions serve live ones and one that is being freed.
_python = ctypes.PyDLL(None)
_new = _python.PyCapsule_New
_new.argtypes = [c_void_p, c_char_p, c_void_p]
_new.restype = ctypes.py_object
_is_valid = _python.PyCapsule_IsValid
_is_valid.argtypes = [c_void_p, c_char_p]
_pointer = _python.PyCapsule_GetPointer
_pointer.argtypes = [c_void_p, c_char_p]
_pointer.restype = c_void_p


class Imported(NamedTuple):
    """An array of others; shape and strides (None: packed) count elements."""

    ptr: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    typestr: str
    readonly: bool
    capsule: object  # holds the array


def imported(obj: Any) -> Imported:
    """What ``obj.__dlpack__()`` exports. The GPU's work in flight on it is not waited for."""
    device, _ = obj.__dlpack_device__()
    options: dict[str, Any] = {"stream": -1} if device == CUDA else {}
    try:
        capsule = obj.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # from before version 1
        capsule = obj.__dlpack__(**options)
    readonly = False
    if _is_valid(id(capsule), b"dltensor_versioned"):
        head = _ManagedVersioned.from_address(_pointer(id(capsule), b"dltensor_versioned"))
        tensor, readonly = head.tensor, bool(head.flags & _READONLY)
    else:
        tensor = _Managed.from_address(_pointer(id(capsule), b"dltensor")).tensor
    ndim, nbytes = tensor.ndim, tensor.bits * tensor.lanes // 8
    return Imported(
        (tensor.data or 0) + tensor.byte_offset,
        tensor.device_type,
        tuple(tensor.shape[:ndim]),
        tuple(tensor.strides[:ndim]) if tensor.strides else None,
        f"<{_KINDS.get(tensor.code, 'V')}{nbytes}",
        readonly,
        capsule,
    )


# ---- Exports ----------------------------------------------------------------------------------


class _Export:
    """What a consumer has: its tensor, its shape, and what owns the memory.

    A consumer holds one reference, which the deleter drops. That is C (binding.h).
    """

    def __init__(self, tensor: _Tensor, sizes: object, owner: object) -> None:
        self.managed = _Managed(tensor, id(self), _address(_lib.lib.gpunvme_python_delete))
        self.sizes = sizes
        self.owner = owner


_live: weakref.WeakSet[_Export] = weakref.WeakSet()


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


@cache
def _introduced() -> int:
    """Tells the library of the interpreter's functions; the address of the destructor."""
    functions = _lib.Python(*(_address(getattr(_python, field[0]))
                              for field in _lib.Python._fields_))
    _lib.lib.gpunvme_python_set(ctypes.byref(functions))
    return _address(_lib.lib.gpunvme_python_delete_capsule)


def exported(
    owner: object, ptr: int, gpu: int, shape: tuple[int, ...], typestr: str
) -> object:
    """A capsule for GPU memory, packed; ``owner`` is held until the consumer lets go of it."""
    code = next(number for number, kind in _KINDS.items() if kind == typestr[1])
    destructor = _introduced()
    sizes = (c_int64 * len(shape))(*shape)
    export = _Export(_Tensor(ptr, CUDA, gpu, len(shape), code, 8 * int(typestr[2:]), 1, sizes,
                             None, 0), sizes, owner)
    capsule = _new(ctypes.addressof(export.managed), b"dltensor", destructor)
    _live.add(export)
    _python.Py_IncRef(ctypes.py_object(export))
    return capsule


@atexit.register
def _forget_exports() -> None:
    # Consumers that end later must not call into an interpreter that has ended.
    for export in list(_live):
        export.managed.deleter = None
