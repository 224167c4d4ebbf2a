# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Tensors that several GPUs get: each reads a share of the bytes, and sends it to the others.

Tensors are cut into pieces of rows, and consecutive pieces form buckets of about 16 MiB, which the
ranks share out evenly. A rank reads its buckets directly to where the tensors are to be. A bucket
that has landed is sent while the next ones are read. Large pieces are sent from where they are to where
they are to be; small ones are packed into one buffer. Who the others are, and how bytes get there,
is a Way's matter: see _group.py and _copies.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from ..errors import Error
from ._load import Load, Parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._files import Files

BUCKET = 16 << 20  # bytes of a bucket, about
_SMALLEST = 64 << 10  # bytes of a bucket of a small model
_PACKED = 1 << 20  # bytes of the smallest piece that is sent by itself
_DEPTH = 4  # sends in flight, and so buffers of small pieces


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


class _Spread:
    """A load of shared tensors, while it runs."""

    def __init__(self, shared: Shared, way: Way) -> None:
        self._memory = shared.memory
        self._way = way
        flats = shared.memory[way.local[0]].flats
        self._pieces = pieces = cut(np.array([flat.numel() for flat in flats], np.int64),
                                    np.array([shape[0] if shape else 1
                                              for shape in shared.shapes], np.int64), way.world)
        self._begin = pieces.begin * (pieces.nbytes // (pieces.end - pieces.begin))  # bytes
        self._whole = np.bincount(pieces.tensor)[pieces.tensor] == 1
        self._edges = np.searchsorted(pieces.bucket, np.arange(pieces.bucket[-1] + 2)).tolist()
        self._left = [0] * (len(self._edges) - 1)  # parts of each bucket that have not landed
        self._flying: deque[tuple[Callable[[], object], Callable[[], None]]] = deque()
        self._buffers: list[dict[int, Any]] = []

    def parts(self, shared: Shared, own: Parts | None) -> Parts:
        """What this process reads: its buckets, and then its own parts."""
        pieces, found = self._pieces, []
        self._of: list[int] = []  # the bucket of each part
        for rank in self._way.local:
            mine = np.flatnonzero(pieces.owner == rank)
            flats, mem = self._memory[rank]
            places = np.array([flat.data_ptr() for flat in flats], np.uint64)
            tensor = pieces.tensor[mine]
            made = Parts(shared.addresses[tensor],
                         places[tensor] + self._begin[mine].astype(np.uint64), mem,
                         int(pieces.nbytes[mine].sum()))
            made.convert(shared.dtypes[tensor])
            for part in np.flatnonzero(~self._whole[mine]).tolist():
                i = mine[part]
                rest = shared.shapes[pieces.tensor[i]][1:]
                made.set_box(part, [(int(pieces.begin[i]), int(pieces.end[i])),
                                    *((0, n) for n in rest)])
            found.append(made)
            self._of += pieces.bucket[mine].tolist()
        for bucket in self._of:
            self._left[bucket] += 1
        return Parts.joined([*found, own] if own is not None else found)

    def landed(self, parts: Sequence[int]) -> None:
        for part in parts:
            if part < len(self._of):
                self._left[self._of[part]] -= 1

    def has_landed(self, bucket: int) -> bool:
        return self._left[bucket] == 0

    def __len__(self) -> int:
        return len(self._left)

    def send(self, bucket: int) -> None:
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
        flat = self._memory[rank].flats[self._pieces.tensor[i]]
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
        while len(self._flying) >= _DEPTH:
            self._take_end()
        sizes = self._pieces.nbytes[small].tolist()
        pieces = {rank: [self._flat(rank, i) for i in small] for rank in self._way.local}
        whole = self._buffers.pop() if self._buffers else self._buffer()
        packed = {rank: buffer[: sum(sizes)] for rank, buffer in whole.items()}
        if owner in packed:
            torch.cat(pieces[owner], out=packed[owner])

        def unpack() -> None:
            for rank in pieces.keys() - {owner}:
                torch._foreach_copy_(pieces[rank], list(packed[rank].split(sizes)))
            self._buffers.append(whole)

        self._send(owner, packed, unpack)

    def _buffer(self) -> dict[int, Any]:
        return {rank: memory.flats[0].new_empty(BUCKET + _PACKED)
                for rank, memory in self._memory.items()}

    def _take_end(self) -> None:
        wait, then = self._flying.popleft()
        wait()
        then()

    def finish(self) -> None:
        while self._flying:
            self._take_end()


def spread(files: Files, shared: Shared, way: Way, own: Parts | None,
           keep: object) -> Error | None:
    """Loads shared tensors on all ranks, and ``own`` parts on this one; all ranks call it.

    Returns the error of the load. A rank whose load fails takes part until the end all the same,
    and what it sends is undefined. Raises what the way raises.
    """
    run = _Spread(shared, way) if len(shared.addresses) else None
    parts = own if run is None else run.parts(shared, own)
    load: Load | None = None
    error: Error | None = None
    try:
        if parts is not None and len(parts):
            load = Load(files, parts, keep)
    except Error as why:
        error = why
    try:
        for bucket in range(len(run) if run is not None else 0):
            assert run is not None
            while load is not None and not run.has_landed(bucket):
                landed = load.landed.get()
                if landed is not None:
                    run.landed(landed)
                else:
                    error, load = load.error, None
            run.send(bucket)
        if run is not None:
            run.finish()
    except BaseException:
        if load is not None:
            load.stop()
        raise
    try:
        if load is not None:
            load.wait()
    except Error as why:
        error = why
    return error
