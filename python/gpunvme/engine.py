# SPDX-License-Identifier: BSD-3-Clause
"""Engines: the threads and pinned memory that serve stores; and registered memory."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Literal

from . import _lib
from . import store as _store
from ._lib import lib
from .buffers import address_of, describe, view
from .errors import argument, check, error

if TYPE_CHECKING:
    from typing_extensions import Self

    from .reports import EngineInfo
    from .store import Name, Store

# What is registered, by engine (0: the process's) and address: held until it has been unregistered.
_registered: dict[tuple[int, int], list[object]] = {}
_lock = threading.Lock()


class Engine:
    """Threads and pinned memory of its own, for stores that are opened on it.

    A process has one that serves all other stores: most programs need none of their own. ``gpu`` is
    the GPU near which threads and memory are placed (None: the first that is used), ``threads`` how
    many there are (0: as many as CPUs, 2 to 12), ``pinned`` how many bytes of host memory it pins
    at most (0: 128 MiB), ``cpus`` which CPUs threads may run on ("0-7,16"). A context manager that
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
        handle = self._handle
        if handle:
            check(lib.gpunvme_engine_destroy(handle))
            self._handle = 0
            with _lock:
                for key in [key for key in _registered if key[0] == handle]:
                    del _registered[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            lib.gpunvme_engine_destroy(self._handle)


def register(buf: Any, size: int | None = None) -> None:
    """Registers memory that is used again and again, for all stores of the process's engine.

    Transfers into any part of it then go the fastest way without setting anything up. It is kept
    until it has been unregistered as often as registered.
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
    check(lib.gpunvme_register(engine, found.ptr, found.nbytes, found.mem))
    with _lock:
        _registered.setdefault((engine, found.ptr), []).append(found)


def _unregister(engine: int, buf: Any) -> None:
    address = address_of(buf) if isinstance(buf, int) or describe(buf) is None else None
    ptr = view(buf, True).ptr if address is None else address
    check(lib.gpunvme_unregister(engine, ptr))
    with _lock:
        held = _registered.get((engine, ptr))
        if held:
            held.pop()
            if not held:
                del _registered[engine, ptr]


def _info(engine: int) -> EngineInfo:
    from .reports import EngineInfo

    info = _lib.EngineInfo()
    lib.gpunvme_engine_get_info(engine, ctypes.byref(info))
    return EngineInfo(None if info.gpu == _lib.ANY_GPU else info.gpu, info.threads, info.blocked,
                      info.stores, info.pinned_nbytes, info.registered)
