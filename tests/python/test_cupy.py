# SPDX-License-Identifier: BSD-3-Clause
"""CuPy's arrays and streams, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import ops

cupy: Any = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(autouse=True)
def device() -> None:
    if not cupy.cuda.is_available():
        pytest.skip("CuPy finds no GPU")
    if not gpunvme.info().gpus:
        pytest.skip("this build of gpunvme has no CUDA")


def test_an_array_is_read_into_and_written(store: gpunvme.Store, data: bytes) -> None:
    array = cupy.zeros(5000, cupy.uint8)
    assert store.pread(array, offset=100) == 5000
    assert array.get().tobytes() == data[100:5100]
    assert store.pwrite(array[::-1].copy()) == 5000
    back = bytearray(5000)
    store.pread(back)
    assert back == data[100:5100][::-1]


def test_a_transfer_has_its_place_on_a_stream(store: gpunvme.Store, data: bytes) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.full(1 << 16, 7, cupy.uint8)
        transfer = store.pread_async(array, stream=stream)
        doubled = array.astype(cupy.uint16) * 2
    assert transfer.result() == 1 << 16
    stream.synchronize()
    assert (doubled.get() == np.frombuffer(data[: 1 << 16], np.uint8).astype(np.uint16) * 2).all()


def test_memory_of_ours_is_an_array_of_cupy_without_a_copy(store: gpunvme.Store,
                                                           data: bytes) -> None:
    memory = gpunvme.empty(4096, "cuda")
    store.pread(memory)
    array = cupy.asarray(memory)
    assert array.data.ptr == memory.ptr and array.get().tobytes() == data[:4096]


def test_operators_take_arrays_and_make_memory_that_cupy_takes() -> None:
    a, b = (cupy.random.standard_normal((64, 64), dtype=cupy.float32) for _ in range(2))
    found = cupy.asarray(ops.matmul(a, b))
    cupy.cuda.Device().synchronize()
    assert np.allclose(found.get(), a.get() @ b.get(), rtol=1e-4, atol=1e-3)


def test_an_array_that_is_not_contiguous_is_refused(store: gpunvme.Store) -> None:
    with pytest.raises(gpunvme.ArgumentError, match="contiguous"):
        store.pread(cupy.zeros((8, 8))[:, 1])
