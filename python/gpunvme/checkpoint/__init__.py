# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints: safetensors files, written while training continues, complete or not at all.

    from gpunvme import checkpoint

    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    saving = checkpoint.save_async(state, "/data/run1", step=1000, keep=3)   # training continues
    print(saving.result())                            # "/data/run1/step-0000001000"

    state = checkpoint.load("/data/run1", device="cuda")
    checkpoint.load("/data/run1", into={"model": model.state_dict()})        # in place

save_async() and save(); load(), latest(), steps() and verify(); Slice and Ranks for tensors that
several processes hold together; ``gpunvme.checkpoint.dcp`` for torch.distributed.checkpoint.
docs/CHECKPOINT.md has the contract and the format.
"""

from __future__ import annotations

from ._files import Ranks, latest, steps
from ._load import load, verify
from ._memory import BLOCK, pool
from ._save import Progress, Save, save, save_async
from ._state import Slice


def reserve(nbytes: int, *, pinned: bool = True) -> None:
    """Allocates host memory for snapshots of ``nbytes``, so that the first save need not.

    ``pinned``: for tensors on GPUs; otherwise for those on the CPU. Pinning 16 GiB takes seconds.
    """
    pool.reserve("pinned" if pinned else "cpu", -(-nbytes // BLOCK))


def trim() -> None:
    """Frees the host memory that is kept for the next snapshots."""
    pool.trim()


__all__ = ["Progress", "Ranks", "Save", "Slice", "latest", "load", "reserve", "save", "save_async",
           "steps", "trim", "verify"]
