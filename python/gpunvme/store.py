# SPDX-License-Identifier: BSD-3-Clause
"""Stores: bytes by offset, whatever is behind a URI."""

from __future__ import annotations

import ctypes
import math
import operator
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Literal, Sequence

from . import _lib, future
from ._lib import lib
from .buffers import View, stream_handle, view, writable_bytes
from .errors import Error, argument, check, error
from .future import Future

if TYPE_CHECKING:
    from typing_extensions import Self

    from .engine import Engine
    from .reports import Path, StoreInfo

    Name = str | bytes | int | os.PathLike[str] | os.PathLike[bytes]

# Blocking transfers of so many bytes at most are one call into the library, which Ctrl-C does not
# end; larger ones are waited for in slices.
_ONE_CALL = 1 << 20

_FLAGS = {
    "r": 0,
    "r+": _lib.OPEN_WRITE,
    "w": _lib.OPEN_WRITE | _lib.OPEN_CREATE | _lib.OPEN_TRUNCATE,
    "x": _lib.OPEN_WRITE | _lib.OPEN_CREATE | _lib.OPEN_EXCL,
    "a": _lib.OPEN_WRITE | _lib.OPEN_CREATE,
}
_ADVICE = {
    "normal": _lib.ADVICE_NORMAL,
    "sequential": _lib.ADVICE_SEQUENTIAL,
    "random": _lib.ADVICE_RANDOM,
    "will_need": _lib.ADVICE_WILL_NEED,
    "dont_need": _lib.ADVICE_DONT_NEED,
}
_END = 1 << 63  # of offsets
_read, _write = lib.gpunvme_store_read, lib.gpunvme_store_write

_open: weakref.WeakSet[Store] = weakref.WeakSet()


def open(
    uri: Name,
    flags: Literal["r", "r+", "w", "w+", "x", "x+", "a", "a+"] = "r",
    *,
    engine: Engine | None = None,
    force: bool = False,
) -> Store:
    """Opens a store: a file, a block device, a namespace of a drive, or a software drive.

    ``uri`` is a path or a URI ("file:/data/x?threads=8", "nvme:0000:01:00.0/1", "sim:size=1G";
    docs/STORAGE.md lists them), or a descriptor of an open file, which stays the caller's.

    ``flags``: "r" reads only; "r+" reads and writes what is there; "a" makes the file if there is
    none; "w" makes it, or empties it; "x" makes it, and fails if it is there. All but "r" read as
    well. ``force`` writes to images of ``sim:`` that hold data of others.
    """
    if flags.rstrip("+") not in _FLAGS and flags != "r+":
        raise argument(f'flags "{flags}": there are "r", "r+", "w", "x" and "a"')
    bits = _FLAGS[flags if flags == "r+" else flags.rstrip("+")]
    if force:
        bits |= _lib.OPEN_FORCE
    handle = ctypes.c_void_p()
    on = None if engine is None else engine._handle_now()
    if isinstance(uri, int):
        check(lib.gpunvme_open_fd(on, uri, None, None, bits, ctypes.byref(handle)))
    else:
        name = os.fsencode(uri)
        if b"\0" in name:
            raise argument("a URI with a byte 0")
        err = lib.gpunvme_open_on(on, name, bits, ctypes.byref(handle))
        if err:
            failure = error(err)
            if isinstance(failure, OSError):
                failure.filename = os.fsdecode(name)
            raise failure
    future.stop()
    return Store(handle.value or 0, engine)


class Store:
    """An open store; ``gpunvme.open()`` makes it. A context manager that closes it.

    All methods may be called from several threads. A transfer takes memory on the host or on a GPU
    (see gpunvme.buffers), of any length, alignment and offset. If transfers in flight overlap and
    one of them is a write, the overlapping bytes are undefined.
    """

    def __init__(self, handle: int, engine: Engine | None) -> None:
        self._handle = handle  # 0 when it is gone
        self._closed = False
        self._lock = threading.Lock()  # of close()
        self._users: list[None] = []  # one for each thread in a call
        self._abandoned: list[object] = []  # memory of blocking calls that timed out
        self._requests: list[None] = []  # one for each Requests that is open on it
        self._engine = engine  # outlives the store
        info = _lib.StoreInfo()
        lib.gpunvme_store_get_info(handle, ctypes.byref(info))
        self.uri: str = os.fsdecode(info.uri)
        self.block_size: int = info.block_size
        self.writable: bool = info.writable
        self.timeout: float = info.timeout_ns / 1e9
        _open.add(self)

    def __repr__(self) -> str:
        return f"<gpunvme.Store {self.uri!r}{', closed' if self._closed else ''}>"

    # -- Use and end --

    def _enter(self) -> int:
        """Its handle, which stays open until _leave()."""
        # First in, then look: close() first closes, then looks who is in.
        self._users.append(None)
        if self._closed:
            self._users.pop()
            raise self._gone()
        return self._handle

    def _leave(self) -> None:
        self._users.pop()

    def _gone(self) -> Error:
        """Why it can't be used."""
        future.stop()
        return error(_lib.ERR_CLOSED, f"{self.uri} has been closed")

    def handle(self) -> int:
        """The address of its ``struct gpunvme_store``, for C; not to be used when it is closed."""
        handle = self._enter()
        self._leave()
        return handle

    def close(self) -> None:
        """Waits for what is in flight and closes. Closing a closed store does nothing.

        Raises DeadlineError where something did not end in the store's timeout: the store stays
        open then.
        """
        with self._lock:
            if self._closed:
                return
            if self._requests:
                raise error(_lib.ERR_BUSY, f"{self.uri}: close the Requests on it first")
            self._closed = True
        try:
            self._wait_for_users()
            for transfer in future.in_flight(self):
                transfer._wait(None)
        except BaseException:
            self._closed = False
            raise
        # If KeyboardInterrupt comes with the end of the call, the store is gone all the same.
        handle, self._handle = self._handle, 0
        self._wait_for_users()  # in _moved()
        err = lib.gpunvme_close(handle)
        if err in (_lib.ERR_TIMEOUT, _lib.ERR_UNSUPPORTED):  # nothing was done
            self._handle, self._closed = handle, False
        else:
            self._abandoned.clear()
            _open.discard(self)
        check(err)

    def _wait_for_users(self, seconds: float = math.inf) -> bool:
        """Until no thread is in a call of it; False if that takes longer."""
        end = time.monotonic() + seconds
        while self._users and time.monotonic() < end:
            time.sleep(0.001)
        return not self._users

    @property
    def closed(self) -> bool:
        return self._closed

    def _take(self) -> int:
        """The handle, for one of __del__() and end(), which finds stores that __del__() is in."""
        with self._lock:
            handle, self._handle = self._handle, 0
        return handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            import warnings

            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            # Nothing is in flight: transfers hold their store.
            lib.gpunvme_close(self._take())

    # -- Transfers --

    def _now(self, call: Any, offset: int, ptr: int, mem: int, nbytes: int, keep: object) -> int:
        """A blocking transfer by one call."""
        done = ctypes.c_size_t()
        self._users.append(None)  # _enter() and _leave(), without the calls
        if self._closed:
            self._users.pop()
            raise self._gone()
        try:
            err = call(self._handle, offset, ptr, mem, nbytes, ctypes.byref(done))
        finally:
            self._users.pop()
        if err:
            if err == _lib.ERR_TIMEOUT:  # it may still be in flight
                self._abandoned.append(keep)
            raise error(err)
        return done.value

    def _async(self, write: bool, found: View, offset: int, stream: Any) -> Future:
        io = _lib.Io(op=int(write), mem=found.mem, offset=_checked(offset), ptr=found.ptr,
                     nbytes=found.nbytes)
        return self._submit(io, found, (found,), found.nbytes, stream)

    def _submit(self, io: _lib.Io, views: View | Sequence[View], keep: object, nbytes: int,
                stream: Any) -> Future:
        ios = (_lib.Io * 1)(io)
        found = [views] if isinstance(views, View) else views
        order = order_of(stream, found)
        ios[0].store = self._enter()
        try:
            return Future(future.shared(), ios, (self,), keep, nbytes, found[0].mem)._submit(order)
        finally:
            self._leave()

    def pread(self, buf: Any, size: int | None = None, offset: int = 0, *,
              stream: Any = None) -> int:
        """Reads ``size`` bytes (None: as many as ``buf`` has) from byte ``offset`` on into ``buf``.

        Returns how many were read: fewer only at the end of the store. With ``stream``, a CUDA
        stream, the read begins when the work on it has ended.
        """
        if stream is None and size is None and (plain := writable_bytes(buf)) is not None:
            ptr, nbytes, held = plain
            if 0 < nbytes <= _ONE_CALL:
                return self._now(_read, _checked(offset), ptr, _lib.MEM_HOST,
                                 nbytes, held)
        return self._blocking(False, view(buf, True, size), offset, stream)

    def pwrite(self, buf: Any, size: int | None = None, offset: int = 0, *,
               stream: Any = None) -> int:
        """Writes bytes of ``buf`` likewise. A write behind the end of a file makes it longer."""
        return self._blocking(True, view(buf, False, size), offset, stream)

    def _blocking(self, write: bool, found: View, offset: int, stream: Any) -> int:
        if found.nbytes > _ONE_CALL or stream is not None or found.stream is not None:
            return finished(self._async(write, found, offset, stream))
        call = _write if write else _read
        return self._now(call, _checked(offset), found.ptr, found.mem, found.nbytes, found.keep)

    def pread_async(self, buf: Any, size: int | None = None, offset: int = 0, *,
                    stream: Any = None) -> Future:
        """Begins pread() and returns a Future.

        ``buf`` must not be used until it has ended. With ``stream`` the transfer has its place in
        the stream's order: it begins when the work on it at the call has ended, and what is put on
        it later begins when the transfer has ended (include/gpunvme/transfer.h has the rules).
        """
        return self._async(False, view(buf, True, size), offset, stream)

    def pwrite_async(self, buf: Any, size: int | None = None, offset: int = 0, *,
                     stream: Any = None) -> Future:
        """Begins pwrite() and returns a Future, likewise."""
        return self._async(True, view(buf, False, size), offset, stream)

    def _vector(self, write: bool, bufs: Iterable[Any], offset: int, stream: Any) -> Future:
        views = [view(buf, not write) for buf in bufs]
        if not views:
            raise argument("no buffers")
        vecs = (_lib.Vec * len(views))(*[_lib.Vec(v.ptr, v.nbytes, v.mem) for v in views])
        io = _lib.Io(op=int(write), offset=_checked(offset), vecs=ctypes.addressof(vecs),
                     n=len(vecs))
        nbytes = sum(v.nbytes for v in views)
        return self._submit(io, views, (views, vecs), nbytes, stream)

    def readv(self, bufs: Iterable[Any], offset: int = 0, *, stream: Any = None) -> int:
        """Reads from byte ``offset`` on into several buffers, one after the other."""
        return finished(self._vector(False, bufs, offset, stream))

    def writev(self, bufs: Iterable[Any], offset: int = 0, *, stream: Any = None) -> int:
        """Writes several buffers, one after the other, from byte ``offset`` on."""
        return finished(self._vector(True, bufs, offset, stream))

    def gather(self, buf: Any, offsets: Any, nbytes: int, stride: int | None = None, *,
               stream: Any = None) -> int:
        """Reads ``nbytes`` bytes from each of ``offsets`` on.

        Range i goes to byte i * stride of ``buf``.
        ``offsets`` is an array or a list of byte offsets; ``stride`` is ``nbytes`` if it is None.
        Returns how many bytes were read, in the order of the ranges.
        """
        return finished(self.gather_async(buf, offsets, nbytes, stride, stream=stream))

    def gather_async(self, buf: Any, offsets: Any, nbytes: int, stride: int | None = None, *,
                     stream: Any = None) -> Future:
        """Begins gather() and returns a Future."""
        return self._ranges(False, buf, offsets, nbytes, stride, stream)

    def scatter(self, buf: Any, offsets: Any, nbytes: int, stride: int | None = None, *,
                stream: Any = None) -> int:
        """Writes ranges of ``buf`` to ``offsets``: gather() the other way."""
        return finished(self._ranges(True, buf, offsets, nbytes, stride, stream))

    def _ranges(self, write: bool, buf: Any, offsets: Any, nbytes: int, stride: int | None,
                stream: Any) -> Future:
        import numpy

        where = numpy.asarray(offsets)
        if where.ndim != 1 or where.dtype.kind not in "iu" or not where.size or where.min() < 0:
            raise argument("offsets: one or more numbers of bytes, none of them negative")
        where = numpy.array(where, numpy.uint64)  # a copy, which nobody changes meanwhile
        step = nbytes if stride is None else operator.index(stride)
        if nbytes <= 0 or step < nbytes:
            raise argument(f"ranges of {nbytes} bytes, {step} apart")
        found = view(buf, not write)
        if found.nbytes < (where.size - 1) * step + nbytes:
            raise argument(f"{where.size} ranges of {nbytes} bytes, {step} apart, do not fit into "
                           f"{found.nbytes}")
        io = _lib.Io(op=int(write), mem=found.mem, ptr=found.ptr, nbytes=nbytes,
                     offsets=where.ctypes.data, n=where.size, stride=step)
        return self._submit(io, found, (found, where), where.size * nbytes, stream)

    # -- Everything else --

    def flush(self) -> None:
        """What writes have put there before this call is on the medium when it returns."""
        self._check(lib.gpunvme_store_flush)

    def resize(self, nbytes: int) -> None:
        """Makes a file longer, with zeroes, or shorter."""
        self._check(lib.gpunvme_store_resize, _checked(nbytes))

    @property
    def size(self) -> int:
        """Its size now, in bytes."""
        nbytes = ctypes.c_uint64()
        self._check(lib.gpunvme_store_size, ctypes.byref(nbytes))
        return nbytes.value

    def advise(
        self,
        advice: Literal["normal", "sequential", "random", "will_need", "dont_need"],
        offset: int = 0,
        nbytes: int = 0,
    ) -> None:
        """Says what will be done with ``nbytes`` bytes from ``offset`` on (0: to the end).

        A hint. "will_need" fetches a file's bytes into the page cache, "dont_need" lets them go.
        """
        if advice not in _ADVICE:
            raise argument(f'advice "{advice}": there are {", ".join(_ADVICE)}')
        self._check(lib.gpunvme_store_advise, _checked(offset), _checked(nbytes), _ADVICE[advice])

    def _check(self, function: Any, *arguments: Any) -> None:
        handle = self._enter()
        try:
            err = function(handle, *arguments)
        finally:
            self._leave()
        check(err)

    def _path(self) -> _lib.Path:
        path = _lib.Path()
        handle = self._enter()
        try:
            lib.gpunvme_store_path(handle, ctypes.byref(path))
        finally:
            self._leave()
        return path

    def path(self) -> Path:
        """How its bytes go: by which route, how many, and why not by a faster one."""
        return path_of(self._path())

    def info(self) -> StoreInfo:
        """What it is: backend, block size, threads and so on."""
        from .reports import StoreInfo

        info = _lib.StoreInfo()
        handle = self._enter()
        try:
            lib.gpunvme_store_get_info(handle, ctypes.byref(info))
            backend = info.backend.decode()
        finally:
            self._leave()
        return StoreInfo(backend, self.uri, info.block_size, info.writable, info.resizable,
                         info.threads, info.timeout_ns / 1e9)

    def _moved(self) -> int:
        """Bytes that have moved: a sign of life for those that wait, also while it is closed."""
        path = _lib.Path()
        self._users.append(None)  # _enter(), which would refuse while it is being closed
        try:
            if self._handle:
                lib.gpunvme_store_path(self._handle, ctypes.byref(path))
        finally:
            self._users.pop()
        return int(sum(path.bytes_read) + sum(path.bytes_written))


def path_of(path: _lib.Path) -> Path:
    """A path report of the library's."""
    from .reports import Path

    names = [lib.gpunvme_route_name(i).decode() for i in range(_lib.NROUTES)]
    return Path(
        backend=path.backend.decode(),
        gpu_route=names[path.gpu_route],
        bytes_read=dict(zip(names, path.bytes_read)),
        bytes_written=dict(zip(names, path.bytes_written)),
        how=path.how.decode(errors="replace"),
        why_not=path.why_not.decode(errors="replace"),
    )


def _checked(offset: int) -> int:
    offset = operator.index(offset)
    if not 0 <= offset < _END:
        raise argument(f"an offset or size of {offset} bytes")
    return offset


def finished(transfer: Future) -> int:
    """Its result. An interrupted wait cancels the transfer and waits until it has ended."""
    try:
        return transfer.result()
    except Error:
        transfer.cancel()
        raise
    except BaseException:
        if transfer.cancel():
            transfer._wait(None)
        raise


def order_of(stream: Any, views: Sequence[View]) -> _lib.Order | None:
    """The order that the caller's stream, or the streams that the memory's owners name, ask for."""
    if stream is not None:
        both = _lib.AFTER_STREAM | _lib.BEFORE_STREAM
        return _lib.Order(flags=both, stream=stream_handle(stream))
    named = {v.stream for v in views if v.stream is not None}
    if len(named) > 1:
        raise argument("memory in use on several streams: say by stream= which to follow")
    return _lib.Order(flags=_lib.AFTER_STREAM, stream=named.pop()) if named else None


def end() -> None:
    """At exit: ends transfers and closes all stores. Daemon threads get no further in these."""
    future.ended_by = threading.get_ident()
    stores = list(_open)
    for store in stores:
        store._closed = True
    unused = [store for store in stores if store._wait_for_users(store.timeout)]
    future.end()
    for store in unused:
        handle = store._take()
        if store._wait_for_users(1):  # in _moved()
            lib.gpunvme_close(handle)


def _in_child() -> None:
    for store in list(_open):
        store._lock = threading.Lock()
        store._users.clear()


os.register_at_fork(after_in_child=_in_child)
