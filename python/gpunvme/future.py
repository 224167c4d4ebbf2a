# SPDX-License-Identifier: BSD-3-Clause
"""Transfers in flight, and how their completion is noticed.

Transfers that are submitted one by one share the process's ``Source``, a ``gpunvme_batch``; each
``Batch`` has a source of its own. Completions need no thread: waiting threads poll. One of them at
a time has the source's turn. It finishes every transfer that has ended, its own and those of
others, and passes the turn on when its own has ended. Event loops watch the batch's eventfd. Only
callbacks have a thread, which waits as others do.

Waits consist of short slices, so that Ctrl-C is noticed. ``_flying`` has all transfers in flight:
it keeps their memory and stores alive, whether or not the caller kept the Future.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Generator

from . import _lib
from ._lib import lib
from .errors import DeadlineError, Error, check, error

if TYPE_CHECKING:
    import asyncio
    from queue import SimpleQueue

    from .store import Store

_SLICE = 0.1  # seconds that a wait goes without looking for signals
_ROOM = 256  # transfers taken by one poll

# Of _flying, Future._callbacks, Source.followers and _watched. Recursive: while a thread holds it,
# the garbage collector may close a store there, which looks at _flying.
_lock = threading.RLock()
_flying: dict[int, Future] = {}  # by the address of its (first) gpunvme_io


def _destroy(handle: int, pid: int) -> None:
    if pid == os.getpid():  # in a child its lock may be held for ever
        lib.gpunvme_batch_destroy(handle)


class Source:
    """A gpunvme_batch and its waiters.

    ``whole`` is the address of the first transfer where all are one Future's; 0 where each is a
    Future of its own.
    """

    def __init__(self, room: int) -> None:
        handle = ctypes.c_void_p()
        check(lib.gpunvme_batch_create(ctypes.byref(handle)))
        self.handle: int = handle.value or 0
        self.turn = threading.Lock()
        self.followers: dict[Future, threading.Event] = {}
        self.whole = 0
        self._room = room
        self._ended = (ctypes.c_void_p * room)()
        self._n = ctypes.c_size_t()
        self._finishing: list[Future] = []
        self._calling: deque[Future] = deque()
        weakref.finalize(self, _destroy, self.handle, os.getpid()).atexit = False

    def poll(self, seconds: float) -> bool:
        """Finishes what has ended, waiting at most so long. False: it is another's turn."""
        if not self.turn.acquire(blocking=False):
            return False
        try:
            self._take(seconds)
        finally:
            self.turn.release()
        while True:  # without the turn: callbacks may wait
            try:
                future = self._calling.popleft()
            except IndexError:
                return True
            future._keep = None
            future._call_back()

    def _take(self, seconds: float) -> None:
        """With the turn. If KeyboardInterrupt ends it anywhere, the next call resumes there."""
        if not self._finishing:
            if not self._n.value:
                least = self._room if self.whole else 1
                err = lib.gpunvme_batch_poll(self.handle, least, self._room, self._ended,
                                             ctypes.byref(self._n), int(seconds * 1e9))
                if err not in (0, _lib.ERR_TIMEOUT):
                    raise error(err)
            self._finishing = self._futures()
        self._n.value = 0
        while self._finishing:
            future = self._finishing[-1]
            future._finish()
            with _lock:
                if _flying.get(future.address) is future:
                    del _flying[future.address]
            self._calling.append(future)
            self._finishing.pop()

    def _futures(self) -> list[Future]:
        """Those that the poll has ended."""
        if not self.whole:
            return [_flying[address or 0] for address in self._ended[: self._n.value]]
        if lib.gpunvme_batch_pending(self.handle):
            return []
        future = _flying.get(self.whole)
        return [future] if future else []

    def pass_on(self) -> None:
        """Wakes one of the threads that wait for the turn."""
        with _lock:
            for wake in self.followers.values():
                wake.set()
                return

    def fd(self) -> int:
        fd: int = lib.gpunvme_batch_fd(self.handle)
        if fd < 0:
            raise OSError("no eventfd can be made: too many files are open")
        return fd


_shared: Source | None = None


def shared() -> Source:
    """The source of transfers that are submitted one by one."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = Source(_ROOM)
        return _shared


class Future:
    """A transfer in flight, or one that has ended.

    ``await`` it, or call ``result()``. It may be dropped: the transfer goes on, and its memory and
    its store are kept until it has ended. All methods may be called from several threads.
    """

    def __init__(self, source: Source, ios: Any, stores: tuple[Store, ...], keep: object,
                 nbytes: int, mem: int) -> None:
        self.nbytes = nbytes  #: bytes that were asked for
        self._source = source
        self.address = ctypes.addressof(ios)
        self._ios = ios  # a ctypes array of gpunvme_io, which stays in its place
        self._stores = stores
        self._keep = keep
        self._mem = mem
        self._done = False
        self._moved = 0
        self._routes = 0  # a bit for each that bytes took
        self._error: Error | None = None
        self._callbacks: list[Callable[[Future], object]] = []

    def __repr__(self) -> str:
        state = "done" if self._done else "in flight"
        return f"<gpunvme.Future of {self.nbytes} bytes, {state}>"

    # -- Submission and end --

    def _submit(self, order: _lib.Order | None) -> Future:
        address, n = self.address, len(self._ios)
        with _lock:
            _flying[address] = self
        if order is None:
            err = lib.gpunvme_io_submit(address, n, self._source.handle)
        else:
            err = lib.gpunvme_io_submit_ordered(address, n, self._source.handle,
                                                ctypes.byref(order))
        # After an error of CUDA the transfers may be in flight: they stay in _flying.
        if err and not (order is not None and err == _lib.ERR_GPU):
            with _lock:
                del _flying[address]
        check(err)
        return self

    def _outcome(self) -> tuple[int, Error | None]:
        moved, failure = 0, None
        for io in self._ios:
            moved += io.done
            self._routes |= io.routes
            if io.err and failure is None:
                failure = io_error(io)
        return moved, failure

    def _finish(self, failure: Error | None = None) -> None:
        """All of it has ended; or ``failure`` is why its end can't be known. Idempotent."""
        if self._done:
            return
        if failure is None:
            self._moved, self._error = self._outcome()
        else:
            self._error = failure
        with _lock:
            self._done = True
            wake = self._source.followers.get(self)
        if wake:
            wake.set()

    def _call_back(self) -> None:
        while True:
            with _lock:
                if not self._callbacks:
                    return
                callback = self._callbacks.pop(0)
            self._call(callback)

    def _call(self, callback: Callable[[Future], object]) -> None:
        try:
            callback(self)
        except BaseException as why:
            # SystemExit would end the thread of callbacks, and with it all later ones.
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and not isinstance(why, Exception):
                raise
            sys.excepthook(*sys.exc_info())

    # -- Waiting --

    def _progress(self) -> int:
        """A number that changes when anything moves in one of its stores."""
        return sum(store._moved() for store in self._stores)

    def _wait(self, timeout: float | None) -> None:
        """Waits; with None as long as something moves. Raises DeadlineError."""
        patience = max(store.timeout for store in self._stores) if timeout is None else timeout
        end = time.monotonic() + patience
        progress = self._progress() if timeout is None else 0
        try:
            while not self._done:
                left = end - time.monotonic()
                if left <= 0 and timeout is None and progress != (now := self._progress()):
                    progress, left = now, patience
                    end = time.monotonic() + left
                self._wait_slice(max(0.0, min(left, _SLICE)))
                if left <= 0 and not self._done:
                    raise error(_lib.ERR_TIMEOUT, f"{self!r}: " + (
                        f"nothing has moved for {patience:g} s" if timeout is None
                        else f"it has not ended in {timeout:g} s"))
        finally:
            self._source.pass_on()

    def _wait_slice(self, seconds: float) -> None:
        source = self._source
        if source.poll(seconds):
            return
        wake = threading.Event()
        with _lock:
            source.followers[self] = wake
        # Try again: the thread that had the turn may have released it before it could see us.
        if not source.poll(seconds) and not self._done:
            wake.wait(seconds)
        with _lock:
            source.followers.pop(self, None)

    def result(self, timeout: float | None = None) -> int:
        """Waits, and returns how many bytes were moved: fewer than asked for at a file's end.

        Raises the transfer's error. With ``timeout``, in seconds, raises DeadlineError (a
        TimeoutError) when they are over; without, when nothing has moved in the store for as long
        as its option ``timeout`` says (30 s). The transfer is in flight still then, as it is
        after Ctrl-C.
        """
        if not self._done:
            self._wait(timeout)
        if self._error is not None:
            stop()
            # A new one each time: its traceback holds its callers' frames, and they hold this.
            kind, args = self._error.__reduce__()
            raise kind(*args)
        return self._moved

    def exception(self, timeout: float | None = None) -> Error | None:
        """Waits as result() does, and returns the transfer's error, or None."""
        if not self._done:
            self._wait(timeout)
        return self._error

    def done(self) -> bool:
        """Whether it has ended. Does not wait."""
        if not self._done:
            self._source.poll(0)
        return self._done

    def cancel(self) -> bool:
        """Cancels what has not begun; False if it has ended already.

        It ends soon, with CanceledError, or as if nothing had happened if nothing was left.
        """
        if self.done():
            return False
        for i in range(len(self._ios)):
            lib.gpunvme_io_cancel(ctypes.byref(self._ios[i]))
        return True

    @property
    def route(self) -> str:
        """The way that its bytes took: "host", "p2p", "bounce" or "compat"; of several the slowest.

        Until it has ended, or if it moved nothing, the way that is to be expected of its store.
        """
        if self._done and self._routes:
            name: bytes = lib.gpunvme_route_name(self._routes.bit_length() - 1)
            return name.decode()
        return "host" if self._mem != _lib.MEM_GPU else self._stores[0].path().gpu_route

    # -- Callbacks and event loops --

    def _on_done(self, callback: Callable[[Future], object]) -> bool:
        """Has ``callback`` called by the thread that finishes it; False: it has ended already."""
        with _lock:
            if not self._done:
                self._callbacks.append(callback)
                return True
        return False

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        """Calls ``callback(future)`` when it has ended; at once, if it has.

        The thread that notices the end calls it: one of this package's, or one that waits for
        another transfer. So it must not take a lock that a waiting thread may hold. An exception of
        the callback is printed, and otherwise ignored.
        """
        queue = None if self._done else _waiter()
        if queue is not None and self._on_done(callback):
            queue.put(self)
        else:
            self._call(callback)

    def __await__(self) -> Generator[Any, None, int]:
        if not self.done():
            import asyncio

            loop = asyncio.get_running_loop()
            waiter = loop.create_future()

            def end() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def wake(_: Future) -> None:
                try:
                    loop.call_soon_threadsafe(end)
                except RuntimeError:
                    pass  # the loop has been closed: nobody awaits it any more

            _watch(loop, self._source)
            try:
                if self._on_done(wake):
                    yield from waiter.__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                _unwatch(loop, self._source)
        return self.result(0)


def io_error(io: _lib.Io) -> Error:
    """The exception for a transfer that ended with an error."""
    text = ctypes.create_string_buffer(512)
    lib.gpunvme_io_detail(ctypes.byref(io), text, len(text))
    return error(io.err, text.value.decode(errors="replace"))


# How many wait in an event loop for a source.
_watched: dict[tuple[asyncio.AbstractEventLoop, Source], int] = {}


def _watch(loop: asyncio.AbstractEventLoop, source: Source) -> None:
    with _lock:
        waiting = _watched.get((loop, source), 0)
        _watched[loop, source] = waiting + 1
    if not waiting:
        loop.add_reader(source.fd(), source.poll, 0)


def _unwatch(loop: asyncio.AbstractEventLoop, source: Source) -> None:
    with _lock:
        waiting = _watched[loop, source] - 1
        if waiting:
            _watched[loop, source] = waiting
        else:
            del _watched[loop, source]
    if not waiting and not loop.is_closed():
        loop.remove_reader(source.fd())


_queue: SimpleQueue[Future] | None = None


def _waiter() -> SimpleQueue[Future]:
    """The thread that waits where there are callbacks."""
    global _queue
    with _lock:
        if _queue is None:
            from queue import SimpleQueue

            queue: SimpleQueue[Future] = SimpleQueue()
            threading.Thread(target=_wait_for_all, args=(queue,), daemon=True,
                             name="gpunvme callbacks").start()
            _queue = queue  # not before: a thread that can't be started may be later
        return _queue


def _wait_for_all(queue: SimpleQueue[Future]) -> None:
    while True:
        future = queue.get()
        while not future._done:
            try:
                future._wait(None)
            except DeadlineError:
                continue
        del future


# ---- Ends of processes ------------------------------------------------------------------------


ended_by = 0  # the thread that ends the interpreter


def stop() -> None:
    """Holds up daemon threads when the interpreter ends.

    The process has usually ended before they go on, so they print no error. Not for ever: somebody
    may join them.
    """
    if ended_by not in (0, threading.get_ident()):
        time.sleep(2)


def in_flight(store: Store | None = None) -> list[Future]:
    """Of this store, or all."""
    with _lock:
        return [f for f in _flying.values() if store is None or store in f._stores]


def end() -> None:
    """At exit: the interpreter frees its memory, so nothing may be written to it any more."""
    futures = in_flight()
    for future in futures:
        future.cancel()
    for future in futures:
        try:
            future._wait(None)
        except Error:  # it hangs: keep its memory
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(future))


def _in_child() -> None:
    """After fork(2): the threads that serve the parent's transfers are not here."""
    global _lock, _shared, _queue
    _lock = threading.RLock()
    lost = list(_flying.values())
    _flying.clear()
    _watched.clear()
    _shared = _queue = None
    for future in lost:
        future._source.turn = threading.Lock()
        future._source.followers.clear()
        future._callbacks.clear()
        future._finish(error(_lib.ERR_UNSUPPORTED, "a transfer that the parent process began"))


os.register_at_fork(after_in_child=_in_child)
