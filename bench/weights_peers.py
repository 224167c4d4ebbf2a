#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.weights beside other loaders of safetensors files, in one run, in turn.

    bench/weights_peers.py --json weights.json
    bench/weights_peers.py --size 64M --device cpu --runs 5      # without a GPU

Makes files of random bytes: --size in 4 files, in 400, in 30,000 tensors, and in tensors with long
rows, as layers of models have them (each a "work" below), in each folder of --tmpfs and --disk.
Then each loader brings all tensors to the device, from opening the files until the last tensor is
there and the device has nothing to do. A quarter is one of four tensor-parallel slices of each
tensor, by rows or by columns; its bytes alone count. Runs take turns; one that is not counted comes
first, so files are in the page cache, unless --cold drops them from it before each run. Then fio,
if it is here, reads the same files into host memory in the same turns: O_DIRECT, io_uring, a job
for each file, the best of three block sizes. The bytes of the first run are compared with
safetensors' own. A loader that is not here or fails is skipped, and says why.

Reported are medians: GB/s (10^9 bytes of tensors a second), and seconds of the process's CPUs for
each GB; and the most GPU memory above the model that torch saw.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

Tensors = dict[str, Any]
Index = tuple[slice, slice]
Loader = Callable[[list[str], str], Tensors]
FIO = os.environ.get("GPUNVME_FIO", "fio")
# Seconds before each run: a GPU clears the memory that the run before has freed.
PAUSE = 0.1
# Files, tensors, and columns of each tensor, of 2 bytes.
WORKS = {"4 files": (4, 64, 1024), "400 files": (400, 6400, 1024), "30000 tensors": (4, 30000, 1024),
         "rows of 8 KiB": (4, 256, 4096), "rows of 28 KiB": (4, 72, 14336)}


# ---- Loaders: files and a device in, all tensors out -------------------------------------------


def gpunvme_arena(files: list[str], device: str) -> Tensors:
    from gpunvme import weights

    with weights.prefetch(files, device=device, arena=True) as loader:
        return dict(loader)


def gpunvme_checksums(files: list[str], device: str) -> Tensors:
    from gpunvme import weights

    with weights.prefetch(files, device=device, arena=True, checksum=True) as loader:
        return dict(loader)


def gpunvme_own(files: list[str], device: str) -> Tensors:
    from gpunvme import weights

    with weights.safe_open(files, "pt", device) as f:
        return f.get_tensors()


def quarter_of_rows(shape: Sequence[int]) -> Index:
    return slice(shape[0] // 4, shape[0] // 2), slice(None)


def quarter_of_columns(shape: Sequence[int]) -> Index:
    return slice(None), slice(shape[1] // 4, shape[1] // 2)


def _gpunvme_slices(files: list[str], device: str, of: Callable[[Sequence[int]], Index]) -> Tensors:
    from gpunvme import weights

    with weights.safe_open(files, "pt") as f:
        plan = {name: of(f.get_slice(name).get_shape()) for name in f.keys()}
        with weights.prefetch(f, plan, device=device, arena=True) as loader:
            return dict(loader)


def gpunvme_rows(files: list[str], device: str) -> Tensors:
    return _gpunvme_slices(files, device, quarter_of_rows)


def gpunvme_columns(files: list[str], device: str) -> Tensors:
    return _gpunvme_slices(files, device, quarter_of_columns)


def safetensors_safe_open(files: list[str], device: str) -> Tensors:
    from safetensors import safe_open

    tensors = {}
    for file in files:
        with safe_open(file, framework="pt", device=device) as f:
            for name in f.keys():  # noqa: SIM118  (it is no dict)
                tensors[name] = f.get_tensor(name)
    if device == "cpu":  # they are views of the file: read it
        tensors = {name: t.clone() for name, t in tensors.items()}
    return tensors


def _safetensors_prefetch(files: list[str], device: str, backend: str) -> Tensors:
    from safetensors import safe_open

    if not hasattr(safe_open, "prefetch"):
        raise ImportError("this version has no prefetch()")
    opened = [safe_open(file, framework="pt", device=device, backend=backend) for file in files]
    loaders = [f.prefetch() for f in opened]
    tensors = {name: t for loader in loaders for name, t in loader}
    for each in (*loaders, *opened):
        each.__exit__(None, None, None)
    return tensors


def safetensors_prefetch_mmap(files: list[str], device: str) -> Tensors:
    return _safetensors_prefetch(files, device, "mmap")


def safetensors_prefetch_pread(files: list[str], device: str) -> Tensors:
    return _safetensors_prefetch(files, device, "pread")


def fastsafetensors(files: list[str], device: str) -> Tensors:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device(device), nogds=True)
    loader.add_filenames({0: files})
    buffer = loader.copy_files_to_device()
    tensors = {name: buffer.get_tensor(name) for name in loader.get_keys()}
    loader.close()
    tensors[""] = buffer  # owns the memory
    return tensors


def runai_model_streamer(files: list[str], device: str) -> Tensors:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files, device=device)
        return dict(streamer.get_tensors())


def instanttensor(files: list[str], device: str) -> Tensors:
    from instanttensor import safe_open

    index = torch.device(device).index  # it takes no device without one
    index = torch.cuda.current_device() if index is None else index
    with safe_open(files, framework="pt", device=index) as f:
        return dict(f.tensors())


def kvikio(files: list[str], device: str) -> Tensors:
    import kvikio as lib
    from safetensors import safe_open

    tensors, pending, opened = {}, [], []
    for file in files:
        with open(file, "rb") as f:
            head = int.from_bytes(f.read(8), "little")
        data = torch.empty(os.path.getsize(file) - 8 - head, dtype=torch.uint8, device=device)
        opened.append(lib.CuFile(file, "r"))
        pending.append(opened[-1].pread(data, file_offset=8 + head))
        at = 0
        with safe_open(file, framework="pt") as f:
            for name in f.offset_keys():
                shape = f.get_slice(name).get_shape()
                nbytes = 2 * torch.Size(shape).numel()  # all are bfloat16 here
                tensors[name] = data[at : at + nbytes].view(torch.bfloat16).view(shape)
                at += nbytes
    for future in pending:
        future.get()
    for each in opened:
        each.close()
    return tensors


LOADERS: list[tuple[str, str, Loader]] = [
    ("gpunvme prefetch, arena", "gpunvme", gpunvme_arena),
    ("gpunvme prefetch, checksums", "gpunvme", gpunvme_checksums),
    ("gpunvme get_tensors", "gpunvme", gpunvme_own),
    ("gpunvme quarter of rows", "gpunvme", gpunvme_rows),
    ("gpunvme quarter of columns", "gpunvme", gpunvme_columns),
    ("safetensors safe_open", "safetensors", safetensors_safe_open),
    ("safetensors prefetch, mmap", "safetensors", safetensors_prefetch_mmap),
    ("safetensors prefetch, pread", "safetensors", safetensors_prefetch_pread),
    ("fastsafetensors", "fastsafetensors", fastsafetensors),
    ("runai-model-streamer", "runai-model-streamer", runai_model_streamer),
    ("InstantTensor", "instanttensor", instanttensor),
    ("kvikio", "kvikio-cu13", kvikio),
]
PARTS = {gpunvme_rows: quarter_of_rows, gpunvme_columns: quarter_of_columns}


# ---- Files ------------------------------------------------------------------------------------


def random_numbers(n: int) -> Any:
    """Of 64 bits, on the CPU; made by a GPU if there is one, which takes less time."""
    return torch.randint(-(1 << 63), (1 << 63) - 1, (n,), dtype=torch.int64,
                         device="cuda" if torch.cuda.is_available() else "cpu").cpu()


def make_files(folder: Path, size: int, nfiles: int, ntensors: int, columns: int) -> list[str]:
    """About `size` bytes of bfloat16, in matrices of so many columns, or of 4 where small."""
    folder.mkdir(parents=True)
    elements = max(size // ntensors // 2, 4)
    columns = columns if elements >= columns else 4
    elements -= elements % columns
    shape = (elements // columns, columns)
    files, tensors = [], {}
    for i in range(ntensors):
        random = random_numbers(elements // 4 + 1)
        tensors[f"model.layers.{i // 9}.block.{i % 9}.weight"] = random.view(torch.bfloat16)[
            : shape[0] * columns].view(shape)
        if (i + 1) * nfiles // ntensors > len(files):
            files.append(str(folder / f"model-{len(files):05}.safetensors"))
            save_file(tensors, files[-1])
            tensors = {}
    os.sync()  # writing it back would take time from those that read
    return files


def by_safetensors(files: list[str], device: str) -> Tensors:
    return {name: t for file in files for name, t in load_file(file, device=device).items()}


def same(loaded: Tensors, wanted: Tensors) -> bool:
    return loaded.keys() - {""} == wanted.keys() and all(
        torch.equal(loaded[name].to(t.device).view(torch.int16), t.view(torch.int16))
        for name, t in wanted.items())


# ---- Measuring --------------------------------------------------------------------------------


def finish(device: str) -> None:
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drop(files: list[str]) -> None:
    """Out of the page cache."""
    for file in files:
        with open(file, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def once(load: Loader, files: list[str], device: str,
         cold: bool) -> tuple[dict[str, float], Tensors]:
    finish(device)
    if cold:
        drop(files)
    gpu = device != "cpu"
    if gpu:
        torch.cuda.empty_cache()
        time.sleep(PAUSE)
        torch.cuda.reset_peak_memory_stats()
        free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    begin, cpu = time.perf_counter(), cpu_seconds()
    tensors = load(files, device)
    if gpu:
        torch.cuda.synchronize()
    seconds, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    nbytes = sum(t.nbytes for name, t in tensors.items() if name)
    result = {"GB/s": nbytes / seconds / 1e9, "CPU s/GB": cpu / nbytes * 1e9}
    if gpu:
        taken = max(free - torch.cuda.mem_get_info()[0],
                    torch.cuda.max_memory_reserved() - reserved)
        result["GPU memory above, MiB"] = (taken - nbytes) / 2**20
    return result, tensors


def fio_best(files: list[str]) -> float:
    """GB/s of the best of some ways of fio."""
    rates = []
    for block, depth in (("128k", 32), ("1m", 32), ("4m", 8)):
        jobs = [part for i, file in enumerate(files)
                for part in (f"--name=job{i}", f"--filename={file}")]
        done = subprocess.run(
            [FIO, "--output-format=json", "--group_reporting", "--direct=1", "--ioengine=io_uring",
             "--rw=read", f"--bs={block}", f"--iodepth={depth}", *jobs],
            check=True, capture_output=True, text=True)
        report = json.loads(done.stdout[done.stdout.index("{"):])
        rates.append(sum(job["read"]["bw_bytes"] for job in report["jobs"]) / 1e9)
    return max(rates)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        module = sys.modules.get(package.replace("-", "_"))
        return getattr(module, "__version__", "unknown")


def reason(why: Exception) -> str:
    """Why a loader failed; in full on stderr, unless it is not installed."""
    if not isinstance(why, ImportError):
        traceback.print_exception(why)
    return f"{type(why).__name__}: {str(why).strip()[:1000]}"


def measure(files: list[str], device: str, runs: int, only: str,
            cold: bool) -> list[dict[str, Any]]:
    rows = []
    wanted = by_safetensors(files, device)
    for label, package, load in LOADERS:
        if not any(part in label for part in only.split(",")):
            continue
        row: dict[str, Any] = {"loader": label, "package": package}
        try:
            _, tensors = once(load, files, device, cold)
            row["version"] = version(package)
            part = PARTS.get(load)
            if not same(tensors, {name: t[part(t.shape)] for name, t in wanted.items()}
                        if part else wanted):
                row["skipped"] = "its bytes differ from safetensors' own"
            del tensors
        except Exception as why:  # noqa: BLE001  (others' errors are of any kind)
            row["skipped"] = reason(why)
        rows.append(row)
        row["load"], row["runs"] = load, []
    del wanted
    fio: list[dict[str, float]] = []
    for _ in range(runs):
        for row in rows:
            if "skipped" not in row:
                try:
                    result, tensors = once(row["load"], files, device, cold)
                    del tensors
                    row["runs"].append(result)
                except Exception as why:  # noqa: BLE001
                    row["skipped"] = reason(why)
        if cold and shutil.which(FIO):
            fio.append({"GB/s": fio_best(files)})
    if cold:
        rows.append({"loader": "fio, best", "runs": fio}
                    | ({} if fio else {"skipped": "it is not here"}))
    for row in rows:
        row.pop("load", None)
        if row["runs"] and "skipped" not in row:
            row.update({key: statistics.median(run[key] for run in row["runs"])
                        for key in row["runs"][0]})
    return rows


def report(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        if "skipped" in row:
            print(f"  {row['loader']:28} SKIP: {row['skipped'].splitlines()[0]}")
        else:
            lowest, highest = (f(run["GB/s"] for run in row["runs"]) for f in (min, max))
            memory = row.get("GPU memory above, MiB")
            print(f"  {row['loader']:28} {row['GB/s']:6.2f} GB/s ({lowest:.2f} to {highest:.2f})"
                  + (f", {row['CPU s/GB']:.2f} CPU s/GB" if "CPU s/GB" in row else "")
                  + ("" if memory is None else f", {memory:.0f} MiB of GPU memory above"))
    sys.stdout.flush()


def nbytes_of(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=nbytes_of, default=8 << 30, help="bytes of each work (8G)")
    parser.add_argument("--runs", type=int, default=5, help="that are counted (5)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tmpfs", default="/dev/shm", help="a folder in memory; '' for none")
    parser.add_argument("--disk", default=tempfile.gettempdir(),
                        help="a folder on a disk, read through the page cache; '' for none")
    parser.add_argument("--cold", action="store_true",
                        help="drop files on the disk from the page cache before each run")
    parser.add_argument("--work", choices=WORKS, action="append", help="this alone")
    parser.add_argument("--only", default="", help="loaders named with one of these, by commas")
    parser.add_argument("--json", help="write all runs to this file")
    options = parser.parse_args()
    results = []
    on_disk = "not cached" if options.cold else "page cache"
    for place, base in (("tmpfs", options.tmpfs), (on_disk, options.disk)):
        if not base:
            continue
        for work in options.work or WORKS:
            nfiles, ntensors, columns = WORKS[work]
            folder = Path(tempfile.mkdtemp(prefix="weights_peers-", dir=base))
            try:
                files = make_files(folder / "files", options.size, nfiles, ntensors, columns)
                rows = measure(files, options.device, options.runs, options.only,
                               place == "not cached")
            finally:
                shutil.rmtree(folder)
            report(f"{work}, {place}", rows)
            results.append({"work": work, "place": place, "files": nfiles, "tensors": ntensors,
                            "nbytes": options.size, "loaders": rows})
    if options.json:
        gpu = torch.cuda.get_device_name() if options.device != "cpu" else None
        machine = {"cpus": os.cpu_count(), "gpu": gpu, "kernel": platform.release(),
                   "python": platform.python_version(), "torch": torch.__version__}
        Path(options.json).write_text(json.dumps(
            {"machine": machine, "device": options.device, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
