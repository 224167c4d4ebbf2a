# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, disable-error-code="import-not-found"
"""The bytes of tensors, their checksums, and copies of them: the snapshot. Knows no files.

A file's data is cut into chunks; each is written by one transfer. A chunk consists of blocks: up to
BLOCK bytes of one tensor, each with a checksum. It is written from the tensors' own memory, or from
a copy: one buffer in which the bytes lie as in the file.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import _lib
from .._safetensors import ALIGN
from ..buffers import View, kind_of
from ..errors import error
from ..memory import empty
from ._state import Leaf, is_torch

BLOCK = 64 << 20  # bytes that have a checksum of their own
ROOM = BLOCK + ALIGN  # of a buffer


@dataclass
class Block:
    """Bytes ``start`` to ``start + nbytes`` of a leaf, at byte ``at`` of the chunk."""

    leaf: Leaf
    start: int
    nbytes: int
    at: int


@dataclass
class Chunk:
    """Consecutive bytes of a file, of leaves that are all on one device (None: the host)."""

    file: int
    offset: int  # in the file
    device: Any
    nbytes: int = 0
    blocks: list[Block] = field(default_factory=list)


def cut(file: int, offset: int, leaves: Iterable[Leaf]) -> list[Chunk]:
    """The chunks of leaves that follow each other in a file, the first at byte ``offset``."""
    chunks: list[Chunk] = []
    for leaf in leaves:
        for start in range(0, leaf.nbytes, BLOCK):
            nbytes = min(BLOCK, leaf.nbytes - start)
            last = chunks[-1] if chunks else None
            if last is None or last.nbytes + nbytes > BLOCK or last.device != leaf.device:
                chunks.append(last := Chunk(file, offset, leaf.device))
            last.blocks.append(Block(leaf, start, nbytes, last.nbytes))
            last.nbytes += nbytes
            offset += nbytes
    return chunks


# ---- Bytes ------------------------------------------------------------------------------------


def view_of(data: Any) -> View:
    """The memory of a contiguous tensor or array that is not empty."""
    if is_torch(data):
        mem = kind_of(data.data_ptr()) if data.is_cuda else _lib.MEM_HOST
        if data.is_cuda and mem != _lib.MEM_GPU:
            raise error(_lib.ERR_UNSUPPORTED, f"a tensor on {data.device}: this build of gpunvme "
                                              "does not reach GPUs (gpunvme info)")
        return View(data.data_ptr(), data.nbytes, mem, data)
    return View(data.ctypes.data, data.nbytes, _lib.MEM_HOST, data)


def packed(data: Any) -> Any:
    """``data``, or a contiguous copy of it."""
    return data.contiguous() if is_torch(data) else np.ascontiguousarray(data).reshape(data.shape)


def part(view: View, start: int, nbytes: int) -> View:
    return View(view.ptr + start, nbytes, view.mem, view.keep)


# ---- Copies -----------------------------------------------------------------------------------


class Staged:
    """A chunk whose bytes are in ``views``, one after the other, once wait() has returned."""

    def __init__(self, chunk: Chunk, views: list[View], blocks: list[View],
                 event: Any = None, release: Callable[[], None] = lambda: None) -> None:
        self.chunk = chunk
        self.views = views
        self.blocks = blocks  # a view of each block
        self.event = event
        self.release = release

    def wait(self) -> None:
        if self.event is not None:
            self.event.synchronize()


def in_place(chunk: Chunk) -> Staged:
    """The chunk in its tensors, which must be contiguous and not change meanwhile."""
    views = [part(view_of(b.leaf.data), b.start, b.nbytes) for b in chunk.blocks]
    return Staged(chunk, views, views)


class Pool:
    """Buffers for chunks in host memory, which are kept and reused."""

    def __init__(self) -> None:
        self._free: dict[str, list[Any]] = {"cpu": [], "pinned": []}
        self._lock = threading.Lock()

    def take(self, kind: str) -> Any:
        with self._lock:
            if self._free[kind]:
                return self._free[kind].pop()
        return empty(ROOM, kind)

    def give(self, kind: str, buffer: Any) -> None:
        with self._lock:
            self._free[kind].append(buffer)

    def reserve(self, kind: str, n: int) -> None:
        """Allocates buffers as far as there are less than ``n``."""
        for buffer in [self.take(kind) for _ in range(n)]:
            self.give(kind, buffer)

    def trim(self) -> None:
        with self._lock:
            for free in self._free.values():
                free.clear()


pool = Pool()


class Snapshot:
    """Copies chunks, after the work that is on torch's current streams at the first copy.

    ``on_gpu``: a GPU's tensors are copied within its memory, on the current stream. Otherwise they
    are copied into pinned host memory, on a stream of the snapshot, and small ones are first packed
    in one buffer on the GPU.
    """

    def __init__(self, on_gpu: bool, release: Callable[[], None]) -> None:
        self._on_gpu = on_gpu
        self._release = release
        self._streams: dict[Any, Any] = {}
        self._staging: dict[Any, Any] = {}

    def reserve(self, chunks: Iterable[Chunk], room: int | None) -> None:
        """Allocates what copies of these chunks need, of which at most ``room`` exist at once.

        To pin memory while others use the GPU waits for them: the first save does it for all.
        """
        kinds = ["cpu" if chunk.device is None else "pinned" for chunk in chunks
                 if chunk.device is None or not self._on_gpu]
        for kind in set(kinds):
            n = kinds.count(kind)
            pool.reserve(kind, n if room is None else min(n, room))

    def copy(self, chunk: Chunk) -> Staged:
        if chunk.device is None:
            return self._host(chunk)
        return self._gpu(chunk)

    def wait(self, stream: Any = None) -> None:
        """Makes the current streams (or ``stream``) wait until all copies have been made."""
        for device, side in self._streams.items():
            import torch

            (stream or torch.cuda.current_stream(device)).wait_stream(side)

    def end(self) -> None:
        """Call it when all copies have been submitted."""
        self._staging.clear()  # used again in the order of its stream

    def _staged(self, chunk: Chunk, view: View, at: int, event: Any,
                release: Callable[[], None]) -> Staged:
        blocks = [part(view, at + b.at, b.nbytes) for b in chunk.blocks]
        return Staged(chunk, [part(view, at, chunk.nbytes)], blocks, event, release)

    def _buffer(self, kind: str) -> tuple[Any, Callable[[], None]]:
        buffer = pool.take(kind)

        def release() -> None:
            pool.give(kind, buffer)
            self._release()

        return buffer, release

    def _host(self, chunk: Chunk) -> Staged:
        buffer, release = self._buffer("cpu")
        at = chunk.offset % ALIGN  # as in the file: O_DIRECT can take the pages between the ends
        for b in chunk.blocks:
            view = part(view_of(packed(b.leaf.data)), b.start, b.nbytes)
            ctypes.memmove(buffer.ctypes.data + at + b.at, view.ptr, view.nbytes)
        return self._staged(chunk, view_of(buffer), at, None, release)

    def _gpu(self, chunk: Chunk) -> Staged:
        import torch

        at = chunk.offset % ALIGN
        with torch.cuda.device(chunk.device):
            event = torch.cuda.Event(blocking=True)
            if self._on_gpu:
                buffer = torch.empty(ROOM, dtype=torch.uint8, device=chunk.device)
                _gather(chunk, buffer[at:])
                event.record()
                return self._staged(chunk, view_of(buffer), at, event, self._release)
            if chunk.device not in self._streams:
                side = self._streams[chunk.device] = torch.cuda.Stream(chunk.device)
                side.wait_stream(torch.cuda.current_stream(chunk.device))
            host, release = self._buffer("pinned")
            target = torch.from_numpy(host)[at:at + chunk.nbytes]
            with torch.cuda.stream(self._streams[chunk.device]):
                if len(chunk.blocks) == 1 and chunk.blocks[0].leaf.data.is_contiguous():
                    b = chunk.blocks[0]
                    source = _bytes(b.leaf.data)[b.start:b.start + b.nbytes]
                else:
                    source = self._staging.get(chunk.device)
                    if source is None:  # one for all chunks: they follow each other on the stream
                        source = self._staging[chunk.device] = torch.empty(
                            ROOM, dtype=torch.uint8, device=chunk.device)
                    _gather(chunk, source[at:])
                    source = source[at:at + chunk.nbytes]
                target.copy_(source, non_blocking=True)
                event.record()
            return self._staged(chunk, view_of(host), at, event, release)


def _bytes(data: Any) -> Any:
    """A tensor as bytes; a copy if it is not contiguous."""
    import torch

    return data.reshape(-1).view(torch.uint8)


def _gather(chunk: Chunk, buffer: Any) -> None:
    """Copies a chunk's blocks to the beginning of ``buffer``, on the current stream."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    groups: dict[Any, tuple[list[Any], list[Any]]] = {}
    for b in chunk.blocks:
        source = _bytes(b.leaf.data)[b.start:b.start + b.nbytes]
        to = buffer[b.at:b.at + b.nbytes]
        size = b.leaf.data.dtype.itemsize
        if to.data_ptr() % size or source.data_ptr() % size:
            size = 1
        targets, sources = groups.setdefault(size, ([], []))
        targets.append(to.view(integers[size]))
        sources.append(source.view(integers[size]))
    for targets, sources in groups.values():
        torch._foreach_copy_(targets, sources)
