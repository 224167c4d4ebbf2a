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


# ---- Documents: samples of different lengths ----------------------------------------------------

LENGTHS = (5, 1, 0, 8, 3, 2, 8, 4)
ROW = 7  # tokens of a row of "packed"


def document(i: int) -> list[int]:
    return [100 * (i + 1) + at for at in range(LENGTHS[i])]


@pytest.fixture
def documents(tmp_path: Path) -> Iterator[data.Dataset]:
    np.array(sum(map(document, range(len(LENGTHS))), []), np.uint16).tofile(tmp_path / "d")
    ends = 2 * np.cumsum(LENGTHS)
    with data.Dataset.from_ranges(tmp_path / "d", None, ends - 2 * np.array(LENGTHS),
                                  2 * np.array(LENGTHS)) as found:
        yield found


def batches_of(documents: data.Dataset, layout: Any, collate: Any, framework: Any = "np",
               **options: Any) -> list[Any]:
    row_nbytes = {"packed": 2 * ROW, "padded": 16}.get(layout, 0)
    loader = data.Loader(documents, 5, layout=layout, row_nbytes=row_nbytes, dtype="uint16",
                         framework=framework, collate=collate, seed=4, **options)
    return list(loader)


def expected_of(order: list[int], size: int, ignore: int) -> tuple[list[int], list[int]]:
    """Documents one behind the other, and padding up to ``size``."""
    inputs = sum((document(i) for i in order), [])
    targets = sum((document(i)[1:] + [ignore] * bool(LENGTHS[i]) for i in order), [])
    padding = size - len(inputs)
    return inputs + [0] * padding, targets + [ignore] * padding


@pytest.fixture(params=["np", "pt"])
def framework(request: pytest.FixtureRequest) -> str:
    if request.param == "pt":
        pytest.importorskip("torch")
    return str(request.param)


@pytest.mark.parametrize("layout", ["ragged", "packed"])
def test_targets_stay_within_documents(documents: data.Dataset, layout: str,
                                       framework: str) -> None:
    collate = data.Tokens(ignore=-7)
    found = batches_of(documents, layout,
                       lambda batch: (batch.indices.tolist(), *collate(batch)), framework)
    assert len(found) == 2
    for order, inputs, targets in found:
        assert inputs.shape == targets.shape
        assert layout == "ragged" or inputs.shape[1] == ROW
        flat = inputs.reshape(-1).tolist()
        assert (flat, targets.reshape(-1).tolist()) == expected_of(order, len(flat), -7)


def test_padding_has_no_targets(documents: data.Dataset, framework: str) -> None:
    collate = data.Tokens(dtype="int32")
    found = batches_of(documents, "padded",
                       lambda batch: (batch.indices.tolist(), *collate(batch)), framework)
    for order, inputs, targets in found:
        for i, *pair in zip(order, inputs.tolist(), targets.tolist()):
            assert tuple(pair) == expected_of([i], 8, -100)


def test_a_document_that_is_cut_off_ends_where_it_is_cut(documents: data.Dataset) -> None:
    loader = data.Loader(documents, 8, layout="padded", row_nbytes=8, dtype="uint16",
                         shuffle=False, framework="np", collate=data.Tokens())
    inputs, targets = next(iter(loader))
    assert inputs[3].tolist() == document(3)[:4]
    assert targets[3].tolist() == [*document(3)[1:4], -100]


def test_tokens_come_with_the_boundaries_of_documents(documents: data.Dataset,
                                                      framework: str) -> None:
    for within in (True, "rows"):
        collate = data.Tokens(cu_seqlens=within)  # type: ignore[arg-type]
        for batch, made in batches_of(documents, "packed",
                                      lambda batch: (batch, collate(batch)), framework):
            _, _, cu_seqlens, longest = made
            wanted = batch.cu_seqlens(rows=within == "rows")
            assert cu_seqlens.tolist() == wanted.tolist()
            assert longest == max(np.diff(wanted)) and type(longest) is int
            assert type(cu_seqlens) is type(made[0])


def test_a_rank_without_documents_gets_empty_tensors(documents: data.Dataset,
                                                     framework: str) -> None:
    for layout in ("ragged", "packed", "padded"):
        inputs, targets = batches_of(documents, layout, data.Tokens(), framework, rank=0,
                                     world=5)[1]
        assert inputs.shape == targets.shape and 0 in inputs.shape


def test_documents_reach_a_gpu_without_a_wait(documents: data.Dataset, gpu: str) -> None:
    import torch

    def collate(batch: data.Batch) -> Any:
        make = data.Tokens(cu_seqlens=batch.layout != "padded")
        make(batch)  # loads kernels and allocates
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = make(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert not torch.cuda.current_stream().query(), "it has waited"
        return found[:2]

    for layout in ("ragged", "packed", "padded"):
        for on_gpu, on_cpu in zip(batches_of(documents, layout, collate, "pt", device=gpu),
                                  batches_of(documents, layout, data.Tokens(), "np")):
            for one, other in zip(on_gpu, on_cpu):
                assert one.is_cuda and one.tolist() == other.tolist()


def test_documents_go_on_the_stream_that_is_named(documents: data.Dataset, gpu: str) -> None:
    import torch

    expected = batches_of(documents, "packed", data.Tokens(), "np")
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(torch.cuda.Stream()):  # busy: what is put there is done too late
            torch.cuda._sleep(200_000_000)
            found = batches_of(documents, "packed", data.Tokens(stream=stream), "pt", device=gpu,
                               stream=stream)
        with torch.cuda.stream(stream):
            for on_gpu, on_cpu in zip(found, expected):
                assert [one.tolist() for one in on_gpu] == [one.tolist() for one in on_cpu]


@pytest.mark.parametrize("kind", ["images", "tokens"])
def test_tensors_are_allocated_on_the_stream_that_is_named(images: data.Dataset,
                                                           tokens: data.Dataset, gpu: str,
                                                           kind: str) -> None:
    """Otherwise a kernel could write to memory that work on the current stream still reads."""
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    found = (made(images, data.Images(stream=stream), "pt", device=gpu, stream=stream)
             if kind == "images" else
             made(tokens, data.Tokens(stream=stream), "pt", device=gpu, stream=stream)[0])
    segments = torch.cuda.memory_snapshot()
    for tensor in found:
        assert [segment["stream"] for segment in segments if segment["address"]
                <= tensor.data_ptr() < segment["address"] + segment["total_size"]] == [
                    stream.cuda_stream]


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


@pytest.mark.parametrize("options", [
    {"dtype": "float32"}, {"ignore": 1 << 31}, {"cu_seqlens": "columns"}])
def test_bad_options_of_tokens_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(gpunvme.ArgumentError):
        data.Tokens(**options)


@pytest.mark.parametrize("layout", ["rows", "padded"])
def test_boundaries_of_rows_are_refused(tokens: data.Dataset, layout: Any) -> None:
    with pytest.raises(gpunvme.ArgumentError, match=f'layout "{layout}"'):
        made(tokens, data.Tokens(cu_seqlens=True), layout=layout,
             row_nbytes=18 if layout == "padded" else 0)
