#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A layer's weights from a file into its parameters, one step of training, and back to the file.

    python3 pytorch_integration.py [FILE]

FILE is made if it is not there; without it a temporary one is used. Runs on a GPU if PyTorch has
one, else on the CPU. Needs PyTorch 2.11 and a gpunvme that was built with GPUNVME_TORCH.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from gpunvme.torch.nn import OptimizedTransformer
from gpunvme.torch.optim import AdamW

store = torch.ops.nvme_ops
device = "cuda" if torch.cuda.is_available() else "cpu"


def places(model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, int]]:
    """Each parameter and where it is in the file: one behind the other, at multiples of 4 KiB."""
    offset = 0
    for parameter in model.parameters():
        yield parameter, offset
        offset += -(-parameter.nbytes // 4096) * 4096


def save(model: torch.nn.Module, file: str) -> None:
    for parameter, offset in places(model):
        store.write_tensor(parameter.detach(), file, offset)


def load(model: torch.nn.Module, file: str) -> None:
    with torch.no_grad():
        for parameter, offset in places(model):
            store.read_into_tensor(parameter, file, offset)


def main(file: str) -> None:
    torch.manual_seed(1)
    if not Path(file).exists():
        save(OptimizedTransformer(device=device), file)

    model = OptimizedTransformer(device=device)
    begin = time.perf_counter()
    load(model, file)
    took = time.perf_counter() - begin
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    print(f"read {nbytes / 1e6:.1f} MB into parameters on {device} in {took * 1e3:.1f} ms")

    # Learns to give back what it gets. torch.compile(model, fullgraph=True) works as well.
    optimizer = AdamW(model.parameters(), lr=3e-4, max_grad_norm=1.0)
    x = torch.randn(4, 64, 768, device=device)
    for step in range(3):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(x).float(), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")

    save(model, file)
    again = OptimizedTransformer(device=device)
    load(again, file)
    same = all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters()))
    print("what was written is read again:", "the same" if same else "DIFFERENT")
    sys.exit(not same)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"{folder}/weights")
