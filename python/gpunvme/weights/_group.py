# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Ranks of a torch.distributed process group that load the same tensors together.

Before bytes move, and when they have, the ranks tell each other whether they can go on: if one of
them fails, all raise an exception. Waits have the group's own deadline.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from .. import _lib
from ..errors import Error, argument
from ._files import failure, refuse
from ._target import Target

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_RECORD = struct.Struct("<i32s480s")  # code of an error or 0, digest, text
_T = TypeVar("_T")


class Group:
    """A process group, as the way of bytes between its ranks (see Way in _share.py)."""

    def __init__(self, group: Any, device: Any) -> None:
        """``device``: of the tensors, as the caller has it; None if that is not known yet."""
        if not dist.is_available() or not dist.is_initialized():
            raise argument("a group needs torch.distributed.init_process_group()")
        self._group = group
        self.rank: int = dist.get_rank(group)
        if self.rank < 0:
            raise argument("this process is no member of the group")
        self.world: int = dist.get_world_size(group)
        self.local: Sequence[int] = [self.rank]
        self._ranks = [dist.get_global_rank(group, rank) for rank in range(self.world)]
        self._gpus_only = "cpu:" not in dist.get_backend_config(group)
        self._device = torch.device("cpu")  # of messages
        if self._gpus_only:
            self._device = torch.device("cuda", _gpu(device))

    def check(self, targets: Iterable[Target]) -> None:
        """Refuses targets between which the group can't move bytes."""
        devices = {to.device for to in targets}
        if len(devices) > 1:
            refuse(f"a rank of a group loads to one device, not to {sorted(map(str, devices))}")
        if self._gpus_only and any(device.type != "cuda" for device in devices):
            refuse(f"this group's backend ({dist.get_backend(self._group)}) moves no bytes between "
                   f"CPUs, and the device is {devices.pop()}")

    def send(self, owner: int, flats: Mapping[int, Any]) -> Callable[[], object]:
        work = dist.broadcast(flats[self.rank], self._ranks[owner], self._group, async_op=True)
        wait: Callable[[], object] = work.wait
        return wait

    def together(self, prepare: Callable[[], tuple[_T, list[Any]]]) -> _T:
        """What ``prepare`` returns first, if it returns the same second value on all ranks.

        That is a list of what has to be the same. Otherwise an exception on all ranks.
        """
        error: Exception | None = None
        same: list[Any] = []
        try:
            made, same = prepare()
        except Exception as why:  # noqa: BLE001  (raised again when the others know)
            error = why
        digest = sha256(repr(same).encode()).digest()
        records = self._exchange(error, digest, f"{len(same)} tensors")
        for rank, (_, theirs, text) in enumerate(records):
            if theirs != records[0][1]:
                refuse(f"the ranks do not load the same: rank 0 has {records[0][2]}, and rank "
                       f"{rank} has {text}, of other names, types, shapes or in another order")
        return made

    def sum(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The sums of all ranks' values."""
        total = torch.from_numpy(values.copy()).to(self._device)
        dist.all_reduce(total, group=self._group)
        found: NDArray[np.float32] = total.cpu().numpy()
        return found

    def raise_any(self, error: Exception | None) -> None:
        """Raises an exception on all ranks if one of them has an error: its own, if it has one."""
        self._exchange(error, b"", "")

    def _exchange(self, error: Exception | None, digest: bytes,
                  text: str) -> list[tuple[int, bytes, str]]:
        code = 0
        if error is not None:
            code = error.code if isinstance(error, Error) else _lib.ERR_CANCELED
            text = (error.detail or str(error)) if isinstance(error, Error) else repr(error)
        record = torch.frombuffer(bytearray(_RECORD.pack(code, digest, text.encode()[:480])),
                                  dtype=torch.uint8).to(self._device)
        gathered = [torch.empty_like(record) for _ in range(self.world)]
        dist.all_gather(gathered, record, group=self._group)
        if error is not None:
            raise error
        records = []
        for rank, given in enumerate(gathered):
            code, digest, data = _RECORD.unpack(given.cpu().numpy().tobytes())
            text = data.rstrip(b"\0").decode(errors="replace")
            if code:
                raise failure(code, f"rank {rank} failed: {text}")
            records.append((code, digest, text))
        return records


def _gpu(device: Any) -> int:
    """The number of the GPU for a rank's messages: that of ``device``, if there is such a one."""
    try:
        index = torch.device(device).index
    except (RuntimeError, TypeError):
        index = None
    if index is None or not 0 <= index < torch.cuda.device_count():
        return int(torch.cuda.current_device())
    return int(index)
