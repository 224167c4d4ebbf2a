# SPDX-License-Identifier: BSD-3-Clause
"""Requests by kind: records of several kinds on a store, read by index."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Sequence

from . import _lib
from ._lib import lib
from .buffers import View, view
from .errors import Error, argument, check, error
from .future import Future, Source
from .reports import Kind
from .store import Store, order_of

if TYPE_CHECKING:
    from typing_extensions import Self


class Requests:
    """A buffer, and where on a store which kind of records lies.

        with gpunvme.Requests(store, buf) as records:
            records.add_kind("users", start=0, length=1000, sector_size=4096)
            records.add_kind("items", start=1000, length=500, sector_size=4096)
            records.read("items", 7, 3, into=buf)         # items 7, 8 and 9
            records.read_many([("users", 0, 10), ("items", 2, 1)])  # to their places in buf

    A kind is ``length`` records of ``sector_size`` bytes, one after the other from sector ``start``
    (in such sectors) of the store on. Kinds have places in ``buf`` one after the other, in the
    order in which they were added; with ``buf`` None they have none, and each read names a buffer.
    """

    def __init__(self, store: Store, buf: Any = None) -> None:
        self._table = 0
        self._store = store
        self._view = View(0, 0, _lib.MEM_HOST, None) if buf is None else view(buf, True)
        self._id = ctypes.c_uint64()
        table = ctypes.c_void_p()
        handle = store._enter()
        try:
            check(lib.gpunvme_requests_create(handle, ctypes.byref(table)))
            self._table = table.value or 0
            store._requests.append(None)
        finally:
            store._leave()
        try:
            check(lib.gpunvme_request_create(self._table, self._view.ptr, self._view.nbytes,
                                             self._view.mem, ctypes.byref(self._id)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases it. BusyError while a transfer of the store uses the buffer."""
        table, self._table = self._table, 0
        if table:
            err = lib.gpunvme_requests_destroy(table)
            if err:
                self._table = table
            else:
                self._store._requests.pop()
            check(err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_table", 0):
            self.close()

    def _now(self) -> int:
        if not self._table:
            raise error(_lib.ERR_CLOSED, "these requests have been closed")
        return self._table

    def add_kind(self, name: str, start: int, length: int, sector_size: int) -> None:
        """Says where records of a kind are. They must not overlap another kind."""
        if min(start, length, sector_size) < 0:
            raise argument("start, length and sector_size are not negative")
        check(lib.gpunvme_request_add_kind(self._now(), self._id, name.encode(), start, length,
                                           sector_size))

    def kind(self, name: str) -> Kind:
        """Where records of a kind are."""
        kind = _lib.Kind()
        check(lib.gpunvme_request_kind(self._now(), self._id, name.encode(), ctypes.byref(kind)))
        return Kind(kind.start_lba, kind.length, kind.sector_size)

    def read(self, name: str, index: int, length: int = 0, into: Any = None) -> None:
        """Reads ``length`` records (0: all) from ``index`` on, into their places or ``into``."""
        self._run(_lib.OP_READ, [(name, index, length)], [into])

    def write(self, name: str, index: int, length: int = 0, source: Any = None) -> None:
        """Writes records likewise, from their places or ``source``."""
        self._run(_lib.OP_WRITE, [(name, index, length)], [source])

    def read_many(self, reads: Sequence[tuple[str, int, int]],
                  into: Sequence[Any] | None = None) -> None:
        """Reads several (kind, index, length) at once, to their places, or each ``into`` a buffer.

        If one of them is wrong none is begun; otherwise all are tried, and the first error is
        raised.
        """
        self._run(_lib.OP_READ, reads, into)

    def read_many_async(self, reads: Sequence[tuple[str, int, int]],
                        into: Sequence[Any] | None = None, *, stream: Any = None) -> Future:
        """Begins read_many() and returns a Future."""
        parts, views = self._parts(_lib.OP_READ, reads, into)
        n = len(parts)
        ios, nios = (_lib.Io * n)(), ctypes.c_size_t()
        order = order_of(stream, views)
        handle = self._now()
        check(lib.gpunvme_request_prepare(handle, self._id, parts, n, ios, ctypes.byref(nios)))
        source = Source(nios.value)
        source.whole = ctypes.addressof(ios)
        transfers = (_lib.Io * nios.value).from_buffer(ios)
        nbytes = sum(io.nbytes for io in transfers)
        future = _RequestFuture(source, transfers, (self._store,), (self, parts, views), nbytes,
                                self._view.mem)
        try:
            return future._submit(order)
        except BaseException:
            lib.gpunvme_request_finish(parts, n)
            raise

    def _run(self, op: int, wanted: Sequence[tuple[str, int, int]],
             buffers: Sequence[Any] | None) -> None:
        parts, views = self._parts(op, wanted, buffers)
        err = lib.gpunvme_request_run(self._now(), self._id, parts, len(parts))
        if err:
            if any(part.err == _lib.ERR_TIMEOUT for part in parts):  # they may still be in flight
                self._store._abandoned.append((self._view, views))
            raise error(err)

    def _parts(self, op: int, wanted: Sequence[tuple[str, int, int]],
               buffers: Sequence[Any] | None) -> tuple[Any, list[View]]:
        targets = [None] * len(wanted) if buffers is None else buffers
        if not wanted or len(targets) != len(wanted):
            raise argument(f"{len(wanted)} ranges of records and {len(targets)} buffers")
        views: list[View] = []
        parts = (_lib.KindIo * len(wanted))()
        for part, (name, index, length), target in zip(parts, wanted, targets):
            if index < 0 or length < 0:
                raise argument(f"{length} records from {index} on")
            part.kind, part.op, part.idx, part.length = name.encode(), op, index, length
            if target is not None:
                views.append(self._target(name, index, length, target, op == _lib.OP_READ))
                part.ptr = views[-1].ptr
        return parts, views

    def _target(self, name: str, index: int, length: int, target: Any, writable: bool) -> View:
        kind = self.kind(name)
        nbytes = (length or max(0, kind.length - index)) * kind.sector_size
        found = view(target, writable)
        if found.nbytes < nbytes:
            raise argument(f"{name}: {nbytes} bytes do not fit into {found.nbytes}")
        if found.mem != self._view.mem:
            raise argument(f"{name}: memory of another kind than that of these requests")
        return found


class _RequestFuture(Future):
    def _outcome(self) -> tuple[int, Error | None]:
        assert isinstance(self._keep, tuple)
        parts = self._keep[1]
        err = lib.gpunvme_request_finish(parts, len(parts))
        for io in self._ios:
            self._routes |= io.routes
        return sum(io.done for io in self._ios), error(err) if err else None
