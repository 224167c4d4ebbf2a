#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Training fed by gpunvme.data: mixed tokens, packed documents and images, on a GPU or on the CPU.

    data_training.py [tokens|documents|images|all] [--steps N]

Makes small files of its own. `train_on_tokens` is the part to copy for a language model: windows
of token files in a random order, inputs and targets by one kernel each, and the loader's place
saved with the model, so that a run that was stopped goes on with the batch it would have had.
`train_on_documents` packs documents of any lengths into rows; attention and targets stay within
each.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from gpunvme import data

device = "cuda:0" if torch.cuda.is_available() else "cpu"
VOCABULARY, SEQUENCE, BATCH = 512, 64, 16


def make_tokens(path: Path, n: int, first: int) -> None:
    """Counts up from `first`: a rule that a model learns at once."""
    ((np.arange(n) + first) % VOCABULARY).astype(np.uint16).tofile(path)


def token_loader(folder: Path) -> data.Loader:
    corpora = [data.Dataset(folder / name, seq_tokens=SEQUENCE, overlap_tokens=1)
               for name in ("web.bin", "books.bin")]
    return data.Loader(corpora, BATCH, weights=[3, 1], seed=7, device=device,
                       collate=data.Tokens())


def train_on_tokens(folder: Path, steps: int) -> None:
    make_tokens(folder / "web.bin", 200_000, 0)
    make_tokens(folder / "books.bin", 50_000, 17)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 64),
                                torch.nn.Linear(64, VOCABULARY)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = token_loader(folder)
    for part in range(2):  # the second goes on in a loader of its own, as after a stop
        for _, (inputs, targets) in zip(range(steps), loader):
            logits = model(inputs)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"tokens, part {part + 1}: loss {loss.item():.3f} after {steps} steps")
        torch.save({"model": model.state_dict(), "loader": loader.state_dict()},
                   folder / "checkpoint.pt")
        state = torch.load(folder / "checkpoint.pt")["loader"]
        loader.close()
        loader = token_loader(folder)
        loader.load_state_dict(state)
    stats = loader.stats()
    print(f"tokens: {stats.ahead} batches are read ahead")
    loader.close()


def attend(x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Causal attention within documents; a kernel for different lengths takes cu_seqlens itself."""
    at = torch.arange(len(x), device=x.device)
    document = torch.bucketize(at, cu_seqlens[1:], right=True)
    seen = (document[:, None] == document) & (at[:, None] >= at)
    x = x[None, None]
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=seen)[0, 0]


def train_on_documents(folder: Path, steps: int) -> None:
    make_tokens(folder / "documents.bin", 100_000, 0)
    ends = np.sort(np.random.default_rng(1).choice(100_000, 2_000, replace=False))
    documents = data.Dataset.from_ranges(folder / "documents.bin", None, 2 * ends[:-1],
                                         2 * np.diff(ends))
    loader = data.Loader(documents, 8, seed=7, device=device, layout="packed",
                         row_nbytes=2 * SEQUENCE, dtype="uint16",
                         collate=data.Tokens(cu_seqlens=True))
    torch.manual_seed(1)
    embedding = torch.nn.Embedding(VOCABULARY, 64).to(device)
    head = torch.nn.Linear(64, VOCABULARY).to(device)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()], lr=1e-2)
    for _, (inputs, targets, cu_seqlens, longest) in zip(range(steps), loader):
        x = embedding(inputs.flatten())
        logits = head(x + attend(x, cu_seqlens))
        loss = torch.nn.functional.cross_entropy(logits, targets.flatten())  # ignores -100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"documents: loss {loss.item():.3f} after {steps} steps, rows {tuple(inputs.shape)}, "
          f"the longest of {longest} tokens")
    loader.close()


def train_on_images(folder: Path, steps: int) -> None:
    height, width = 32, 32
    raw = np.random.default_rng(1).integers(0, 256, (2_000, height, width, 3), np.uint8)
    raw.tofile(folder / "images.bin")  # records of one size, without a header
    records = data.Dataset(folder / "images.bin", record_nbytes=height * width * 3)
    loader = data.Loader(records, 64, seed=7, device=device,
                         collate=data.Images((height, width, 3), scale=1 / 255,
                                             mean=(0.5, 0.5, 0.5), std=(0.29, 0.29, 0.29)))
    model = torch.nn.Conv2d(3, 8, 3).to(device)
    for _, images in zip(range(steps), loader):  # float32, [64, 3, 32, 32]
        model(images).mean().backward()
    print(f"images: {tuple(images.shape)}, mean {images.mean().item():+.3f}, "
          f"deviation {images.std().item():.3f}")
    loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="all", choices=("tokens", "documents", "images", "all"))
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what in ("tokens", "all"):
            train_on_tokens(Path(folder), arguments.steps)
        if arguments.what in ("documents", "all"):
            train_on_documents(Path(folder), arguments.steps)
        if arguments.what in ("images", "all"):
            train_on_images(Path(folder), arguments.steps)


if __name__ == "__main__":
    main()
