# SPDX-License-Identifier: BSD-3-Clause
"""Loads in flight: parts of tensors go to addresses.

A large load has a thread that waits in the library, so that Ctrl-C ends the caller's wait, and
slices are staged while the caller does something else. The thread holds the files and the memory
until the library is done with them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lib
from .._lib import lib
from ..errors import Error, error
from ._files import Files, failure, opened

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

Box = tuple[tuple[int, int], ...]  # begin and end in each dimension

_ROOM = 1024  # parts taken by one call
_ONE_CALL = 1 << 20  # bytes that are loaded by one call, without a thread

_running: set[Load] = set()
# Files, and memory that may still be written to, of transfers that did not end.
_stuck: list[tuple[Files, object, object]] = []

_PART = np.dtype(_lib.WeightsPart)


class Parts:
    """Tensors, or boxes of them, and their destinations. Each has at least one byte."""

    def __init__(self, addresses: ArrayLike, ptrs: ArrayLike, mem: ArrayLike,
                 nbytes: int) -> None:
        """``addresses``: the struct gpunvme_tensor of each. ``nbytes``: of all together."""
        where = np.asarray(addresses, np.uint64)
        self._rows: NDArray[np.void] = np.zeros(where.size, _PART)
        self._rows["tensor"] = where
        self._rows["ptr"] = ptrs
        self._rows["mem"] = mem
        self._keep: list[object] = []
        self._boxes: dict[Box, int] = {}  # the address of each one's ranges
        self.scales: NDArray[np.float32] | None = None
        self.nbytes = nbytes
        self.base: int = self._rows.ctypes.data

    @classmethod
    def joined(cls, all_parts: Sequence[Parts]) -> Parts:
        """The parts of all of these, in this order."""
        joined = cls([], [], [], sum(parts.nbytes for parts in all_parts))
        joined._rows = np.concatenate([parts._rows for parts in all_parts])
        joined._keep = [kept for parts in all_parts for kept in parts._keep]
        if any(parts.scales is not None for parts in all_parts):
            joined.scales = np.concatenate([
                np.zeros(len(parts), np.float32) if parts.scales is None else parts.scales
                for parts in all_parts])
        joined.base = joined._rows.ctypes.data
        return joined

    def __len__(self) -> int:
        return len(self._rows)

    def convert(self, dtypes: ArrayLike) -> None:
        """Sets the type that each becomes (``_lib.DTYPE_*``); 0 keeps its type.

        Those that become F8_E4M3 get a scale of their own, which ``scales`` has when they have
        landed; the others' is 0.
        """
        self._rows["dtype"] = dtypes
        if (self._rows["dtype"] == _lib.DTYPE_F8_E4M3).any():
            self.scales = np.zeros(len(self), np.float32)

    def set_checksums(self, checksums: ArrayLike) -> None:
        """Sets the checksums of parts that were loaded without them."""
        self._rows["checksum"] = checksums
        self._rows["has_checksum"] = 1

    def checksum(self, i: int) -> int | None:
        """The checksum of part ``i``; None if it has none, or has not landed."""
        row = self._rows[i]
        return int(row["checksum"]) if row["has_checksum"] else None

    def options(self, checksum: bool) -> _lib.WeightsOptions | None:
        """How the library is to load them; None as it does by itself."""
        if self.scales is None and not checksum:
            return None
        return _lib.WeightsOptions(
            checksum=checksum, scales=None if self.scales is None else self.scales.ctypes.data)

    def write_manifest(self, path: Path) -> None:
        """Writes the checksums of parts that have landed, which are whole tensors."""
        self._manifest(lib.gpunvme_weights_manifest_write, path)

    def check_manifest(self, path: Path) -> None:
        """Compares checksums with a manifest's."""
        self._manifest(lib.gpunvme_weights_manifest_check, path, None)

    @classmethod
    def look_at_manifest(cls, path: Path | None) -> None:
        """Fails as check_manifest() does if there is no such file, or it is no manifest."""
        if path is not None:
            cls([], [], [], 0).check_manifest(path)

    def _manifest(self, function: Callable[..., int], path: Path, *rest: object) -> None:
        if err := function(os.fsencode(path), self.base, len(self), *rest):
            raise failure(err)

    def set_boxes(self, boxes: Sequence[Box | None]) -> None:
        """Restricts each part to the elements from begin to end - 1 in each dimension."""
        self._rows["ranges"] = [0 if box is None else self._address_of(box) for box in boxes]

    def _address_of(self, box: Box) -> int:
        address = self._boxes.get(box)
        if address is None:
            ranges = (_lib.Range * len(box))(*(_lib.Range(begin, end) for begin, end in box))
            address = self._boxes[box] = ctypes.addressof(ranges)
            self._keep.append(ranges)
        return address

    def landed(self, addresses: NDArray[np.uint64]) -> list[int]:
        """The indexes of the parts at these addresses that have no error."""
        indexes = (addresses - np.uint64(self.base)) // np.uint64(_PART.itemsize)
        good: list[int] = indexes[self._rows["err"][indexes] == 0].tolist()
        return good


class Load:
    """A load that has been started. ``keep`` is held until it has ended.

    ``landed`` has lists of the indexes of parts, as they land, and None at the end; then ``error``
    is the first error, in the order of the parts, or None.
    """

    def __init__(self, files: Files, parts: Parts, keep: object, checksum: bool = False) -> None:
        self._files = files
        self._parts = parts
        self._keep = keep
        self.landed: SimpleQueue[list[int] | None] = SimpleQueue()
        self.error: Error | None = None
        self._lock = threading.RLock()  # of _handle; a finalizer may cancel in the middle of it
        handle = ctypes.c_void_p()
        err = lib.gpunvme_weights_load_start(files.handle, parts.base, len(parts),
                                             _ref(parts.options(checksum)), ctypes.byref(handle))
        if err:
            raise failure(err)
        self._handle = handle.value or 0
        _running.add(self)
        self._thread = threading.Thread(target=self._run, name="gpunvme weights", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.cancel()
            self._run()
            raise

    def _run(self) -> None:
        try:
            self._take()
        except BaseException as why:  # no memory: waiting threads must not wait for ever
            self.error = self.error or failure(_lib.ERR_NOMEM, str(why))
        finally:
            self._keep = None
            _running.discard(self)
            self.landed.put(None)

    def _take(self) -> None:
        """Passes on parts as they land, and ends the load."""
        try:
            landed, n = np.zeros(_ROOM, np.uint64), ctypes.c_size_t()
            room = landed.ctypes.data
            err = 0
            while not err:
                err = lib.gpunvme_weights_load_next(self._handle, room, _ROOM, ctypes.byref(n), 0)
                if not n.value:
                    break
                self.landed.put(self._parts.landed(landed[: n.value]))
            if err:
                self.error = failure(err)
                self.cancel()
        finally:
            with self._lock:
                handle, self._handle = self._handle, 0
            err = lib.gpunvme_weights_load_end(handle)
            if err == _lib.ERR_TIMEOUT:
                _stuck.append((self._files, self._parts, self._keep))
            if err:
                self.error = self.error or failure(err)

    def cancel(self) -> None:
        """Drops what has not begun. Does not wait."""
        with self._lock:
            if self._handle:
                lib.gpunvme_weights_load_cancel(self._handle)

    def stop(self) -> None:
        """Cancels it and waits until nothing is written any more."""
        self.cancel()
        self._thread.join()

    def wait(self) -> None:
        """Waits until all has landed. An interrupted wait stops the load."""
        try:
            while self.landed.get() is not None:
                pass
        except BaseException:
            self.stop()
            raise
        self.landed.put(None)
        if self.error:
            raise self.error


def _ref(options: _lib.WeightsOptions | None) -> Any:
    return None if options is None else ctypes.byref(options)


def load(files: Files, parts: Parts, keep: object, checksum: bool = False) -> None:
    """Loads all parts, and returns when they have landed. Ctrl-C ends loads above 1 MiB."""
    if not len(parts):
        return
    if parts.nbytes > _ONE_CALL:
        Load(files, parts, keep, checksum).wait()
        return
    err = lib.gpunvme_weights_load(files.handle, parts.base, len(parts),
                                   _ref(parts.options(checksum)))
    if err == _lib.ERR_TIMEOUT:
        _stuck.append((files, parts, keep))
    if err:
        raise failure(err)


@atexit.register
def _end() -> None:
    loads = list(_running)
    for each in loads:
        each.cancel()
    for each in loads:
        each._thread.join()  # as long as the stores' deadlines at most
    kept = [files for files, _, _ in _stuck]
    for files in list(opened):
        if files not in kept:
            files.close()


def _in_child() -> None:
    """After fork(2): the threads of the parent's loads are not here."""
    for each in list(_running):
        each._lock = threading.RLock()
        each._handle = 0
        each.error = error(_lib.ERR_UNSUPPORTED, "a load that the parent process began")
        each.landed = SimpleQueue()
        each.landed.put(None)
        _stuck.append((each._files, each._parts, each._keep))
    _running.clear()


os.register_at_fork(after_in_child=_in_child)
