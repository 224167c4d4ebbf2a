#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data.Loader beside torch's DataLoader, WebDataset, Mosaic and DALI, in one run, in turn.

    bench/loader_peers.py --json loader.json
    bench/loader_peers.py --device cpu --size 64M --runs 2 --seconds 1      # without a GPU

Makes --size bytes of random samples of 4 KiB and of 110 KiB in 100 files in --folder, and brings
batches of 512 to the device in shuffled order, for --seconds a run. Each run starts its loader, and
takes batches for --warm seconds that are not counted. torch's DataLoader has 16 worker processes,
pin_memory, and a data set that reads a sample with os.pread(), which the DataLoader collates, as
most programs have it; and once more a data set that reads what a batch needs into the batch's
tensor with os.preadv(). WebDataset reads tar shards in order and shuffles in a buffer of 5,000
samples, as its manual advises. MosaicML Streaming reads local MDS shards of 64 MiB in its default
shuffle. DALI's numpy reader takes one .npy file a sample, and gets the first 20,000 samples: by 16
threads of the CPU and, on a GPU, also by cuFile. Each batch is summed on the device. A loader that
is not installed, or fails, is skipped with the reason.

Reported are medians: samples a second, and CPU seconds of the process and its workers a GB.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

FILES = 100
BATCH = 512
WORKERS = 16
DALI_FILES = 20_000
SIZES = {"4 KiB": 4096, "110 KiB": 110 * 1024}
SEEDS = iter(range(1 << 30))


class Samples(torch.utils.data.Dataset[Any]):
    """Records of several files, a batch of them by one call."""

    def __init__(self, files: list[str], nbytes: int) -> None:
        self.files, self.nbytes = files, nbytes
        self.each = os.path.getsize(files[0]) // nbytes
        self.fds: list[int] = []

    def __len__(self) -> int:
        return self.each * len(self.files)

    def __getitems__(self, indexes: list[int]) -> torch.Tensor:
        if not self.fds:
            self.fds = [os.open(file, os.O_RDONLY) for file in self.files]
        batch = torch.empty(len(indexes), self.nbytes, dtype=torch.uint8)
        rows = batch.numpy()
        for row, i in enumerate(indexes):
            os.preadv(self.fds[i // self.each], [rows[row]], i % self.each * self.nbytes)
        return batch


class SamplesByOne(Samples):
    """The same, a sample at a time."""

    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, i: int) -> torch.Tensor:
        if not self.fds:
            self.fds = [os.open(file, os.O_RDONLY) for file in self.files]
        content = os.pread(self.fds[i // self.each], self.nbytes, i % self.each * self.nbytes)
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def same(batch: Any) -> Any:
    return batch


def gpunvme_loader(files: list[str], nbytes: int, device: str) -> Iterator[Any]:
    from gpunvme import data

    samples = data.Dataset(files, format="records", record_nbytes=nbytes)
    loader = data.Loader(samples, BATCH, seed=next(SEEDS), device=device, last="drop")
    while True:
        yield from loader


def torch_loader(files: list[str], nbytes: int, device: str) -> Iterator[Any]:
    return torch_batches(SamplesByOne(files, nbytes), None, device)


def torch_batch_loader(files: list[str], nbytes: int, device: str) -> Iterator[Any]:
    return torch_batches(Samples(files, nbytes), same, device)


def torch_batches(samples: Samples, collate: Callable[[Any], Any] | None,
                  device: str) -> Iterator[Any]:
    loader = torch.utils.data.DataLoader(
        samples, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True,
        pin_memory=device.startswith("cuda"), collate_fn=collate, prefetch_factor=4,
        persistent_workers=True)
    while True:
        for batch in loader:
            yield batch.to(device, non_blocking=True)


def webdataset_loader(files: list[str], nbytes: int, device: str) -> Iterator[Any]:
    import webdataset

    shards = [file + ".tar" for file in files]
    samples = (webdataset.WebDataset(shards, shardshuffle=len(shards), empty_check=False)
               .shuffle(5000, initial=1000)
               .map(lambda sample: torch.frombuffer(bytearray(sample["bin"]), dtype=torch.uint8))
               .batched(BATCH, collation_fn=torch.stack, partial=False))
    loader = webdataset.WebLoader(samples, batch_size=None, num_workers=WORKERS,
                                  pin_memory=device.startswith("cuda"), prefetch_factor=4,
                                  persistent_workers=True)
    while True:
        for batch in loader:
            yield batch.to(device, non_blocking=True)


def stacked(batch: list[dict[str, Any]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([one["x"] for one in batch]))


def mosaic_loader(files: list[str], nbytes: int, device: str) -> Iterator[Any]:
    import streaming

    samples = streaming.StreamingDataset(local=files[0] + ".mds", shuffle=True, batch_size=BATCH,
                                         shuffle_seed=next(SEEDS))
    loader = torch.utils.data.DataLoader(
        samples, BATCH, num_workers=WORKERS, drop_last=True, pin_memory=device.startswith("cuda"),
        collate_fn=stacked, prefetch_factor=4, persistent_workers=True)
    while True:
        for batch in loader:
            yield batch.to(device, non_blocking=True)


def dali_loader(files: list[str], nbytes: int, device: str, reader: str = "cpu") -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    on_gpu = device.startswith("cuda")
    if reader == "gpu" and not on_gpu:
        raise RuntimeError("it reads into GPU memory alone")

    @pipeline_def(batch_size=BATCH, num_threads=WORKERS, seed=next(SEEDS),
                  device_id=torch.device(device).index or 0 if on_gpu else None)
    def samples() -> Any:
        read = fn.readers.numpy(device=reader, file_root=files[0] + ".npys", random_shuffle=True,
                                initial_fill=5000)
        return read.gpu() if on_gpu and reader == "cpu" else read

    for batch in DALIGenericIterator([samples()], ["x"]):  # without a size, it has no end
        yield batch[0]["x"]


def dali_gpu_loader(files: list[str], nbytes: int, device: str) -> Iterator[Any]:
    return dali_loader(files, nbytes, device, "gpu")


DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120")

# What measures, and the packages of which it needs one.
LOADERS: dict[str, tuple[tuple[str, ...], Callable[[list[str], int, str], Iterator[Any]]]] = {
    "gpunvme.data.Loader": (("gpunvme",), gpunvme_loader),
    f"torch DataLoader, {WORKERS} workers": (("torch",), torch_loader),
    f"torch DataLoader, {WORKERS} workers, a batch at a time": (("torch",), torch_batch_loader),
    f"WebDataset, {WORKERS} workers": (("webdataset",), webdataset_loader),
    f"Mosaic Streaming, {WORKERS} workers": (("mosaicml-streaming",), mosaic_loader),
    "DALI's numpy reader, on the CPU": (DALI, dali_loader),
    "DALI's numpy reader, by cuFile": (DALI, dali_gpu_loader),
}


def version_of(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise importlib.metadata.PackageNotFoundError(" or ".join(packages))


def write_tar(path: str, samples: Iterable[tuple[int, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for i, content in samples:
            entry = tarfile.TarInfo(f"{i:09}.bin")
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))


def write_mds(path: str, samples: Iterable[tuple[int, bytes]], nbytes: int) -> None:
    import streaming

    with streaming.MDSWriter(out=path, columns={"x": f"ndarray:uint8:{nbytes}"}) as out:
        for _, content in samples:
            out.write({"x": np.frombuffer(content, np.uint8)})


def write_npys(path: str, samples: Iterable[tuple[int, bytes]]) -> None:
    Path(path).mkdir()
    for i, content in itertools.islice(samples, DALI_FILES):
        np.save(f"{path}/{i:09}.npy", np.frombuffer(content, np.uint8))


def is_here(*packages: str) -> bool:
    try:
        return bool(version_of(packages))
    except importlib.metadata.PackageNotFoundError:
        return False


def make_files(folder: Path, nbytes: int, size: int) -> list[str]:
    """The records, and beside them what the other loaders that are here read."""
    each = max(size // FILES // nbytes, 1)
    contents = [random.randbytes(nbytes) for _ in range(FILES)]
    files = [str(folder / f"{nbytes}-{i:03}") for i in range(FILES)]

    def samples(i: int) -> Iterator[tuple[int, bytes]]:
        for k in range(i * each, (i + 1) * each):
            yield k, k.to_bytes(8, "little") + contents[i][8:]  # no two samples are alike

    for i, path in enumerate(files):
        with open(path, "wb") as file:
            file.writelines(content for _, content in samples(i))
        if is_here("webdataset"):
            write_tar(path + ".tar", samples(i))
    if is_here("mosaicml-streaming"):
        write_mds(files[0] + ".mds", itertools.chain.from_iterable(map(samples, range(FILES))),
                  nbytes)
    if is_here(*DALI):
        write_npys(files[0] + ".npys", itertools.chain.from_iterable(map(samples, range(FILES))))
    return files


def cpu_seconds() -> float:
    """Of this process and of those that it has started."""
    total = 0.0
    tick = os.sysconf("SC_CLK_TCK")
    tree = {os.getpid()}
    for _ in range(2):
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) in tree:
                tree.add(int(name))
    for pid in tree:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def take(batches: Iterator[Any], seconds: float, device: str) -> tuple[float, float]:
    """Samples a second, and CPU seconds a GB."""
    sums = []
    begin, cpu, n, nbytes = time.perf_counter(), cpu_seconds(), 0, 0
    while time.perf_counter() - begin < seconds:
        batch = next(batches)
        n += len(batch)
        nbytes += batch.nbytes
        sums.append(batch[:, 0].sum())
        del batch
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    took = time.perf_counter() - begin
    return n / took, (cpu_seconds() - cpu) / (nbytes / 1e9)


def measure(files: list[str], nbytes: int, options: argparse.Namespace) -> dict[str, Any]:
    """In turn. Each starts anew for each run, so that none has workers beside another's run."""
    found: dict[str, Any] = {}
    for name, (packages, _) in LOADERS.items():
        try:
            version = version_of(packages) if packages != ("gpunvme",) else "this"
            found[name] = {"version": version, "samples_per_s": [], "cpu_s_per_gb": []}
        except importlib.metadata.PackageNotFoundError as why:
            found[name] = {"skipped": f"{type(why).__name__}: {why}"}
    for _ in range(options.runs):
        for name, one in found.items():
            if "skipped" in one:
                continue
            try:
                batches = LOADERS[name][1](files, nbytes, options.device)
                take(batches, options.warm, options.device)
                rate, cpu = take(batches, options.seconds, options.device)
            except Exception as why:  # noqa: BLE001  (the others go on)
                found[name] = {"skipped": f"{type(why).__name__}: {why}"}
                continue
            one["samples_per_s"].append(rate)
            one["cpu_s_per_gb"].append(cpu)
            del batches
            gc.collect()
    return found


def shown(name: str, found: dict[str, Any], nbytes: int) -> str:
    if "skipped" in found:
        return f"  {name:32} skipped: {found['skipped']}"
    rates = found["samples_per_s"]
    middle = statistics.median(rates)
    return (f"  {name:32} {middle / 1e3:9.1f} k samples/s ({min(rates) / 1e3:.1f} to "
            f"{max(rates) / 1e3:.1f}), {middle * nbytes / 1e9:6.2f} GB/s, "
            f"{statistics.median(found['cpu_s_per_gb']):.2f} CPU s/GB")


def nbytes_of(text: str) -> int:
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text)


def main(arguments: Iterable[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=nbytes_of, default=4 << 30, help="bytes of each kind (4G)")
    parser.add_argument("--runs", type=int, default=5, help="that are counted (5)")
    parser.add_argument("--seconds", type=float, default=2, help="of a run (2)")
    parser.add_argument("--warm", type=float, default=1, help="seconds before it (1)")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--only", choices=SIZES, help="samples of this size alone")
    parser.add_argument("--json", help="write all runs to this file")
    options = parser.parse_args(None if arguments is None else list(arguments))
    torch.multiprocessing.set_sharing_strategy("file_system")
    results: dict[str, Any] = {"benchmark": "loader_peers", "device": options.device,
                               "torch": torch.__version__, "batch": BATCH, "files": FILES}
    for kind, nbytes in SIZES.items():
        if options.only not in (None, kind):
            continue
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            files = make_files(folder, nbytes, options.size)
            found = results[kind] = measure(files, nbytes, options)
        finally:
            shutil.rmtree(folder)
        print(f"{kind}, {FILES} files, batches of {BATCH}")
        for name, one in found.items():
            print(shown(name, one, nbytes))
        if options.json:
            Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    # Worker processes of loaders that are still running must not be waited for.
    code = main()
    sys.stdout.flush()
    os._exit(code)
