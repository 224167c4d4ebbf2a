# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Whole files for several GPUs: those of a process group's ranks, or those of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _lib
from ..buffers import View, checksum
from ._files import Files, refuse
from ._group import Group
from ._load import Parts
from ._prefetch import Job
from ._share import Memory, Shared, Spread, flat
from ._target import Devices, conversion

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._load import Path
    from ._prefetch import Plan


def _indexes(job: Job) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tensors with bytes that are taken whole, and the others."""
    picked = [i for i in job.loading.tolist() if i in job.picks]
    return np.setdiff1d(job.loading, picked), np.array(picked, np.int64)


def _shared(files: Files, jobs: Mapping[int, Job], whole: NDArray[np.int64]) -> Shared:
    """The tensors that all of these jobs take whole."""
    job = next(iter(jobs.values()))
    rows = job.rows[whole]
    memory = {rank: Memory([flat(each.arrays[i]) for i in whole.tolist()], each.targets[0].mem)
              for rank, each in jobs.items() if len(whole)}
    return Shared(files.addresses[rows], files.shapes(rows), job.dtypes[whole],
                  np.zeros(len(whole), np.float32), memory)


# ---- A process group ----------------------------------------------------------------------------


class _Work(NamedTuple):
    files: Files
    job: Job
    whole: NDArray[np.int64]  # tensors that are shared
    picked: NDArray[np.int64]  # tensors of this rank alone
    shared: Shared
    own: Parts
    spread: Spread

    def same(self) -> list[Any]:
        """What all ranks must have."""
        job, rows = self.job, self.job.rows[self.whole]
        return [(job.names[i], shape, code, job.codes[i]) for i, shape, code in
                zip(self.whole.tolist(), self.files.shapes(rows), self.files.codes(rows))]


def _prepare(files: Files, job: Job, ranks: Group) -> _Work:
    ranks.check(job.targets)
    whole, picked = _indexes(job)
    shared, own = _shared(files, {ranks.rank: job}, whole), job.parts_of(picked)
    return _Work(files, job, whole, picked, shared, own, Spread(shared, ranks, own))


def _check(job: Job, manifest: Path) -> None:
    """Compares what is in memory, also what other ranks have read, with a manifest."""
    parts = job.parts_of(job.loading)
    parts.set_checksums([checksum(View(*place, None)) for place in job.places()])
    job.with_empty(parts).check_manifest(manifest)


def _finish(work: _Work, manifest: Path | None) -> Exception | None:
    try:
        for to in set(work.job.targets):
            to.ready()
        if manifest is not None:
            _check(work.job, manifest)
    except Exception as why:  # noqa: BLE001  (raised when the other ranks know)
        return why
    return None


def _scales(work: _Work, ranks: Group) -> NDArray[np.float32]:
    """The scale of each tensor; a rank knows those that it has read."""
    scales = np.ones(len(work.job), np.float32)
    if (work.shared.dtypes == _lib.DTYPE_F8_E4M3).any():  # on all ranks, then
        scales[work.whole] = ranks.sum(work.shared.scales)
    if work.own.scales is not None:
        scales[work.picked] = work.own.scales
    return scales


def load_in_group(open_files: Callable[[], Files], plan: Plan, device: Any, group: Any,
                  dtype: Any, manifest: Path | None) -> dict[str, Any]:
    """Tensors of files for each rank of a process group."""
    ranks = Group(group, device)

    def prepare() -> tuple[_Work, list[Any]]:
        files = open_files()
        Parts.look_at_manifest(manifest)
        job = Job(files, plan, Devices("pt", device, None), arena=False, dtype=conversion(dtype))
        work = _prepare(files, job, ranks)
        return work, work.same()

    work = ranks.together(prepare)
    error: Exception | None = work.spread.run(work.files, work.job.memory)
    ranks.raise_any(error or _finish(work, manifest))
    results = work.job.results()
    work.job.add_scales(results, _scales(work, ranks))
    return results


# ---- Devices of this process --------------------------------------------------------------------


class _Here:
    """Devices of this process, as ranks (see Way in _share.py)."""

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
    shared = _shared(files, jobs, jobs[0].loading)
    error = Spread(shared, _Here(len(jobs))).run(files, [job.memory for job in jobs.values()])
    for job in jobs.values():
        for to in set(job.targets):
            to.ready()
    if error is not None:
        raise error
    return [job.results() for job in jobs.values()]
