# SPDX-License-Identifier: BSD-3-Clause
"""The thin modules with names of other systems. pycuda is not needed: of a DeviceAllocation they
use int() alone, of a Stream `handle`, which is imitated here."""

from __future__ import annotations

import numpy as np
import pytest

import gpunvme
import optimized_ops
import pycuda_cpu_ops
import pycuda_nvme
import torch_nvme

from test_buffers import Allocation


def has_torch_operators() -> bool:
    try:
        import gpunvme.torch  # noqa: F401
    except ImportError:
        return False
    return True


def test_nvme_gpu_reads_and_writes_blocks(path: str, data: bytes) -> None:
    memory = np.zeros(8192, np.uint8)
    with pycuda_nvme.NVMeGPU(path, writable=True) as device:
        size = device.block_size
        assert device.read(1, 2, Allocation(memory.ctypes.data)) == 2 * size
        assert memory[: 2 * size].tobytes() == data[size : 3 * size]
        assert device.write(5, 1, memory) == size
        memory[:] = 0
        assert device.read_async(5, 1, Allocation(memory.ctypes.data)).result() == size
        assert memory[:size].tobytes() == data[size : 2 * size]


def test_nvme_gpu_reads_to_memory_of_its_own(path: str, data: bytes) -> None:
    with pycuda_nvme.NVMeGPU(path) as device:
        memory = device.read_to_gpu(lba=0, size_mb=1)
        assert memory.nbytes == 1 << 20
        if isinstance(memory, np.ndarray):  # there is no GPU
            assert memory.tobytes() == data
        else:
            assert memory.copy_to_host().tobytes() == data
            with pytest.raises(TypeError, match="copy_to_host"):
                np.asarray(memory)
        with pytest.raises(gpunvme.RangeError):
            device.read_to_gpu(lba=1, size_mb=1)


def test_tensors_are_read_from_the_device_in_use(path: str, data: bytes) -> None:
    tensor = np.zeros((3, 1000), np.uint8)
    with pytest.raises(RuntimeError, match="use"):
        torch_nvme.read_into_tensor(tensor)
    torch_nvme.use(path)
    try:
        with gpunvme.open(path) as store:
            size = store.block_size
        assert torch_nvme.read_into_tensor(tensor, lba=2) == tensor.nbytes
        assert tensor.tobytes() == data[2 * size : 2 * size + tensor.nbytes]
        with pytest.raises(gpunvme.ArgumentError):
            torch_nvme.read_into_tensor(tensor[:, ::2])
        with pytest.raises(gpunvme.Error):
            torch_nvme.use(path + ".missing")
        assert torch_nvme.read_into_tensor(tensor) == tensor.nbytes
    finally:
        torch_nvme.use(None)


@pytest.mark.parametrize("name", ["matmul_cpu", "matmul_blocked", "matmul_vectorized",
                                  "matmul_openmp"])
def test_cpu_products_are_timed(name: str) -> None:
    if name == "matmul_openmp" and not gpunvme.ops.variants()[-1].available:
        pytest.skip("a build without OpenMP")
    a = np.random.default_rng(1).standard_normal((40, 50)).astype(np.float32)
    got = getattr(pycuda_cpu_ops, name)(a, a.T)
    assert np.allclose(got, a.astype(np.float64) @ a.T.astype(np.float64), atol=1e-4)
    assert got.gflops > 0 and got.seconds > 0


def test_the_linear_layer_is_timed() -> None:
    x, weight = np.ones((3, 4), np.float32), np.ones((5, 4), np.float32)
    got = pycuda_cpu_ops.linear(x, weight, np.full(5, -5, np.float32), "relu")
    assert not got.any() and got.shape == (3, 5) and got.gflops > 0


@pytest.mark.skipif(has_torch_operators(), reason="the operators for PyTorch are in this build")
def test_operators_for_pytorch_need_gpunvme_torch() -> None:
    with pytest.raises(ImportError, match="gpunvme.torch"):
        optimized_ops.register_ops()
