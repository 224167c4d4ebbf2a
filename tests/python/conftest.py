# SPDX-License-Identifier: BSD-3-Clause
"""Files and stores that tests read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpunvme

NBYTES = 1 << 20


@pytest.fixture(scope="session")
def data() -> bytes:
    """The bytes of ``path``."""
    return np.random.default_rng(17).bytes(NBYTES)


@pytest.fixture
def path(tmp_path: Path, data: bytes) -> str:
    file = tmp_path / "data"
    file.write_bytes(data)
    return str(file)


@pytest.fixture
def store(path: str) -> Iterator[gpunvme.Store]:
    with gpunvme.open(path, "r+") as opened:
        yield opened


@pytest.fixture
def slow() -> Iterator[gpunvme.Store]:
    """A drive whose reads take 300 ms."""
    with gpunvme.open("sim:size=16M,read_latency=300ms") as opened:
        yield opened


@pytest.fixture
def stuck() -> Iterator[gpunvme.Store]:
    """A drive that answers no read until it is aborted, after 1 s."""
    with gpunvme.open("sim:size=16M,fault=lose:read?timeout=3s") as opened:
        yield opened


@pytest.fixture(scope="session")
def parser() -> None:
    """What parses the headers of weights."""
    try:
        gpunvme.weights.safe_open("/nonexistent/file", "np")
    except FileNotFoundError:
        return
    except gpunvme.UnsupportedError as why:
        pytest.skip(str(why))


@pytest.fixture
def gpu() -> str:
    """PyTorch's name of a GPU."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    if not gpunvme.info().gpus:
        pytest.skip("this build of gpunvme has no CUDA")
    return "cuda"
