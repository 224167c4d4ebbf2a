# SPDX-License-Identifier: BSD-3-Clause
"""Data sets: where the samples for training are, in files of several formats."""

from __future__ import annotations

import ctypes
import operator
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _lib
from .._lib import lib
from ..errors import argument, check, error

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from ..engine import Engine
    from ..reports import Path

    Name = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_FORMATS = {lib.gpunvme_dataset_format_name(i).decode(): i for i in range(_lib.DATASET_NFORMATS)}

#: numpy's names of the types of elements. It has none for the others.
NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64",
    "F64": "float64", "C64": "complex64",
}


#: Memory of reads that did not end in time: they may still write to it.
_abandoned: list[object] = []


class Place(NamedTuple):
    """Where a sample is: ``nbytes`` bytes of file number ``file``, from byte ``offset`` on."""

    file: int
    offset: int
    nbytes: int


def _close(handle: int, pid: int) -> None:
    if pid == os.getpid():  # a child has no threads that serve its parent's stores
        lib.gpunvme_dataset_close(handle)


def _uris_of(files: Name | Sequence[Name], require: str | None) -> list[bytes]:
    from ..weights._files import uri_of

    if isinstance(files, (str, bytes, os.PathLike)):
        files = [files]
    uris = [uri_of(name, require) for name in files]
    if any(b"\0" in uri for uri in uris):
        raise argument("a name with a byte 0")
    return uris


def _numbers(name: str, values: Any) -> NDArray[np.uint64]:
    array = np.atleast_1d(np.asarray(values))
    if array.ndim != 1 or array.dtype.kind not in "iu" and array.size:
        raise argument(f"{name} is not a row of integers")
    if array.size and int(array.min()) < 0:
        raise argument(f"{name} has a number below 0")
    return np.ascontiguousarray(array, dtype=np.uint64)


class Opened:
    """An open data set of the library's; closed when nothing refers to it any more."""

    def __init__(self, handle: int, engine: Engine | None) -> None:
        self.handle = handle
        self._engine = engine  # outlives the files
        weakref.finalize(self, _close, handle, os.getpid())


    def info(self) -> _lib.DatasetInfo:
        found = _lib.DatasetInfo()
        lib.gpunvme_dataset_get_info(self.handle, ctypes.byref(found))
        return found

    def uri(self, file: int) -> str:
        return os.fsdecode(lib.gpunvme_dataset_uri(self.handle, file))

    def path(self, file: int) -> Path:
        from ..store import path_of

        found = _lib.Path()
        lib.gpunvme_store_path(lib.gpunvme_dataset_store(self.handle, file), ctypes.byref(found))
        return path_of(found)

    def paths(self) -> Iterator[tuple[str, Path]]:
        """The URI and the path report of each file."""
        return ((self.uri(i), self.path(i)) for i in range(self.info().nfiles))


class Dataset:
    """Files as one sequence of samples; ``dataset[i]`` reads sample ``i`` as a numpy array.

    ``files`` is a path or a URI, or several: the samples of the first, then those of the second,
    and so on. ``format``: "records" (of ``record_nbytes`` bytes each, after ``header_nbytes`` of
    each file), "tokens" (windows of ``seq_tokens`` + ``overlap_tokens`` tokens, one every
    ``seq_tokens``; files of llm.c, or without a header and of ``token_nbytes`` a token), "npy" (rows
    of an array), "safetensors" (rows of the tensor ``member``), "tar" (WebDataset; with ``member``,
    a suffix as "jpg", that file of each sample), "mds" (MosaicML's, by the index.json; with
    ``member`` that column), "index" (what write_index() wrote), "list" (a text whose lines have a
    URI, an offset and a length), or "auto": by the files' names.
    docs/DATA.md describes the formats. ``require`` is a route of the bytes ("p2p"), without which
    reads into GPU memory fail.

    May be used by several threads. A context manager that closes the files; they stay open as long
    as a Loader reads from them.

    Errors: ArgumentError: a file is malformed or truncated, or an argument does not fit;
    UnsupportedError: compressed shards and the like; NotFoundError: there is no such file or
    ``member``.
    """

    def __init__(self, files: Name | Sequence[Name], *, format: str = "auto",
                 record_nbytes: int = 0, header_nbytes: int = 0, seq_tokens: int = 0,
                 overlap_tokens: int = 0, token_nbytes: int = 0, member: str | None = None,
                 engine: Engine | None = None, require: str | None = None) -> None:
        uris = _uris_of(files, require)
        if format not in _FORMATS:
            raise argument(f'format "{format}": there are {", ".join(_FORMATS)}')
        if "\0" in (member or ""):
            raise argument("a name with a byte 0")
        numbers = {"record_nbytes": record_nbytes, "header_nbytes": header_nbytes,
                   "seq_tokens": seq_tokens, "overlap_tokens": overlap_tokens,
                   "token_nbytes": token_nbytes}
        for name, value in numbers.items():
            if not 0 <= operator.index(value) < 1 << (32 if name == "token_nbytes" else 64):
                raise argument(f"{name}: {value}")
        options = _lib.DatasetOptions(
            format=_FORMATS[format], member=None if member is None else member.encode(), **numbers)
        handle = ctypes.c_void_p()
        check(lib.gpunvme_dataset_open(
            None if engine is None else engine._handle_now(),
            (ctypes.c_char_p * len(uris))(*uris), len(uris), ctypes.byref(options),
            ctypes.byref(handle)))
        self._adopt(handle, engine)

    @classmethod
    def from_ranges(cls, files: Name | Sequence[Name], file: Any, offset: Any, nbytes: Any, *,
                    engine: Engine | None = None, require: str | None = None) -> Self:
        """The samples that the caller tells: sample i is ``nbytes[i]`` bytes of ``files[file[i]]``,
        from byte ``offset[i]`` on.

        ``file``, ``offset`` and ``nbytes`` are arrays of integers of one length; ``file`` may be
        None where there is one file. Samples may be in any order and overlap. The arrays are not
        used afterwards. ArgumentError names the range that reaches outside its file.
        """
        uris = _uris_of(files, require)
        given = {"offset": offset, "nbytes": nbytes} | ({} if file is None else {"file": file})
        arrays = {name: _numbers(name, values) for name, values in given.items()}
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            raise argument(f"arrays of different lengths: {sizes}")
        ranges = _lib.DatasetRanges(
            files=None if file is None else arrays["file"].ctypes.data,
            offsets=arrays["offset"].ctypes.data, nbytes=arrays["nbytes"].ctypes.data,
            n=sizes["offset"])
        handle = ctypes.c_void_p()
        check(lib.gpunvme_dataset_from_ranges(
            None if engine is None else engine._handle_now(),
            (ctypes.c_char_p * len(uris))(*uris), len(uris), ctypes.byref(ranges),
            ctypes.byref(handle)))
        made = cls.__new__(cls)
        made._adopt(handle, engine)
        return made

    def _adopt(self, handle: ctypes.c_void_p, engine: Engine | None) -> None:
        self._opened: Opened | None = Opened(handle.value or 0, engine)
        self._describe(self._opened)

    def _describe(self, opened: Opened) -> None:
        info = opened.info()
        self._length: int = info.nsamples
        self.format: str = lib.gpunvme_dataset_format_name(info.format).decode()
        #: The type of a sample's elements as safetensors names it ("U16"); None: bytes.
        self.dtype: str | None = (lib.gpunvme_dtype_name(info.dtype).decode() if info.dtype
                                  else None)
        #: The shape of a sample; None: it is no array.
        self.shape: tuple[int, ...] | None = tuple(info.shape[: info.rank]) if info.rank else None
        self.nbytes: int = info.nbytes  #: of all samples
        #: Of each sample; None: their sizes differ, or there is none.
        self.sample_nbytes: int | None = info.sample_nbytes or None
        self.max_nbytes: int = info.max_nbytes  #: of the longest sample
        #: A number that tells this data set from others; not of the files' names.
        self.fingerprint: int = info.fingerprint
        self.index_nbytes: int = info.index_nbytes  #: of memory that lists the samples
        #: Whether it was opened by an index with a checksum of each sample.
        self.has_checksums: bool = info.has_checksums
        #: The URIs of the files; Place.file counts them.
        self.files: list[str] = [opened.uri(i) for i in range(info.nfiles)]

    def opened(self) -> Opened:
        """What keeps its files open; ClosedError if it has been closed."""
        found = self._opened
        if found is None:
            raise error(_lib.ERR_CLOSED, "the data set has been closed")
        return found

    def handle(self) -> int:
        """The address of its ``struct gpunvme_dataset``, for C, valid until close()."""
        return self.opened().handle

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        state = ", closed" if self._opened is None else ""
        return (f"<gpunvme.data.Dataset of {self._length} samples, {self.format}, "
                f"{len(self.files)} files{state}>")

    def at(self, i: int) -> Place:
        """Where sample ``i`` is; negative numbers count from the end. IndexError: there is none."""
        where = _lib.DataRange()
        i = operator.index(i)
        if not -self._length <= i < self._length:
            raise IndexError(f"sample {i} of {self._length}")
        opened = self.opened()
        check(lib.gpunvme_dataset_at(opened.handle, i % self._length, ctypes.byref(where)))
        return Place(where.file, where.offset, where.nbytes)

    def __getitem__(self, i: int) -> NDArray[Any]:
        """Sample ``i``: an array of its shape if numpy has its type, else its bytes.

        It is read while the caller waits. For many samples, a Loader is far faster.
        """
        opened = self.opened()  # another thread may close the data set
        place = self.at(i)
        found = np.empty(place.nbytes, np.uint8)
        done = ctypes.c_size_t()
        if place.nbytes:
            err = lib.gpunvme_store_read(
                lib.gpunvme_dataset_store(opened.handle, place.file), place.offset,
                found.ctypes.data, _lib.MEM_HOST, place.nbytes, ctypes.byref(done))
            if err == _lib.ERR_TIMEOUT:
                _abandoned.append(found)
            check(err)
        if done.value < place.nbytes:
            raise error(_lib.ERR_RANGE,
                        f"{self.files[place.file]} has become shorter: sample {i} is bytes "
                        f"{place.offset} to {place.offset + place.nbytes - 1}")
        if self.dtype not in NUMPY:
            return found
        elements = found.view(NUMPY[self.dtype])
        if self.shape is None:  # a number, or elements in a row
            return elements.reshape(()) if elements.size == 1 else elements
        return elements.reshape(self.shape)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[i] for i in range(self._length))

    def checksum(self, i: int) -> int:
        """The checksum of sample ``i`` that the index has. UnsupportedError: it has none."""
        found = ctypes.c_uint64()
        i = operator.index(i)
        if not -self._length <= i < self._length:
            raise IndexError(f"sample {i} of {self._length}")
        check(lib.gpunvme_dataset_checksum(self.opened().handle, i % self._length,
                                           ctypes.byref(found)))
        return found.value

    def write_index(self, path: str | os.PathLike[str], *, checksums: bool = False) -> None:
        """Writes an index, which opens without reading the files' headers; name it *.gnvidx.

        With ``checksums``, all samples are read, and the index gets a checksum of each: then
        ``Loader(..., verify=True)`` compares. Without it, the index has those that the data set
        has.
        """
        opened = self.opened()
        options = _lib.DatasetIndexOptions(checksums=checksums)
        check(lib.gpunvme_dataset_write_index(opened.handle, os.fsencode(path),
                                              ctypes.byref(options)))

    def path(self, file: int = 0) -> Path:
        """How the bytes of a file go, as Store.path(). IndexError: there is no such file."""
        opened = self.opened()
        if not 0 <= operator.index(file) < len(self.files):
            raise IndexError(f"file {file} of {len(self.files)}")
        return opened.path(file)

    def close(self) -> None:
        """Closes the files, when no Loader reads from them any more."""
        self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
