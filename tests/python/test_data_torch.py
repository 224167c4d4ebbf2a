# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data with loaders of torch and torchdata, DDP, torch.compile and tqdm."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpunvme import data

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

N, BATCH = 200, 32


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[data.Dataset]:
    np.save(tmp_path / "x.npy", np.arange(N, dtype=np.int32)[:, None])
    with data.Dataset(tmp_path / "x.npy") as found:
        yield found


def loader_of(rows: data.Dataset, **options: Any) -> data.Loader:
    return data.Loader(rows, BATCH, **{"seed": 3, **options})


def numbers(batches: Any) -> list[list[int]]:
    return [batch[:, 0].tolist() for batch in batches]


# ---- Loaders of torch and torchdata -------------------------------------------------------------


def test_torchs_loader_yields_the_batches_of_an_epoch(rows: data.Dataset) -> None:
    loader = torch.utils.data.DataLoader(data.iterable_dataset(loader_of(rows)), batch_size=None)
    expected = loader_of(rows)
    for _ in range(2):
        assert numbers(loader) == numbers(expected)
    assert len(loader) == len(expected)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork() with threads
def test_torchs_worker_process_is_refused(rows: data.Dataset) -> None:
    loader = torch.utils.data.DataLoader(data.iterable_dataset(loader_of(rows)), batch_size=None,
                                         num_workers=1)
    with pytest.raises(RuntimeError, match="ArgumentError: .*num_workers=0"):  # torch's own
        next(iter(loader))


def stateful(rows: data.Dataset, **options: Any) -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader",
                                    reason="torchdata is not installed")
    return torchdata.StatefulDataLoader(data.iterable_dataset(loader_of(rows, **options)),
                                        batch_size=None)


def saved(state: Any) -> Any:
    """A state that has been in a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("steps", [0, 1, 4, 7])
def test_a_stateful_loader_goes_on_in_the_middle_of_an_epoch(rows: data.Dataset,
                                                             steps: int) -> None:
    undisturbed = stateful(rows)
    expected = [numbers(undisturbed), numbers(undisturbed)]
    first = stateful(rows)
    iterator = iter(first)
    found = numbers(next(iterator) for _ in range(steps))
    state = saved(first.state_dict())
    second = stateful(rows, depth=2)
    second.load_state_dict(state)
    assert [found + numbers(second), numbers(second)] == expected


def test_a_stateful_loader_goes_on_behind_an_epoch(rows: data.Dataset) -> None:
    undisturbed = stateful(rows)
    expected = [numbers(undisturbed), numbers(undisturbed)]
    first = stateful(rows)
    assert numbers(first) == expected[0]
    second = stateful(rows)
    second.load_state_dict(saved(first.state_dict()))
    assert numbers(second) == expected[1]


def test_a_stateful_loader_may_be_set_back(rows: data.Dataset) -> None:
    loader = stateful(rows)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = numbers(iterator)
    loader.load_state_dict(state)
    assert numbers(loader) == rest


# ---- torch.compile ------------------------------------------------------------------------------


@contextmanager
def compiled_once(step: Any, **options: Any) -> Iterator[Any]:
    """A compiled step, whose graph breaks and recompilations are errors."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield torch.compile(step, backend="aot_eager", fullgraph=True, **options)
    torch._dynamo.reset()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    np.random.default_rng(1).integers(0, 50, 20_000, np.uint16).tofile(tmp_path / "t.bin")
    return tmp_path / "t.bin"


def test_batches_of_one_shape_compile_a_step_once(text: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))

    def step(inputs: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    with (data.Dataset(text, seq_tokens=32, overlap_tokens=1) as tokens,
          compiled_once(step) as compiled):
        loader = data.Loader(tokens, 17, last="drop", collate=data.Tokens())
        for _ in range(2):
            for inputs, targets in loader:
                loss = compiled(inputs, targets)
                loss.backward()
                assert torch.equal(loss, step(inputs, targets))


def test_packed_batches_of_any_number_of_rows_compile_a_step_once(text: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))

    def step(inputs: Any, targets: Any, cu_seqlens: Any) -> Any:
        at = torch.arange(inputs.numel())
        begin = cu_seqlens[torch.bucketize(at, cu_seqlens, right=True) - 1]
        position = (at - begin)[:, None] / inputs.numel()
        logits = model(inputs.flatten()) + position
        return torch.nn.functional.cross_entropy(logits, targets.flatten())

    ends = np.sort(np.random.default_rng(2).choice(20_000, 400, replace=False))
    with (data.Dataset.from_ranges(text, None, 2 * ends[:-1], 2 * np.diff(ends)) as documents,
          compiled_once(step, dynamic=True) as compiled):
        loader = data.Loader(documents, 16, layout="packed", row_nbytes=128, dtype="uint16",
                             last="drop", collate=data.Tokens(cu_seqlens=True))
        sizes = set()
        for inputs, targets, cu_seqlens, _ in loader:
            compiled(inputs, targets, cu_seqlens).backward()
            sizes.add((inputs.shape, cu_seqlens.shape))
    assert len(sizes) > 3


# ---- Several processes --------------------------------------------------------------------------


# Trains in one job after the other, each with processes of its own that load the checkpoint. They
# are forked, since importing torch takes longer than all that they do.
JOBS = """
import json, os, sys
from datetime import timedelta
import torch
import torch.distributed as dist
import torch._dynamo  # each rank would import it
from gpunvme import data

def train(path, checkpoint, world, steps, rank):
    dist.init_process_group("gloo", init_method=f"file://{checkpoint}.{world}", rank=rank,
                            world_size=world, timeout=timedelta(seconds=60))
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1, dtype=torch.float64)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    loader = data.Loader(data.Dataset(path), 24, seed=5)  # its part is torch.distributed's rank's
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    seen = []
    while len(seen) < steps:
        for batch in loader.batches():
            x = batch.data
            loss = (ddp(x[:, :4]) - x[:, 4:]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append([batch.epoch, *batch.indices.tolist()])
            if len(seen) == steps:
                break
    dist.barrier()  # all have loaded the checkpoint
    if rank == 0:
        torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, checkpoint)
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    with open(f"{checkpoint}.{world}.{rank}.json", "w") as file:
        json.dump([seen, loader.state_dict(), weights.tolist()], file)
    dist.destroy_process_group()

torch.set_num_threads(1)
for job in json.loads(sys.argv[1]):
    ranks = []
    for rank in range(job["world"]):
        pid = os.fork()
        if not pid:
            train(**job, rank=rank)
            sys.exit()
        ranks.append(pid)
    if any([os.waitpid(pid, 0)[1] for pid in ranks]):
        sys.exit("a rank has failed")
"""

SAMPLES, EPOCH_STEPS = 240, 10


def told_by(checkpoint: Path, world: int) -> tuple[Any, Any, Any]:
    """The samples of each step of a job, and the state and weights that it has ended with."""
    found = [json.loads(checkpoint.with_name(f"{checkpoint.name}.{world}.{rank}.json").read_text())
             for rank in range(world)]
    assert all(one[1:] == found[0][1:] for one in found), "ranks have one state and one model"
    steps = []
    for parts in zip(*(one[0] for one in found)):
        assert len({part[0] for part in parts}) == 1, "ranks are in one epoch"
        assert len({len(part) for part in parts}) == 1, "parts have one size"
        steps.append([parts[0][0], *(i for part in parts for i in part[1:])])
    return steps, found[0][1], found[0][2]


def test_a_training_of_two_ranks_goes_on_with_three(tmp_path: Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    x = np.random.default_rng(3).random((SAMPLES, 4))
    np.save(tmp_path / "x.npy", np.concatenate([x, x @ [[1.0], [2], [3], [4]]], 1))
    jobs = [{"path": str(tmp_path / "x.npy"), "checkpoint": str(tmp_path / name), "world": world,
             "steps": steps} for name, world, steps in (("elastic", 2, 7), ("elastic", 3, 8),
                                                        ("alone", 1, 15))]
    subprocess.run([sys.executable, "-c", JOBS, json.dumps(jobs)], check=True, timeout=240)
    first, _, _ = told_by(tmp_path / "elastic", 2)
    second, state, weights = told_by(tmp_path / "elastic", 3)
    undisturbed = told_by(tmp_path / "alone", 1)
    assert first + second == undisturbed[0] and state == undisturbed[1]
    epoch = [i for step in (first + second)[:EPOCH_STEPS] for i in step[1:]]
    assert sorted(epoch) == list(range(SAMPLES))
    np.testing.assert_allclose(weights, undisturbed[2], rtol=1e-12)


# ---- tqdm ---------------------------------------------------------------------------------------


def test_a_bar_shows_how_much_of_the_epoch_is_done(rows: data.Dataset) -> None:
    tqdm = pytest.importorskip("tqdm", reason="tqdm is not installed").tqdm
    loader = loader_of(rows)
    next(iter(loader))
    printed = io.StringIO()
    bar = tqdm(loader, file=printed, initial=loader.state_dict()["taken"] // BATCH)
    for _ in bar:
        pass
    assert (bar.total, bar.n) == (7, 7)
    assert "100%" in printed.getvalue() and "7/7" in printed.getvalue()
