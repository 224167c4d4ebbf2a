# SPDX-License-Identifier: BSD-3-Clause
"""Files of numpy arrays, with the functions of ``safetensors.numpy``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._files import Files, refuse
from ._memory_file import memory_file
from ._prefetch import load_all
from ._save import Entry, Metadata, to_bytes, to_file
from ._target import CODES, Devices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine import Engine
    from ._files import Name

__all__ = ["load", "load_file", "save", "save_file"]


def _entries(tensors: Mapping[str, NDArray[Any]]) -> list[Entry]:
    entries = []
    for name, given in tensors.items():
        code = CODES.get(given.dtype.name)
        if code is None:
            refuse(f'tensor "{name}": a file has no type for {given.dtype}')
        if given.dtype.byteorder == ">":
            given = given.astype(given.dtype.newbyteorder("<"))
        array = np.asarray(given, order="C")
        entries.append(Entry(name, code, array.shape, array.ctypes.data, array.nbytes, array))
    return entries


def save_file(tensor_dict: Mapping[str, NDArray[Any]], filename: str | os.PathLike[str],
              metadata: Metadata = None) -> None:
    """Writes arrays to a file, which gets its name when all of it is on stable storage.

    Arrays that are not contiguous are written as if they were. Types may be numpy's own, and those
    that ml_dtypes adds. WeightsError: safetensors has no such type. OSError: the file could not be
    written; the name has what it had before.
    """
    to_file(_entries(tensor_dict), filename, metadata)


def save(tensor_dict: Mapping[str, NDArray[Any]], metadata: Metadata = None) -> bytes:
    """The bytes of a file with these arrays."""
    return to_bytes(_entries(tensor_dict), metadata)


def load_file(filename: Name, *, backend: str | None = None, require: str | None = None,
              engine: Engine | None = None) -> dict[str, NDArray[Any]]:
    """All arrays of a file, each with memory of its own. See gpunvme.weights.safe_open()."""
    return load_all(Files(filename, engine=engine, require=require), Devices("np", "cpu", None))


def load(data: bytes) -> dict[str, NDArray[Any]]:
    """All arrays in the bytes of a file."""
    with memory_file(data) as name:
        return load_all(Files(name), Devices("np", "cpu", None))
