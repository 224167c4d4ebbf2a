#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What Python costs over C: reads of a cached file into host memory, in turn with the same by C.

    bench/python_cost.py [ROUNDS]       prints JSON

Medians over the rounds: us of one blocking 4 KiB pread, by Python, by C, and of the difference in
each round; 4 KiB reads a second in batches of 1,024 at other offsets each, and the ratio likewise;
us of pread_async().result(); ms that `import gpunvme` takes, and `import numpy`.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import gpunvme
from gpunvme import _lib

BLOCK, MANY, FILE_NBYTES = 4096, 1024, 256 << 20
SOURCE = Path(__file__).parents[1]


def peer(folder: str) -> ctypes.CDLL:
    """python_peer.c, compiled."""
    built = f"{folder}/peer.so"
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{SOURCE}/include",
                    SOURCE / "bench/python_peer.c", "-o", built], check=True)
    library = ctypes.CDLL(built)
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    for function, arguments in (
        (library.python_peer_pread, [pointer] * 3 + [ctypes.c_int, ctypes.c_size_t, number]),
        (library.python_peer_batch, [pointer] * 4 + [number, pointer]),
        (library.python_peer_operator, [pointer] * 3 + [number]),
    ):
        function.argtypes, function.restype = arguments, ctypes.c_double
    return library


class Bench:
    def __init__(self, folder: str, store: gpunvme.Store) -> None:
        self.c = peer(folder)
        self.store = store
        self.memory = gpunvme.empty(MANY * BLOCK)
        self.block = self.memory[:BLOCK]
        self.ios = (_lib.Io * MANY)()
        blocks = np.random.default_rng(1).integers(0, store.size // BLOCK, (64, MANY))
        self.offsets = blocks.astype(np.uint64) * np.uint64(BLOCK)
        self.turn = 0
        self.batch = gpunvme.Batch(store, self.memory, np.zeros(MANY, np.uint64), BLOCK)

    def pread_by_c(self) -> float:
        read = ctypes.cast(_lib.lib.gpunvme_store_read, ctypes.c_void_p)
        return self.c.python_peer_pread(read, self.store.handle(), self.memory.ctypes.data,
                                        _lib.MEM_HOST, BLOCK, MANY) / MANY * 1e6

    def pread(self) -> float:
        pread, block = self.store.pread, self.block
        begin = time.perf_counter()
        for _ in range(MANY):
            pread(block)
        return (time.perf_counter() - begin) / MANY * 1e6

    def pread_async(self) -> float:
        pread, block = self.store.pread_async, self.block
        begin = time.perf_counter()
        for _ in range(MANY):
            pread(block).result()
        return (time.perf_counter() - begin) / MANY * 1e6

    def batch_by_c(self) -> float:
        run = ctypes.cast(_lib.lib.gpunvme_io_run, ctypes.c_void_p)
        return MANY / self.c.python_peer_batch(
            run, self.store.handle(), self.memory.ctypes.data, self.ios, MANY,
            self.next_offsets().ctypes.data)

    def next_offsets(self) -> np.ndarray:
        self.turn += 1
        return self.offsets[self.turn % len(self.offsets)]

    def batch_by_python(self) -> float:
        offsets = self.next_offsets()
        begin = time.perf_counter()
        self.batch.offsets[:] = offsets
        self.batch.run()
        return MANY / (time.perf_counter() - begin)


def ms_of_import(module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return float(run.stdout) * 1e3


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> float:
        found.setdefault(name, []).append(value)
        return value

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.write_bytes(os.urandom(1 << 20) * (FILE_NBYTES >> 20))
        with gpunvme.open(data) as store:
            bench = Bench(folder, store)
            for i in range(rounds + 2):
                by_c, by_python = bench.pread_by_c(), bench.pread()
                note("pread_by_c_us", by_c)
                note("pread_us", by_python)
                note("pread_over_c_us", by_python - by_c)
                note("pread_async_result_us", bench.pread_async())
                rate_by_c, rate = bench.batch_by_c(), bench.batch_by_python()
                note("batch_by_c_per_s", rate_by_c)
                note("batch_per_s", rate)
                note("batch_to_c", rate / rate_by_c)
                if i < 10:
                    note("import_gpunvme_ms", ms_of_import("gpunvme"))
                    note("import_numpy_ms", ms_of_import("numpy"))
    print(json.dumps({"rounds": rounds, **{name: round(statistics.median(values[2:]), 3)
                                           for name, values in found.items()}}, indent=2))


if __name__ == "__main__":
    main()
