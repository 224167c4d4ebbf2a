# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Whole files for several GPUs: those of a process group's ranks, or those of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._files import Files, refuse
from ._group import Group
from ._prefetch import Job
from ._share import Memory, Shared, flat, spread
from ._target import Devices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._prefetch import Plan


def _shared(files: Files, jobs: Mapping[int, Job]) -> tuple[Shared, NDArray[np.int64]]:
    """The tensors that jobs take whole, and which of the first job's they are."""
    job = next(iter(jobs.values()))
    whole = np.array([i for i in job.loading.tolist() if i not in job.picks], np.int64)
    rows = job.rows[whole]
    memory = {rank: Memory([flat(each.arrays[i]) for i in whole.tolist()], each.targets[0].mem)
              for rank, each in jobs.items() if len(whole)}
    return Shared(files.addresses[rows], files.shapes(rows), np.zeros(len(whole), np.int32),
                  memory), whole


def load_in_group(open_files: Callable[[], Files], plan: Plan, device: Any,
                  group: Any) -> dict[str, Any]:
    """Tensors of files for each rank: those that are whole are read by one of them."""
    ranks = Group(group, device)

    def prepare() -> tuple[tuple[Files, Job, Shared], list[Any]]:
        files = open_files()
        job = Job(files, plan, Devices("pt", device, None), arena=False)
        ranks.check(job.targets)
        shared, whole = _shared(files, {ranks.rank: job})
        same = [(job.names[i], job.codes[i], job.shapes[i]) for i in whole.tolist()]
        return (files, job, shared), same

    files, job, shared = ranks.together(prepare)
    own = np.array(sorted(set(job.picks).intersection(job.loading.tolist())), np.int64)
    ranks.raise_any(spread(files, shared, ranks, job.parts_of(own), job.memory))
    for to in set(job.targets):
        to.ready()
    return job.results()


class _Here:
    """GPUs of this process, as ranks (see Way in _share.py)."""

    def __init__(self, n: int) -> None:
        self.world = n
        self.local: Sequence[int] = range(n)

    def send(self, owner: int, flats: Mapping[int, Any]) -> Callable[[], object]:
        for rank, memory in flats.items():
            if rank != owner:
                memory.copy_(flats[owner], non_blocking=True)
        return lambda: None


def load_on_each(files: Files, devices: Sequence[Any]) -> list[dict[str, Any]]:
    """All tensors on each of these devices."""
    if not devices:
        refuse("no devices")
    jobs = {i: Job(files, None, Devices("pt", device, None), arena=False)
            for i, device in enumerate(devices)}
    shared, _ = _shared(files, jobs)
    error = spread(files, shared, _Here(len(jobs)), None, [job.memory for job in jobs.values()])
    for job in jobs.values():
        for to in set(job.targets):
            to.ready()
    if error is not None:
        raise error
    return [job.results() for job in jobs.values()]
