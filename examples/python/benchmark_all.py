#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures what this package does beside what others do, on this machine, and prints tables.

    benchmark_all.py [URI] [--quick] [--device cpu|cuda] [--json FILE] [--plot FOLDER]

Operators: every rung of each ladder, with numpy and PyTorch beside it. Storage: one large read,
1 MiB and 4 KiB by batches, futures and one by one; without a URI from a file of its own, which is
in the page cache then. Peers: open().readinto(), os.preadv, numpy.fromfile, safetensors, kvikio,
torch.cuda.gds. What can't be measured here is listed with the reason. --quick takes less than a
minute on a laptop. Plots need matplotlib. Rates are medians of rounds in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gpunvme
from gpunvme import ops

SMALL, LARGE, MANY = 4096, 1 << 20, 1024


class Way(NamedTuple):
    """Something to measure: ``call`` does it once and returns how much that was."""

    section: str
    name: str
    unit: str
    divisor: float  # units in one of ``unit`` a second
    call: Callable[[], float]


class Skip(NamedTuple):
    section: str
    name: str
    why: str


class Plan:
    """What to measure, and what can't be."""

    def __init__(self, args: argparse.Namespace, folder: str) -> None:
        self.on_gpu: bool = args.device == "cuda"
        self.size = 192 if args.quick else 1024  # of matrices
        self.nbytes = (32 if args.quick else 256) << 20  # of a file
        self.seconds = 0.06 if args.quick else 0.5  # of each way, in each round
        self.rounds = 3 if args.quick else 5
        self.uri = args.uri
        self.folder = Path(folder)
        self.ways: list[Way] = []
        self.skipped: list[Skip] = []

    def add(self, section: str, found: Iterator[Way], name: str) -> None:
        """Adds the ways of a generator, or why there are no more."""
        try:
            self.ways += found
        except (ImportError, OSError, RuntimeError, AttributeError, gpunvme.Error) as why:
            self.skipped.append(Skip(section, name, f"{type(why).__name__}: {why}".split("\n")[0]))

    def measure(self) -> dict[Way, float]:
        rates: dict[Way, list[float]] = {way: [] for way in self.ways}
        for _ in range(self.rounds):
            for way, found in rates.items():
                found.append(rate(way.call, self.seconds) / way.divisor)
        return {way: statistics.median(found) for way, found in rates.items()}


def rate(call: Callable[[], float], seconds: float) -> float:
    """What ``call`` gives, by second; a call in any case."""
    begin, done = time.perf_counter(), 0.0
    while True:
        done += call()
        took = time.perf_counter() - begin
        if took >= seconds:
            return done / took


# ---- Operators ----------------------------------------------------------------------------------


def on_cpu(plan: Plan) -> Iterator[Way]:
    n = plan.size
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    bias, out, flops = b[0].copy(), np.empty((n, n), np.float32), 2.0 * n**3

    def gflops(name: str, call: Callable[[], object]) -> Way:
        return Way(f"operators, {n} x {n} float32, CPU", name, "GFLOP/s", 1e9,
                   lambda: (call(), flops)[1])

    for variant in ops.variants("matmul"):
        name = f"matmul, {variant.name}"
        if variant.available:
            yield gflops(name, lambda v=variant.name: ops.matmul(a, b, out=out, variant=v))
        else:
            plan.skipped.append(Skip("operators", name, f"needs {variant.needs}"))
    yield gflops("matmul, numpy", lambda: np.matmul(a, b, out=out))
    for variant in ops.variants("linear_forward"):
        name = f"linear with gelu, {variant.name}"
        if variant.available:
            yield gflops(name, lambda v=variant.name: ops.linear(
                a, b, bias, activation="gelu", out=out, variant=v))
        else:
            plan.skipped.append(Skip("operators", name, f"needs {variant.needs}"))


def on_gpu(plan: Plan) -> Iterator[Way]:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch, which times them, has no GPU here")
    n = 4 * plan.size
    for dtype in (torch.float32, torch.bfloat16):
        a, b, out = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(3))
        section = f"operators, {n} x {n} {str(dtype)[6:]}, GPU"

        def gflops(section: str, name: str, call: Callable[[], object]) -> Way:
            def run() -> float:
                for _ in range(10):
                    call()
                torch.cuda.synchronize()
                return 20.0 * n**3

            return Way(section, name, "GFLOP/s", 1e9, run)

        for variant in ops.variants("matmul", "cuda"):
            name = f"matmul, {variant.name}"
            if not variant.available:
                plan.skipped.append(Skip("operators", f"{name}, GPU", f"needs {variant.needs}"))
                continue
            call = ops_on_gpu(a, b, out, variant.name)
            try:
                call()
            except gpunvme.OpsError as why:
                plan.skipped.append(Skip(section, name, str(why)))
                continue
            yield gflops(section, name, call)
        yield gflops(section, "matmul, PyTorch", lambda a=a, b=b, out=out: torch.mm(a, b, out=out))


def ops_on_gpu(a: Any, b: Any, out: Any, variant: str) -> Callable[[], object]:
    import torch

    return lambda: ops.matmul(a, b, out=out, variant=variant, stream=torch.cuda.current_stream())


# ---- Storage ------------------------------------------------------------------------------------


def offsets_in(size: int, block: int, n: int) -> Any:
    """Random ones, others each time."""
    random = np.random.default_rng(1)
    return lambda: random.integers(0, size // block, n).astype(np.uint64) * np.uint64(block)


def storage(plan: Plan, store: gpunvme.Store, memory: Any) -> Iterator[Way]:
    section = f"storage, into memory of the {'GPU' if plan.on_gpu else 'host'}"
    size = min(store.size, plan.nbytes)
    yield Way(section, "pread, all at once", "GB/s", 1e9, lambda: store.pread(memory, size))
    large = gpunvme.Batch(store, memory, np.arange(size // LARGE) * LARGE, LARGE)
    yield Way(section, "Batch, 1 MiB each", "GB/s", 1e9, large.run)
    random = offsets_in(size, SMALL, MANY)
    small = gpunvme.Batch(store, memory, random(), SMALL)

    def batch() -> float:
        small.offsets[:] = random()
        return small.run() / SMALL

    def futures() -> float:
        where = random()[:64]
        flying = [store.pread_async(memory_at(memory, i * SMALL), SMALL, int(at))
                  for i, at in enumerate(where)]
        return sum(future.result() for future in flying) / SMALL

    def single() -> float:
        where, part = random()[:64], memory_at(memory, 0)
        return sum(store.pread(part, SMALL, int(at)) for at in where) / SMALL

    yield Way(section, "Batch of 1,024, 4 KiB random", "1000/s", 1e3, batch)
    yield Way(section, "64 futures, 4 KiB random", "1000/s", 1e3, futures)
    yield Way(section, "pread, 4 KiB random", "1000/s", 1e3, single)


def memory_at(memory: Any, at: int) -> Any:
    """4 KiB of it."""
    if isinstance(memory, gpunvme.DeviceMemory):
        return memory.ptr + at
    return memory[at : at + SMALL]


# ---- Peers: others that read the same file -----------------------------------------------------


def plain(plan: Plan, path: str, host: Any) -> Iterator[Way]:
    file = open(path, "rb", buffering=0)
    random, view = offsets_in(plan.nbytes, SMALL, 64), memoryview(host)

    def readinto() -> float:
        file.seek(0)
        return file.readinto(view[: plan.nbytes]) or 0

    def preadv() -> float:
        return sum(os.preadv(file.fileno(), [view[:SMALL]], int(at)) for at in random()) / SMALL

    section = "peers, into memory of the host"
    yield Way(section, "open().readinto(), all at once", "GB/s", 1e9, readinto)
    yield Way(section, "numpy.fromfile, all at once", "GB/s", 1e9,
              lambda: np.fromfile(path, np.uint8, plan.nbytes).nbytes)
    yield Way(section, "os.preadv, 4 KiB random", "1000/s", 1e3, preadv)


def by_safetensors(plan: Plan) -> Iterator[Way]:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    path = plan.folder / "data.safetensors"
    save_file({"x": np.ones(plan.nbytes // 4, np.float32)}, path)
    framework, device = ("pt", "cuda:0") if plan.on_gpu else ("numpy", "cpu")

    def load() -> float:
        with safe_open(path, framework, device) as file:
            return float(file.get_tensor("x").nbytes)

    load()
    yield Way(f"peers, into memory of the {'GPU' if plan.on_gpu else 'host'}",
              "safetensors, all at once", "GB/s", 1e9, load)


def by_kvikio(plan: Plan, path: str, memory: Any) -> Iterator[Way]:
    import kvikio

    file, random = kvikio.CuFile(path), offsets_in(plan.nbytes, SMALL, 64)
    section = f"peers, into memory of the {'GPU' if plan.on_gpu else 'host'}"

    def small() -> float:
        futures = [file.pread(memory, SMALL, int(at)) for at in random()]
        return sum(future.get() for future in futures) / SMALL

    file.read(memory, SMALL)
    yield Way(section, "kvikio, all at once", "GB/s", 1e9, lambda: file.read(memory, plan.nbytes))
    yield Way(section, "kvikio, 64 in flight, 4 KiB random", "1000/s", 1e3, small)


def by_torch_gds(plan: Plan, path: str) -> Iterator[Way]:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch has no GPU here")
    file = torch.cuda.gds.GdsFile(path, os.O_RDONLY)
    target = torch.empty(plan.nbytes, dtype=torch.uint8, device="cuda").untyped_storage()

    def load() -> float:
        file.load_storage(target, 0)
        return plan.nbytes

    load()
    yield Way("peers, into memory of the GPU", "torch.cuda.gds, all at once", "GB/s", 1e9, load)


# ---- Results -----------------------------------------------------------------------------------


def show(results: dict[Way, float], skipped: list[Skip]) -> None:
    section = ""
    for way, value in results.items():
        if way.section != section:
            section = way.section
            print(f"\n{section}")
        print(f"  {way.name:40} {value:10.2f} {way.unit}")
    if skipped:
        print("\nnot measured")
    for skip in skipped:
        print(f"  {skip.section}: {skip.name}: {skip.why}")


def as_json(results: dict[Way, float], skipped: list[Skip], how: str) -> str:
    return json.dumps({
        "gpunvme": gpunvme.__version__,
        "python": platform.python_version(),
        "processor": ops.capability().name,
        "gpus": [gpu.name for gpu in gpunvme.info().gpus],
        "store": how,
        "results": [{"section": way.section, "name": way.name, "value": round(value, 3),
                     "unit": way.unit} for way, value in results.items()],
        "skipped": [skip._asdict() for skip in skipped],
    }, indent=2)


def plot(results: dict[Way, float], folder: Path) -> list[Path]:
    """A picture of each section and unit."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for section, unit in dict.fromkeys((way.section, way.unit) for way in results):
        bars = {way.name: value for way, value in results.items()
                if (way.section, way.unit) == (section, unit)}
        figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.35 * len(bars)), layout="constrained")
        axes.barh(list(bars), list(bars.values()))
        axes.invert_yaxis()
        axes.set(title=section, xlabel=unit)
        name = "".join(c if c.isalnum() else "-" for c in f"{section}-{unit}")
        drawn.append(folder / f"{name}.svg")
        figure.savefig(drawn[-1])
        pyplot.close(figure)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uri", nargs="?", help="of what is read; default: a file made for it")
    parser.add_argument("--quick", action="store_true", help="less than a minute on a laptop")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="of the memory that is read into")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the results, as JSON")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="pictures of them, as SVG")
    args = parser.parse_args()
    if args.device is None:
        args.device = "cuda" if gpunvme.info().gpus else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(args, folder)
        uri = plan.uri
        if uri is None:
            uri = str(plan.folder / "data")
            Path(uri).write_bytes(os.urandom(1 << 20) * (plan.nbytes >> 20))
        with gpunvme.open(uri) as store:
            plan.nbytes = min(plan.nbytes, store.size // LARGE * LARGE)
            if not plan.nbytes:
                sys.exit(f"{uri} has less than 1 MiB")
            how, results = run(plan, store, uri, args.device)
    if args.plot is not None:
        try:
            print("drawn:", *plot(results, args.plot))
        except ImportError as why:
            plan.skipped.append(Skip("plots", "all", str(why)))
    show(results, plan.skipped)
    if args.json is not None:
        args.json.write_text(as_json(results, plan.skipped, how) + "\n")


def run(plan: Plan, store: gpunvme.Store, uri: str, device: str) -> tuple[str, dict[Way, float]]:
    """What the store is, and the results."""
    memory, host = gpunvme.empty(plan.nbytes, device), gpunvme.empty(plan.nbytes)
    plan.add("operators", on_cpu(plan), "CPU")
    plan.add("operators", on_gpu(plan), "GPU")
    plan.add("storage", storage(plan, store, memory), uri)
    if os.path.isfile(uri):
        plan.add("peers", plain(plan, uri, host), "open().readinto()")
        plan.add("peers", by_kvikio(plan, uri, memory), "kvikio")
        plan.add("peers", by_torch_gds(plan, uri), "torch.cuda.gds")
    else:
        plan.skipped.append(Skip("peers", "open().readinto(), kvikio, torch.cuda.gds",
                                 f"{uri} is no file"))
    plan.add("peers", by_safetensors(plan), "safetensors")
    results = plan.measure()
    return f"{store.uri}: {store.path().how}", results


if __name__ == "__main__":
    main()
