# SPDX-License-Identifier: BSD-3-Clause
"""Samples for training, from files on NVMe into batches in GPU memory.

    from gpunvme import data

    with data.Dataset("train.bin", seq_tokens=1024, overlap_tokens=1) as tokens:
        tokens[12345]                      # one sample, as a numpy array

Dataset: where samples are, in records, token files, .npy, safetensors, tar and MDS shards.
docs/DATA.md describes formats and order.
"""

from ._dataset import Dataset, Place

__all__ = ["Dataset", "Place"]
