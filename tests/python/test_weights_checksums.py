# SPDX-License-Identifier: BSD-3-Clause
"""Checksums of tensors where they have landed, and manifests of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import _lib, weights
from gpunvme.weights import numpy as wn

pytestmark = pytest.mark.usefixtures("parser")

TENSORS = {"a": np.arange(1000, dtype=np.int64), "b": np.ones((300, 7), np.float32),
           "large": np.random.default_rng(1).integers(0, 256, 3 << 20).astype(np.uint8),
           "empty": np.zeros((0, 3)), "scalar": np.array(2.5)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    wn.save_file(TENSORS, tmp_path / "x")
    return tmp_path / "x"


@pytest.fixture
def manifest(file: Path, tmp_path: Path) -> Path:
    with weights.prefetch(file, framework="np", checksum=True) as loader:
        loader.write_manifest(tmp_path / "sums")
    return tmp_path / "sums"


def checksum(array: np.ndarray[Any, Any]) -> int:
    data = array.tobytes()
    return int(_lib.lib.gpunvme_mem_checksum_host(data, len(data)))


def damage(file: Path, name: str) -> None:
    """Flips a bit in the last byte of a tensor."""
    with weights.safe_open(file, "np") as f:
        last = f.get_tensor(name).tobytes()
    data = bytearray(file.read_bytes())
    data[data.rindex(last) + len(last) - 1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("arena", [False, True])
def test_prefetch_has_the_checksum_of_each_tensor(file: Path, arena: bool) -> None:
    with weights.prefetch(file, framework="np", arena=arena, checksum=True) as loader:
        assert {name: loader.checksum(name) for name in loader.names()} == {
            name: checksum(array) for name, array in TENSORS.items()}
        assert dict(loader).keys() == TENSORS.keys()


def test_the_checksum_of_a_slice_is_that_of_its_bytes(file: Path) -> None:
    with weights.prefetch(file, {"b": np.s_[:, 2:5]}, framework="np", checksum=True) as loader:
        assert loader.checksum("b") == checksum(TENSORS["b"][:, 2:5])


def test_there_are_no_checksums_unless_asked_for(file: Path, tmp_path: Path) -> None:
    with weights.prefetch(file, framework="np") as loader:
        for name in loader.names():
            with pytest.raises(weights.WeightsError, match="checksum=True"):
                loader.checksum(name)
        with pytest.raises(weights.WeightsError, match="checksum"):
            loader.write_manifest(tmp_path / "sums")
    assert not (tmp_path / "sums").exists()


def test_a_file_passes_the_check_of_its_manifest(file: Path, manifest: Path) -> None:
    with weights.prefetch(file, framework="np", arena=True, checksum=True) as loader:
        loader.check_manifest(manifest)
        assert len(dict(loader)) == len(TENSORS)
    with weights.prefetch(file, ["a", "empty"], framework="np", checksum=True) as loader:
        loader.check_manifest(manifest)


@pytest.mark.parametrize("name", ["a", "large", "scalar"])
def test_a_manifest_finds_a_tensor_that_was_damaged(file: Path, manifest: Path, name: str) -> None:
    damage(file, name)
    with weights.prefetch(file, framework="np", checksum=True) as loader:
        with pytest.raises(gpunvme.Error, match=f'"{name}"') as why:
            loader.check_manifest(manifest)
    assert why.value.name == "GPUNVME_ERR_VERIFY"


def test_slices_and_converted_tensors_have_no_place_in_a_manifest(file: Path, manifest: Path,
                                                                  tmp_path: Path) -> None:
    for plan, dtype in (({"b": np.s_[:5]}, None), (["b"], "float16")):
        with weights.prefetch(file, plan, framework="np", dtype=dtype, checksum=True) as loader:
            with pytest.raises(weights.WeightsError, match='"b"'):
                loader.check_manifest(manifest)
            with pytest.raises(weights.WeightsError, match='"b"'):
                loader.write_manifest(tmp_path / "other")


def test_a_manifest_that_is_not_there_or_lacks_a_tensor_is_not_found(
    file: Path, manifest: Path, tmp_path: Path
) -> None:
    wn.save_file({**TENSORS, "more": np.ones(2)}, file)
    with weights.prefetch(file, framework="np", checksum=True) as loader:
        with pytest.raises(FileNotFoundError):
            loader.check_manifest(tmp_path / "none")
        with pytest.raises(FileNotFoundError, match="more"):
            loader.check_manifest(manifest)


def test_load_file_compares_with_a_manifest(file: Path, manifest: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from gpunvme.weights import torch as wt

    assert wt.load_file(file, manifest=manifest).keys() == TENSORS.keys()
    damage(file, "large")
    with pytest.raises(gpunvme.Error, match='"large"'):
        wt.load_file(file, manifest=manifest)


def test_load_file_reads_no_tensor_without_its_manifest(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from gpunvme.weights import torch as wt

    with weights.safe_open(file, "pt") as f:
        before = f.bytes_read()
        with pytest.raises(FileNotFoundError):
            wt.load_file(f, manifest=tmp_path / "none")
        (tmp_path / "damaged").write_text("{")
        with pytest.raises(weights.WeightsError):
            wt.load_file(f, manifest=tmp_path / "damaged")
        assert f.bytes_read() == before


def test_a_manifest_has_names_and_checksums_in_hexadecimal(file: Path, manifest: Path) -> None:
    assert '"large"' in manifest.read_text()
    assert f"{checksum(TENSORS['large']):016x}" in manifest.read_text()
