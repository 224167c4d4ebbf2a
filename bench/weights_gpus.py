#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A model for several GPUs: read once and shared, beside each GPU reading all of it.

    bench/weights_gpus.py --json gpus.json                    # all GPUs, one process each
    bench/weights_gpus.py --device cpu --ranks 2 --size 64M   # without a GPU, by gloo

Makes files of random bytes in --tmpfs and --disk, as weights_peers.py does. Then, in turn:

    one       one GPU loads the model, and the others wait
    each      all GPUs load it at once, each for itself
    group     all load it together: load_file(group=…), by NCCL
    copies    one process loads it to all GPUs: load_copies()

A run lasts from opening the files until the last GPU has nothing to do. One that is not counted
comes first, so files are in the page cache; its bytes are compared with safetensors' own. Reported
are medians of GB/s: 10^9 bytes of the model, once, a second. "of one" is the rate at which GPUs got
whole models, compared with one GPU's; "read" is the bytes read from storage, compared with the
model's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

# Skips if there is no torch.
from weights_peers import WORKS, by_safetensors, make_files, nbytes_of, same

import torch
import torch.distributed as dist

from gpunvme import weights
from gpunvme.weights.torch import load_copies, load_file

DEADLINE = 600  # seconds that a rank waits for the others
WAYS = ["one", "each", "group", "copies"]
Loaded = tuple[list[dict[str, Any]], int]


class Rank:
    """A process with a GPU of its own."""

    def __init__(self, rank: int, world: int, device: str) -> None:
        self.rank = rank
        self.devices = [f"cuda:{i}" if device == "cuda" else "cpu" for i in range(world)]

    def load(self, way: str, files: list[str]) -> Loaded:
        """Models that this process got, and the bytes that it has read."""
        if self.rank and way in ("one", "copies"):
            return [], 0
        mine = self.devices[self.rank]
        with weights.safe_open(files, "pt") as f:
            if way == "copies":
                return load_copies(f, self.devices), f.bytes_read()
            group = dist.group.WORLD if way == "group" else None
            return [load_file(f, mine, group=group)], f.bytes_read()

    def prepare(self) -> None:
        """Returns the memory of the last run, so that each run allocates its own."""
        gc.collect()
        self.finish()
        if self.devices[0] != "cpu":
            torch.cuda.empty_cache()

    def finish(self) -> None:
        for device in set(self.devices) - {"cpu"}:
            torch.cuda.synchronize(device)

    def all_of(self, value: Any) -> list[Any]:
        """The value of each rank."""
        values: list[Any] = [None] * len(self.devices)
        dist.all_gather_object(values, value)
        return values

    def once(self, way: str, files: list[str], compare: bool = False) -> dict[str, float]:
        self.prepare()
        dist.barrier()
        begin = time.perf_counter()  # one clock for all processes of a machine
        models, read = self.load(way, files)
        self.finish()
        ends = self.all_of((begin, time.perf_counter(), read))
        if compare and not all(self.all_of(
                all(same(model, by_safetensors(files, "cpu")) for model in models))):
            raise SystemExit(f"FAIL: {way}: the bytes differ from safetensors' own")
        return {"seconds": max(end for _, end, _ in ends) - min(begin for begin, _, _ in ends),
                "bytes read": sum(read for _, _, read in ends)}

    def measure(self, files: list[str], nbytes: int, runs: int) -> list[dict[str, Any]]:
        world = len(self.devices)
        rows: list[dict[str, Any]] = [{"way": way, "runs": []} for way in WAYS]
        for row in rows:
            self.once(row["way"], files, compare=True)
        for _ in range(runs):
            for row in rows:
                row["runs"].append(self.once(row["way"], files))
        for row in rows:
            row["models"] = 1 if row["way"] == "one" else world
            row["GB/s"] = nbytes / 1e9 / statistics.median(run["seconds"] for run in row["runs"])
            row["of one"] = row["GB/s"] * row["models"] / rows[0]["GB/s"]
            row["read"] = row["runs"][0]["bytes read"] / nbytes
        return rows


def report(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        print(f"  {row['way']:8} {row['GB/s']:7.2f} GB/s of the model, {row['models']} of them: "
              f"{row['of one']:.2f} of one; read {row['read']:.3f} times")
    sys.stdout.flush()


def serve(number: int, world: int, init: str, options: argparse.Namespace) -> None:
    """One rank's process."""
    gpu = options.device == "cuda"
    if gpu:
        torch.cuda.set_device(number)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", init_method=f"file://{init}",
                            rank=number, world_size=world, timeout=timedelta(seconds=DEADLINE))
    rank = Rank(number, world, options.device)
    results = []
    for place, base in (("tmpfs", options.tmpfs), ("page cache", options.disk)):
        for work in (options.work or ["4 files"]) if base else ():
            folder = [tempfile.mkdtemp(prefix="weights_gpus-", dir=base) if not number else ""]
            dist.broadcast_object_list(folder)
            try:
                files = [make_files(Path(folder[0], "files"), options.size, *WORKS[work])
                         if not number else []]
                dist.broadcast_object_list(files)
                nbytes = sum(t.nbytes for t in load_file(files[0]).values())
                rows = rank.measure(files[0], nbytes, options.runs)
            finally:
                if not number:
                    shutil.rmtree(folder[0])
            if not number:
                report(f"{work}, {place}", rows)
            results.append({"work": work, "place": place, "nbytes": nbytes, "ways": rows})
    if options.json and not number:
        machine = {"cpus": os.cpu_count(), "kernel": platform.release(),
                   "gpus": [torch.cuda.get_device_name(i) for i in range(world)] if gpu else [],
                   "python": platform.python_version(), "torch": torch.__version__}
        Path(options.json).write_text(json.dumps(
            {"machine": machine, "device": options.device, "ranks": world, "note": options.note,
             "results": results}, indent=1) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=nbytes_of, default=8 << 30, help="bytes of the model (8G)")
    parser.add_argument("--runs", type=int, default=5, help="that are counted (5)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu",
                        choices=["cuda", "cpu"])
    parser.add_argument("--ranks", type=int, help="processes (one for each GPU; 2 without)")
    parser.add_argument("--tmpfs", default="/dev/shm", help="a folder in memory; '' for none")
    parser.add_argument("--disk", default=tempfile.gettempdir(),
                        help="a folder on a disk, read through the page cache; '' for none")
    parser.add_argument("--work", choices=WORKS, action="append", help="these (4 files)")
    parser.add_argument("--json", help="write all runs to this file")
    options = parser.parse_args()
    gpus = torch.cuda.device_count() if options.device == "cuda" else 2
    world = options.ranks or gpus
    if options.device == "cuda" and world > gpus:
        sys.exit(f"--ranks {world}: there are {gpus} GPUs")
    options.note = ("" if world > 1 else
                    "one rank: nothing is shared, and no rate here is one of several GPUs")
    if options.note:
        print(f"NOTE: {options.note}")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(serve, (world, f"{folder}/init", options), world)


if __name__ == "__main__":
    main()
