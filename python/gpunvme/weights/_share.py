# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Tensors that several GPUs get: each reads a share of the bytes, and sends it to the others.

Tensors are cut into pieces of rows, and consecutive pieces form buckets of about 16 MiB, which the
ranks share out evenly. A rank reads its buckets directly to where the tensors are to be. A bucket
that has landed is sent while the next ones are read. Large pieces are sent directly, too; small
ones are packed into one buffer. Who the ranks are, and how bytes get from one to the others, is a
Way's matter: see _group.py and _together.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from .. import _lib
from ._load import Box, Load, Parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._files import Files

BUCKET = 16 << 20  # bytes of a bucket, about
_SMALLEST = 64 << 10  # bytes of a bucket of a small model
_PACKED = 1 << 20  # bytes of the smallest piece that is sent by itself
_DEPTH = 4  # sends in flight
_BUFFERS = 3  # of small pieces, on each rank: 51 MiB


class Way(Protocol):
    """How bytes get from one rank's memory to the others'."""

    world: int  #: ranks
    local: Sequence[int]  #: those whose memory this process has

    def send(self, owner: int, flats: Mapping[int, Any]) -> Callable[[], object]:
        """Starts to copy the owner's bytes to the others'; returns what waits for it.

        ``flats`` has the memory of each local rank, all of the same size. All processes call it in
        the same order. What it returns may leave the rest to the device's current stream.
        """


def flat(tensor: Any) -> Any:
    """The bytes of a contiguous tensor, as a tensor of one dimension."""
    return tensor.detach().view(-1).view(torch.uint8)


class Memory(NamedTuple):
    """One rank's tensors."""

    flats: Sequence[Any]  # the bytes of each, as a tensor of one dimension
    mem: int  # _lib.MEM_*


class Shared(NamedTuple):
    """Tensors that all ranks get, none of them empty, in an order that is the same on all."""

    addresses: NDArray[np.uint64]  # of each struct gpunvme_tensor
    shapes: Sequence[tuple[int, ...]]  # in the file
    dtypes: NDArray[np.int32]  # what each is converted to (_lib.DTYPE_*); 0: nothing else
    scales: NDArray[np.float32]  # set for those that this process converts to F8_E4M3
    memory: Mapping[int, Memory]  # of the local ranks


class Pieces(NamedTuple):
    """Rows of tensors, in order; arrays of the same length."""

    tensor: NDArray[np.int64]
    begin: NDArray[np.int64]  # the first row
    end: NDArray[np.int64]  # behind the last
    nbytes: NDArray[np.int64]
    bucket: NDArray[np.int64]  # 0 and on, without holes
    owner: NDArray[np.int64]  # the rank that reads it


def cut(nbytes: NDArray[np.int64], rows: NDArray[np.int64], world: int) -> Pieces:
    """Cuts tensors of so many bytes and rows into pieces, and groups them to buckets."""
    total = int(nbytes.sum())
    most = min(BUCKET, max(total // (8 * world), _SMALLEST))
    rows = np.where(nbytes % rows == 0, rows, 1)  # a row of F4 may end within a byte
    row = nbytes // rows
    per = np.clip(most // row, 1, rows)
    count = -(-rows // per)
    tensor = np.repeat(np.arange(len(nbytes)), count)
    first = np.repeat(np.cumsum(count) - count, count)
    begin = (np.arange(len(tensor)) - first) * per[tensor]
    end = np.minimum(begin + per[tensor], rows[tensor])
    size = (end - begin) * row[tensor]
    bucket = np.unique((np.cumsum(size) - 1) // most, return_inverse=True)[1]
    owners, shares = [], [0.0] * world
    for nbytes_of_bucket in np.bincount(bucket, size).tolist():
        owners.append(shares.index(min(shares)))
        shares[owners[-1]] += nbytes_of_bucket
    return Pieces(tensor, begin, end, size, bucket, np.array(owners, np.int64)[bucket])


def _cut(shared: Shared, way: Way) -> Pieces:
    flats = shared.memory[way.local[0]].flats if shared.memory else []
    rows = np.array([shape[0] if shape else 1 for shape in shared.shapes], np.int64)
    rows[shared.dtypes == _lib.DTYPE_F8_E4M3] = 1  # not cut: they have one scale each
    return cut(np.array([flat.numel() for flat in flats], np.int64), rows, way.world)


class Spread:
    """A load of shared tensors, and of parts that this process alone wants. Runs once.

    All its memory is allocated when it is made.
    """

    def __init__(self, shared: Shared, way: Way, own: Parts | None = None) -> None:
        self._shared = shared
        self._way = way
        self._own = own
        self._pieces = pieces = _cut(shared, way)
        self._begin = pieces.begin * (pieces.nbytes // (pieces.end - pieces.begin))  # bytes
        self._whole = np.bincount(pieces.tensor)[pieces.tensor] == 1
        nbuckets = int(pieces.bucket[-1]) + 1 if len(pieces.bucket) else 0
        self._edges = np.searchsorted(pieces.bucket, np.arange(nbuckets + 1)).tolist()
        self._of: list[int] = []  # the bucket of each part
        self._tensors: list[int] = []  # and its tensor
        self._parts = Parts.joined([*map(self._parts_of, way.local), *([own] if own else [])])
        #: How many parts of each bucket, read here, have not landed.
        self._left = np.bincount(self._of, minlength=nbuckets).tolist()
        self._flying: deque[tuple[Callable[[], object], Callable[[], None]]] = deque()
        small = np.bincount(pieces.bucket[pieces.nbytes < _PACKED], minlength=1)
        self._buffers = [{rank: memory.flats[0].new_empty(BUCKET + _PACKED)
                          for rank, memory in shared.memory.items()}
                         for _ in range(min(int((small > 1).sum()), _BUFFERS))]

    def _parts_of(self, rank: int) -> Parts:
        """What a local rank reads for all."""
        pieces, shared = self._pieces, self._shared
        mine = np.flatnonzero(pieces.owner == rank)
        if not len(mine):
            return Parts([], [], [], 0)
        flats, mem = shared.memory[rank]
        places = np.array([flat.data_ptr() for flat in flats], np.uint64)
        tensor = pieces.tensor[mine]
        ptrs = places[tensor] + self._begin[mine].astype(np.uint64)
        parts = Parts(shared.addresses[tensor], ptrs, mem, int(pieces.nbytes[mine].sum()))
        parts.convert(shared.dtypes[tensor])
        boxes: list[Box | None] = [None] * len(mine)
        for part in np.flatnonzero(~self._whole[mine]).tolist():
            i = mine[part]
            rest = shared.shapes[pieces.tensor[i]][1:]
            boxes[part] = ((int(pieces.begin[i]), int(pieces.end[i])), *((0, n) for n in rest))
        parts.set_boxes(boxes)
        self._of += pieces.bucket[mine].tolist()
        self._tensors += tensor.tolist()
        return parts

    def run(self, files: Files, keep: object) -> Exception | None:
        """Loads it all; all ranks call it. ``keep`` is held until nothing is written any more.

        Returns the error of the load. A rank whose load fails takes part until the end all the
        same, and what it sends is undefined. Raises what the way raises.
        """
        load: Load | None = None
        error: Exception | None = None
        try:
            if len(self._parts):
                load = Load(files, self._parts, keep)
        except Exception as why:  # noqa: BLE001  (the other ranks wait for this one's sends)
            error = why
        try:
            for bucket in range(len(self._left)):
                while load is not None and self._left[bucket]:
                    landed = load.landed.get()
                    if landed is not None:
                        self._landed(landed)
                    else:
                        error, load = load.error, None
                self._send_bucket(bucket)
            while self._flying:
                self._take_end()
        except BaseException:
            if load is not None:
                load.stop()
            raise
        try:
            if load is not None:
                load.wait()
        except Exception as why:  # noqa: BLE001
            error = why
        self._take_scales()
        return error

    def _landed(self, parts: Sequence[int]) -> None:
        for part in parts:
            if part < len(self._of):
                self._left[self._of[part]] -= 1

    def _take_scales(self) -> None:
        found, n = self._parts.scales, len(self._tensors)
        if found is not None:
            self._shared.scales[self._tensors] = found[:n]
            if self._own is not None and self._own.scales is not None:
                self._own.scales[:] = found[n:]

    # ---- Sending --------------------------------------------------------------------------------

    def _send_bucket(self, bucket: int) -> None:
        """Starts to send a bucket that has landed, or to receive it."""
        owner = int(self._pieces.owner[self._edges[bucket]])
        small = []
        for i in range(self._edges[bucket], self._edges[bucket + 1]):
            if self._pieces.nbytes[i] < _PACKED:
                small.append(i)
            else:
                self._send(owner, {rank: self._flat(rank, i) for rank in self._way.local})
        if len(small) > 1:
            self._send_packed(owner, small)
        elif small:
            self._send(owner, {rank: self._flat(rank, small[0]) for rank in self._way.local})

    def _flat(self, rank: int, i: int) -> Any:
        flat = self._shared.memory[rank].flats[self._pieces.tensor[i]]
        if self._whole[i]:
            return flat
        begin = int(self._begin[i])
        return flat[begin : begin + int(self._pieces.nbytes[i])]

    def _send(self, owner: int, flats: Mapping[int, Any],
              then: Callable[[], None] = lambda: None) -> None:
        while len(self._flying) >= _DEPTH:
            self._take_end()
        self._flying.append((self._way.send(owner, flats), then))

    def _send_packed(self, owner: int, small: Sequence[int]) -> None:
        while not self._buffers:
            self._take_end()
        sizes = self._pieces.nbytes[small].tolist()
        pieces = {rank: [self._flat(rank, i) for i in small] for rank in self._way.local}
        whole = self._buffers.pop()
        packed = {rank: buffer[: sum(sizes)] for rank, buffer in whole.items()}
        if owner in packed:
            torch.cat(pieces[owner], out=packed[owner])

        def unpack() -> None:
            for rank in pieces.keys() - {owner}:
                torch._foreach_copy_(pieces[rank], list(packed[rank].split(sizes)))
            self._buffers.append(whole)

        self._send(owner, packed, unpack)

    def _take_end(self) -> None:
        wait, then = self._flying.popleft()
        wait()
        then()
