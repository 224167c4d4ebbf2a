# SPDX-License-Identifier: BSD-3-Clause
"""Engines: the threads and pinned memory that serve stores; and registered memory."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from . import _lib
from . import store as _store
from ._lib import lib
from .buffers import View, address_of, describe, view
from .errors import argument, check, error

if TYPE_CHECKING:
    from typing_extensions import Self

    from .reports import EngineInfo
    from .store import Name, Store

class _Range:
    """A range of memory that is registered, and what holds it, until ``count`` is 0."""

    def __init__(self, ptr: int, nbytes: int) -> None:
        self.ptr = ptr
        self.nbytes = nbytes
        self.count = 0
        self.views: list[View] = []

    def has(self, ptr: int, nbytes: int) -> bool:
        return self.ptr <= ptr and ptr + nbytes <= self.ptr + self.nbytes


# By engine (0: the process's), as the library's own tables. Recursive: while a thread holds the
# lock, the garbage collector may destroy an engine there.
_registered: dict[int, list[_Range]] = {}
_lock = threading.RLock()
_of_parents: list[object] = []


class Engine:
    """Threads and pinned memory of its own, for stores that are opened on it.

    A process has one that serves all other stores: most programs need none of their own. ``gpu`` is
    the GPU near which threads and memory are placed (None: the first that is used), ``threads`` how
    many there are (0: as many as CPUs, 2 to 12), ``pinned`` how many bytes of host memory it pins
    at most (0: 128 MiB), ``cpus`` which CPUs threads may run on ("0-7,16"). ArgumentError: there is
    no such GPU, or the process may use none of the CPUs. A context manager that
    closes it.
    """

    def __init__(self, *, gpu: int | None = None, threads: int = 0, pinned: int = 0,
                 cpus: str | None = None) -> None:
        if threads < 0 or pinned < 0:
            raise argument("threads and pinned are not negative")
        self._config = _lib.EngineConfig(_lib.ANY_GPU if gpu is None else gpu, threads, pinned,
                                   None if cpus is None else cpus.encode())
        handle = ctypes.c_void_p()
        self._handle = 0
        check(lib.gpunvme_engine_create(ctypes.byref(self._config), ctypes.byref(handle)))
        self._handle = handle.value or 0

    def _handle_now(self) -> int:
        if not self._handle:
            raise error(_lib.ERR_CLOSED, "this engine has been closed")
        return self._handle

    def open(self, uri: Name, flags: Literal["r", "r+", "w", "w+", "x", "x+", "a", "a+"] = "r", *,
             force: bool = False) -> Store:
        """gpunvme.open() on this engine."""
        return _store.open(uri, flags, engine=self, force=force)

    def register(self, buf: Any, size: int | None = None) -> None:
        """gpunvme.register() for stores of this engine."""
        _register(self._handle_now(), buf, size)

    def unregister(self, buf: Any) -> None:
        """gpunvme.unregister() for stores of this engine."""
        _unregister(self._handle_now(), buf)

    def info(self) -> EngineInfo:
        """What it has now."""
        return _info(self._handle_now())

    def close(self) -> None:
        """Ends its threads. BusyError while a store is open on it."""
        # If KeyboardInterrupt comes with the end of the call, the engine is gone all the same.
        handle, self._handle = self._handle, 0
        if handle:
            err = _destroy(handle)
            if err:
                self._handle = handle
            check(err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            _destroy(self._handle)


def _destroy(handle: int) -> int:
    with _lock:  # before another engine has this address
        err: int = lib.gpunvme_engine_destroy(handle)
        held = None if err else _registered.pop(handle, None)
    del held  # outside of the lock: memory is freed
    return err


def register(buf: Any, size: int | None = None) -> None:
    """Registers memory that is used again and again, for all stores of the process's engine.

    Transfers into any part of it then go the fastest way without setting anything up. Its owner is
    held until it has been unregistered as often as registered: an array or tensor that you drop
    meanwhile keeps its memory, and can be unregistered by its address. (An address alone holds
    nothing: keep what it belongs to.) A range inside a registered one counts for that one.
    """
    _register(0, buf, size)


def unregister(buf: Any) -> None:
    """Undoes one register(). NotFoundError: it is not registered; BusyError: a transfer uses it."""
    _unregister(0, buf)


def engine_info() -> EngineInfo:
    """What the process's own engine has now; zeroes before it is needed."""
    return _info(0)


def _register(engine: int, buf: Any, size: int | None) -> None:
    found = view(buf, True, size)
    with _lock:
        ranges = _registered.setdefault(engine, [])
        known = [r for r in ranges if r.has(found.ptr, found.nbytes)]
        into = known[0] if known else _Range(found.ptr, found.nbytes)
        if not known:
            ranges.append(into)
        into.count += 1
        into.views.append(found)
        err = lib.gpunvme_register(engine, found.ptr, found.nbytes, found.mem)
        if err:
            failure = error(err)
            into.count -= 1
            into.views.pop()
            if not into.count:
                ranges.remove(into)
            raise failure


def _unregister(engine: int, buf: Any) -> None:
    address = address_of(buf) if isinstance(buf, int) or describe(buf) is None else None
    ptr = view(buf, True).ptr if address is None else address
    with _lock:
        err = lib.gpunvme_unregister(engine, ptr)
        ranges = _registered.get(engine, [])
        held = None if err else next((r for r in ranges if r.has(ptr, 1)), None)
        if held is not None:
            held.count -= 1
            if not held.count:
                ranges.remove(held)
    check(err)


def _info(engine: int) -> EngineInfo:
    from .reports import EngineInfo

    info = _lib.EngineInfo()
    lib.gpunvme_engine_get_info(engine, ctypes.byref(info))
    return EngineInfo(None if info.gpu == _lib.ANY_GPU else info.gpu, info.threads, info.blocked,
                      info.stores, info.pinned_nbytes, info.registered)


def _in_child() -> None:
    """After fork(2): the process's engine is a new one, and the others are the parent's."""
    global _lock
    _lock = threading.RLock()
    _of_parents.append(_registered.copy())
    _registered.clear()


os.register_at_fork(after_in_child=_in_child)
