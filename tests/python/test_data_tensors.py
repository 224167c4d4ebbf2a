# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data.Images and Tokens: a model's tensors of raw batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import data

N, SHAPE = 20, (4, 6, 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture
def raw() -> Any:
    return np.random.default_rng(1).integers(0, 256, (N, *SHAPE), np.uint8)


@pytest.fixture
def images(raw: Any, tmp_path: Path) -> Iterator[data.Dataset]:
    np.save(tmp_path / "images.npy", raw)
    with data.Dataset(tmp_path / "images.npy") as found:
        yield found


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[data.Dataset]:
    np.arange(65536 - 81, 65536, dtype=np.uint16).tofile(tmp_path / "t.bin")
    with data.Dataset(tmp_path / "t.bin", seq_tokens=8, overlap_tokens=1) as found:
        yield found


def made(dataset: data.Dataset, collate: Any, framework: Any = "np", **options: Any) -> list[Any]:
    options = {"shuffle": False, "framework": framework, **options}
    return list(data.Loader(dataset, 8, collate=collate, **options))


def test_images_are_normalised_with_their_channels_first(images: data.Dataset, raw: Any) -> None:
    found = np.concatenate(made(images, data.Images(scale=1 / 255, mean=MEAN, std=STD)))
    expected = ((raw / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
    assert found.dtype == np.float32 and found.shape == (N, 3, 4, 6)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_images_may_keep_their_layout(images: data.Dataset, raw: Any) -> None:
    found = np.concatenate(made(images, data.Images(dtype="float16", layout="hwc")))
    assert found.dtype == np.float16
    assert (found == raw).all()


def test_images_have_the_shape_that_is_said(images: data.Dataset, raw: Any) -> None:
    found = np.concatenate(made(images, data.Images((6, 4, 3))))
    assert (found == raw.reshape(N, 6, 4, 3).transpose(0, 3, 1, 2)).all()


def test_targets_are_one_token_further(tokens: data.Dataset) -> None:
    batches = made(tokens, data.Tokens())
    inputs = np.concatenate([batch[0] for batch in batches])
    targets = np.concatenate([batch[1] for batch in batches])
    assert inputs.dtype == targets.dtype == np.int64 and inputs.shape[1] == 8
    assert (targets == inputs + 1).all() and targets.max() == 65535
    assert inputs.ravel().tolist() == list(range(65536 - 81, 65536 - 81 + inputs.size))


def test_torch_gets_tensors_of_torch(images: data.Dataset, tokens: data.Dataset,
                                     raw: Any) -> None:
    torch = pytest.importorskip("torch")
    found = torch.cat(made(images, data.Images(dtype=torch.bfloat16), "pt"))
    assert found.dtype == torch.bfloat16
    assert (found == torch.from_numpy(raw).permute(0, 3, 1, 2)).all()
    inputs, targets = made(tokens, data.Tokens(dtype=torch.int32), "pt")[0]
    assert inputs.dtype == torch.int32 and (targets == inputs + 1).all()


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_a_gpu_makes_what_the_cpu_makes(images: data.Dataset, tokens: data.Dataset,
                                        framework: str) -> None:
    if framework == "pt":
        pytest.importorskip("torch")
    for dataset, collate in ((images, data.Images(scale=1 / 255, mean=MEAN, std=STD)),
                             (tokens, data.Tokens())):
        for on_cpu, on_gpu in zip(made(dataset, collate, "np"),
                                  made(dataset, collate, framework, device="cuda")):
            pairs = zip(on_cpu, on_gpu) if isinstance(on_cpu, tuple) else [(on_cpu, on_gpu)]
            for cpu, gpu in pairs:
                if isinstance(gpu, gpunvme.DeviceMemory):
                    gpu = gpu.copy_to_host()
                elif framework == "pt":
                    gpu = gpu.cpu().numpy()
                assert (cpu == gpu).all()


def test_a_tensor_outlives_its_batch_and_its_loader(images: data.Dataset, raw: Any) -> None:
    loader = data.Loader(images, N, shuffle=False, framework="np", collate=data.Images())
    found = next(iter(loader))
    loader.close()
    del loader
    assert (found == raw.transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize("options", [
    {"dtype": "int64"}, {"dtype": "nothing"}, {"layout": "whc"}, {"scale": 0.0},
    {"scale": float("nan")}, {"std": (1, 0, 1)}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(gpunvme.ArgumentError):
        data.Images(**options)


@pytest.mark.parametrize("collate", [
    data.Images((4, 6, 4)), data.Images(mean=(1, 2)), data.Images((72,)), data.Tokens(),
    data.Images((1, 1, 72))])
def test_batches_that_are_something_else_are_refused(images: data.Dataset, collate: Any) -> None:
    with pytest.raises(gpunvme.ArgumentError):
        made(images, collate)


def test_tokens_have_a_type_that_counts() -> None:
    with pytest.raises(gpunvme.ArgumentError):
        data.Tokens(dtype="float32")
