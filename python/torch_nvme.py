# SPDX-License-Identifier: BSD-3-Clause
"""Reads blocks of a device straight into tensors; on top of gpunvme.

    torch_nvme.use("nvme:0000:01:00.0/1")
    torch_nvme.read_into_tensor(tensor, lba=2048)

torch.ops.nvme_ops (gpunvme.torch) does the same inside compiled graphs.
"""

from __future__ import annotations

import threading
from typing import Any

import gpunvme

_lock = threading.Lock()
_store: gpunvme.Store | None = None


def use(device_path: str | None) -> None:
    """Names the device that tensors are read from, as gpunvme.open() takes it; None: none."""
    global _store
    opened = None if device_path is None else gpunvme.open(device_path)
    with _lock:
        before, _store = _store, opened
    if before is not None:
        before.close()


def read_into_tensor(tensor: Any, lba: int = 0) -> int:
    """Fills ``tensor`` with the bytes from block ``lba`` of the device on.

    The tensor must be contiguous, on a GPU or not. Returns how many bytes were read: fewer than it
    has only at the end of the device.
    """
    with _lock:
        store = _store
    if store is None:
        raise RuntimeError("no device: call torch_nvme.use() first")
    return store.pread(tensor, offset=lba * store.block_size)
