# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.data.Loader: batches as arrays and tensors, their memory, states, bad input."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpunvme
from gpunvme import data

N = 500


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[data.Dataset]:
    """Row i of 6 numbers has i in all places."""
    np.save(tmp_path / "x.npy", np.repeat(np.arange(N, dtype=np.int32)[:, None], 6, 1))
    with data.Dataset(tmp_path / "x.npy") as found:
        yield found


def loader_of(rows: data.Dataset, batch_size: int = 32, **options: Any) -> data.Loader:
    return data.Loader(rows, batch_size, **{"framework": "np", **options})


def test_an_epoch_has_each_sample_once(rows: data.Dataset) -> None:
    loader = loader_of(rows, seed=1)
    for _ in range(2):
        found = [np.array(batch) for batch in loader]
        assert len(found) == len(loader) == 16
        assert found[0].shape == (32, 6) and found[0].dtype == np.int32
        all_rows = np.concatenate(found)
        assert sorted(all_rows[:, 0].tolist()) == list(range(N))
        assert (all_rows == all_rows[:, :1]).all()


def test_epochs_and_seeds_have_orders_of_their_own(rows: data.Dataset) -> None:
    def first(**options: Any) -> list[int]:
        with loader_of(rows, **options) as loader:
            batch = loader.next_batch()
            assert batch is not None
            return list(batch.indices)

    assert first(seed=1) == first(seed=1)
    assert first(seed=1) != first(seed=2)
    assert first(shuffle=False) == list(range(32))
    loader = loader_of(rows, seed=1)
    loader.set_epoch(1)
    batch = loader.next_batch()
    assert batch is not None and batch.epoch == 1 and list(batch.indices) != first(seed=1)


def test_ranks_share_each_batch(rows: data.Dataset) -> None:
    parts = [[list(batch.indices) for batch in loader_of(rows, rank=r, world=3).batches()]
             for r in range(3)]
    together = [sum(batch, []) for batch in zip(*parts)]
    assert together == [list(batch.indices) for batch in loader_of(rows).batches()]


def test_a_state_goes_on_behind_what_the_caller_got(rows: data.Dataset) -> None:
    loader = loader_of(rows, seed=3, depth=8)
    for _ in range(5):
        loader.next_batch()
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["taken"] == 160
    rest = [list(batch.indices) for batch in loader.batches()]
    other = loader_of(rows, seed=99, depth=2)
    other.load_state_dict(state)
    assert [list(batch.indices) for batch in other.batches()] == rest


def test_a_loop_that_was_left_goes_on(rows: data.Dataset) -> None:
    loader = loader_of(rows, shuffle=False)
    for batch in loader:
        assert batch[0, 0] == 0
        break
    assert [int(batch[0, 0]) for batch in loader] == list(range(32, N, 32))


@pytest.mark.parametrize("state", [{}, {"fingerprint": 1, "seed": 0, "epoch": 0, "taken": 0}, None])
def test_states_of_others_are_refused(rows: data.Dataset, state: Any) -> None:
    loader = loader_of(rows)
    with pytest.raises(gpunvme.ArgumentError):
        loader.load_state_dict(state)
    assert loader.state_dict()["taken"] == 0


EPOCHS = 12  # more than a pipe holds: a job does not end while nobody reads what it prints
JOB = """
import json, sys
from gpunvme import data
path, world, state, epochs = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
with data.Dataset(path) as rows:
    ranks = [data.Loader(rows, 24, seed=5, rank=rank, world=world, framework="np")
             for rank in range(world)]
    for loader in ranks if state else []:
        loader.load_state_dict(state)
    while ranks[0].state_dict()["epoch"] < epochs:
        batches = [batch for batch in [loader.next_batch() for loader in ranks] if batch is not None]
        samples = [[batch.epoch, int(i), row.tolist()] for batch in batches
                   for i, row in zip(batch.indices, batch.data)]
        print(json.dumps([ranks[0].state_dict(), samples]), flush=True)
"""


def in_shared_memory(pid: int) -> list[str]:
    """What a process has open or mapped there."""
    held = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            held.append(os.readlink(fd))
    held += Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [one for one in held if "/dev/shm" in one]


def killed_job(rows: data.Dataset, world: int, state: Any, after: int) -> list[Any]:
    """The steps that a job printed, each with the state after it. It is killed after so many or
    some more, and may have printed a part of the last one."""
    path = rows.files[0].removeprefix("file:")
    args = [sys.executable, "-c", JOB, path, str(world), json.dumps(state), str(EPOCHS)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        lines = [job.stdout.readline() for _ in range(after)]
        assert not in_shared_memory(job.pid), "it would stay there"
        job.send_signal(signal.SIGKILL)
        lines += job.stdout.readlines()
    assert job.returncode == -signal.SIGKILL
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_jobs_that_are_killed_go_on_with_any_number_of_ranks(rows: data.Dataset) -> None:
    def rest(state: Any) -> list[Any]:
        loader = loader_of(rows, 24, seed=5)
        if state:
            loader.load_state_dict(state)
        epochs = range(loader.state_dict()["epoch"], EPOCHS)
        return [[batch.epoch, int(i), row.tolist()] for _ in epochs for batch in loader.batches()
                for i, row in zip(batch.indices, batch.data)]

    first = killed_job(rows, 8, None, 9)
    second = killed_job(rows, 3, first[-1][0], 1)
    found = [sample for _, samples in first + second for sample in samples]
    assert len(found) < EPOCHS * N
    assert found + rest(second[-1][0]) == rest(None)


# ---- Memory -------------------------------------------------------------------------------------


def test_memory_of_a_batch_is_used_again_when_it_is_gone(rows: data.Dataset) -> None:
    loader = loader_of(rows, 10, depth=2)
    addresses = {batch.ctypes.data for batch in loader}
    assert len(addresses) <= 4


def test_batches_that_are_kept_stay_as_they_are(rows: data.Dataset) -> None:
    loader = loader_of(rows, 10, depth=2, shuffle=False)
    kept = list(loader)
    assert [int(batch[0, 0]) for batch in kept] == list(range(0, N, 10))
    part = kept[3][2:4]
    del kept
    for _ in loader:
        gc.collect()
    assert part[:, 0].tolist() == [32, 33]


def test_memory_outlives_a_closed_loader(rows: data.Dataset) -> None:
    with loader_of(rows, shuffle=False) as loader:
        batch = next(iter(loader))
    del loader
    gc.collect()
    assert batch[31, 0] == 31
    del batch
    gc.collect()


def test_a_loader_reads_on_when_its_data_set_is_closed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100).reshape(50, 2))
    with data.Dataset(tmp_path / "x.npy") as rows:
        loader = loader_of(rows, 5, depth=1)
    with pytest.raises(gpunvme.ClosedError):
        loader_of(rows, 5)
    gc.collect()
    assert sum(len(batch) for batch in loader) == 50


def test_a_closed_loader_refuses_calls(rows: data.Dataset) -> None:
    loader = loader_of(rows)
    loader.close()
    loader.close()
    for call in (loader.next_batch, loader.state_dict, loader.stats, loader.prefetch):
        with pytest.raises(gpunvme.ClosedError):
            call()


# ---- Layouts ------------------------------------------------------------------------------------


def test_ragged_samples_have_offsets(rows: data.Dataset, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.full((100, 2), -1, np.int32))
    with data.Dataset(tmp_path / "y.npy") as other:
        mixed = data.Loader([rows, other], 40, weights=[1, 1], framework="np")
        for values, offsets in mixed:
            assert values.dtype == np.int32 and offsets[-1] == len(values)
            sizes = np.diff(offsets)
            assert set(sizes.tolist()) <= {2, 6}
            assert all((values[a:b] == values[a]).all() for a, b in zip(offsets, offsets[1:]))


def test_padded_samples_fill_rows(rows: data.Dataset) -> None:
    loader = loader_of(rows, layout="padded", row_nbytes=32, pad=255, shuffle=False)
    batch = next(iter(loader))
    assert batch.shape == (32, 8)
    assert (batch[:, 6:] == -1).all() and (batch[:, :6] == np.arange(32)[:, None]).all()


def test_packed_samples_fill_rows_of_one_size(rows: data.Dataset) -> None:
    loader = loader_of(rows, layout="packed", row_nbytes=400, shuffle=False)
    values, offsets = next(iter(loader))
    assert values.shape == (2, 100)
    assert offsets.tolist() == list(range(0, 193, 6))
    assert (values.reshape(-1)[192:] == 0).all()


def test_the_waits_for_batches_are_the_loaders(rows: data.Dataset) -> None:
    loader = loader_of(rows, depth=1)
    waits = [batch.stall_s for batch in loader.batches()]
    assert len(waits) == len(loader)
    assert sum(waits) == pytest.approx(loader.stats().stall_s)


def test_boundaries_of_documents_are_those_that_attention_takes(rows: data.Dataset) -> None:
    loader = loader_of(rows, layout="packed", row_nbytes=400, shuffle=False)
    batch = loader.next_batch()
    assert batch is not None
    documents = [*range(0, 193, 6), 200]  # the padding is the last one
    assert batch.cu_seqlens().dtype == np.int32
    assert batch.cu_seqlens().tolist() == documents
    assert batch.cu_seqlens(rows=True).tolist() == sorted({*documents, 100})
    ragged = loader_of(rows, layout="ragged").next_batch()
    assert ragged is not None
    assert ragged.cu_seqlens().tolist() == list(range(0, 193, 6))
    whole = loader_of(rows).next_batch()
    assert whole is not None
    with pytest.raises(gpunvme.ArgumentError, match='layout "rows"'):
        whole.cu_seqlens()


def test_without_torch_a_batchs_arrays_stay_what_they_are(rows: data.Dataset) -> None:
    batch = loader_of(rows, layout="ragged").next_batch()
    assert batch is not None
    assert batch.tensor(batch.offsets) is batch.offsets


def test_bytes_get_a_type_and_a_shape(tmp_path: Path) -> None:
    images = np.random.default_rng(1).random((20, 3, 4, 4)).astype(np.float32)
    images.tofile(tmp_path / "images")
    with data.Dataset(tmp_path / "images", format="records", record_nbytes=192) as records:
        loader = loader_of(records, 20, shuffle=False, dtype="float32", shape=(3, 4, 4))
        assert (next(iter(loader)) == images).all()
        with pytest.raises(gpunvme.ArgumentError, match="shape"):
            next(iter(loader_of(records, 20, dtype="float32", shape=(3, 4, 5))))


def test_collate_makes_what_is_iterated(rows: data.Dataset) -> None:
    loader = loader_of(rows, shuffle=False, collate=lambda batch: (batch.index, batch.data.sum()))
    assert list(loader)[:2] == [(0, 6 * sum(range(32))), (1, 6 * sum(range(32, 64)))]


# ---- Bad days -----------------------------------------------------------------------------------


def damage(rows: data.Dataset) -> None:
    place = rows.at(N - 10)
    os.truncate(rows.files[0].removeprefix("file:"), place.offset)


def test_a_sample_that_cannot_be_read_is_named(rows: data.Dataset) -> None:
    damage(rows)
    loader = loader_of(rows, 100, shuffle=False)
    for _ in range(4):
        loader.next_batch()
    for _ in range(2):
        with pytest.raises(gpunvme.RangeError, match=f"sample {N - 10}: .*x.npy"):
            loader.next_batch()


def test_samples_that_cannot_be_read_are_skipped_or_substituted(rows: data.Dataset) -> None:
    damage(rows)
    loader = loader_of(rows, 100, on_error="skip")
    assert sum(len(batch) for batch in loader) == N - 10
    assert loader.stats().skipped == 10
    loader = loader_of(rows, 100, on_error="substitute")
    assert sum(len(batch) for batch in loader) == N
    assert loader.stats().substituted == 10


@pytest.fixture
def changed(rows: data.Dataset, tmp_path: Path) -> Iterator[data.Dataset]:
    """The rows by an index with checksums; a byte of row 300 changed afterwards."""
    rows.write_index(tmp_path / "x.gnvidx", checksums=True)
    with data.Dataset(tmp_path / "x.gnvidx") as found:
        with (tmp_path / "x.npy").open("r+b") as file:
            file.seek(found.at(300).offset + 9)
            file.write(b"!")
        yield found


def test_a_sample_with_another_checksum_is_named(changed: data.Dataset) -> None:
    loader = loader_of(changed, 100, shuffle=False, verify=True)
    for _ in range(3):
        loader.next_batch()
    with pytest.raises(gpunvme.Error, match="sample 300: .*x.npy: byte .*: its checksum is") as why:
        loader.next_batch()
    assert why.value.name == "GPUNVME_ERR_VERIFY"


def test_samples_with_another_checksum_are_skipped_or_substituted(changed: data.Dataset) -> None:
    loader = loader_of(changed, 100, on_error="skip", verify=True)
    assert sum(len(batch) for batch in loader) == N - 1
    assert loader.stats().skipped == 1
    loader = loader_of(changed, 100, on_error="substitute", verify=True)
    numbers = sorted(int(row[0]) for batch in loader for row in batch)
    assert numbers == sorted([*(set(range(N)) - {300}), 301])
    assert loader.stats().substituted == 1


def test_statistics_count_what_was_given(rows: data.Dataset) -> None:
    loader = loader_of(rows, depth=3)
    for _ in range(4):
        loader.next_batch()
    loader.prefetch()
    time.sleep(0.2)
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.nbytes) == (4, 128, 128 * 24)
    assert stats.ahead == 3 and stats.ready == 3
    assert sum(stats.routes.values()) >= stats.nbytes
    loader.depth = 1
    assert loader.depth == 1


def test_a_path_report_sums_the_files_whose_bytes_go_one_way(rows: data.Dataset,
                                                             tmp_path: Path) -> None:
    for name in "yz":
        np.save(tmp_path / f"{name}.npy", np.zeros((100, 6), np.int32))
    with data.Dataset([tmp_path / "y.npy", tmp_path / "z.npy"]) as others:
        before = sum(sum(each.path().bytes_read.values()) for each in (rows, others))
        loader = loader_of([rows, others], 50, weights=[1, 1])  # type: ignore[arg-type]
        list(loader)
        ways = loader.path()
    assert len(ways) == 1
    assert ways[0].files == tuple(rows.files + others.files)
    assert ways[0].backend == "posix" and ways[0].how == rows.path().how
    read = sum(ways[0].bytes_read.values())
    assert read - before >= loader.stats().nbytes > 0
    assert sum(ways[0].bytes_written.values()) == 0


def test_files_whose_bytes_go_other_ways_have_reports_of_their_own(
        rows: data.Dataset) -> None:
    with data.Dataset("sim:size=1M", format="records", record_nbytes=32) as records:
        loader = data.Loader([rows, records], 50, weights=[1, 20], framework="np", dtype="int32")
        list(loader)
        assert [way.backend for way in loader.path()] == ["nvme", "posix"]
        loader.close()
        with pytest.raises(gpunvme.ClosedError):
            loader.path()


@pytest.mark.parametrize("options, match", [
    ({"batch_size": 0}, "batch"),
    ({"batch_size": -1}, "batch_size"),
    ({"shuffle": "all"}, "shuffle"),
    ({"layout": "square"}, "layout"),
    ({"layout": "padded"}, "row_nbytes"),
    ({"layout": "padded", "row_nbytes": 7}, "whole elements"),
    ({"device": "tpu"}, "tpu"),
    ({"device": "cuda:x"}, "cuda:x"),
    ({"depth": 0}, "depth"),
    ({"depth": 65}, "depth"),
    ({"rank": 1}, "rank and world"),
    ({"rank": 4, "world": 4}, "rank"),
    ({"pad": 256}, "pad"),
    ({"framework": "tf"}, "tf"),
    ({"dtype": "float33"}, "float33"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": float("nan")}, "timeout: nan"),
    ({"timeout": float("inf")}, "timeout: inf"),
    ({"timeout": 1e300}, "timeout"),
    ({"collate": 5}, "collate: 5"),
    ({"weights": [1, 2]}, "weights"),
])
def test_bad_arguments_are_refused(rows: data.Dataset, options: Any, match: str) -> None:
    with pytest.raises(gpunvme.ArgumentError, match=match):
        loader_of(rows, **options)


def test_a_data_set_without_samples_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((0, 4)))
    with data.Dataset(tmp_path / "x.npy") as empty:
        with pytest.raises(gpunvme.ArgumentError, match="no samples"):
            loader_of(empty)
    with pytest.raises(gpunvme.ArgumentError, match="no data sets"):
        data.Loader([], 4)


def test_batches_by_number_are_those_of_the_epoch(rows: data.Dataset) -> None:
    wanted = [np.array(batch) for batch in loader_of(rows)]
    loader = data.BatchLoader(rows, 32, device="cpu", framework="np")
    loader.set_prefetch_depth(2)
    for i in (0, 1, 2, 9, 3, 15, 0, 1):
        loader.prefetch_next_batch()
        assert (loader.load_batch_to_gpu(i) == wanted[i]).all()
    assert loader.get_pinned_buffer().nbytes == 32 * 24
    for i in (16, -1):
        with pytest.raises(gpunvme.ArgumentError, match="batch_idx"):
            loader.load_batch_to_gpu(i)


def test_batches_by_number_are_collated(rows: data.Dataset) -> None:
    loader = data.BatchLoader(rows, 32, device="cpu", framework="np", shuffle=False,
                              collate=lambda batch: batch.data[:, 0] + 1)
    assert loader.load_batch_to_gpu(1).tolist() == list(range(33, 65))
    ragged = data.BatchLoader(rows, 32, device="cpu", framework="np", layout="ragged")
    values, offsets = ragged.load_batch_to_gpu(0)
    assert len(values) == offsets[-1] == 6 * 32


def test_batches_by_number_follow_the_loader_wherever_it_was_moved(rows: data.Dataset) -> None:
    wanted = [np.array(batch) for batch in loader_of(rows)]
    other = loader_of(rows)
    other.set_epoch(1)
    second = [np.array(batch) for batch in other]
    loader = data.BatchLoader(rows, 32, device="cpu", framework="np")
    state = loader.loader.state_dict()
    assert (loader.load_batch_to_gpu(0) == wanted[0]).all()
    loader.loader.next_batch()
    assert (loader.load_batch_to_gpu(1) == wanted[1]).all()
    loader.loader.load_state_dict(state)
    assert (loader.load_batch_to_gpu(2) == wanted[2]).all()
    loader.loader.set_epoch(1)
    assert (loader.load_batch_to_gpu(3) == second[3]).all()


# ---- torch --------------------------------------------------------------------------------------


@pytest.fixture(params=["cpu", "pinned", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return str(request.param)


def test_batches_are_tensors_on_the_device(rows: data.Dataset, device: str) -> None:
    import torch

    loader = data.Loader(rows, 32, seed=1, device=device, framework="pt")
    for _ in range(3):
        found = []
        for batch in loader:
            assert batch.dtype == torch.int32 and batch.shape[1] == 6
            assert batch.device.type == ("cuda" if device == "cuda" else "cpu")
            assert (batch == batch[:, :1]).all()
            found += batch[:, 0].tolist()
        assert sorted(found) == list(range(N))


def test_memory_waits_for_the_work_on_it(rows: data.Dataset, device: str) -> None:
    import torch

    where = "cuda" if device == "cuda" else "cpu"
    loader = data.Loader(rows, 10, device=device, framework="pt", depth=1, shuffle=False)
    sums = []
    for _ in range(20):
        for batch in loader:
            if device == "cuda":
                torch.cuda._sleep(200_000)  # the work begins when the loop has gone on
            sums.append(batch.to(where, non_blocking=True).sum())
            del batch
    expected = [6 * sum(range(i, i + 10)) for i in range(0, N, 10)] * 20
    assert torch.stack(sums).tolist() == expected


def test_offsets_are_tensors_on_the_device_of_the_values(rows: data.Dataset, device: str) -> None:
    import torch

    loader = data.Loader(rows, 40, layout="ragged", device=device, framework="pt", shuffle=False)
    values, offsets = next(iter(loader))
    assert offsets.dtype == torch.int64 and offsets.device == values.device
    assert offsets.tolist() == list(range(0, 241, 6))


def test_boundaries_get_to_the_device_without_a_wait(rows: data.Dataset, device: str) -> None:
    import torch

    def tensors(batch: data.Batch) -> list[Any]:
        return [batch.tensor(one) for one in (batch.cu_seqlens(), batch.offsets, batch.lengths)]

    loader = data.Loader(rows, 40, layout="packed", row_nbytes=400, device=device, framework="pt")
    for batch in loader.batches():
        found = tensors(batch)
        if device == "cuda":
            torch.cuda.synchronize()  # what the first call allocates is there
            torch.cuda._sleep(200_000_000)
            torch.cuda.set_sync_debug_mode("error")
            try:
                found = tensors(batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert not torch.cuda.current_stream().query(), "it has waited"
        assert [one.device for one in found] == [batch.data.device] * 3
        assert [one.dtype for one in found] == [torch.int32, torch.int64, torch.int64]
        assert found[0].tolist() == batch.cu_seqlens().tolist()
        assert found[1].tolist() == batch.offsets.tolist()
        assert found[2].tolist() == batch.lengths.tolist()


def test_bfloat16_has_its_type_in_torch(tmp_path: Path, device: str) -> None:
    import torch

    values = torch.arange(64, dtype=torch.float32).to(torch.bfloat16)
    (tmp_path / "x").write_bytes(values.view(torch.uint8).numpy().tobytes())
    with data.Dataset(tmp_path / "x", format="records", record_nbytes=16) as records:
        loader = data.Loader(records, 8, shuffle=False, dtype=torch.bfloat16, device=device)
        assert (next(iter(loader)).cpu().reshape(-1) == values).all()
