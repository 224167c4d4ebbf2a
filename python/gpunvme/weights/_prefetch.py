# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that load in the background and are handed out as they land."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lib
from .._lib import lib
from .._safetensors import ITEMSIZE
from ._files import Files, refuse
from ._load import Load, Parts, load
from ._slices import Pick, picks
from ._target import ALIGN, NUMBERS, Devices, Target, conversion

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from ..engine import Engine
    from ._files import Name
    from ._load import Path
    from ._open import safe_open

    Plan = str | Iterable[str] | Mapping[str, Any] | None

_SCALE = "_scale"  # ends the name of a tensor's scale
_LOADING, _LANDED, _GIVEN = range(3)

_all: weakref.WeakSet[Prefetch] = weakref.WeakSet()


def _nothing() -> int:
    """The checksum of no bytes."""
    return int(lib.gpunvme_mem_checksum_host(None, 0))


class Job:
    """What is to be loaded, and the arrays for it.

    ``dtype``: what numbers are converted to; None: nothing.
    """

    def __init__(self, files: Files, plan: Plan, devices: Devices, arena: bool,
                 dtype: str | None = None) -> None:
        self._files = files
        self.rows = _planned(files, plan)
        n = len(self.rows)
        self.targets = devices.of_all(n, lambda: self.names)
        #: Which go to each of them.
        self._of: dict[Target, NDArray[np.int64]] = _by_target(self.targets)
        self._mems = np.zeros(n, np.int32)
        for to, mine in self._of.items():
            self._mems[mine] = to.mem
        #: Those that are not taken whole.
        self.picks: dict[int, Pick] = {}
        if isinstance(plan, Mapping):
            self.picks = picks(files, self.names, self.rows, self.targets, plan)
        self._nbytes = files.nbytes[self.rows]
        if self.picks:
            self._nbytes[list(self.picks)] = [pick.nbytes for pick in self.picks.values()]
        #: The types that they are converted to, as the library counts them; 0: none.
        self.dtypes = np.zeros(n, np.int32)
        if dtype is not None:
            self._convert(dtype)
        self.arrays: list[Any] = []
        self._arenas: dict[Target, Any] = {}
        self._offsets = np.zeros_like(self._nbytes)
        self._ptrs = self._in_arenas() if arena else self._each_its_own()
        for to in self._of:  # after allocation: torch may fill memory, on a stream
            to.ready()
        #: Those that have bytes, each of which is a part; and the others.
        self.loading = np.flatnonzero(self._nbytes)
        self.empty: list[int] = np.flatnonzero(self._nbytes == 0).tolist()

    def places(self) -> list[tuple[int, int, int]]:
        """Address, bytes and kind of memory of all that has bytes."""
        return list(zip(*(column[self.loading].tolist()
                          for column in (self._ptrs, self._nbytes, self._mems))))

    def parts_of(self, which: NDArray[np.int64]) -> Parts:
        """The parts to load for these tensors."""
        parts = Parts(self._files.addresses[self.rows[which]], self._ptrs[which],
                      self._mems[which], int(self._nbytes[which].sum()))
        parts.convert(self.dtypes[which])
        if self.picks:
            picks = map(self.picks.get, which.tolist())
            parts.set_boxes([None if pick is None else pick.box for pick in picks])
        return parts

    def _convert(self, dtype: str) -> None:
        to = {**NUMBERS, "F8_E4M3": _lib.DTYPE_F8_E4M3}[dtype]
        for i, code in enumerate(self.codes):
            if code in NUMBERS and code != dtype:
                if dtype == "F8_E4M3" and self.names[i] + _SCALE in self._files:
                    refuse(f'there is a tensor "{self.names[i]}{_SCALE}" already')
                self.dtypes[i] = to
                self._nbytes[i] = self._nbytes[i] // ITEMSIZE[code] * ITEMSIZE[dtype]
                self.codes[i] = dtype

    def add_scales(self, results: dict[str, Any], scales: NDArray[np.float32]) -> None:
        """Adds the scale of each tensor NAME that was converted to F8_E4M3, as NAME_scale."""
        found = np.flatnonzero(self.dtypes == _lib.DTYPE_F8_E4M3).tolist()
        for to in {self.targets[i] for i in found}:
            mine = [i for i in found if self.targets[i] is to]
            for i, scale in zip(mine, to.scalars(scales[mine])):
                results[self.names[i] + _SCALE] = scale

    def with_empty(self, parts: Parts) -> Parts:
        """The parts of all that has bytes, and parts for what has none, with checksums."""
        empty = self.parts_of(np.array(self.empty, np.int64))
        empty.set_checksums(_nothing())
        return Parts.joined([parts, empty])

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def names(self) -> list[str]:
        """The names of all, in the order of the files."""
        names = self._files.names
        return names if len(self) == len(names) else [names[i] for i in self.rows.tolist()]

    @cached_property
    def codes(self) -> list[str]:
        """The type of each array. An arena is loaded without; thousands of them take a while."""
        return self._files.codes(self.rows)

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each array; likewise."""
        shapes = self._files.shapes(self.rows)
        if "F4" in self.codes:
            shapes = [to.shape(self._files[name])
                      for to, name in zip(self.targets, self.names)]
        for i, pick in self.picks.items():
            shapes[i] = pick.box_shape
        return shapes

    def _each_its_own(self) -> NDArray[np.uint64]:
        self.arrays = [to.empty(shape, code)
                        for to, shape, code in zip(self.targets, self.shapes, self.codes)]
        return np.array([to.address(a) for to, a in zip(self.targets, self.arrays)], np.uint64)

    def _in_arenas(self) -> NDArray[np.uint64]:
        align = np.uint64(ALIGN)
        padded = (self._nbytes + align - np.uint64(1)) // align * align
        ptrs = np.zeros_like(padded)
        for to, mine in self._of.items():
            ends = np.cumsum(padded[mine])
            self._arenas[to] = arena = to.arena(int(ends[-1]))
            self._offsets[mine] = ends - padded[mine]
            ptrs[mine] = self._offsets[mine] + np.uint64(to.address(arena))
        return ptrs

    @property
    def memory(self) -> list[Any]:
        """What must be kept until the load has ended."""
        return list(self._arenas.values()) or self.arrays

    def make_views(self) -> None:
        """Makes the arrays in arenas, while bytes move: thousands of them take a while."""
        if not self._arenas:
            return
        self.arrays = [None] * len(self)
        for to, arena in self._arenas.items():
            mine = self._of[to].tolist()
            made = to.views(arena, self._offsets[mine].tolist(), [self.shapes[i] for i in mine],
                            [self.codes[i] for i in mine])
            for i, view in zip(mine, made):
                self.arrays[i] = view
        self._arenas.clear()

    def drop(self) -> None:
        """Drops the arrays that were not handed out."""
        self.arrays = [None] * len(self)

    def result(self, i: int) -> Any:
        """The array for the caller; handed out once."""
        array, self.arrays[i] = self.arrays[i], None
        if i in self.picks:
            array = self.picks[i].of(array)
        return self.targets[i].result(array)

    def results(self) -> dict[str, Any]:
        """All arrays for the caller."""
        return {name: self.result(i) for i, name in enumerate(self.names)}


def _by_target(targets: Sequence[Target]) -> dict[Target, NDArray[np.int64]]:
    """The indexes of each."""
    if targets and targets.count(targets[0]) == len(targets):  # as most are
        return {targets[0]: np.arange(len(targets))}
    lists: dict[Target, list[int]] = {}
    for i, to in enumerate(targets):
        lists.setdefault(to, []).append(i)
    return {to: np.array(mine, np.int64) for to, mine in lists.items()}


class Prefetch:
    """Tensors that are loading; made by prefetch(). As a context manager, it closes itself.

    Each tensor is handed out once, by take() or by iterating, and then belongs to the caller alone.
    Several threads may take.
    """

    def __init__(self, files: Files, plan: Plan, devices: Devices, arena: bool,
                 dtype: str | None = None, checksum: bool = False) -> None:
        self._load: Load | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()  # of all that follows
        job = self._job = Job(files, plan, devices, arena, dtype)
        self._checksum = checksum
        self._parts = job.parts_of(job.loading)
        self._index: dict[str, int] = {}  # of the names, made by the first take()
        self._loading = job.loading.tolist()
        self._state = bytearray(len(job))
        #: Those that have landed; some of them may have been taken.
        self._ready = deque(job.empty)
        for i in self._ready:
            self._state[i] = _LANDED
        if self._loading:
            self._load = Load(files, self._parts, job.memory, checksum)
        _all.add(self)
        try:
            job.make_views()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """The names of its tensors, in the order of the files."""
        return list(self._job.names)

    def __len__(self) -> int:
        return len(self._job)

    def _wait(self) -> bool:
        """Waits for more to land; False if nothing more will."""
        load = self._load
        landed = None if load is None else load.landed.get()
        if landed is not None:
            for part in landed:
                i = self._loading[part]
                self._state[i] = _LANDED
                self._ready.append(i)
            return True
        if load is not None:
            self._load = None
            self._error = load.error
        return False

    def _landed(self, name: str) -> int:
        """The index of a name, when its tensor has landed."""
        if not self._index:
            self._index = dict(zip(self._job.names, range(len(self))))
        i = self._index.get(name)
        if i is None:
            refuse(f'tensor "{name}" is not in the plan')
        while self._state[i] == _LOADING:
            if not self._wait():
                raise self._error or RuntimeError(f"{name} has not landed")
        return i

    def take(self, name: str) -> Any:
        """The tensor of that name, waiting until it has landed.

        WeightsError: it is not in the plan, was handed out before, or the loader is closed. Also
        raises the error of the load.
        """
        with self._lock:
            i = self._landed(name)
            if self._state[i] == _GIVEN:
                refuse(f'tensor "{name}" has been handed out, or this prefetch is closed')
            self._state[i] = _GIVEN
            return self._job.result(i)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Names and tensors as they land, in any order. Raises the error of the load."""
        while True:
            with self._lock:
                while not self._ready:
                    if not self._wait():
                        if self._error and _LOADING in self._state:
                            raise self._error
                        return
                i = self._ready.popleft()
                if self._state[i] == _GIVEN:
                    continue
                self._state[i] = _GIVEN
                tensor = self._job.result(i)
            yield self._job.names[i], tensor
            del tensor  # the caller's alone

    def scale(self, name: str) -> float:
        """The scale of a tensor that was converted to float8, waiting until it has landed.

        The tensor's numbers times the scale are its values. WeightsError: it has none, or had not
        landed when this was closed.
        """
        i, part = self._part(name)
        if self._job.dtypes[i] != _lib.DTYPE_F8_E4M3:
            refuse(f'tensor "{name}" was not converted to float8: it has no scale')
        scales = self._parts.scales
        if part is None or scales is None:
            return 1.0
        if not (scale := float(scales[part])):
            refuse(f'tensor "{name}" had not landed when this prefetch was closed')
        return scale

    def checksum(self, name: str) -> int:
        """The checksum of a tensor's bytes where they have landed, waiting until they have.

        WeightsError: prefetch() was called without ``checksum``, or was closed before it landed.
        """
        _, part = self._part(name)
        found = int(_nothing()) if part is None else self._parts.checksum(part)
        if found is None or not self._checksum:
            refuse(f'tensor "{name}" has no checksum: call prefetch() with checksum=True, and '
                   "close it after the tensor has landed")
        return found

    def write_manifest(self, path: str | os.PathLike[str]) -> None:
        """Writes a file of all tensors' checksums, waiting until all have landed.

        WeightsError: without ``checksum``, or a tensor is a slice or was converted.
        """
        self._whole().write_manifest(path)

    def check_manifest(self, path: str | os.PathLike[str]) -> None:
        """Compares all tensors' checksums with a manifest, waiting until all have landed.

        DeviceError (GPUNVME_ERR_VERIFY): one differs; the detail names the first. NotFoundError:
        there is no such file, or it lacks a tensor. WeightsError: as write_manifest(), or the file
        is no manifest.
        """
        self._whole().check_manifest(path)

    def _part(self, name: str) -> tuple[int, int | None]:
        """A tensor that has landed, and its part; None if it is empty."""
        with self._lock:
            i = self._landed(name)
        loading = self._job.loading
        part = int(np.searchsorted(loading, i))
        return i, part if part < len(loading) and loading[part] == i else None

    def _whole(self) -> Parts:
        """The parts of all tensors, when they have landed."""
        with self._lock:
            while self._wait():
                pass
            if self._error:
                raise self._error
        return self._job.with_empty(self._parts)

    def close(self) -> None:
        """Ends the load and drops tensors that were not taken. Those taken stay valid."""
        load = self._load
        if load is not None:
            load.stop()
        with self._lock:
            self._load = None
            self._state[:] = bytes([_GIVEN]) * len(self._state)
            self._ready.clear()
            self._job.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        load = getattr(self, "_load", None)
        if load is not None:
            load.cancel()


def _in_child() -> None:
    """After fork(2): a thread of the parent may have held the lock."""
    for each in list(_all):
        each._lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def _planned(files: Files, plan: Plan) -> NDArray[np.int64]:
    """The rows that are to be loaded, in their order."""
    if plan is None:
        return np.arange(len(files.addresses))
    if isinstance(plan, str):
        rows = [i for name, i in files.index.items() if fnmatchcase(name, plan)]
    else:
        rows = sorted(files.row(name) for name in set(plan))
    return np.array(rows, np.int64)


def prefetch(
    files: Name | Sequence[Name] | safe_open,
    plan: Plan = None,
    *,
    framework: str = "pt",
    device: Any = "cpu",
    device_map: Mapping[str, Any] | None = None,
    arena: bool = False,
    dtype: Any = None,
    checksum: bool = False,
    require: str | None = None,
    engine: Engine | None = None,
) -> Prefetch:
    """Starts to load tensors, and returns at once; they are taken from what it returns.

        with prefetch(["a.safetensors", "b.safetensors"], device="cuda") as loader:
            embedding = loader.take("model.embed_tokens.weight")
            for name, tensor in loader:
                …

    ``files``: a path or URI, several of them, an index, or what safe_open() returned. ``plan``:
    None for all tensors; a shell pattern ("model.layers.*"); names; or a dict that has for each
    name None (the whole tensor) or an index with slices, as get_slice() takes it.

    ``framework``: "pt" or "np". ``device``: the device of all tensors. ``device_map``: a dict of
    devices by the names of modules, "" for all others. All memory is allocated before this returns,
    for each tensor by itself. With ``arena`` it is one block for each device; tensors are views of
    it, and it is freed with the last of them. An arena is faster for thousands of small tensors.

    ``dtype``: what numbers of float32, float16 and bfloat16 are converted to while they are loaded:
    one of these, or float8_e4m3fn. Other tensors keep their type. A tensor that becomes float8 is
    divided by a scale, so that its greatest value becomes 448: see Prefetch.scale(). ``checksum``:
    computes the checksum of each tensor where it has landed: see Prefetch.checksum().

    ``require``: the slowest route that bytes may take to a GPU ("p2p", "bounce" or "compat");
    UnsupportedError if there is none as good. ``engine`` serves the files instead of the process's.

    For a GPU, it waits for the work on the current stream, which may still use the memory of new
    tensors. Tensors that were handed out may be used on any stream.
    """
    from ._open import files_of

    return Prefetch(files_of(files, engine=engine, require=require), plan,
                    Devices(framework, device, device_map), arena, conversion(dtype), checksum)


def load_all(files: Files, devices: Devices, plan: Plan = None, dtype: str | None = None,
             manifest: Path | None = None) -> dict[str, Any]:
    """All tensors, in the order of the files, or those of a plan; and scales."""
    Parts.look_at_manifest(manifest)  # before many bytes are moved
    job = Job(files, plan, devices, arena=False, dtype=dtype)
    parts = job.parts_of(job.loading)
    load(files, parts, job.memory, checksum=manifest is not None)
    if manifest is not None:
        job.with_empty(parts).check_manifest(manifest)
    results = job.results()
    scales = np.ones(len(job), np.float32)
    if parts.scales is not None:
        scales[job.loading] = parts.scales
    job.add_scales(results, scales)
    return results
