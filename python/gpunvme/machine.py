# SPDX-License-Identifier: BSD-3-Clause
"""What this machine and this build have."""

from __future__ import annotations

import ctypes

from . import _lib
from ._lib import lib
from .errors import check
from .reports import Backend, Gpu, Info


def info() -> Info:
    """What this machine and this build have: GPUs, backends, and why others do not work."""
    from . import __version__

    return Info(
        version=__version__,
        library=lib._name,
        gpus=tuple(_gpu(i) for i in range(lib.gpunvme_mem_gpu_count())),
        no_gpu=lib.gpunvme_mem_gpu_why_not().decode(),
        backends=tuple(_backends()),
    )


def _gpu(index: int) -> Gpu:
    gpu = _lib.GpuInfo()
    check(lib.gpunvme_mem_gpu_info(index, ctypes.byref(gpu)))
    return Gpu(
        name=gpu.name.decode(),
        compute_capability=(gpu.cc_major, gpu.cc_minor),
        processors=gpu.nprocessors,
        memory=gpu.memory_nbytes,
        pci_address=gpu.pci_address.decode(),
        driver_version=gpu.driver_version,
        runtime_version=gpu.runtime_version,
    )


def _backends() -> list[Backend]:
    found: list[Backend] = []
    backend = _lib.BackendInfo()
    while lib.gpunvme_backend_at(len(found), ctypes.byref(backend)):
        found.append(Backend(backend.name.decode(), backend.uris.decode(), backend.works,
                             backend.why.decode(errors="replace")))
    return found
