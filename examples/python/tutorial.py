#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A tour of the package, in cells that an editor runs one by one (# %%). Needs no drive, no GPU."""

# %% What this machine has
import asyncio
import tempfile
from pathlib import Path

import numpy as np

import gpunvme

info = gpunvme.info()
print(f"gpunvme {info.version}; GPUs: {[gpu.name for gpu in info.gpus] or info.no_gpu}")
for backend in info.backends:
    print(f"  {backend.name:8} {'works' if backend.works else 'does not work'}: {backend.why}")

# %% A file, written and read
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "numbers"
numbers = np.arange(1_000_000, dtype=np.float32)
with gpunvme.open(path, "w") as store:
    store.pwrite(numbers)
    store.flush()

store = gpunvme.open(path)
half = np.empty(500_000, np.float32)
print(store.pread(half, offset=half.nbytes), "bytes:", half[:3], "…")

# %% Memory: GPU memory where there is a GPU, else host memory that stands in for it
memory = gpunvme.empty(1 << 20, "cuda")
store.pread(memory)
print(memory if isinstance(memory, gpunvme.DeviceMemory) else memory[:8])

# %% Which way the bytes went, and why not a faster one
report = store.path()
print(report.how)
print(report.bytes_read, "|", report.why_not)

# %% Many at once: futures …
parts = [np.empty(1000, np.float32) for _ in range(10)]
futures = [store.pread_async(part, offset=i * 4000) for i, part in enumerate(parts)]
print([future.result() for future in futures])


# %% … that an event loop awaits …
async def read(part: np.ndarray, offset: int) -> int:
    return await store.pread_async(part, offset=offset)


async def read_all() -> int:
    return sum(await asyncio.gather(*(read(part, i * 4000) for i, part in enumerate(parts))))


print(asyncio.run(read_all()), "bytes")

# %% … or thousands by one call, described by arrays
samples = np.empty((1000, 256), np.float32)
where = np.random.default_rng(1).integers(0, 900_000, 1000) * 4
batch = gpunvme.Batch(store, samples, where, samples[0].nbytes)
print(batch.run(), "bytes; right:", bool((samples[:, 0] == where / 4).all()))

# %% A drive in software, with a bad block
with gpunvme.open("sim:size=64M,fault=status=2/81:read:lba=8-15", "r+") as drive:
    drive.pwrite(b"good", offset=0)
    try:
        drive.pread(bytearray(4096), offset=4096)
    except gpunvme.StatusError as error:
        print(error)

# %% Operators
a = np.random.default_rng(2).standard_normal((512, 512)).astype(np.float32)
print("largest difference:", np.abs(gpunvme.ops.matmul(a, a) - a @ a).max())
for variant in gpunvme.ops.variants():
    if variant.available and variant.name != "naive":
        took = gpunvme.ops.timing(
            lambda: gpunvme.ops.matmul(a, a, variant=variant.name), 2 * 512**3)
        print(f"  {variant.name:8} {took.gflops:8.1f} GFLOP/s")

# %% The end
store.close()
folder.cleanup()
