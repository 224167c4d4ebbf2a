# SPDX-License-Identifier: BSD-3-Clause
"""Open files of weights, and their tensors as the C library lists them."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Sequence
from ctypes import string_at
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from .. import _lib
from .._lib import lib
from ..errors import Error, argument, error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine import Engine

    Name = str | bytes | os.PathLike[str] | os.PathLike[bytes]

    class SafetensorError(Exception):
        """safetensors' own, or a private class if that is not installed."""
else:
    try:
        from safetensors import SafetensorError
    except ImportError:

        class SafetensorError(Exception):
            pass


_TENSOR = np.dtype(_lib.Tensor)


class WeightsError(Error, ValueError, SafetensorError):
    """A file, a tensor or an argument is invalid.

    Also a ``safetensors.SafetensorError`` if that package is installed.
    """


class SliceError(WeightsError, IndexError):
    """An index is outside of a tensor."""


def failure(code: int, detail: str | None = None) -> Error:
    """The exception for an error code, with the thread's detail if none is given."""
    found = error(code, detail)
    if code not in (_lib.ERR_INVALID, _lib.ERR_LIMIT):
        return found
    return WeightsError(code, found.name, found.detail, found.remedy)


def refuse(detail: str, kind: type[WeightsError] = WeightsError) -> NoReturn:
    """Raises the exception for what is refused without a call of the library."""
    found = error(_lib.ERR_INVALID, detail)
    raise kind(found.code, found.name, found.detail, found.remedy)


class Tensor(NamedTuple):
    """A tensor in a file; valid as long as its Files."""

    name: str
    dtype: str  # as the file has it: "BF16"
    shape: tuple[int, ...]  # in elements
    nbytes: int
    file: int
    offset: int  # bytes
    address: int  # of its struct gpunvme_tensor


def _numbers_at(addresses: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """The ``n`` numbers of 64 bits at each of these addresses, one row each."""
    if not n or not len(addresses):
        return np.empty((len(addresses), n), np.uint64)
    first, last = int(addresses.min()), int(addresses.max())
    # A view of all memory from the first to the last; only these numbers of it are read.
    between = (ctypes.c_uint64 * ((last - first) // 8 + n)).from_address(first)
    at = (addresses - np.uint64(first)) // np.uint64(8)
    memory: NDArray[np.uint64] = np.frombuffer(memoryview(between), np.uint64)
    found: NDArray[np.uint64] = memory[at[:, None] + np.arange(n, dtype=np.uint64)]
    return found


def uri_of(name: Name, require: str | None) -> bytes:
    """The URI of a file, with an option that requires a route to GPU memory."""
    text = os.fsdecode(name)
    if require is None:
        return os.fsencode(text)
    scheme, colon, _ = text.partition(":")
    if not colon or scheme not in ("file", "nvme", "vfio-user", "sim", "spdk", "stripe"):
        text = "file:" + text.replace("%", "%25").replace("?", "%3F")
    if scheme == "stripe" and text.startswith("stripe:?"):
        text = text.replace("?", f"?require={require},", 1)
    elif scheme == "stripe":
        text = text.replace(":", f":?require={require};", 1)
    else:
        text += f"{',' if '?' in text else '?'}require={require}"
    return os.fsencode(text)


#: All open files.
opened: weakref.WeakSet[Files] = weakref.WeakSet()


def _close(handle: int, pid: int) -> None:
    if pid == os.getpid():  # a child has no threads that serve its parent's stores
        lib.gpunvme_weights_close(handle)


class Files:
    """One or many open files, or those of an index; closed when the last reference is gone.

    May be used by several threads.
    """

    def __init__(self, names: Name | Sequence[Name], *, engine: Engine | None = None,
                 require: str | None = None) -> None:
        if isinstance(names, (str, bytes, os.PathLike)):
            names = [names]
        uris = [uri_of(name, require) for name in names]
        if not uris:
            raise argument("no files")
        if any(b"\0" in uri for uri in uris):
            raise argument("a URI with a byte 0")
        handle = ctypes.c_void_p()
        err = lib.gpunvme_weights_open(None if engine is None else engine._handle_now(),
                                       (ctypes.c_char_p * len(uris))(*uris), len(uris),
                                       ctypes.byref(handle))
        if err:
            raise failure(err)
        self.handle: int = handle.value or 0
        self._engine = engine  # outlives the files
        self._finalizer = weakref.finalize(self, _close, self.handle, os.getpid())
        self._finalizer.atexit = False  # _load.py ends loads first
        opened.add(self)
        self._list()

    def _list(self) -> None:
        """Lists the tensors by columns, in the order of file and offset; there may be thousands."""
        n = lib.gpunvme_weights_count(self.handle)
        self.addresses = np.empty(0, np.uint64)  #: of each struct gpunvme_tensor
        self._columns = np.empty(0, _TENSOR)
        if n:
            first = lib.gpunvme_weights_at(self.handle, 0)
            self.addresses = first + np.arange(n, dtype=np.uint64) * np.uint64(_TENSOR.itemsize)
            self._columns = np.frombuffer((_lib.Tensor * n).from_address(first), _TENSOR)
        self.nbytes = self._columns["nbytes"]  #: of each
        self._codes: dict[int, str] = {}  # by the library's address

    @cached_property
    def names(self) -> list[str]:
        """The name of each row. A load begins without: thousands of names take a while."""
        need = ctypes.c_size_t()
        lib.gpunvme_weights_names(self.handle, None, 0, ctypes.byref(need))
        text = ctypes.create_string_buffer(need.value)
        lib.gpunvme_weights_names(self.handle, text, need.value, ctypes.byref(need))
        return text.raw.decode().split("\0")[:-1]

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each name, in the order of the rows."""
        return dict(zip(self.names, range(len(self.names))))

    def codes(self, rows: NDArray[np.int64]) -> list[str]:
        """The types of these rows."""
        return list(map(self._code, self._columns["dtype_name"][rows].tolist()))

    def _code(self, pointer: int) -> str:
        text = self._codes.get(pointer)
        if text is None:
            text = self._codes[pointer] = string_at(pointer).decode()
        return text

    def shapes(self, rows: NDArray[np.int64]) -> list[tuple[int, ...]]:
        """The shapes of these rows. Equal ones are one object, since there are thousands."""
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        found: list[tuple[int, ...]] = [()] * len(rows)
        columns = self._columns[rows]
        for rank in set(columns["rank"].tolist()):
            where = np.flatnonzero(columns["rank"] == rank)
            dims = _numbers_at(columns["shape"][where], rank)
            for i, shape in zip(where.tolist(), map(tuple, dims.tolist())):
                found[i] = known.setdefault(shape, shape)
        return found

    def row(self, name: str) -> int:
        """The row of a name. WeightsError: there is no such tensor."""
        i = self.index.get(name)
        if i is None:
            refuse(f'there is no tensor "{name}"')
        return i

    def __getitem__(self, name: str) -> Tensor:
        i = self.row(name)
        _, _, dtype, rank, dims, nbytes, file, offset = self._columns.item(i)
        shape = struct.unpack(f"={rank}Q", string_at(dims, 8 * rank)) if rank else ()
        return Tensor(name, self._code(dtype), shape, nbytes, file, offset, self.addresses.item(i))

    def close(self) -> None:
        """Closes them now, at the interpreter's end; they must not be used afterwards."""
        self._finalizer()

    def __contains__(self, name: object) -> bool:
        return name in self.index

    def bytes_read(self) -> int:
        """Bytes read from all files since they were opened, headers included."""
        path, read = _lib.Path(), 0
        for file in range(lib.gpunvme_weights_nfiles(self.handle)):
            lib.gpunvme_store_path(lib.gpunvme_weights_store(self.handle, file),
                                   ctypes.byref(path))
            read += sum(path.bytes_read)
        return read

    def metadata(self) -> dict[str, str] | None:
        """The ``__metadata__`` of all files; None if they have none."""
        key, value = ctypes.c_char_p(), ctypes.c_char_p()
        found: dict[str, str] = {}
        for file in range(lib.gpunvme_weights_nfiles(self.handle)):
            i = 0
            while lib.gpunvme_weights_metadata(self.handle, file, i, ctypes.byref(key),
                                               ctypes.byref(value)):
                found[(key.value or b"").decode()] = (value.value or b"").decode()
                i += 1
        return found or None
