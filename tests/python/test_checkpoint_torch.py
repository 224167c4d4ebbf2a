# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.checkpoint with PyTorch: tensors of all types, optimizers, torch.distributed.

Those marked with ``gpu`` need CUDA; the others run on the CPU.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from gpunvme import UnsupportedError, checkpoint
from gpunvme.checkpoint import Slice, _memory, _state
from gpunvme.checkpoint.dcp import StorageReader, StorageWriter

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DTYPES = [getattr(torch, name) for name in _state._TORCH]


def training(seed: int, device: str = "cpu") -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Linear(50, 7)).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model: Any, optimizer: Any) -> None:
    device = next(model.parameters()).device
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 90, device=device).reshape(3, 30)).square().sum().backward()
    optimizer.step()


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def bits(tensor: Any) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_tensor_of_any_type_comes_back(dtype: Any, snapshot: bool, tmp_path: Path) -> None:
    raw = torch.arange(8 * 15, dtype=torch.uint8) % (2 if dtype == torch.bool else 251)
    tensor = raw.view(dtype).reshape(5, -1)
    state = {"t": tensor, "transposed": tensor.t(), "strided": tensor[::2], "scalar": tensor[0, 0],
             "empty": tensor[:0]}
    if snapshot:
        checkpoint.save_async(state, tmp_path).result(60)
    else:
        checkpoint.save(state, tmp_path)
    loaded = checkpoint.load(tmp_path)
    for name, expected in state.items():
        assert loaded[name].dtype == dtype and loaded[name].shape == expected.shape
        assert bits(loaded[name]) == bits(expected)
    into = {name: torch.zeros_like(value) for name, value in state.items()}
    checkpoint.load(tmp_path, into)
    assert all(bits(into[name]) == bits(expected) for name, expected in state.items())


def test_others_read_tensors_of_torch(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, _ = training(1)
    folder = checkpoint.save(model.state_dict(), tmp_path)
    found = safetensors.load_file(os.path.join(folder, "00000-00000.safetensors"))
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_a_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    model, optimizer = training(1)
    step(model, optimizer)
    saving = checkpoint.save_async(state_of(model, optimizer), tmp_path)
    step(model, optimizer)
    saving.result(60)
    again, optimizer_again = training(2)
    loaded = checkpoint.load(tmp_path)
    again.load_state_dict(loaded["model"])
    optimizer_again.load_state_dict(loaded["optimizer"])
    step(again, optimizer_again)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))


def test_the_state_of_the_generator_and_other_things_of_torch_come_back(tmp_path: Path) -> None:
    state = {"rng": torch.get_rng_state(), "dtype": torch.bfloat16, "size": torch.Size((2, 3)),
             "device": torch.device("cpu"), "parameter": torch.nn.Parameter(torch.ones(3))}
    checkpoint.save(state, tmp_path)
    loaded = checkpoint.load(tmp_path)
    assert torch.equal(loaded.pop("rng"), state.pop("rng"))
    assert torch.equal(loaded.pop("parameter"), state.pop("parameter").detach())
    assert loaded == state and type(loaded["size"]) is torch.Size


@pytest.mark.parametrize(("tensor", "message"), [
    (torch.eye(3).to_sparse(), "sparse"), (torch.empty(3, device="meta"), "meta"),
    (torch.zeros(3, dtype=torch.complex128), "no type for torch.complex128")])
def test_a_tensor_that_has_no_plain_bytes_is_refused(tensor: Any, message: str,
                                                     tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        checkpoint.save_async({"a": tensor}, tmp_path)


def test_columns_of_a_tensor_are_loaded(tmp_path: Path) -> None:
    whole = torch.randn(64, 100).bfloat16()
    checkpoint.save({"w": whole}, tmp_path)
    for columns in (slice(10, 30), slice(0, 100)):
        part = whole[5:60, columns]
        mine = Slice(torch.zeros_like(part.contiguous()), whole.shape, (5, columns.start))
        checkpoint.load(tmp_path, {"w": mine})
        assert torch.equal(mine.tensor, part)


def test_blocks_are_packed_as_in_the_file() -> None:
    """What runs on a GPU before a copy to pinned memory, here on the CPU."""
    tensors = [torch.randn(3, 5), torch.randn(7).bfloat16(), torch.ones(3, dtype=torch.bool),
               torch.randn(4, 4).t(), torch.arange(3)]
    leaves = [_state.leaf_of(str(i), t, ()) for i, t in enumerate(tensors)]
    [chunk] = _memory.cut(0, 4096, leaves)
    buffer = torch.zeros(chunk.nbytes + 8, dtype=torch.uint8)
    _memory._gather(chunk, buffer[8:])
    assert bytes(buffer[8:].numpy()) == b"".join(map(bits, tensors))


@pytest.mark.parametrize("snapshot", ["pinned", "device"])
def test_a_gpu_s_chunks_are_copied_whole(snapshot: Any, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU's tensors, with the CPU in its place: which bytes are copied where."""
    class Nothing:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: Any) -> None:
            pass

        record = synchronize = wait_stream = __init__

    for name in ("Event", "Stream", "stream", "device", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Nothing)
    monkeypatch.setattr(_state.Leaf, "device", property(
        lambda leaf: torch.device("cpu") if leaf.kind == "torch" else None))
    state = {"large": torch.arange(18 << 20, dtype=torch.int32), "host": np.arange(9),
             "small": [torch.randn(n, 3).bfloat16() for n in range(50)],
             "transposed": torch.randn(70, 90).t()}
    expected = {"small": [t.clone() for t in state["small"]], "t": state["transposed"].clone()}
    saving = checkpoint.save_async(state, tmp_path, snapshot=snapshot)
    for tensor in (state["large"], *state["small"], state["transposed"]):
        tensor.zero_()
    loaded = checkpoint.load(saving.result(60))
    assert torch.equal(loaded["large"], torch.arange(18 << 20, dtype=torch.int32))
    assert all(map(torch.equal, loaded["small"], expected["small"]))
    assert torch.equal(loaded["transposed"], expected["t"])
    assert np.array_equal(loaded["host"], np.arange(9))


# ---- On a GPU ---------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize("snapshot", ["pinned", "device"])
@pytest.mark.parametrize("defer", [False, True])
def test_a_snapshot_is_taken_behind_the_stream(snapshot: Any, defer: bool, tmp_path: Path) -> None:
    big = torch.zeros(50 << 20, device="cuda")
    small = [torch.zeros(n, device="cuda", dtype=torch.bfloat16) for n in range(1, 200, 7)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for tensor in (big, *small):
            tensor.fill_(3)
        saving = checkpoint.save_async({"big": big, "small": small}, tmp_path, snapshot=snapshot,
                                       defer=defer)
        if defer:
            saving.wait_snapshot()
        for tensor in (big, *small):
            tensor.fill_(7)
    saving.result(60)
    loaded = checkpoint.load(tmp_path, device="cuda")
    assert loaded["big"].is_cuda and bool((loaded["big"] == 3).all())
    assert all(bool((t == 3).all()) and t.shape == s.shape
               for t, s in zip(loaded["small"], small))
    assert bool((big == 7).all())


@gpu
def test_a_blocking_save_is_behind_the_stream(tmp_path: Path) -> None:
    tensor = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    tensor += 5
    checkpoint.save({"t": tensor, "transposed": tensor.view(1024, 1024).t()}, tmp_path)
    into = {"t": torch.zeros_like(tensor)}
    checkpoint.load(tmp_path, into)
    checkpoint.verify(tmp_path)
    assert bool((into["t"] == 5).all())


@gpu
def test_pinned_memory_is_limited_with_gpu_tensors(tmp_path: Path) -> None:
    tensor = torch.arange(60 << 20, device="cuda", dtype=torch.int32)
    checkpoint.save_async({"t": tensor}, tmp_path, memory=2 * _memory.BLOCK).result(60)
    assert torch.equal(checkpoint.load(tmp_path, device="cuda")["t"], tensor)


@gpu
def test_columns_are_loaded_into_a_gpu(tmp_path: Path) -> None:
    whole = torch.randn(512, 4096, device="cuda")
    checkpoint.save({"w": whole}, tmp_path)
    for columns in (slice(10, 30), slice(1024, 3072)):
        part = whole[5:500, columns]
        mine = Slice(torch.zeros_like(part.contiguous()), whole.shape, (5, columns.start))
        checkpoint.load(tmp_path, {"w": mine})
        assert torch.equal(mine.tensor, part)


# ---- torch.distributed.checkpoint -------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_warnings_of_torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_dcp_saves_and_loads(tmp_path: Path) -> None:
    model, optimizer = training(1)
    step(model, optimizer)
    state = {**state_of(model, optimizer), "epoch": 3}
    folder = tmp_path / "step-0000000003"
    dcp.save(state, storage_writer=StorageWriter(folder))
    other, other_optimizer = training(2)
    step(other, other_optimizer)
    loaded = {**state_of(other, other_optimizer), "epoch": 0}
    dcp.load(loaded, storage_reader=StorageReader(tmp_path))
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    assert loaded["epoch"] == 3 and checkpoint.latest(tmp_path) == str(folder)
    step(model, optimizer)
    step(other, other_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_dcp_saves_what_load_reads_and_loads_what_save_wrote(tmp_path: Path) -> None:
    state = {"w": torch.randn(5, 3), "v": torch.arange(4)}
    dcp.save(state, storage_writer=StorageWriter(tmp_path / "a"))
    loaded = checkpoint.load(tmp_path / "a")
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    checkpoint.verify(tmp_path / "a")
    folder = checkpoint.save(state, tmp_path / "b")
    into = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(into, storage_reader=StorageReader(folder))
    assert all(torch.equal(into[name], state[name]) for name in state)


def test_dcp_without_collectives_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="use_collectives"):
        dcp.save({"n": torch.tensor(1)}, storage_writer=StorageWriter(tmp_path / "a"),
                 use_collectives=False)
    assert not list(tmp_path.iterdir())


def test_dcp_does_not_overwrite_unasked_and_keeps_so_many(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        dcp.save({"n": torch.tensor(number)},
                 storage_writer=StorageWriter(tmp_path / f"step-{number:010}", keep=2))
    assert checkpoint.steps(tmp_path) == [2, 3]
    with pytest.raises(CheckpointException, match="there is this checkpoint already"):
        dcp.save({"n": torch.tensor(9)}, storage_writer=StorageWriter(tmp_path / "step-0000000003"))
    dcp.save({"n": torch.tensor(9)},
             storage_writer=StorageWriter(tmp_path / "step-0000000003", replace=True))
    assert checkpoint.load(tmp_path)["n"] == 9


def test_dcp_saves_in_the_background(tmp_path: Path) -> None:
    tensor = torch.ones(1000)
    future = dcp.async_save({"t": tensor}, storage_writer=StorageWriter(tmp_path / "a"))
    tensor.zero_()
    future.result(60)
    assert bool(checkpoint.load(tmp_path / "a")["t"].all())


def test_dcp_finds_damage(tmp_path: Path) -> None:
    dcp.save({"t": torch.ones(1000)}, storage_writer=StorageWriter(tmp_path / "a"))
    file = tmp_path / "a" / "00000-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointException, match="not those that were saved"):
        dcp.load({"t": torch.zeros(1000)}, storage_reader=StorageReader(tmp_path / "a"))


RANKS = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from gpunvme import checkpoint
from gpunvme.checkpoint.dcp import StorageReader, StorageWriter

root, what = sys.argv[1], sys.argv[2]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
whole = torch.arange(70.0).reshape(7, 10)
plain = torch.arange(5.0)

def state(rows, columns, factor=1):
    return {"rows": distribute_tensor(whole * factor, mesh, rows),
            "columns": distribute_tensor(whole * factor, mesh, columns),
            "same": distribute_tensor(plain * factor, mesh, [Replicate()]), "plain": plain * factor,
            "rank": rank}

if what == "save":
    saved = state([Shard(0)], [Shard(1)])
    dcp.save(saved, storage_writer=StorageWriter(root + "/dcp"))
    ranks = checkpoint.Ranks.of_group()
    for step in range(3):
        saving = checkpoint.save_async(saved, root + "/own", step=step, ranks=ranks, keep=2)
        saving.result(60)
else:
    for kind in ("dcp", "own"):
        found = state([Shard(1)], [Shard(0)], 0)
        if kind == "dcp":
            dcp.load(found, storage_reader=StorageReader(root + "/dcp"))
        else:
            checkpoint.load(root + "/own", found, rank=rank)
            assert found["rank"] == (rank if rank < 2 else 0)
        assert torch.equal(found["rows"].full_tensor(), whole)
        assert torch.equal(found["columns"].full_tensor(), whole)
        assert torch.equal(found["same"].full_tensor(), plain)
        assert torch.equal(found["plain"], plain)
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(world: int, *arguments: object) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    programs = [subprocess.Popen(
        [sys.executable, "-c", RANKS, *map(str, arguments)], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                          "WORLD_SIZE": str(world)}) for rank in range(world)]
    try:
        errors = [program.communicate(timeout=120)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert [program.returncode for program in programs] == [0] * world, "\n".join(errors)


def test_what_two_ranks_save_is_loaded_by_one_and_by_three(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, "save")
    assert checkpoint.steps(tmp_path / "own") == [1, 2]
    run_ranks(3, tmp_path, "load")
    for kind in ("dcp", "own"):
        loaded = checkpoint.load(tmp_path / kind)
        assert np.array_equal(loaded["rows"], np.arange(70.0).reshape(7, 10))
        checkpoint.verify(tmp_path / kind)
    written = checkpoint._files.read_manifest(tmp_path / "own/step-0000000002")["tensors"]
    assert len(written["same"]["slices"]) == 1  # of what is replicated, one rank's
