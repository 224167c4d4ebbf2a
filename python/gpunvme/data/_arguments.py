# SPDX-License-Identifier: BSD-3-Clause
# mypy: disable-error-code="import-not-found"
"""Arguments of loaders: what they may be, and what the library takes for them."""

from __future__ import annotations

import ctypes
import importlib.util
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import _lib
from .._lib import lib
from ..errors import argument
from ._dataset import NUMPY, Dataset

#: Bytes of an element of the types that numpy lacks, and what their arrays are of.
OTHERS = {"BF16": (2, "<V2")}


def framework_of(framework: str | None) -> Any:
    if framework not in (None, "pt", "np"):
        raise argument(f'framework "{framework}": there are "pt" and "np"')
    if framework == "np" or (framework is None and "torch" not in sys.modules
                             and importlib.util.find_spec("torch") is None):
        return None
    import torch

    return torch


def place_of(device: str) -> tuple[int, int]:
    kind, colon, index = device.partition(":")
    mems = {"cpu": _lib.MEM_HOST, "pinned": _lib.MEM_PINNED, "cuda": _lib.MEM_GPU}
    if kind not in mems or (colon and (kind != "cuda" or not index.isdigit())):
        raise argument(f'device "{device}": there are "cpu", "pinned", "cuda" and "cuda:N"')
    if index:
        return mems[kind], int(index)
    current = ctypes.c_uint()
    lib.gpunvme_mem_gpu_current(ctypes.byref(current))
    return mems[kind], current.value


def elements_of(datasets: Sequence[Dataset], dtype: Any, shape: Sequence[int] | None,
              ) -> tuple[str, int, tuple[int, ...] | None]:
    """numpy's name of the type of elements, their size, and the shape of a sample."""
    of = None if shape is None else tuple(operator.index(size) for size in shape)
    if dtype is not None:
        name = str(dtype).rpartition(".")[2]
        if name == "bfloat16":
            return "<V2", 2, of
        try:
            known = np.dtype(name)
        except TypeError:
            raise argument(f"dtype {dtype}: numpy has no such type") from None
        return known.str, known.itemsize, of
    codes = {one.dtype for one in datasets}
    code = codes.pop() if len(codes) == 1 else None
    shapes = {one.shape for one in datasets}
    if of is None and code is not None and len(shapes) == 1:
        of = shapes.pop()
    if code in NUMPY:
        known = np.dtype(NUMPY[code])
        return known.str, known.itemsize, of
    if code in OTHERS:
        size, name = OTHERS[code]
        return name, size, of
    return "|u1", 1, of if shape is not None else None


def rank_of(rank: int | None, world: int | None) -> tuple[int, int]:
    if (rank is None) != (world is None):
        raise argument("rank and world go together")
    if rank is not None and world is not None:
        return rank, world
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def count(name: str, value: int, bits: int = 64) -> int:
    if not 0 <= operator.index(value) < 1 << bits:
        raise argument(f"{name}: {value}")
    return value


def timeout_of(seconds: float | None) -> int:
    """Nanoseconds."""
    if seconds is None:
        return 30_000_000_000
    if not 1e-9 <= seconds <= 1e9:  # NaN fails it, too
        raise argument(f"timeout: {seconds} seconds: 1e-9 to 1e9")
    return int(seconds * 1e9)


def depth_of(depth: int) -> int:
    if not 1 <= operator.index(depth) <= _lib.LOADER_MAX_DEPTH:
        raise argument(f"depth: {depth}: 1 to {_lib.LOADER_MAX_DEPTH}")
    return depth


def choice(name: str, value: Any, known: Mapping[Any, int]) -> int:
    if value not in known:
        there_are = ", ".join(repr(key) for key in known)
        raise argument(f"{name}: {value!r}: there are {there_are}")
    return known[value]
