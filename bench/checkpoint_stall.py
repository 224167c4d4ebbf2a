#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What checkpoints cost a training: the steps of a GPT with and without saves, in turn.

    bench/checkpoint_stall.py FOLDER [--gib 16] [--every 30] [--rounds 4]
                              [--snapshot pinned|device] [--no-defer]                 prints JSON
    bench/checkpoint_stall.py FOLDER --gib 4 --rounds 0 --peers          # only beside torch.save
    bench/checkpoint_stall.py FOLDER --gib 4 --rounds 0 --peers --fio    # and beside fio's writes

A round is --every seconds of steps with one save at their begin, which ends in the first half. The
stall of a round is how much longer the steps of its first half took than as many at the mean of its
second half. The state (fp32 parameters and AdamW's moments) has about --gib GiB. A first save, which
makes what later ones use again, is reported separately.

--peers saves the same state to FOLDER without a training, by save(), by save_async().result() and
by torch.save() with fsync: --peers times in turn, and the first two once before, which is not
counted. Rates are medians, with the least and the most; "times_torch_save" is the quotient of two
medians. Each is told on stderr at once. A way that fails says why in NAME_failed, and in full on
stderr. torch.save takes 5 s for 4 GiB on an H200, so leave the state small.

--fio has fio write as many bytes to one file of FOLDER, with O_DIRECT and flushed, in turn with the
others: the way of writing is the best of those that bench/disk_vs_fio.py tries. The file is there
before, and those of saves are new. "times_fio" is the quotient of the medians. FOLDER is on a disk
then. GPUNVME_FIO may name fio.

Without a GPU it runs on the CPU: say --gib 0.1 --every 5 then.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from disk_vs_fio import fio_ways, named, with_fio
from gpunvme import checkpoint

on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"


class Block(torch.nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d)
        self.qkv, self.out = torch.nn.Linear(d, 3 * d), torch.nn.Linear(d, d)
        self.up, self.down = torch.nn.Linear(d, 4 * d), torch.nn.Linear(4 * d, d)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        heads = self.qkv(self.norm1(x)).view(b, t, 3, d // 64, 64).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, d))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Training:
    """Steps of a GPT whose state has about ``nbytes`` bytes."""

    def __init__(self, nbytes: float, d: int, tokens: int) -> None:
        vocabulary = 32768 if on_gpu else 256
        layers = max(1, round((nbytes / 12 - vocabulary * d) / (12 * d * d)))
        torch.manual_seed(1)
        with torch.device(device):
            self.embedding = torch.nn.Embedding(vocabulary, d)
            self.blocks = torch.nn.ModuleList(Block(d) for _ in range(layers))
            self.ids = torch.randint(vocabulary, (max(1, tokens // 1024), min(tokens, 1024)))
        self.modules = torch.nn.ModuleList([self.embedding, self.blocks])
        self.optimizer = torch.optim.AdamW(self.modules.parameters(), lr=1e-4, fused=on_gpu)
        self.saving: checkpoint.Save | None = None
        self.optimizer.register_step_pre_hook(self.before_change)
        self.before: Any = None

    def before_change(self, *_: object) -> None:
        if self.saving:
            self.saving.wait_snapshot()

    def state(self) -> dict[str, Any]:
        return {"model": self.modules.state_dict(), "optimizer": self.optimizer.state_dict()}

    def step(self) -> None:
        """Runs at most one step ahead of the GPU."""
        with torch.autocast(device, dtype=torch.bfloat16):
            x = self.embedding(self.ids)
            for block in self.blocks:
                x = block(x)
            logits = torch.nn.functional.linear(x, self.embedding.weight)
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), self.ids[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if on_gpu:
            event = torch.cuda.Event()
            event.record()
            if self.before:
                self.before.synchronize()
            self.before = event

    def run(self, seconds: float, begin: Callable[[], None] = lambda: None) -> list[float]:
        """What each step took, in seconds; ``begin`` is called in the first one."""
        took = []
        end = last = time.perf_counter()
        end += seconds
        begin()
        while last < end:
            self.step()
            now = time.perf_counter()
            took.append(now - last)
            last = now
        return took


def synchronize() -> None:
    if on_gpu:
        torch.cuda.synchronize()


class Fio:
    """Writes by fio, in its best way, over a file that is there."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.program = os.environ.get("GPUNVME_FIO", "fio")
        self.path = folder / "peer.fio"
        self.nbytes = max(nbytes >> 26, 1) << 26  # whole blocks for each thread
        block = os.urandom(1 << 22)
        with self.path.open("wb") as file:
            for _ in range(self.nbytes // len(block)):
                file.write(block)
        self.way = next(iter(fio_ways(self.program, "write", str(self.path), self.nbytes)))

    def write(self) -> float:
        """GB/s."""
        return float(with_fio(self.program, "write", str(self.path), self.nbytes, self.way))


def peers(state: dict[str, Any], folder: Path, nbytes: int, snapshot: Any,
          runs: int, fio: Fio | None) -> dict[str, Any]:
    """GB/s of saves that are waited for."""
    def save() -> None:
        checkpoint.save(state, folder / "peer")

    def save_async() -> None:
        checkpoint.save_async(state, folder / "peer", snapshot=snapshot).result()

    def torch_save() -> None:
        with (folder / "peer.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    ways: list[Callable[[], float | None]] = [save, save_async, torch_save]
    if fio:
        ways.append(fio.write)
    rates: dict[str, list[float]] = {way.__name__: [] for way in ways}
    failed: dict[str, str] = {}
    for run in range(runs + 1):
        for way in ways:
            name = way.__name__
            if name in failed or (not run and way is torch_save):
                continue
            try:
                synchronize()
                begin = time.perf_counter()
                rate = way()
                rates[name].append(rate or nbytes / (time.perf_counter() - begin) / 1e9)
                print(f"{name}: {rates[name][-1]:.2f} GB/s", file=sys.stderr, flush=True)
            except Exception as why:  # noqa: BLE001  (the others go on)
                traceback.print_exc()
                failed[name] = f"{type(why).__name__}: {why}"
            shutil.rmtree(folder / "peer", ignore_errors=True)
            (folder / "peer.pt").unlink(missing_ok=True)
    found: dict[str, Any] = {f"{name}_failed": why for name, why in failed.items()}
    counted_all = {name: rate[-runs:] for name, rate in rates.items() if name not in failed}
    medians = {name: statistics.median(counted) for name, counted in counted_all.items()}
    for name, median in medians.items():
        counted = counted_all[name]
        found[f"{name}_gb_s"] = median
        found[f"{name}_gb_s_range"] = [min(counted), max(counted)]
    if "torch_save" in medians:
        found["times_torch_save"] = {name: median / medians["torch_save"]
                                     for name, median in medians.items()
                                     if name not in ("torch_save", "write")}
    if fio and "write" in medians:
        found["fio"] = named(fio.way) | {"gb_s": found.pop("write_gb_s"),
                                         "gb_s_range": found.pop("write_gb_s_range")}
        found["times_fio"] = {name: median / medians["write"]
                              for name, median in medians.items() if name != "write"}
    return found


def stall(training: Training, options: argparse.Namespace) -> dict[str, Any]:
    """What saves cost the steps of the training."""
    calls: list[float] = []

    def save() -> None:
        began = time.perf_counter()
        training.saving = checkpoint.save_async(
            training.state(), options.folder / "run", keep=1, snapshot=options.snapshot,
            defer=not options.no_defer)
        calls.append(time.perf_counter() - began)

    def end(timeout: float | None = None) -> None:
        assert training.saving is not None
        training.saving.result(timeout)

    begin = time.perf_counter()
    training.run(1, save)
    end()
    first = time.perf_counter() - begin
    plain: list[float] = []
    stalls: list[float] = []
    for _ in range(options.rounds):
        with_save = training.run(options.every / 2, save)
        end(0)  # a DeadlineError: --every is too short
        without = training.run(options.every / 2)
        plain += without
        stalls.append(sum(with_save) - len(with_save) * statistics.mean(without))
    median = statistics.median(stalls)
    return {
        "defer": not options.no_defer, "every_s": options.every,
        "step_s": statistics.median(plain), "steps_a_half": len(plain) / options.rounds,
        "first_save_s": first, "call_s": statistics.median(calls[1:]), "stall_s": median,
        "stalls_s": stalls, "stall_percent": 100 * median / options.every,
        "spread_of_steps_percent": 100 * statistics.pstdev(plain) / statistics.median(plain),
    }


def nbytes_in(state: Any) -> int:
    """Bytes of all tensors in nested dicts and lists."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    if isinstance(state, dict):
        state = list(state.values())
    return sum(map(nbytes_in, state)) if isinstance(state, list) else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--every", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--width", type=int, default=2048 if on_gpu else 128)
    parser.add_argument("--tokens", type=int, default=16384 if on_gpu else 64)
    parser.add_argument("--snapshot", choices=["pinned", "device"], default="pinned")
    parser.add_argument("--no-defer", action="store_true")
    parser.add_argument("--peers", type=int, nargs="?", const=3, default=0, metavar="RUNS")
    parser.add_argument("--fio", action="store_true")
    options = parser.parse_args()

    training = Training(options.gib * 2**30, options.width, options.tokens)
    training.run(3 if options.rounds else 0.001)  # the optimizer's state comes with the first step
    state = training.state()
    nbytes = nbytes_in(state)
    report = {"device": torch.cuda.get_device_name() if on_gpu else "cpu",
              "torch": torch.__version__, "snapshot": options.snapshot, "nbytes": nbytes}
    if options.rounds:
        report |= stall(training, options)
    if options.peers:
        fio = Fio(options.folder, nbytes) if options.fio else None
        try:
            report |= peers(state, options.folder, nbytes, options.snapshot, options.peers, fio)
        finally:
            if fio:
                fio.path.unlink()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
