#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How fast a file, drive or software drive is read into memory, by this package and by others.

    nvme_benchmark.py [URI] [--device cpu|pinned|cuda] [--seconds S] [--json]

Without a URI it reads a file of 256 MiB that it makes and removes: from the page cache, then.
Peers that read files into host memory: os.preadv, numpy.fromfile; into GPU memory: kvikio, where it
is installed. Rates are medians of rounds in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpunvme

LARGE, SMALL, MANY, ROUNDS = 64 << 20, 4096, 1024, 5


def rate(call: Callable[[], int], seconds: float) -> float:
    """What ``call`` gives, by second."""
    begin, done = time.perf_counter(), 0
    while True:
        done += call()
        took = time.perf_counter() - begin
        if took >= seconds:
            return done / took


def ways(store: gpunvme.Store, path: str | None, memory: Any, on_gpu: bool) -> dict[str, Any]:
    """By name: (unit, divisor, a call that returns how many it has done)."""
    size = min(store.size, LARGE)
    random, blocks = np.random.default_rng(1), store.size // SMALL
    batch = gpunvme.Batch(store, memory, np.zeros(MANY, np.uint64), SMALL)

    def offsets() -> Any:
        return random.integers(0, blocks, MANY).astype(np.uint64) * np.uint64(SMALL)

    def many() -> int:
        batch.offsets[:] = offsets()
        return batch.run() // SMALL

    def one_by_one() -> int:
        for offset in offsets()[:64]:
            store.pread(memory, SMALL, int(offset))
        return 64

    found: dict[str, Any] = {
        "gpunvme, whole": ("GB/s", 1e9, lambda: store.pread(memory, size)),
        "gpunvme, 4 KiB by batches": ("1000/s", 1e3, many),
        "gpunvme, 4 KiB one by one": ("1000/s", 1e3, one_by_one),
    }
    if path is None:
        return found
    fd = os.open(path, os.O_RDONLY)
    if not on_gpu:
        found["os.preadv, whole"] = "GB/s", 1e9, lambda: os.preadv(fd, [memory[:size]], 0)

        def by_preadv() -> int:
            for offset in offsets()[:64]:
                os.preadv(fd, [memory[:SMALL]], int(offset))
            return 64

        found["os.preadv, 4 KiB one by one"] = "1000/s", 1e3, by_preadv
        found["numpy.fromfile, whole"] = (
            "GB/s", 1e9, lambda: np.fromfile(path, np.uint8, size).nbytes)
        return found
    try:
        import kvikio
    except ImportError:
        return found
    file = kvikio.CuFile(path)
    found["kvikio, whole"] = "GB/s", 1e9, lambda: file.read(memory, size)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uri", nargs="?")
    parser.add_argument("--device", default="cpu", choices=["cpu", "pinned", "cuda"])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uri = args.uri
        if uri is None:
            uri = f"{folder}/data"
            Path(uri).write_bytes(os.urandom(1 << 20) * 256)
        memory = gpunvme.empty(LARGE, args.device)
        on_gpu = isinstance(memory, gpunvme.DeviceMemory)
        with gpunvme.open(uri) as store:
            measured = ways(store, uri if os.path.isfile(uri) else None, memory, on_gpu)
            rates: dict[str, list[float]] = {name: [] for name in measured}
            for _ in range(ROUNDS):
                for name, (_, _, call) in measured.items():
                    rates[name].append(rate(call, args.seconds / ROUNDS))
            path = store.path()
    results = {name: statistics.median(rates[name]) / measured[name][1] for name in measured}
    if args.json:
        rounded = {name: [round(r, 2), measured[name][0]] for name, r in results.items()}
        print(json.dumps({"uri": uri, "device": args.device, "how": path.how, "results": rounded},
                         indent=2))
        return
    print(f"{uri} into {args.device} memory: {path.how}")
    for name, result in results.items():
        print(f"  {name:30} {result:10.2f} {measured[name][0]}")
    if path.why_not:
        print(f"no faster way, because of\n  {path.why_not}")


if __name__ == "__main__":
    main()
