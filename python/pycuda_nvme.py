# SPDX-License-Identifier: BSD-3-Clause
"""NVMe reads and writes by blocks, with addresses as pycuda has them; on top of gpunvme."""

from __future__ import annotations

from typing import Any

import gpunvme
from gpunvme import _lib


class NVMeGPU:
    """A device, file or namespace by blocks of ``block_size`` bytes.

    ``device_path`` is what gpunvme.open() takes. ``gpu_ptr`` is a pycuda DeviceAllocation, any
    array, or an address. It is opened for writing with ``writable=True``.
    """

    def __init__(self, device_path: str, *, writable: bool = False) -> None:
        self.store = gpunvme.open(device_path, "r+" if writable else "r")
        self.block_size = self.store.block_size

    def read(self, lba: int, count: int, gpu_ptr: Any) -> int:
        """Reads ``count`` blocks from block ``lba`` on. Returns how many bytes were read."""
        return self.store.pread(gpu_ptr, count * self.block_size, lba * self.block_size)

    def write(self, lba: int, count: int, gpu_ptr: Any) -> int:
        """Writes ``count`` blocks from block ``lba`` on. Returns how many bytes were written."""
        return self.store.pwrite(gpu_ptr, count * self.block_size, lba * self.block_size)

    def read_async(self, lba: int, count: int, gpu_ptr: Any, stream: Any = None) -> gpunvme.Future:
        """Begins read() in the order of a CUDA stream (None: at once)."""
        nbytes = count * self.block_size
        return self.store.pread_async(gpu_ptr, nbytes, lba * self.block_size, stream=stream)

    def read_to_gpu(self, lba: int = 0, size_mb: int = 100) -> Any:
        """Reads ``size_mb`` MiB from block ``lba`` on into new GPU memory, and returns that.

        Its ``nbytes`` is what it has room for: a RangeError says that the device is shorter.
        """
        memory = gpunvme.empty(size_mb << 20, "cuda")
        read = self.store.pread(memory, offset=lba * self.block_size)
        if read < memory.nbytes:
            detail = f"{self.store.uri} has {read} bytes from block {lba} on"
            raise gpunvme.errors.error(_lib.ERR_RANGE, detail)
        return memory

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> NVMeGPU:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
