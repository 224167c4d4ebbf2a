#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data.Loader as trainings use it: packed documents, a drive, and the steps of a GPT.

    bench/loader_train.py [--work packed,drive,steps] --json train.json
    bench/loader_train.py --device cpu --size 64M --seconds 1 --runs 2     # without a GPU

    packed  documents of 1 to 64 KiB in 100 tar archives in --folder, shuffled and packed to rows of
            8,192 tokens of uint16, batches of 512 documents
    drive   records of 110 KiB in 100 files in --disk that are not in the page cache, shuffled, in
            batches of 512, beside fio's random reads of the same files, in turn: the better of the
            two ways of six that were the best of a first round
    steps   steps of GPT-2 124M on tokens of uint16, shuffled, beside the same steps on one batch
            that stays on the device, in turn: the stall is how long the loader was waited for

A run lasts --seconds; the first is not counted. Medians, with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

from checkpoint_stall import Block
from gpunvme import data

FILES = 100
BATCH = 512
KIB = 1024


def spread(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "runs": len(values)}


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def endless(loader: data.Loader) -> Iterator[Any]:
    while True:
        yield from loader


def rate(batches: Iterator[Any], seconds: float, device: str) -> dict[str, float]:
    """Of batches for so long; a byte of each 4 KiB is used on the device."""
    sums, nbytes = [], 0
    cpu, begin = time.process_time(), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        batch = next(batches)
        values = batch[0] if isinstance(batch, tuple) else batch
        nbytes += values.numel() * values.element_size()
        sums.append(values.view(torch.uint8).flatten()[::4096].sum())
        del batch, values
    synchronize(device)
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return {"gb_per_s": nbytes / took / 1e9, "cpu_s_per_gb": cpu / nbytes * 1e9}


def repeated(batches: Iterator[Any], options: argparse.Namespace) -> dict[str, Any]:
    runs = [rate(batches, options.seconds, options.device) for _ in range(options.runs + 1)][1:]
    return {name: spread([run[name] for run in runs]) for name in runs[0]}


def packed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rng = random.Random(1)
    content = rng.randbytes(64 * KIB)
    files = [str(folder / f"{i:03}.tar") for i in range(FILES)]
    for path in files:
        with tarfile.open(path, "w") as tar:
            for k in range(max(options.size // FILES // (32 * KIB), 1)):
                entry = tarfile.TarInfo(f"{k:09}.bin")
                entry.size = 2 * rng.randrange(KIB // 2, 32 * KIB + 1)
                tar.addfile(entry, BytesIO(content))
    with data.Dataset(files, member="bin") as documents, data.Loader(
            documents, BATCH, seed=1, layout="packed", row_nbytes=16 * KIB, dtype="uint16",
            device=options.device, depth=options.depth) as loader:
        result = repeated(endless(loader), options)
        stats = loader.stats()
    return {"documents": stats.samples, "routes": stats.routes} | result


def drop_cache(files: list[str]) -> None:
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def fio_rate(fio: str, files: list[str], nbytes: int, depth: int, jobs: int,
             seconds: float) -> float:
    command = [fio, "--name=read", "--filename=" + ":".join(files), f"--bs={nbytes}",
               "--rw=randread", "--direct=1", "--ioengine=io_uring", "--readonly",
               f"--iodepth={depth}", f"--numjobs={jobs}", "--thread", "--group_reporting",
               "--time_based", f"--runtime={max(1, round(seconds))}", "--norandommap",
               "--random_generator=tausworthe64", "--randrepeat=0", "--output-format=json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    if job["error"]:
        raise RuntimeError(f"fio: error {job['error']}")
    return float(job["read"]["bw_bytes"]) / 1e9


def drive(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    nbytes = 110 * KIB
    fio = os.environ.get("GPUNVME_FIO", "fio")
    files = [str(folder / f"{i:03}.bin") for i in range(FILES)]
    for path in files:
        Path(path).write_bytes(random.randbytes(max(options.size // FILES // nbytes, 1) * nbytes))
    try:
        subprocess.run([fio, "--version"], stdout=subprocess.PIPE, check=True)
        ways = [(depth, jobs) for depth in (8, 32, 64) for jobs in (1, 4)]
    except OSError:
        ways = []  # the loader's own rate is worth something
    fios: list[dict[tuple[int, int], float]] = []
    ours: list[dict[str, float]] = []
    with data.Dataset(files, record_nbytes=nbytes) as records:
        for _ in range(options.runs + 1):
            drop_cache(files)
            fios.append({way: fio_rate(fio, files, nbytes, *way, options.seconds) for way in ways})
            ways = sorted(fios[0], key=lambda way: -fios[0][way])[:2]
            with data.Loader(records, BATCH, seed=1, device=options.device) as loader:
                ours.append(rate(endless(loader), options.seconds, options.device))
                routes = loader.stats().routes
    result: dict[str, Any] = {name: spread([run[name] for run in ours[1:]]) for name in ours[0]}
    if ways:
        best = [max(rates.values()) for rates in fios[1:]]
        result |= {"fio": spread(best), "fio_depths_and_threads": ways, "ratio": spread(
            [run["gb_per_s"] / of_fio for run, of_fio in zip(ours[1:], best)])}
    return result | {"routes": routes}


class Gpt(torch.nn.Module):
    def __init__(self, layers: int, d: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, d)
        self.places = torch.nn.Parameter(torch.zeros(context, d))
        self.blocks = torch.nn.Sequential(*(Block(d) for _ in range(layers)))
        self.norm = torch.nn.LayerNorm(d)

    def forward(self, window: Any) -> Any:
        ids, targets = window[:, :-1], window[:, 1:]
        x = self.norm(self.blocks(self.tokens(ids) + self.places))
        logits = torch.nn.functional.linear(x, self.tokens.weight)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def steps(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    small = options.device == "cpu"
    context, batch, vocabulary = (64, 2, 256) if small else (1024, 32, 50304)
    files = [str(folder / f"{i:03}.bin") for i in range(FILES)]
    for path in files:
        tokens = torch.randint(vocabulary, (options.size // FILES // 2,), dtype=torch.int32)
        Path(path).write_bytes(tokens.to(torch.uint16).numpy().tobytes())
    with torch.device(options.device):
        model = Gpt(1 if small else 12, 64 if small else 768, vocabulary, context)
    optimizer = torch.optim.AdamW(model.parameters(), fused=not small)

    def run(batches: Iterator[Any]) -> tuple[int, float]:
        synchronize(options.device)
        begin, n = time.perf_counter(), 0
        while time.perf_counter() - begin < options.seconds:
            window = next(batches)
            window = window if window.dtype == torch.int64 else window.long()
            with torch.autocast(options.device.split(":")[0], dtype=torch.bfloat16):
                loss = model(window)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            n += 1
            if n % 8 == 0:
                synchronize(options.device)
        synchronize(options.device)
        return n, time.perf_counter() - begin

    fixed = torch.randint(vocabulary, (batch, context + 1), device=options.device)
    without, with_loader, stalls = [], [], []
    with data.Dataset(files, seq_tokens=context, overlap_tokens=1, format="tokens") as windows, \
            data.Loader(windows, batch, seed=1, device=options.device, last="drop") as loader:
        loaded = endless(loader)
        for counted in range(options.runs + 1):
            n, took = run(iter(lambda: fixed, None))
            before = loader.stats().stall_s
            m, during = run(loaded)
            if counted:
                without.append(took / n)
                with_loader.append(during / m)
                stalls.append((loader.stats().stall_s - before) / during)
    return {"parameters": sum(p.numel() for p in model.parameters()), "tokens": batch * context,
            "step_s": spread(without), "step_with_loader_s": spread(with_loader),
            "stall_share": spread(stalls),
            "slower": statistics.median(with_loader) / statistics.median(without) - 1}


WORKS = {"packed": packed, "drive": drive, "steps": steps}


def nbytes_of(text: str) -> int:
    units = {"M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", default=",".join(WORKS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", type=nbytes_of, default=nbytes_of("4G"))
    parser.add_argument("--depth", type=int, default=8, help="of packed and steps (8)")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--disk", default="/tmp")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(options.device) if options.device != "cpu" else "cpu",
        "torch": torch.__version__, "bytes": options.size, "depth": options.depth}
    for name in options.work.split(","):
        folder = Path(tempfile.mkdtemp(prefix="gpunvme-train-",
                                       dir=options.disk if name == "drive" else options.folder))
        try:
            results[name] = WORKS[name](options, folder)
        finally:
            shutil.rmtree(folder)
        print(name, json.dumps(results[name], indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
