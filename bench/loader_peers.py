#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data.Loader beside torch's DataLoader and WebDataset, in one run, in turn.

    bench/loader_peers.py --json loader.json
    bench/loader_peers.py --device cpu --size 64M --runs 2 --seconds 1      # without a GPU

Makes --size bytes of random samples of 4 KiB and of 110 KiB in 100 files in --folder, and brings
batches of 512 to the device in shuffled order, for --seconds a run; a run that is not counted comes
first. torch's DataLoader has 16 worker processes, pin_memory, and a data set that reads with
os.preadv() what a batch needs; WebDataset reads tar shards in order and shuffles in a buffer of
5,000 samples, as its manual advises. What a loader needs to start does not count. Each batch is
summed on the device. A loader that is not here or fails is skipped, and says why.

Reported are medians: samples a second, and CPU seconds of the process and its workers a GB.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
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
    import torch
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

FILES = 100
BATCH = 512
WORKERS = 16
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


def same(batch: Any) -> Any:
    return batch


def gpunvme_loader(files: list[str], nbytes: int, device: str) -> Iterator[Any]:
    from gpunvme import data

    samples = data.Dataset(files, format="records", record_nbytes=nbytes)
    loader = data.Loader(samples, BATCH, seed=next(SEEDS), device=device, last="drop")
    while True:
        yield from loader


def torch_loader(files: list[str], nbytes: int, device: str) -> Iterator[Any]:
    loader = torch.utils.data.DataLoader(
        Samples(files, nbytes), BATCH, shuffle=True, num_workers=WORKERS, drop_last=True,
        pin_memory=device.startswith("cuda"), collate_fn=same, prefetch_factor=4,
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


LOADERS: dict[str, tuple[str, Callable[[list[str], int, str], Iterator[Any]]]] = {
    "gpunvme.data.Loader": ("gpunvme", gpunvme_loader),
    f"torch DataLoader, {WORKERS} workers": ("torch", torch_loader),
    f"WebDataset, {WORKERS} workers": ("webdataset", webdataset_loader),
}


def make_files(folder: Path, nbytes: int, size: int, with_tar: bool) -> list[str]:
    each = max(size // FILES // nbytes, 1)
    files = []
    for i in range(FILES):
        path = folder / f"{nbytes}-{i:03}"
        content = random.randbytes(nbytes)  # no two samples are alike: the counter is in front
        with path.open("wb") as file:
            for k in range(each):
                file.write((i * each + k).to_bytes(8, "little") + content[8:])
        files.append(str(path))
        if with_tar:
            with tarfile.open(f"{path}.tar", "w") as tar:
                for k in range(each):
                    entry = tarfile.TarInfo(f"{i * each + k:09}.bin")
                    entry.size = nbytes
                    tar.addfile(entry, BytesIO((i * each + k).to_bytes(8, "little") + content[8:]))
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
    running: dict[str, Iterator[Any]] = {}
    found: dict[str, Any] = {}
    for name, (package, make) in LOADERS.items():
        try:
            version = importlib.metadata.version(package) if package != "gpunvme" else "this"
            running[name] = make(files, nbytes, options.device)
            take(running[name], min(options.seconds, 1), options.device)
            found[name] = {"version": version, "samples_per_s": [], "cpu_s_per_gb": []}
        except Exception as why:  # noqa: BLE001  (the others go on)
            running.pop(name, None)
            found[name] = {"skipped": f"{type(why).__name__}: {why}"}
    for _ in range(options.runs):
        for name, batches in running.items():
            rate, cpu = take(batches, options.seconds, options.device)
            found[name]["samples_per_s"].append(rate)
            found[name]["cpu_s_per_gb"].append(cpu)
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
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--only", choices=SIZES, help="samples of this size alone")
    parser.add_argument("--json", help="write all runs to this file")
    options = parser.parse_args(None if arguments is None else list(arguments))
    torch.multiprocessing.set_sharing_strategy("file_system")
    with_tar = importlib.util.find_spec("webdataset") is not None
    results: dict[str, Any] = {"benchmark": "loader_peers", "device": options.device,
                               "torch": torch.__version__, "batch": BATCH, "files": FILES}
    for kind, nbytes in SIZES.items():
        if options.only not in (None, kind):
            continue
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            files = make_files(folder, nbytes, options.size, with_tar)
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
