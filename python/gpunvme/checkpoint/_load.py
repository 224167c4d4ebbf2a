# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, disable-error-code="import-not-found"
"""Loading: finds the bytes of a tensor, or of a part of one, in the files, and reads them.

A part is read from any slices that cover it, so it does not matter how many ranks wrote them. A
part that is contiguous in its file and in memory is read in place. Other parts consist of runs of
bytes: long runs are gathered, and short ones are read with the bytes between them.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from .. import _lib
from .._safetensors import ITEMSIZE
from ..buffers import View, checksum
from ..errors import argument, error
from ..memory import empty as memory
from ..store import Store
from ..store import open as open_store
from ._files import MANIFEST, folder_of, latest, read_manifest, steps
from ._jobs import WORKERS, run_all
from ._memory import BLOCK, part, view_of
from ._state import Box, Slice, decode, empty, filled, is_torch, leaf_of, merged

_RUN = 4096  # bytes: shorter runs are not gathered one by one
_SPAN = 256 << 20  # bytes read at once if runs are short

Slices = list[dict[str, Any]]


def overlap(a: Box, b: Box) -> Box | None:
    """The intersection of two boxes; None if it is empty."""
    begins = tuple(map(max, a[0], b[0]))
    ends = [min(i + n, j + m) for i, n, j, m in zip(a[0], a[1], b[0], b[1])]
    shape = tuple(end - begin for begin, end in zip(begins, ends))
    return (begins, shape) if all(n > 0 for n in shape) else None


def box_of(piece: dict[str, Any]) -> Box:
    return tuple(piece["offsets"]), tuple(piece["shape"])


def covering(name: str, slices: Slices, want: Box, rank: int) -> list[tuple[dict[str, Any], Box]]:
    """Slices that make up a box of a tensor, and the box that each contributes.

    Those of ``rank`` are preferred. ArgumentError: they leave holes, or overlap.
    """
    if 0 in want[1]:
        return []
    ordered = sorted(slices, key=lambda piece: (piece["rank"] != rank, piece["rank"]))
    found: dict[Box, dict[str, Any]] = {}
    for piece in ordered:
        shared = overlap(box_of(piece), want)
        if shared == want:
            return [(piece, want)]
        if shared is not None:
            found.setdefault(shared, piece)
    if sum(math.prod(shape) for _, shape in found) != math.prod(want[1]) or any(
            overlap(a, b) for a, b in itertools.combinations(found, 2)):
        raise argument(f"tensor {name}: the checkpoint's slices do not make up {want[1]} at "
                       f"{want[0]}")
    return [(piece, shared) for shared, piece in found.items()]


class _Block(NamedTuple):
    """Bytes of a file from ``at`` on, with their checksum and destination."""

    file: str
    at: int
    view: View
    expected: str


class Reader:
    """The files of a checkpoint, and what is to be read from them.

    want() collects requests, run() reads. Used by one thread.
    """

    def __init__(self, folder: Path, manifest: Any, check: bool) -> None:
        self._folder = folder
        self._files = manifest["files"]
        self._check = check
        self._stores: dict[str, Store] = {}
        self._blocks: list[_Block] = []
        self._jobs: list[Callable[[], None]] = []
        self._devices: set[Any] = set()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._stores.values():
            store.close()

    def store(self, name: str) -> Store:
        if name not in self._stores:
            if name not in self._files or "/" in name:
                raise argument(f"{self._folder}: the manifest does not list the file {name!r}")
            with (self._folder / name).open("rb") as file:
                store = self._stores[name] = open_store(file.fileno())
            if store.size != self._files[name]:
                raise error(_lib.ERR_VERIFY, f"{self._folder / name}: {store.size} bytes, the "
                                             f"manifest has {self._files[name]}")
        return self._stores[name]

    def want(self, piece: dict[str, Any], dtype: str, shared: Box, data: Any) -> None:
        """Requests the part ``shared`` of a slice into ``data``, which has its shape."""
        store = self.store(piece["file"])
        size = ITEMSIZE[dtype]
        offsets, shape = box_of(piece)
        if piece["nbytes"] != math.prod(shape) * size \
                or len(piece["sums"]) != -(-piece["nbytes"] // BLOCK):
            raise argument(f"{self._folder}: a slice of {piece['nbytes']} bytes with "
                           f"{len(piece['sums'])} checksums for {dtype} of shape {shape}")
        if is_torch(data) and data.is_cuda:
            self._devices.add(data.device)
        if shared == (offsets, shape) and _is_packed(data):
            view = view_of(data)
            for i, expected in enumerate(piece["sums"]):
                block = part(view, i * BLOCK, min(BLOCK, piece["nbytes"] - i * BLOCK))
                self._blocks.append(_Block(piece["file"], piece["at"] + i * BLOCK, block, expected))
            return
        for at, runs, run, box in _ranges(shape, offsets, shared, size):
            where = tuple(slice(i - j, i - j + n) for i, j, n in zip(box[0], shared[0], box[1]))
            self._jobs.append(partial(self._part, store, piece["at"] + at, runs, run, box[1],
                                      _strides(shape), data[where] if where else data))

    # -- Jobs, which run in several threads --

    def read(self, blocks: list[_Block]) -> None:
        """Reads consecutive blocks of a file by one transfer."""
        file, at = blocks[0].file, blocks[0].at
        store = self.store(file)
        views = [block.view for block in blocks]
        vecs = (_lib.Vec * len(views))(*[_lib.Vec(v.ptr, v.nbytes, v.mem) for v in views])
        io = _lib.Io(op=_lib.OP_READ, offset=at, vecs=ctypes.addressof(vecs), n=len(vecs))
        nbytes = sum(v.nbytes for v in views)
        self._whole(store, store._submit(io, views, (views, vecs), nbytes, None).result(), nbytes)
        for block in blocks if self._check else ():
            if f"{checksum(block.view):#018x}" != block.expected:
                raise error(_lib.ERR_VERIFY, f"{self._folder / file}: {block.view.nbytes} bytes "
                                             f"from byte {block.at} on are not those that were "
                                             "saved")

    def _whole(self, store: Store, moved: int, nbytes: int) -> None:
        if moved != nbytes:
            raise error(_lib.ERR_IO, f"{store.uri}: {moved} of {nbytes} bytes were read")

    def _part(self, store: Store, at: int, runs: Any, run: int, shape: tuple[int, ...],
              strides: tuple[int, ...], target: Any) -> None:
        """Reads a box, whose runs of ``run`` bytes begin ``runs`` bytes after byte ``at``."""
        size = int(target.dtype.itemsize)
        gathers = run >= _RUN or len(runs) == 1
        nbytes = run * len(runs) if gathers else int(runs[-1]) + run
        if gathers and _is_packed(target):
            self._whole(store, _gather(store, view_of(target), runs + np.uint64(at), run), nbytes)
            return
        buffer = _like(target, nbytes // size)
        if is_torch(target) and target.is_cuda:
            _synchronize(target.device)  # work on the stream may still use this memory
        view = view_of(buffer)
        if gathers:
            moved = _gather(store, view, runs + np.uint64(at), run)
            source = buffer.reshape(shape)
        else:
            io = _lib.Io(op=_lib.OP_READ, mem=view.mem, offset=at, ptr=view.ptr, nbytes=nbytes)
            moved = store._submit(io, view, view, nbytes, None).result()
            source = _strided(buffer, shape, strides)
        self._whole(store, moved, nbytes)
        if not is_torch(target):
            target[...] = source
            return
        target.copy_(source)
        if target.is_cuda:
            _synchronize(target.device)

    def run(self) -> None:
        """Reads all that was requested. Raises the first error."""
        for device in self._devices:
            _synchronize(device)
        run_all([partial(self.read, group) for group in _groups(self._blocks)] + self._jobs)


def _groups(blocks: list[_Block]) -> Iterator[list[_Block]]:
    """Blocks by transfer: at most BLOCK bytes, without a hole."""
    group: list[_Block] = []
    end, nbytes = ("", 0), 0
    for block in sorted(blocks, key=lambda block: (block.file, block.at)):
        if group and ((block.file, block.at) != end or nbytes + block.view.nbytes > BLOCK):
            yield group
            group, nbytes = [], 0
        group.append(block)
        nbytes += block.view.nbytes
        end = block.file, block.at + block.view.nbytes
    if group:
        yield group


def _synchronize(device: Any) -> None:
    import torch

    torch.cuda.current_stream(device).synchronize()


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a packed array, in elements."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def _is_packed(data: Any) -> bool:
    return bool(data.is_contiguous() if is_torch(data) else data.flags.c_contiguous)


def _like(target: Any, n: int) -> Any:
    """``n`` new elements of the same type, in the same place."""
    if is_torch(target):
        import torch

        return torch.empty(n, dtype=target.dtype, device=target.device)
    return np.empty(n, target.dtype)


def _strided(buffer: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    if is_torch(buffer):
        return buffer.as_strided(shape, strides)
    size = buffer.dtype.itemsize
    return np.lib.stride_tricks.as_strided(buffer, shape, [step * size for step in strides])


def _gather(store: Store, view: View, offsets: Any, run: int) -> int:
    io = _lib.Io(op=_lib.OP_READ, mem=view.mem, ptr=view.ptr, nbytes=run,
                 offsets=offsets.ctypes.data, n=len(offsets), stride=run)
    return store._submit(io, view, (view, offsets), view.nbytes, None).result()


def _ranges(shape: tuple[int, ...], offsets: tuple[int, ...], shared: Box,
            size: int) -> Iterator[tuple[int, Any, int, Box]]:
    """How a box lies in a packed array of ``shape``, of elements of ``size`` bytes, at ``offsets``.

    Yields (byte at which the first run begins, offset of each run from it, bytes of a run, box) for
    boxes that make up ``shared``. Each spans at most _SPAN bytes, as far as that is possible.
    """
    begins, extent = shared
    strides = _strides(shape)
    first = sum((i - j) * step for i, j, step in zip(begins, offsets, strides)) * size
    span = (sum((n - 1) * step for n, step in zip(extent, strides)) + 1) * size
    cut = next((i for i, n in enumerate(extent) if n > 1), None)
    if span > _SPAN and cut is not None:
        half = extent[cut] // 2
        for begin, n in ((0, half), (half, extent[cut] - half)):
            yield from _ranges(shape, offsets, (
                (*begins[:cut], begins[cut] + begin, *begins[cut + 1:]),
                (*extent[:cut], n, *extent[cut + 1:])), size)
        return
    inner = len(shape)  # dimensions from here on are whole: one run
    while inner and extent[inner - 1] == shape[inner - 1]:
        inner -= 1
    inner = max(0, inner - 1)
    run = math.prod(extent[inner:]) * size
    runs = np.zeros(1, np.uint64)
    for n, step in zip(extent[:inner], strides[:inner]):
        runs = (runs[:, None] + np.arange(n, dtype=np.uint64) * np.uint64(step * size)).reshape(-1)
    yield first, runs, run, shared


# ---- Calls ------------------------------------------------------------------------------------


def _listed(found: list[int]) -> str:
    """Steps as text: some of them if they are many."""
    text = [str(step) for step in found]
    if len(text) > 10:
        text[4:-4] = ["…"]
    return f"of {', '.join(text)}" if text else "none at all"


def find(path: str | os.PathLike[str], step: int | None) -> Path:
    """The folder of a checkpoint: ``path`` itself, or the one of ``step`` (or the last) in it."""
    root = Path(path)
    if step is not None:
        folder = folder_of(root, step)
        if not (folder / MANIFEST).exists():
            raise error(_lib.ERR_NOT_FOUND, f"{root}: there is no checkpoint of step {step}, but "
                                            f"{_listed(steps(root))}")
        return folder
    if (root / MANIFEST).exists():
        return root
    found = latest(root)
    if found is None:
        raise error(_lib.ERR_NOT_FOUND, f"{root}: there is no checkpoint")
    return Path(found)


def load(path: str | os.PathLike[str], into: dict[Any, Any] | None = None, *,
         step: int | None = None, device: Any = None, rank: int | None = None,
         check: bool = True) -> dict[Any, Any]:
    """Loads a checkpoint, and returns the state.

    ``path`` is a checkpoint's folder, or a folder of checkpoints, of which ``step`` (None: the
    last) is loaded. Without ``into`` all of it is loaded, into new tensors on ``device`` (None:
    the CPU). ``into`` is a state like the one saved: its tensors are filled in place, and all else
    in it is replaced. Other parts of the checkpoint are not loaded. A leaf may be a Slice (or a
    DTensor), which gets its part however the ranks that saved the tensor had divided it. An empty
    dict gets everything that was saved there, in new tensors.

    If several ranks saved whole tensors under the same name (a random generator's state), that of
    ``rank`` is loaded (None: of the lowest rank). ``check``: checksums are compared, except of
    slices that are read in part.

    NotFoundError: there is no checkpoint. ArgumentError: it does not fit ``into``. DeviceError: it
    is damaged. Tensors have undefined bytes after an error.
    """
    folder = find(path, step)
    manifest = read_manifest(folder)
    trees = manifest["trees"]
    own = rank if rank is not None and 0 <= rank < len(trees) else 0
    tree = merged([trees[own], *trees[:own], *trees[own + 1:]])
    tensors = manifest["tensors"]
    with Reader(folder, manifest, check) as reader:
        made: dict[str, Any] = {}

        def described(name: str) -> Any:
            if name not in tensors:
                raise argument(f"{folder}: the manifest does not describe tensor {name}")
            return tensors[name]

        def want(name: str, data: Any, box: Box) -> None:
            saved = described(name)
            for piece, shared in covering(name, saved["slices"], box, own):
                where = tuple(slice(i - j, i - j + n)
                              for i, j, n in zip(shared[0], box[0], shared[1]))
                reader.want(piece, saved["dtype"], shared, data[where] if where else data)

        def fill(value: Any, name: str) -> Any:
            leaf = leaf_of(name, value, (name,))
            saved = described(name)
            if (leaf.dtype, leaf.whole) != (saved["dtype"], tuple(saved["shape"])):
                raise argument(f"tensor {name}: {leaf.dtype} of shape {leaf.whole}, the checkpoint "
                               f"has {saved['dtype']} of shape {tuple(saved['shape'])}")
            local = value.tensor if isinstance(value, Slice) else value
            if is_torch(local):
                local = (local.to_local() if hasattr(local, "placements") else local).detach()
            want(name, local, (leaf.offsets, leaf.shape))
            return value

        def new(name: str) -> Any:
            if name not in made:
                saved = described(name)
                shape = tuple(saved["shape"])
                made[name] = empty(saved["dtype"], shape, saved["kind"], device)
                want(name, made[name], ((0,) * len(shape), shape))
            return made[name]

        state: dict[Any, Any] = decode(tree, new) if into is None else filled(into, tree, fill, new)
        reader.run()
    return state


def verify(path: str | os.PathLike[str], step: int | None = None) -> None:
    """Reads all of a checkpoint's tensors, and compares their checksums.

    ``path`` and ``step`` as in load(). DeviceError names the first file and bytes that differ.
    """
    folder = find(path, step)
    manifest = read_manifest(folder)
    buffers: SimpleQueue[Any] = SimpleQueue()
    for _ in range(WORKERS):
        buffers.put(None)

    def look(block: _Block) -> None:
        buffer = buffers.get()
        try:
            if buffer is None:
                buffer = memory(BLOCK)
            reader.read([block._replace(view=part(view_of(buffer), 0, block.view.nbytes))])
        finally:
            buffers.put(buffer)

    with Reader(folder, manifest, True) as reader:
        blocks = [_Block(piece["file"], piece["at"] + i * BLOCK,
                         View(0, min(BLOCK, piece["nbytes"] - i * BLOCK), 0, None), expected)
                  for tensor in manifest["tensors"].values() for piece in tensor["slices"]
                  for i, expected in enumerate(piece["sums"])]
        for file in manifest["files"]:
            reader.store(file)
        run_all([partial(look, block) for block in blocks])
