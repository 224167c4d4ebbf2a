#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A training that saves checkpoints while it goes on, and goes on from the last one.

    python3 checkpoint_training.py [FOLDER] [--steps N] [--every N]

Run it again with the same FOLDER and it resumes; without one a temporary folder is used. Prints
what the saves cost the training. Runs on a GPU if PyTorch has one, else on the CPU.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch

from gpunvme import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"


class Training:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step = 0
        self.saving: checkpoint.Save | None = None
        # Copies of GPU tensors may still be under way when the next forward pass begins. They must
        # have been made when the optimizer changes the tensors.
        self.optimizer.register_step_pre_hook(self.before_change)

    def before_change(self, *_: object) -> None:
        if self.saving:
            self.saving.wait_snapshot()

    def train(self) -> float:
        x = torch.randn(64, 128, device=device)
        loss = torch.nn.functional.mse_loss(self.model(x), x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def save(self, folder: str) -> None:
        if self.saving:
            self.saving.result()  # an error of the save before
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                 "step": self.step, "rng": torch.get_rng_state()}
        self.saving = checkpoint.save_async(state, folder, step=self.step, keep=2, defer=True)

    def resume(self, folder: str) -> None:
        state = checkpoint.load(folder, device=device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        torch.set_rng_state(state["rng"].cpu())


def main(folder: str, steps: int, every: int) -> None:
    training = Training()
    if checkpoint.latest(folder):
        training.resume(folder)
        print(f"goes on from step {training.step}")
    plain, saved = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        loss = training.train()
        saves = training.step % every == 0
        if saves:
            training.save(folder)
        (saved if saves else plain).append(time.perf_counter() - begin)
    if training.saving:
        print(f"step {training.step}: loss {loss:.4f}; saved as {training.saving.result()}")
    checkpoint.verify(folder)
    print(f"a step takes {statistics.median(plain) * 1e3:.2f} ms, one that begins a save "
          f"{statistics.median(saved) * 1e3:.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(options.folder or temporary, options.steps, options.every)
