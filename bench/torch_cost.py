#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What PyTorch's operators cost over the C calls beneath them, on a GPU, in turn, in one process.

    bench/torch_cost.py [--size 8G] [--rounds 7]       prints JSON

Medians over the rounds, of
  a file of --size bytes in /dev/shm and in GPUNVME_DISK_DIR (/tmp), from the page cache, into a
    tensor: GB/s by gpunvme_store_read() in C, by Store.pread(), by nvme_ops.read_into_tensor(), and
    by kvikio's pread() where it is installed;
  1 MiB of it: us by C, and what read_into_tensor() takes longer;
  a linear layer of 16 x 256 -> 256 in bf16: us of the host's by gpunvme_linear_forward(), what
    torch.ops.optimized.linear() takes longer, and us of that and of F.linear() under torch.compile.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

from python_cost import peer

import gpunvme
import gpunvme.torch
from gpunvme import _lib

Found = dict[str, list[float]]
MANY = 200


def note(found: Found, name: str, value: float) -> float:
    """A time or a rate; below 0 is an error of the C program's."""
    if value < 0 and "_over_" not in name:  # what takes longer may take less by chance
        sys.exit(f"torch_cost.py: {name}: {value}")
    found.setdefault(name, []).append(value)
    return value


def seconds_of(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def address(function: Any) -> ctypes.c_void_p:
    return ctypes.cast(function, ctypes.c_void_p)


def whole_file(found: Found, c: ctypes.CDLL, place: str, path: Path) -> None:
    nbytes = path.stat().st_size
    tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    with gpunvme.open(path) as store:
        read = address(_lib.lib.gpunvme_store_read)
        ways = {"c": lambda: c.python_peer_pread(read, store.handle(), tensor.data_ptr(),
                                                 _lib.MEM_GPU, nbytes, 1),
                "pread": lambda: seconds_of(lambda: store.pread(tensor)),
                "read_into_tensor": lambda: seconds_of(
                    lambda: torch.ops.nvme_ops.read_into_tensor(tensor, str(path), 0))}
        for name, way in ways.items():
            seconds = note(found, f"{place}_{name}_gb_s", way())
            found[f"{place}_{name}_gb_s"][-1] = nbytes / seconds / 1e9
    for name in ("pread", "read_into_tensor"):
        note(found, f"{place}_{name}_to_c",
             found[f"{place}_{name}_gb_s"][-1] / found[f"{place}_c_gb_s"][-1])
    try:
        import kvikio
    except ImportError:
        return
    with kvikio.CuFile(path, "r") as file:
        seconds = seconds_of(lambda: file.pread(tensor).get())
    note(found, f"{place}_kvikio_gb_s", nbytes / seconds / 1e9)


def one_mib(found: Found, c: ctypes.CDLL, path: Path) -> None:
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    name, read = str(path), torch.ops.nvme_ops.read_into_tensor
    with gpunvme.open(path) as store:
        by_c = note(found, "mib_by_c_us", c.python_peer_pread(
            address(_lib.lib.gpunvme_store_read), store.handle(), tensor.data_ptr(), _lib.MEM_GPU,
            1 << 20, MANY) / MANY * 1e6)
    begin = time.perf_counter()
    for _ in range(MANY):
        read(tensor, name, 0)
    note(found, "read_into_tensor_over_c_us", (time.perf_counter() - begin) / MANY * 1e6 - by_c)


def us_of(call: Callable[[], Any]) -> float:
    """Of the host's time: the GPU has done what came before, and is quicker than the host."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(MANY):
        call()
    return (time.perf_counter() - begin) / MANY * 1e6


class LinearLayer:
    def __init__(self) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        self.x, self.w, self.b = random(16, 256), random(256, 256), random(256)
        self.y = torch.empty(16, 256, device="cuda", dtype=torch.bfloat16)
        self.problem = _lib.Linear(
            rows=16, out=256, x=self.x.data_ptr(), weight=self.w.data_ptr(),
            bias=self.b.data_ptr(), y=self.y.data_ptr(), ldx=256, ldw=256, ldy=256,
            dtype=_lib.OPS_BF16)
        setattr(self.problem, "in", 256)
        ops = _lib.ops()
        self.exec = _lib.OpsExec(device=_lib.OPS_CUDA,
                                 stream=torch.cuda.current_stream().cuda_stream)
        nbytes = ctypes.c_size_t()
        if ops.gpunvme_linear_forward_workspace(ctypes.byref(self.problem),
                                                ctypes.byref(self.exec), ctypes.byref(nbytes)):
            sys.exit("torch_cost.py: gpunvme_linear_forward_workspace() failed")
        self.space = torch.empty(max(nbytes.value, 1), dtype=torch.uint8, device="cuda")
        self.exec.workspace, self.exec.workspace_nbytes = self.space.data_ptr(), nbytes.value
        self.call = address(ops.gpunvme_linear_forward)
        self.ours = torch.compile(torch.ops.optimized.linear, fullgraph=True)
        self.theirs = torch.compile(torch.nn.functional.linear, fullgraph=True)

    def measure(self, found: Found, c: ctypes.CDLL) -> None:
        torch.cuda.synchronize()
        by_c = note(found, "linear_by_c_us", c.python_peer_operator(
            self.call, ctypes.addressof(self.problem), ctypes.addressof(self.exec), MANY)
            / MANY * 1e6)
        x, w, b = self.x, self.w, self.b
        with torch.no_grad():
            plain = us_of(lambda: torch.ops.optimized.linear(x, w, b))
            note(found, "linear_over_c_us", plain - by_c)
            note(found, "linear_f_us", us_of(lambda: torch.nn.functional.linear(x, w, b)))
            ours = note(found, "linear_compiled_us", us_of(lambda: self.ours(x, w, b)))
            theirs = note(found, "linear_f_compiled_us", us_of(lambda: self.theirs(x, w, b)))
            note(found, "linear_compiled_to_f", ours / theirs)


def nbytes_of(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=nbytes_of, default=8 << 30)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("SKIP: no GPU")
        sys.exit(77)
    found: Found = {}
    places = {"tmpfs": "/dev/shm", "page_cache": os.environ.get("GPUNVME_DISK_DIR", "/tmp")}
    block = os.urandom(64 << 20)
    with tempfile.TemporaryDirectory() as folder:
        c = peer(folder)
        for place, base in places.items():
            with tempfile.NamedTemporaryFile(dir=base) as file:
                for _ in range(max(options.size // len(block), 1)):
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
                path = Path(file.name)
                whole_file({}, c, place, path)
                for _ in range(options.rounds):
                    whole_file(found, c, place, path)
                if place == "tmpfs":
                    for _ in range(options.rounds):
                        one_mib(found, c, path)
        layer = LinearLayer()
        layer.measure({}, c)
        for _ in range(options.rounds):
            layer.measure(found, c)
    print(json.dumps({
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "nbytes": options.size,
        "rounds": options.rounds,
        **{name: {"median": round(statistics.median(values), 3), "min": round(min(values), 3),
                  "max": round(max(values), 3)} for name, values in found.items()}}, indent=2))


if __name__ == "__main__":
    main()
