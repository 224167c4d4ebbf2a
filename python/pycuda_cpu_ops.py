# SPDX-License-Identifier: BSD-3-Clause
"""Operators on the CPU by the rungs of their ladders, timed; on top of gpunvme.ops."""

from __future__ import annotations

import time
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from gpunvme import ops


class Timed(np.ndarray[Any, np.dtype[Any]]):
    """A result, with how long it took (``seconds``) and how fast it was made (``gflops``)."""

    seconds: float = 0.0
    gflops: float = 0.0


def _timed(call: Callable[[], Any], flops: float) -> Timed:
    begin = time.perf_counter()
    result = np.asarray(call()).view(Timed)
    result.seconds = time.perf_counter() - begin
    result.gflops = flops / result.seconds / 1e9
    return result


def _matmul(a: NDArray[Any], b: NDArray[Any], variant: str | None) -> Timed:
    flops = 2.0 * a.shape[-2] * a.shape[-1] * b.shape[-1]
    return _timed(lambda: ops.matmul(a, b, variant=variant), flops)


def matmul_cpu(A: NDArray[Any], B: NDArray[Any]) -> Timed:
    """A @ B by the best variant."""
    return _matmul(A, B, None)


def matmul_blocked(A: NDArray[Any], B: NDArray[Any]) -> Timed:
    """A @ B in blocks that fit a cache."""
    return _matmul(A, B, "blocked")


def matmul_vectorized(A: NDArray[Any], B: NDArray[Any]) -> Timed:
    """A @ B by the widest vectors that this processor has, on one thread."""
    best = [v.name for v in ops.variants() if v.available and v.name != "openmp"]
    return _matmul(A, B, best[-1])


def matmul_openmp(A: NDArray[Any], B: NDArray[Any]) -> Timed:
    """A @ B by all threads."""
    return _matmul(A, B, "openmp")


def linear(x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any] | None = None,
           activation: ops.Activation | None = None) -> Timed:
    """act(x @ weight.T + bias)."""
    flops = 2.0 * x.size * weight.shape[0]
    return _timed(lambda: ops.linear(x, weight, bias, activation=activation), flops)
