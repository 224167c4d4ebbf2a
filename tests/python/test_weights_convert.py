# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that gpunvme.weights converts while it loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import weights
from gpunvme.weights import numpy as wn

pytestmark = pytest.mark.usefixtures("parser")


# ---- numpy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "F16", np.float16, np.dtype("float16")], ids=str)
@pytest.mark.parametrize("arena", [False, True])
def test_numbers_are_converted_and_others_are_not(tmp_path: Path, dtype: Any,
                                                  arena: bool) -> None:
    numbers = np.random.default_rng(1).normal(size=(300, 500)).astype(np.float32)
    wn.save_file({"x": numbers, "n": np.arange(5), "d": np.ones(3), "e": np.zeros((0, 2), "f4"),
                  "h": numbers.astype(np.float16)}, tmp_path / "x")
    with weights.prefetch(tmp_path / "x", framework="np", dtype=dtype, arena=arena) as loader:
        found = dict(loader)
    assert {name: t.dtype.name for name, t in found.items()} == {
        "x": "float16", "h": "float16", "e": "float16", "n": "int64", "d": "float64"}
    assert found["x"].tobytes() == found["h"].tobytes() == numbers.astype(np.float16).tobytes()
    assert found["e"].shape == (0, 2)


@pytest.mark.parametrize("dtype", ["int8", "float64", "F8_E5M2", 7, "nonsense"])
def test_another_type_is_refused(tmp_path: Path, dtype: Any) -> None:
    wn.save_file({"x": np.ones(3, np.float32)}, tmp_path / "x")
    with pytest.raises(weights.WeightsError, match="dtype"):
        weights.prefetch(tmp_path / "x", framework="np", dtype=dtype)


def test_slices_are_converted(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).normal(size=(30, 50)).astype(np.float32)
    wn.save_file({"x": numbers}, tmp_path / "x")
    plan = {"x": np.s_[3:20, 5:40:3]}
    with weights.prefetch(tmp_path / "x", plan, framework="np", dtype="float16") as loader:
        assert (loader.take("x") == numbers[3:20, 5:40:3].astype(np.float16)).all()


# ---- torch --------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def numbers(torch: Any, tmp_path: Path) -> dict[str, Any]:
    torch.manual_seed(1)
    made = {"f32": torch.randn(400, 300) * 3, "f16": torch.randn(70, 33).half(),
            "bf16": torch.randn(1001).bfloat16() * 1000, "zero": torch.zeros(40),
            "scalar": torch.tensor(-2.5), "empty": torch.zeros(0, 3), "n": torch.arange(9)}
    weights.torch.save_file(made, tmp_path / "x")
    return made


def same(a: Any, b: Any) -> bool:
    import torch

    return bool(a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_load_file_converts_as_torch_does(torch: Any, numbers: dict[str, Any], tmp_path: Path,
                                          dtype: str) -> None:
    kind = getattr(torch, dtype)
    found = weights.torch.load_file(tmp_path / "x", dtype=kind)
    assert found.keys() == numbers.keys()
    assert all(same(t, numbers[name].to(kind) if name != "n" else numbers[name])
               for name, t in found.items())


def test_float8_has_a_scale_that_makes_the_greatest_value_448(
    torch: Any, numbers: dict[str, Any], tmp_path: Path
) -> None:
    found = weights.torch.load_file(tmp_path / "x", dtype=torch.float8_e4m3fn)
    floats = numbers.keys() - {"n"}
    assert found.keys() == numbers.keys() | {f"{name}_scale" for name in floats}
    for name in floats:
        scale = found[f"{name}_scale"]
        assert scale.dtype == torch.float32 and scale.shape == ()
        if numbers[name].numel() and name != "zero":
            assert scale == numbers[name].float().abs().max() / 448
        else:
            assert scale == 1
        assert same(found[name], (numbers[name].float() / scale).to(torch.float8_e4m3fn))


def test_prefetch_has_the_scales_of_what_became_float8(
    torch: Any, numbers: dict[str, Any], tmp_path: Path
) -> None:
    wanted = weights.torch.load_file(tmp_path / "x", dtype=torch.float8_e4m3fn)
    with weights.prefetch(tmp_path / "x", dtype=torch.float8_e4m3fn) as loader:
        assert loader.scale("f32") == wanted["f32_scale"].item()
        assert loader.scale("empty") == 1
        with pytest.raises(weights.WeightsError, match="scale"):
            loader.scale("n")
        assert all(same(t, wanted[name]) for name, t in loader)


def test_a_tensor_without_elements_has_a_scale_also_where_it_is_alone(
    torch: Any, numbers: dict[str, Any], tmp_path: Path
) -> None:
    found = weights.torch.load_file(tmp_path / "x", plan=["empty"], dtype=torch.float8_e4m3fn)
    assert found.keys() == {"empty", "empty_scale"} and found["empty_scale"] == 1


def test_what_has_not_landed_when_a_loader_is_closed_has_no_scale(
    torch: Any, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    with gpunvme.open(f"sim:size=16M,image={image}", "r+") as drive:
        drive.pwrite(wn.save({"large": np.ones(1 << 20, np.float32)}))
    with weights.prefetch(f"sim:image={image},read_latency=300ms", dtype="float8_e4m3fn",
                          checksum=True) as loader:
        pass
    with pytest.raises(weights.WeightsError, match="closed"):
        loader.scale("large")
    with pytest.raises(weights.WeightsError, match="close"):
        loader.checksum("large")


def test_each_slice_has_its_own_scale(torch: Any, numbers: dict[str, Any], tmp_path: Path) -> None:
    plan = {"f32": slice(0, 7)}
    found = weights.torch.load_file(tmp_path / "x", plan=plan, dtype="F8_E4M3")
    assert found["f32_scale"] == numbers["f32"][:7].abs().max() / 448


def test_a_scale_s_name_that_a_tensor_has_is_refused(torch: Any, tmp_path: Path) -> None:
    weights.torch.save_file({"x": torch.ones(3), "x_scale": torch.ones(1)}, tmp_path / "x")
    with pytest.raises(weights.WeightsError, match="x_scale"):
        weights.torch.load_file(tmp_path / "x", dtype=torch.float8_e4m3fn)
    assert weights.torch.load_file(tmp_path / "x", dtype=torch.float16)["x"].dtype == torch.float16


def test_conversion_and_checksums_work_on_a_gpu(torch: Any, gpu: str, numbers: dict[str, Any],
                                                tmp_path: Path) -> None:
    wanted = weights.torch.load_file(tmp_path / "x", dtype=torch.float8_e4m3fn)
    found = weights.torch.load_file(tmp_path / "x", gpu, dtype=torch.float8_e4m3fn)
    assert all(t.is_cuda and same(t.flatten().view(torch.uint8).cpu(),
                                  wanted[name].flatten().view(torch.uint8))
               for name, t in found.items())
    with weights.prefetch(tmp_path / "x", checksum=True) as loader:
        loader.write_manifest(tmp_path / "sums")
    weights.torch.load_file(tmp_path / "x", gpu, manifest=tmp_path / "sums")
