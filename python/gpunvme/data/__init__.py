# SPDX-License-Identifier: BSD-3-Clause
"""Samples for training, from files on NVMe into batches in GPU memory.

    from gpunvme import data

    tokens = data.Dataset("train.bin", seq_tokens=1024, overlap_tokens=1)
    loader = data.Loader(tokens, batch_size=512, seed=7, device="cuda:0", collate=data.Tokens())
    for inputs, targets in loader:         # an epoch of torch tensors, int64, [samples, 1024]
        train(inputs, targets)
    torch.save({"loader": loader.state_dict(), ...}, "checkpoint.pt")

Dataset: where samples are, in records, token files, .npy, safetensors, tar and MDS shards. Loader:
batches of them, read ahead in an order that a seed and a position say, for any number of ranks.
BatchLoader: the same by a batch's number. Tokens and Images make a model's tensors of raw batches:
windows of tokens, documents of any lengths, images. iterable_dataset(): a Loader for torch's
DataLoader. docs/DATA.md describes formats and order.
"""

from ._by_index import BatchLoader
from ._dataset import Dataset, Place
from ._iterable import iterable_dataset
from ._loader import Batch, Loader, LoaderStats
from ._tensors import Images, Tokens

__all__ = ["Batch", "BatchLoader", "Dataset", "Images", "Loader", "LoaderStats", "Place", "Tokens",
           "iterable_dataset"]
