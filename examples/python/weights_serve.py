#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A server's weights: loaded at start, and two models that take turns in one GPU's memory.

    weights_serve.py [A.safetensors B.safetensors]

Without arguments it makes two small models. Runs on a GPU if PyTorch has one, else on the CPU.

`Slot` is the part to copy: one module, allocated once, whose parameters are filled from files in
place. A swap reads the other model's bytes over the old ones, so it needs no second copy in GPU
memory. While it goes on, the module answers nothing: in a server, hold back requests.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from gpunvme import weights

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_module() -> torch.nn.Module:
    layers = [torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(),
                                  torch.nn.Linear(2048, 512)) for _ in range(4)]
    return torch.nn.Sequential(*layers).eval()


class Slot:
    """GPU memory for one of several models that have the same parameters."""

    def __init__(self, file: str) -> None:
        with torch.device("meta"):  # no memory yet: load_model() allocates it on the GPU
            self.module = make_module()
        self.lock = threading.Lock()
        self.file: str | None = None
        self.load(file)

    def load(self, file: str) -> float:
        """Makes it another model; returns how many seconds that took."""
        with self.lock, torch.no_grad():
            begin = time.perf_counter()
            self.file = None  # if this fails, the parameters are undefined
            weights.load_model(self.module, file, device=device)
            self.file = file
            return time.perf_counter() - begin

    def answer(self, request: torch.Tensor) -> torch.Tensor:
        with self.lock, torch.no_grad():
            if self.file is None:
                raise RuntimeError("no model is loaded")
            return self.module(request.to(device)).cpu()


def make_files(folder: Path) -> list[str]:
    names = []
    for seed in range(2):
        torch.manual_seed(seed)
        names.append(str(folder / f"model{seed}.safetensors"))
        weights.torch.save_model(make_module(), names[-1])
    return names


def main(files: list[str]) -> None:
    slot = Slot(files[0])
    nbytes = sum(p.nbytes for p in slot.module.parameters())
    memory = {p.data_ptr() for p in slot.module.parameters()}
    request = torch.ones(1, 512)
    answers: dict[str, torch.Tensor] = {}
    for turn in range(6):
        file = files[turn % 2]
        seconds = slot.load(file)
        answer = slot.answer(request)
        assert torch.equal(answers.setdefault(file, answer), answer)
        print(f"{Path(file).name}: {nbytes / 1e6:.0f} MB in {seconds * 1e3:.1f} ms, "
              f"{nbytes / seconds / 1e9:.1f} GB/s")
    assert memory == {p.data_ptr() for p in slot.module.parameters()}
    print(f"two models took turns in the same {len(memory)} parameters on {device}")


if __name__ == "__main__":
    if any(arg.startswith("-") for arg in sys.argv[1:]):
        sys.exit(__doc__)
    if len(sys.argv) > 1:
        main(sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(make_files(Path(folder)))
