# SPDX-License-Identifier: BSD-3-Clause
"""Storage tiers: files by name over a fast, a warm and a cold directory.

    from gpunvme import tiers

    tiers.create("/nvme", "/ssd", "/hdd", hot_capacity=2 << 40)       # once
    with tiers.Tiers("/nvme", migrate=True) as files:
        files.put_file("shard-000.tar", "/data/shard-000.tar")
        memory = files.read_direct("shard-000.tar", device="cuda:0")  # wherever it lies
        print(files.stat("shard-000.tar").tier)

Files move between the directories by how much they are used. docs/TIERS.md says how, and what is
promised when something goes wrong.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import operator
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import _lib, future
from ._lib import lib
from .buffers import view
from .errors import Error, argument, check, error
from .reports import Finding, Moves, Path, Scrub, Tier, TieredFile, TiersInfo
from .store import Store, _checked, path_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from .engine import Engine
    from .memory import DeviceMemory
    from .store import Name

    TierName = Literal["hot", "warm", "cold"]
    Policy = Callable[[TieredFile], TierName]
    Told = Callable[[str, str, str, int, Error | None], object]

__all__ = ["Finding", "Many", "Moves", "Scrub", "Tier", "TieredFile", "Tiers", "TiersInfo",
           "create", "rebuild"]

# Reads and writes of so many bytes at most are one call into the library, which Ctrl-C does not end.
_ONE_CALL = 16 << 20

_NAMES: tuple[str, ...] = tuple(lib.gpunvme_tier_name(i).decode() for i in range(_lib.NTIERS))
_POLICY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_lib.TiersFile))
_MOVED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int,
                          ctypes.c_int, ctypes.c_uint64, ctypes.c_int)
_FOUND = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)

_open: weakref.WeakSet[Tiers] = weakref.WeakSet()


class Many(NamedTuple):
    """What came of one transfer of read_many() or write_many()."""

    nbytes: int  #: moved: of a read, fewer than asked for only at the end of the file
    tier: str  #: where the bytes came from, or went to


def create(hot: Name | None = None, warm: Name | None = None, cold: Name | None = None, *,
           hot_capacity: int | None = None, warm_capacity: int | None = None,
           cold_capacity: int | None = None, hot_at: float | None = None,
           warm_at: float | None = None, half_life: float | None = None,
           rate: int | None = None) -> None:
    """Makes a set of three directories, which must exist; files in them become files of the set.

    The directories are "/nvme", "/ssd" and "/hdd" by default. Capacities are bytes of files (None:
    no limit). Files are hot from the score ``hot_at`` on (100), warm from ``warm_at`` on (10). An
    access counts half after ``half_life`` seconds (a week; math.inf: for ever). Migration moves at
    most ``rate`` bytes a second (None: no limit).

    ExistsError: one of the directories belongs to a set. ArgumentError: one lies in another, or
    the thresholds are not 0 < warm_at <= hot_at.
    """
    settings = _settings((hot, warm, cold), (hot_capacity, warm_capacity, cold_capacity), hot_at,
                         warm_at, half_life, rate)
    check(lib.gpunvme_tiers_create(ctypes.byref(settings)))


def rebuild(dir: Name | None = None) -> None:
    """Makes the catalogue of a set anew from its directories, where it is damaged or gone.

    ``dir`` is the directory of any tier (None: "/nvme"). BusyError: a process has the set open.
    """
    check(lib.gpunvme_tiers_rebuild(_path_of(dir)))


class Tiers:
    """An open set of storage tiers. A context manager that closes it.

    ``dir`` is the directory of any tier (None: "/nvme"). With ``migrate``, a thread of this process
    moves files every ``interval`` seconds, if no other process does. Calls wait at most ``timeout``
    seconds for what others hold. ``require`` is a route of the bytes ("p2p"), without which reads
    into GPU memory fail.

    ``policy`` decides in place of the thresholds: it is called with a TieredFile and returns "hot",
    "warm" or "cold". ``moved`` is called with each file that this process migrates: its name, the
    tier it was in, the tier it should be in, its bytes, and the Error that kept it where it was or
    None. Both are called by the thread that migrates. If the policy raises, the file stays where
    it is, and sys.unraisablehook is told, as if ``moved`` raises.

    All methods may be called from several threads. Errors beside those of stores: NotFoundError: no
    such file, no set in ``dir``, or a tier's directory is missing. ArgumentError and
    PermissionDeniedError: names (docs/TIERS.md). BusyError: another call moves or replaces the
    file. DeviceError with the code ERR_VERIFY: something else changed the file; scrub() takes it as
    it is.
    """

    def __init__(self, dir: Name | None = None, *, migrate: bool = False, interval: float = 10.0,
                 timeout: float = 30.0, policy: Policy | None = None, moved: Told | None = None,
                 engine: Engine | None = None, require: str | None = None) -> None:
        self._handle = 0
        self._closed = False
        self._lock = threading.Lock()  # of close()
        self._users: list[None] = []  # one for each thread in a call
        self._abandoned: list[object] = []  # memory of calls that timed out
        self._engine = engine  # outlives the set
        self._pid = os.getpid()
        self._interrupt: BaseException | None = None
        if not interval > 0 or not timeout > 0:
            raise argument("interval and timeout: more than 0 seconds")
        if "\0" in (require or ""):
            raise argument("a route with a byte 0")
        # What the library calls must not hold the set, which could not be destroyed then.
        self._callbacks = (_policy_of(policy), _moved_of(moved, weakref.ref(self)))
        self._options = _lib.TiersOptions(
            flags=_lib.TIERS_MIGRATE if migrate else 0,
            engine=None if engine is None else engine._handle_now(),
            store_options=None if require is None else f"require={require}".encode(),
            interval_ns=_ns(interval), timeout_ns=_ns(timeout),
            policy=ctypes.cast(self._callbacks[0], ctypes.c_void_p) if policy else None,
            moved=ctypes.cast(self._callbacks[1], ctypes.c_void_p))
        handle = ctypes.c_void_p()
        check(lib.gpunvme_tiers_open(_path_of(dir), ctypes.byref(self._options),
                                     ctypes.byref(handle)))
        self._handle = handle.value or 0
        self._dir = os.fsdecode(_path_of(dir) or b"/nvme")
        _open.add(self)

    def __repr__(self) -> str:
        return f"<gpunvme.tiers.Tiers {self._dir!r}{', closed' if self._closed else ''}>"

    # -- Use and end --

    def _call(self, function: Any, *arguments: Any, keep: object = None) -> None:
        # First in, then look: close() first closes, then looks who is in.
        self._users.append(None)
        try:
            if self._closed:
                raise error(_lib.ERR_CLOSED, f"the set of {self._dir} has been closed")
            err = function(self._handle, *arguments)
        finally:
            self._users.pop()
        if err:
            if err == _lib.ERR_TIMEOUT and keep is not None:  # it may still be in flight
                self._abandoned.append(keep)
            raise error(err)

    def close(self) -> None:
        """Ends migration of this process, writes scores and closes. Again: does nothing.

        Stores of open_store() stay open. DeadlineError: something did not end; the set stays open.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wait_for_users(math.inf)
        handle, self._handle = self._handle, 0
        err = lib.gpunvme_tiers_close(handle)
        if err == _lib.ERR_TIMEOUT:
            self._handle, self._closed = handle, False
        else:
            self._abandoned.clear()
            _open.discard(self)
        check(err)

    def _wait_for_users(self, seconds: float) -> bool:
        """Until no thread is in a call of it; False if that takes longer."""
        end = time.monotonic() + seconds
        while self._users and time.monotonic() < end:
            time.sleep(0.001)
        return not self._users

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0) and self._pid == os.getpid():
            import warnings

            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            lib.gpunvme_tiers_close(self._handle)

    # -- Reading --

    def read(self, name: str, buf: Any, offset: int = 0) -> int:
        """Reads bytes of a file from byte ``offset`` on into ``buf``, as many as it has.

        Returns how many were read: fewer only at the end of the file. All are of one version of it.
        """
        found = view(buf, True)
        if found.nbytes > _ONE_CALL or found.stream is not None:
            with self.open_store(name) as store:
                return store.pread(buf, offset=offset)
        done = ctypes.c_size_t()
        self._call(lib.gpunvme_tiers_read, _name(name), _checked(offset), found.ptr, found.mem,
                   found.nbytes, ctypes.byref(done), keep=found)
        return done.value

    def read_direct(self, name: str, offset: int = 0, length: int | None = None,
                    device: str = "cpu") -> NDArray[np.uint8] | DeviceMemory:
        """Reads bytes of a file into new memory of ``device``, as gpunvme.empty() makes it.

        ``length`` is how many (None: to the end); there are fewer where the file ends before. Host
        memory is a numpy array; torch.from_dlpack() takes memory of a GPU without a copy.
        """
        from .memory import empty

        on_gpu = device.startswith("cuda")
        if length is not None and 0 < length <= _ONE_CALL and not on_gpu:
            memory = empty(length, device)
            return memory[: self.read(name, memory, offset)]  # type: ignore[index]
        with self.open_store(name) as store:
            left = max(store.size - _checked(offset), 0)
            nbytes = left if length is None else min(_checked(length), left)
            if not nbytes and not on_gpu:
                return empty(1, device)[:0]  # type: ignore[index]
            memory = empty(nbytes, device)
            store.pread(memory, offset=offset)
        return memory

    def read_many(self, reads: Iterable[tuple[str, int, Any]]) -> list[Many]:
        """Reads (name, offset, buf) each into its ``buf``, all at once.

        Raises the first error when all have ended.
        """
        return self._many(lib.gpunvme_tiers_read_many, reads, True)

    def _many(self, call: Any, ranges: Iterable[tuple[str, int, Any]],
              into: bool) -> list[Many]:
        wanted = [(_name(name), _checked(offset), view(buf, into)) for name, offset, buf in ranges]
        if not wanted:
            return []
        if any(found.stream is not None for _, _, found in wanted):
            raise argument("memory in use on a stream: " + ("read it by open_store()" if into
                                                            else "wait for it first"))
        ios = (_lib.TiersIo * len(wanted))(*[
            _lib.TiersIo(name=name, offset=offset, ptr=found.ptr, nbytes=found.nbytes,
                         mem=found.mem) for name, offset, found in wanted])
        self._call(call, ios, len(ios), keep=(wanted, ios))
        return [Many(io.done, _NAMES[io.tier]) for io in ios]

    def open_store(self, name: str, accesses: int = 1) -> Store:
        """Opens a file as a Store, for transfers of all kinds; it is for reading only.

        It stays the version that the name has now, whatever becomes of it. ``accesses`` are
        counted.
        """
        handle = ctypes.c_void_p()
        if not 0 <= operator.index(accesses) < 1 << 32:
            raise argument(f"{accesses} accesses")
        self._call(lib.gpunvme_tiers_open_store, _name(name), accesses, ctypes.byref(handle))
        future.stop()
        return Store(handle.value or 0, self._engine)

    # -- Writing --

    def write_direct(self, name: str, buf: Any, offset: int = 0) -> int:
        """Writes bytes in place from byte ``offset`` on, and makes the file if there is none.

        Returns how many. They are on the medium after flush(). A crash may leave some of them
        written: put() replaces a file as a whole.
        """
        found = view(buf, False)
        if found.stream is not None:
            raise argument("memory in use on a stream: wait for it first")
        done, moved = ctypes.c_size_t(), 0
        _checked(offset)
        while moved < found.nbytes:
            self._call(lib.gpunvme_tiers_write, _name(name), _checked(offset + moved),
                       found.ptr + moved, found.mem, min(found.nbytes - moved, _ONE_CALL),
                       ctypes.byref(done), keep=found)
            moved += done.value
        return moved

    def write_many(self, writes: Iterable[tuple[str, int, Any]]) -> list[Many]:
        """Writes (name, offset, buf) each from its ``buf``, all at once, as write_direct() does.

        Ranges of one file may not overlap. Raises the first error when all have ended.
        """
        return self._many(lib.gpunvme_tiers_write_many, writes, False)

    def flush(self, name: str) -> None:
        """What was written in place before this call is on the medium when it returns."""
        self._call(lib.gpunvme_tiers_flush, _name(name))

    def put(self, name: str, buf: Any, tier: TierName | None = None) -> None:
        """Makes or replaces a file by the bytes of ``buf``, as a whole, on the medium.

        ``tier`` is where it goes (None: where the policy puts it).
        """
        found = None if _is_empty(buf) else view(buf, False)
        if found is not None and found.stream is not None:
            raise argument("memory in use on a stream: wait for it first")
        ptr, nbytes, mem = (0, 0, _lib.MEM_HOST) if found is None else found[:3]
        self._call(lib.gpunvme_tiers_put, _name(name), _tier(tier), ptr, mem, nbytes, keep=found)

    def put_file(self, name: str, source: Name | Store, tier: TierName | None = None) -> None:
        """The same with the bytes of a file or a store: a path, any URI, or an open Store."""
        from . import store

        if not isinstance(source, Store):
            with store.open(source, engine=self._engine) as opened:
                return self.put_file(name, opened, tier)
        handle = source._enter()
        try:
            self._call(lib.gpunvme_tiers_put_store, _name(name), _tier(tier), handle)
        finally:
            source._leave()

    def remove(self, name: str) -> None:
        """Removes a file. Stores that have it open read on."""
        self._call(lib.gpunvme_tiers_remove, _name(name))

    # -- Looking --

    def stat(self, name: str) -> TieredFile:
        """A file's facts."""
        file = _lib.TiersFile()
        key = _name(name)
        self._call(lib.gpunvme_tiers_stat, key, ctypes.byref(file))
        return _file(file)

    def list(self, prefix: str = "") -> _List[TieredFile]:
        """The files whose names begin with ``prefix``, by name."""
        found: _List[TieredFile] = []
        failed: _List[BaseException] = []

        def each(_user: int, file: Any) -> int:
            try:
                found.append(_file(file.contents))
            except BaseException as why:  # Ctrl-C is one
                failed.append(why)
            return len(failed)

        callback = _POLICY(each)
        try:
            self._call(lib.gpunvme_tiers_list, _name(prefix),
                       ctypes.cast(callback, ctypes.c_void_p), None)
        finally:
            if failed:
                raise failed[0]
        return found

    def path(self, name: str) -> tuple[str, Path]:
        """The tier that a file is in, and how its bytes go from there."""
        tier, path = ctypes.c_int(), _lib.Path()
        self._call(lib.gpunvme_tiers_path, _name(name), ctypes.byref(tier), ctypes.byref(path))
        return _NAMES[tier.value], path_of(path)

    def info(self) -> TiersInfo:
        """What is in each tier, the settings, and whether a process migrates."""
        info = _lib.TiersInfo()
        self._call(lib.gpunvme_tiers_get_info, ctypes.byref(info))
        hot, warm, cold = (
            Tier(_NAMES[i], os.fsdecode(t.dir), t.capacity_nbytes or None, t.nbytes, t.nfiles,
                 t.free_nbytes, t.accesses, t.moved_in, t.moved_in_nbytes)
            for i, t in enumerate(info.tier))
        s = info.settings
        return TiersInfo((hot, warm, cold), s.hot_at, s.warm_at, s.half_life_s,
                         s.migrate_bytes_per_s or None, info.moving, info.migrating)

    def configure(self, *, hot: Name | None = None, warm: Name | None = None,
                  cold: Name | None = None, hot_capacity: float | None = None,
                  warm_capacity: float | None = None, cold_capacity: float | None = None,
                  hot_at: float | None = None, warm_at: float | None = None,
                  half_life: float | None = None, rate: float | None = None) -> None:
        """Changes the settings that are given, for all processes; create() explains them.

        math.inf takes a capacity or the rate away.
        """
        settings = _settings((hot, warm, cold), (hot_capacity, warm_capacity, cold_capacity),
                             hot_at, warm_at, half_life, rate)
        self._call(lib.gpunvme_tiers_configure, ctypes.byref(settings))

    # -- Moving --

    def move(self, name: str, tier: TierName | None = None, *, pin: bool = False) -> str:
        """Moves a file to a tier, whatever its score, and returns the tier that it is in then.

        With ``pin`` it stays there. None: to the tier that the policy chooses, and a pin ends.
        """
        to = ctypes.c_int()
        if pin and tier is None:
            raise argument("pin=True wants a tier")
        self._call(lib.gpunvme_tiers_move, _name(name), _tier(tier), pin, ctypes.byref(to))
        return _NAMES[to.value]

    def auto_tier(self, name: str) -> str:
        """move() to the tier that the policy chooses."""
        return self.move(name)

    def migrate(self, timeout: float | None = None) -> Moves:
        """Moves all files that are not where they belong: a pass of what ``migrate=True`` does.

        DeadlineError: there were more than ``timeout`` seconds allow (None: no limit); what was
        moved is moved. BusyError: another process migrates. Ctrl-C ends it after a file.
        """
        moves = _lib.TiersMoves()
        nanoseconds = 0 if timeout is None else _ns(timeout)
        try:
            self._call(lib.gpunvme_tiers_migrate, nanoseconds, ctypes.byref(moves))
        except Error:
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                raise interrupt from None
            raise
        return Moves(moves.up, moves.down, moves.nbytes, moves.busy, moves.no_room, moves.failed)

    def scrub(self, read_all: bool = False) -> Scrub:
        """Compares the catalogue with the directories, mends it, and tells what it found.

        ``read_all`` reads every file, and compares or sets its checksum. A finding "bad" is a file
        whose bytes do not have their checksum: nothing was changed.
        """
        found: _List[Finding] = []

        def each(_user: int, finding: int, name: bytes, detail: bytes | None) -> None:
            found.append(Finding(lib.gpunvme_tiers_finding_name(finding).decode(),
                                 os.fsdecode(name), (detail or b"").decode(errors="replace")))

        scrub, callback = _lib.TiersScrub(), _FOUND(each)
        self._call(lib.gpunvme_tiers_scrub, _lib.TIERS_READ_ALL if read_all else 0,
                   ctypes.cast(callback, ctypes.c_void_p), None, ctypes.byref(scrub))
        return Scrub(scrub.files, scrub.nbytes, tuple(found))


_List = list  # within Tiers, list is a method

# ---- Values -------------------------------------------------------------------------------------


def _path_of(dir: Name | None) -> bytes | None:
    if dir is None:
        return None
    if isinstance(dir, int):
        raise argument("a directory by its path")
    path = os.fsencode(dir)
    if b"\0" in path:
        raise argument("a path with a byte 0")
    return path


def _name(name: str) -> bytes:
    key = os.fsencode(name)
    if b"\0" in key:
        raise argument("a name with a byte 0")
    return key


def _tier(tier: str | None) -> int:
    if tier is None:
        return _lib.TIER_AUTO
    if tier not in _NAMES:
        raise argument(f'tier "{tier}": there are {", ".join(_NAMES)}')
    return _NAMES.index(tier)


def _ns(seconds: float) -> int:
    return max(1, min(int(min(seconds, 1e9) * 1e9), (1 << 63) - 1))


def _limit(what: str, nbytes: float | None) -> int:
    if nbytes is None:
        return 0
    if nbytes == math.inf:
        return _lib.TIERS_NO_LIMIT
    if not 0 < operator.index(nbytes) < _lib.TIERS_NO_LIMIT:  # type: ignore[arg-type]
        raise argument(f"{what}: {nbytes} bytes")
    return int(nbytes)


def _settings(dirs: tuple[Name | None, ...], capacities: tuple[float | None, ...],
              hot_at: float | None, warm_at: float | None, half_life: float | None,
              rate: float | None) -> _lib.TiersSettings:
    for what, value in (("hot_at", hot_at), ("warm_at", warm_at), ("half_life", half_life)):
        if value is not None and not value > 0:
            raise argument(f"{what}: {value}")
    return _lib.TiersSettings(
        dir=(ctypes.c_char_p * _lib.NTIERS)(*map(_path_of, dirs)),
        capacity_nbytes=(ctypes.c_uint64 * _lib.NTIERS)(
            *[_limit(f"{name}_capacity", c) for name, c in zip(_NAMES, capacities)]),
        hot_at=hot_at or 0, warm_at=warm_at or 0, half_life_s=half_life or 0,
        migrate_bytes_per_s=_limit("rate", rate))


def _file(file: Any) -> TieredFile:
    return TieredFile(
        os.fsdecode(file.name), _NAMES[file.tier],
        None if file.pinned == _lib.TIER_AUTO else _NAMES[file.pinned], file.nbytes,
        file.mtime_ns / 1e9, file.score, file.checksum if file.has_checksum else None)


def _is_empty(buf: Any) -> bool:
    """Whether it is host memory of 0 bytes, which transfers refuse and files may have."""
    try:
        return memoryview(buf).nbytes == 0
    except TypeError:
        return False


# ---- What the library calls ---------------------------------------------------------------------


def _unraisable(why: BaseException, callback: object) -> None:
    sys.unraisablehook(types.SimpleNamespace(
        exc_type=type(why), exc_value=why, exc_traceback=why.__traceback__, err_msg=None,
        object=callback))


def _policy_of(policy: Policy | None) -> Any:
    def choose(_user: int, file: Any) -> int:
        try:
            assert policy is not None
            return _NAMES.index(policy(_file(file.contents)))
        except BaseException as why:
            _unraisable(why, policy)
            tier: int = file.contents.tier
            return tier

    return _POLICY(choose)


def _moved_of(moved: Told | None, set: weakref.ref[Tiers]) -> Any:
    def told(_user: int, name: bytes, start: int, to: int, nbytes: int, err: int) -> int:
        try:
            failure = error(err) if err else None
            if moved is not None:
                moved(os.fsdecode(name), _NAMES[start], _NAMES[to], nbytes, failure)
        except KeyboardInterrupt as why:  # only the main thread's, in migrate()
            owner = set()
            if owner is not None:
                owner._interrupt = why
            return 1
        except BaseException as why:
            _unraisable(why, moved)
        return 0

    return _MOVED(told)


def _end() -> None:
    """At exit, before there is no Python left to call: ends migration and closes all sets."""
    for set in list(_open):
        if set._pid != os.getpid():
            continue
        set._closed = True  # daemon threads get no further
        if set._wait_for_users(set._options.timeout_ns / 1e9):
            lib.gpunvme_tiers_close(set._handle)
            set._handle = 0


def _in_child() -> None:
    for set in list(_open):
        set._lock = threading.Lock()
        set._users.clear()


atexit.register(_end)
os.register_at_fork(after_in_child=_in_child)
