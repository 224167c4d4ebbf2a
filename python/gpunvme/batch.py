# SPDX-License-Identifier: BSD-3-Clause
"""Many transfers by one call, described by arrays."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _lib
from ._lib import lib
from .buffers import View, check_mapped, kind_of, view
from .errors import ArgumentError, Error, argument, error
from .future import Future, Source, io_error
from .store import Store, finished, order_of

_IO = np.dtype(_lib.Io)
_ONE_CALL = 16 << 20  # bytes of a batch that run() does by one call


class _BatchFuture(Future):
    def _outcome(self) -> tuple[int, Error | None]:
        batch = self._keep
        assert isinstance(batch, Batch)
        self._routes = int(np.bitwise_or.reduce(batch._ios["routes"]))
        failed = np.flatnonzero(batch.errors)
        failure = io_error(self._ios[failed[0]]) if failed.size else None
        return int(batch.done.sum()), failure


class Batch:
    """Transfers between stores and one buffer, submitted together, as often as one likes.

        batch = gpunvme.Batch(store, buf, offsets, 4096)    # read 4096 bytes from each offset on,
        batch.run()                                         # one after the other into buf
        batch.offsets[:] = next_offsets
        batch.run()

    ``stores`` is a Store, or one for each transfer. ``offsets`` are bytes of the store, ``nbytes``
    the length of all, or one for each. ``at`` says where in ``buf`` each goes (None: one after the
    other); with ``buf`` None, these are addresses of memory that you keep, all of one kind. All are
    arrays of a number for each transfer. ``write`` writes instead.

    ``offsets``, ``done`` (bytes moved) and ``errors`` (error codes, 0 for success) are arrays over
    the transfers themselves: change the first while nothing is in flight, read the others when it
    has ended. One thread uses a Batch at a time.
    """

    def __init__(self, stores: Store | Sequence[Store], buf: Any, offsets: ArrayLike,
                 nbytes: ArrayLike, at: ArrayLike | None = None, *, write: bool = False) -> None:
        where = _numbers("offsets", offsets)
        n = where.size
        if not n:
            raise argument("a batch of no transfers")
        lengths = np.broadcast_to(_numbers("nbytes", nbytes), n)
        if not lengths.all():
            raise argument("a transfer of 0 bytes")
        self._ios: NDArray[np.void] = np.zeros(n, _IO)
        self._array = (_lib.Io * n).from_buffer(self._ios.data)
        self._stores = (stores,) if isinstance(stores, Store) else tuple(stores)
        if len(self._stores) not in (1, n):
            raise argument(f"{len(self._stores)} stores for {n} transfers")
        self._each = tuple(dict.fromkeys(self._stores))  # once
        if at is None:
            at = np.concatenate((np.zeros(1, np.uint64), np.cumsum(lengths[:-1], dtype=np.uint64)))
        self._ios["op"] = _lib.OP_WRITE if write else _lib.OP_READ
        self._ios["store"] = [store.handle() for store in self._stores]
        self._ios["offset"] = where
        self._ios["nbytes"] = lengths
        self._view = self._place(buf, np.broadcast_to(_numbers("at", at), n), lengths, write)
        self.nbytes = int(lengths.sum())  #: of all together
        self._source = Source(n)
        self._source.whole = ctypes.addressof(self._array)
        self.offsets: NDArray[np.uint64] = self._ios["offset"]
        self.done: NDArray[np.uint64] = self._ios["done"]
        self.errors: NDArray[np.int32] = self._ios["err"]

    def _place(self, buf: Any, at: NDArray[np.uint64], lengths: NDArray[np.uint64],
               write: bool) -> View:
        """Says where in memory each goes."""
        if buf is None:
            found = View(0, 0, kind_of(int(at[0])), None)
            if found.mem != _lib.MEM_GPU:
                _check_mapped(at, lengths, not write)
        else:
            found = view(buf, not write)
            beyond = (at > found.nbytes) | (lengths > found.nbytes - at)
            if beyond.any():
                i = int(beyond.argmax())
                raise argument(f"transfer {i}: {lengths[i]} bytes at byte {at[i]} of a buffer of "
                               f"{found.nbytes}")
        self._ios["mem"] = found.mem
        self._ios["ptr"] = at + np.uint64(found.ptr)
        return found

    def __len__(self) -> int:
        return len(self._ios)

    def submit(self, *, stream: Any = None) -> Future:
        """Begins all of them and returns one Future, which ends with the last of them.

        Its result is how many bytes were moved in all; it raises the first error.
        """
        order = order_of(stream, (self._view,))
        if lib.gpunvme_batch_pending(self._source.handle):
            raise error(_lib.ERR_BUSY, "this batch is in flight")
        _enter(self._each)
        try:
            future = _BatchFuture(self._source, self._array, self._each, self, self.nbytes,
                                  self._view.mem)
            return future._submit(order)
        finally:
            _leave(self._each)

    def run(self) -> int:
        """Does all of them and returns how many bytes were moved; raises the first error.

        Up to 16 MiB are one call into the library, which Ctrl-C does not end.
        """
        if self._view.stream is not None or self.nbytes > _ONE_CALL:
            return finished(self.submit())
        _enter(self._each)
        try:
            err = lib.gpunvme_io_run(self._source.whole, len(self._array))
            if err:
                if err == _lib.ERR_TIMEOUT:  # they may still be in flight
                    for store in self._each:
                        store._abandoned.append(self)
                raise error(err)
        finally:
            _leave(self._each)
        return int(self.done.sum())


def _enter(stores: Sequence[Store]) -> None:
    """All of them, or none."""
    for i, store in enumerate(stores):
        try:
            store._enter()
        except BaseException:
            _leave(stores[:i])
            raise


def _leave(stores: Sequence[Store]) -> None:
    for store in stores:
        store._leave()


def _check_mapped(at: NDArray[np.uint64], lengths: NDArray[np.uint64], writable: bool) -> None:
    """Refuses addresses where no memory of the host is; most are in one range."""
    begin, end = int(at.min()), int(at.max()) + int(lengths.max())
    try:
        check_mapped(begin, end - begin, writable)
    except ArgumentError:
        for address, nbytes in zip(at.tolist(), lengths.tolist()):
            check_mapped(address, nbytes, writable)


def _numbers(what: str, values: ArrayLike) -> NDArray[np.uint64]:
    found = np.asarray(values)
    if found.dtype.kind not in "iu" or found.ndim > 1:
        raise argument(f"{what}: a number, or an array of a whole number for each transfer")
    if found.dtype.kind == "i" and found.size and found.min() < 0:
        raise argument(f"{what}: {found.min()} is negative")
    return found.astype(np.uint64, copy=False)
