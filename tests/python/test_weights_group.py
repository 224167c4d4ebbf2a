# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.weights by several processes and for several devices: each byte is read once."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dist = torch.distributed
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import gpunvme  # noqa: E402
from gpunvme import weights  # noqa: E402
from gpunvme.weights import torch as wt  # noqa: E402
from gpunvme.weights._share import BUCKET, Spread, cut  # noqa: E402

pytestmark = pytest.mark.usefixtures("parser")
PATIENCE = 120  # seconds
WORLD = 3
DTYPES = ["bool", "uint8", "bfloat16", "float16", "float32", "float64", "complex64",
          "float8_e4m3fn", "float4_e2m1fn_x2"]


# ---- Processes that run functions of this file ---------------------------------------------------


def serve(rank: int, world: int, init: str, pipe: Connection) -> None:
    """Runs functions with a group of the first ranks; answers with results or exceptions."""
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=world,
                            timeout=timedelta(seconds=PATIENCE / 2))
    groups = {n: dist.new_group(range(n)) for n in range(1, world + 1)}
    while (job := pipe.recv()) is not None:
        function, n, arguments = job
        try:
            pipe.send((function(groups[n], rank, *arguments), None))
        except Exception as why:  # noqa: BLE001  (the test looks at it)
            try:
                pipe.send((None, why))
            except Exception:  # noqa: BLE001  (it can't be pickled)
                pipe.send((None, RuntimeError(traceback.format_exc())))


class Ranks:
    def __init__(self, world: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(world):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, daemon=True,
                                      args=(rank, world, str(folder / "init"), theirs))
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def start(self, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> None:
        for pipe, each in zip(self.pipes, arguments):
            pipe.send((function, len(arguments), each))

    def result(self, rank: int) -> tuple[Any, Exception | None]:
        assert self.pipes[rank].poll(PATIENCE), f"rank {rank} hangs"
        found: tuple[Any, Exception | None] = self.pipes[rank].recv()
        return found

    def run(self, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
        """The function's results on the first ranks, as many as there are arguments."""
        self.start(function, arguments)
        ends = [self.result(rank) for rank in range(len(arguments))]
        for _, error in ends:
            if error is not None:
                raise error
        return [result for result, _ in ends]

    def errors(self, function: Callable[..., Any],
               arguments: list[tuple[Any, ...]]) -> list[Exception | None]:
        self.start(function, arguments)
        return [self.result(rank)[1] for rank in range(len(arguments))]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(WORLD, tmp_path_factory.mktemp("ranks"))
    yield made
    made.end()


def raw(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    kind = getattr(torch, dtype)
    nbytes = kind.itemsize * int(np.prod(shape))
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, nbytes, np.uint8)
    return torch.from_numpy(data).view(kind).reshape(shape)


def plain(tensors: dict[str, Any]) -> dict[str, Any]:
    """What can be compared, and sent through a pipe."""
    return {name: (str(t.dtype), tuple(t.shape),
                   t.contiguous().flatten().view(torch.uint8).numpy().tobytes())
            for name, t in tensors.items()}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small tensors of all kinds, and large ones that are cut."""
    tensors = {dtype: raw(dtype, (6, 8), i) for i, dtype in enumerate(DTYPES)}
    tensors |= {f"small{i:03}": raw("bfloat16", (5 + i, 3), i) for i in range(300)}
    tensors |= {f"large{i}": raw("float32", (1000 + i, 999), i) for i in range(4)}
    tensors |= {"long": raw("uint8", (3_000_001,), 7), "scalar": torch.tensor(3.5),
                "empty": torch.zeros(0, 4)}
    path = tmp_path_factory.mktemp("files") / "model.safetensors"
    wt.save_file(tensors, path)
    return path


@pytest.fixture(scope="module")
def wanted(file: Path) -> dict[str, Any]:
    """What safetensors loads, or, without it, what was tested to be the same."""
    try:
        from safetensors.torch import load_file
    except ImportError:
        load_file = wt.load_file
    found: dict[str, Any] = plain(load_file(file))
    return found


# ---- Groups -----------------------------------------------------------------------------------


def load_file(group: Any, rank: int, path: Path, plan: Any = None) -> tuple[dict[str, Any], int]:
    """The tensors, and how many bytes of them this rank has read."""
    with weights.safe_open(path, "pt") as f:
        before = f.bytes_read()
        return plain(wt.load_file(f, group=group, plan=plan)), f.bytes_read() - before


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_gets_all_tensors_and_each_byte_is_read_once(
    ranks: Ranks, file: Path, wanted: dict[str, Any], world: int
) -> None:
    found = ranks.run(load_file, [(file,)] * world)
    assert all(tensors == wanted for tensors, _ in found)
    read = [nbytes for _, nbytes in found]
    total = sum(len(data) for _, _, data in wanted.values())
    assert sum(read) == total
    assert max(read) - min(read) < total / 8


def test_several_files_are_shared_as_one(ranks: Ranks, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.safetensors" for i in range(5)]
    for i, path in enumerate(paths):
        wt.save_file({f"x{i}": raw("int64", (1 + 1000 * i, 3), i)}, path)
    tensors = plain(wt.load_file(paths))
    assert [found for found, _ in ranks.run(load_file, [(paths,)] * 3)] == [tensors] * 3


def test_slices_are_read_by_their_rank_alone(ranks: Ranks, file: Path,
                                             wanted: dict[str, Any]) -> None:
    plans = [{"large0": slice(500 * rank, 500 * rank + 500), "long": None, "small007": None,
              "large1": (slice(None), slice(4 * rank, 4 * rank + 4))} for rank in range(2)]
    found = ranks.run(load_file, [(file, plan) for plan in plans])
    with weights.safe_open(file, "pt") as f:
        for plan, (tensors, _) in zip(plans, found):
            assert tensors == plain({name: f.get_slice(name)[... if index is None else index]
                                     for name, index in plan.items()})
    shared = 3_000_001 + 12 * 3 * 2
    rows, columns = 500 * 999 * 4, 1001 * 999 * 4  # columns are taken from whole rows
    assert sum(nbytes for _, nbytes in found) <= shared + 2 * (rows + columns)


def test_slices_alone_need_no_other_rank_s_plan(ranks: Ranks, file: Path) -> None:
    found = ranks.run(load_file, [(file, {"large0": slice(0, 5)}), (file, {"large1": 7})])
    assert [[shape for _, shape, _ in tensors.values()] for tensors, _ in found] == [
        [(5, 999)], [(999,)]]


def test_a_plan_of_nothing_loads_nothing(ranks: Ranks, file: Path) -> None:
    assert ranks.run(load_file, [(file, [])] * 2) == [({}, 0)] * 2


def test_a_pattern_loads_some(ranks: Ranks, file: Path, wanted: dict[str, Any]) -> None:
    some = {name: t for name, t in wanted.items() if name.startswith("small")}
    assert [tensors for tensors, _ in ranks.run(load_file, [(file, "small*")] * 2)] == [some] * 2


# ---- Failures: an error on all ranks, and the group still works ----------------------------------


def load_path(group: Any, rank: int, path: Path) -> dict[str, Any]:
    return plain(wt.load_file(path, group=group))


def test_a_missing_file_on_one_rank_is_an_error_on_all(
    ranks: Ranks, file: Path, wanted: dict[str, Any]
) -> None:
    errors = ranks.errors(load_path, [(file,), (file.parent / "none",), (file,)])
    assert all(isinstance(error, FileNotFoundError) for error in errors)
    assert "rank 1 failed" in str(errors[0]) and "rank 1 failed" in str(errors[2])
    assert ranks.run(load_path, [(file,)] * 3) == [wanted] * 3


def test_a_damaged_header_on_one_rank_is_an_error_on_all(ranks: Ranks, file: Path,
                                                         tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\xff" * 100)
    errors = ranks.errors(load_path, [(tmp_path / "bad",), (file,)])
    assert all(isinstance(error, weights.WeightsError) for error in errors)
    assert "rank 0 failed" in str(errors[1])


def load_cut_file(group: Any, rank: int, path: Path, nbytes: int | None) -> None:
    with weights.safe_open(path, "pt") as f:
        if nbytes is not None:
            os.truncate(path, nbytes)
        wt.load_file(f, group=group)


@pytest.mark.parametrize("nbytes", [100_000, 10_000_000])
def test_a_read_error_on_one_rank_is_an_error_on_all(ranks: Ranks, file: Path, tmp_path: Path,
                                                     wanted: dict[str, Any], nbytes: int) -> None:
    (tmp_path / "mine").write_bytes(file.read_bytes())
    errors = ranks.errors(load_cut_file, [(file, None), (tmp_path / "mine", nbytes), (file, None)])
    assert all(isinstance(error, gpunvme.RangeError) for error in errors)
    assert "rank 1 failed" in str(errors[0]) and "rank 1 failed" in str(errors[2])
    assert ranks.run(load_path, [(file,)] * 3) == [wanted] * 3


@pytest.mark.parametrize("other", [
    {"a": torch.zeros(3, 4), "b": torch.zeros(5), "c": torch.zeros(1)},
    {"a": torch.zeros(3, 4)},
    {"a": torch.zeros(4, 3), "b": torch.zeros(5)},
    {"a": torch.zeros(3, 4), "B": torch.zeros(5)},
    {"a": torch.zeros(3, 4, dtype=torch.int32), "b": torch.zeros(5)},
], ids=["more", "fewer", "shape", "name", "type"])
def test_ranks_with_different_files_are_an_error_on_all(ranks: Ranks, tmp_path: Path,
                                                        other: dict[str, Any]) -> None:
    wt.save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "x")
    wt.save_file(other, tmp_path / "y")
    errors = ranks.errors(load_path, [(tmp_path / "x",), (tmp_path / "x",), (tmp_path / "y",)])
    for error in errors:
        assert isinstance(error, weights.WeightsError) and "rank 2 has" in str(error)


def load_to(group: Any, rank: int, path: Path, device: str) -> None:
    wt.load_file(path, device, group=group)


def test_a_device_that_one_rank_lacks_is_an_error_on_all(ranks: Ranks, file: Path) -> None:
    errors = ranks.errors(load_to, [(file, "cpu"), (file, "cuda:63")])
    assert all(errors) and "rank 1 failed" in str(errors[0])


def test_a_rank_that_dies_is_an_error_on_the_others(file: Path, tmp_path: Path) -> None:
    mine = Ranks(2, tmp_path)
    try:
        mine.run(load_path, [(file,)] * 2)
        mine.processes[1].kill()
        mine.pipes[0].send((load_path, 2, (file,)))
        assert mine.result(0)[1] is not None
    finally:
        mine.end()


def test_a_group_needs_torch_distributed(file: Path) -> None:
    with pytest.raises(gpunvme.Error, match="init_process_group"):
        wt.load_file(file, group=object())


# ---- Conversion and checksums --------------------------------------------------------------------


def load_with(group: Any, rank: int, path: Path, options: dict[str, Any]) -> dict[str, Any]:
    return plain(wt.load_file(path, group=group, **options))


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn"])
def test_all_ranks_get_the_same_converted_tensors_and_scales(ranks: Ranks, file: Path,
                                                             dtype: str) -> None:
    finite = {f"x{i}": torch.randn(300 * i + 1, 500) * i for i in range(5)}
    path = file.parent / "finite"
    wt.save_file({**finite, "n": torch.arange(5)}, path)
    alone = plain(wt.load_file(path, dtype=dtype))
    assert ranks.run(load_with, [(path, {"dtype": dtype})] * 3) == [alone] * 3


def test_slices_that_become_float8_have_scales_of_their_own(ranks: Ranks, tmp_path: Path) -> None:
    wt.save_file({"x": torch.arange(8.0), "y": torch.arange(5.0)}, tmp_path / "x")
    options = [{"dtype": "float8_e4m3fn", "plan": {"x": slice(4 * rank, 4 * rank + 4), "y": None}}
               for rank in range(2)]
    assert ranks.run(load_with, [(tmp_path / "x", each) for each in options]) == [
        plain(wt.load_file(tmp_path / "x", **each)) for each in options]


def test_ranks_with_different_types_are_an_error_on_all(ranks: Ranks, tmp_path: Path) -> None:
    wt.save_file({"x": torch.ones(5)}, tmp_path / "x")
    errors = ranks.errors(load_with, [(tmp_path / "x", {"dtype": "float16"}), (tmp_path / "x", {})])
    assert all(isinstance(error, weights.WeightsError) for error in errors)


def test_a_manifest_is_checked_where_bytes_have_landed(ranks: Ranks, file: Path,
                                                       tmp_path: Path) -> None:
    with weights.prefetch(file, checksum=True) as loader:
        loader.write_manifest(tmp_path / "sums")
    options = {"manifest": tmp_path / "sums"}
    ranks.run(load_with, [(file, options)] * 2)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    (tmp_path / "mine").write_bytes(data)
    # One rank has other bytes than the other; who reads the last ones decides who sees it.
    errors = ranks.errors(load_with, [(tmp_path / "mine", options), (tmp_path / "mine", {})])
    assert all("VERIFY" in str(error) for error in errors)


# ---- Modules ----------------------------------------------------------------------------------


def module(seed: int, device: str = "cpu", dtype: str = "float32") -> Any:
    torch.manual_seed(seed)
    with torch.device(device):
        made = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400),
                                   torch.nn.Linear(400, 700, bias=False))
    return made.to(getattr(torch, dtype))


def load_module(group: Any, rank: int, path: Path, device: str, dtype: str,
                turned: bool) -> dict[str, Any]:
    made = module(5 + rank, device, dtype)
    if turned:
        made[2].weight.data = made[2].weight.data.T.contiguous().T
    assert weights.load_model(made, path, group=group) == ([], [])
    return plain(made.state_dict())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("device,turned", [("cpu", False), ("meta", False), ("cpu", True)])
def test_load_model_fills_the_module_of_each_rank(ranks: Ranks, tmp_path: Path, device: str,
                                                  dtype: str, turned: bool) -> None:
    wt.save_model(module(1), tmp_path / "x")
    found = ranks.run(load_module, [(tmp_path / "x", device, dtype, turned)] * 2)
    assert found == [plain(module(1, dtype=dtype).state_dict())] * 2


def test_ranks_with_different_modules_are_an_error_on_all(ranks: Ranks, tmp_path: Path) -> None:
    wt.save_model(module(1), tmp_path / "x")
    errors = ranks.errors(load_module, [(tmp_path / "x", "cpu", "float32", False),
                                        (tmp_path / "x", "cpu", "bfloat16", False)])
    assert all(isinstance(error, weights.WeightsError) for error in errors)


def load_without_memory(group: Any, rank: int, path: Path, poor: int) -> None:
    made = module(5)
    made[2].weight.data = made[2].weight.data.T.contiguous().T
    empty = torch.empty

    def refuse(shape: Any, *args: Any, **options: Any) -> Any:
        if shape == (700, 400):
            raise MemoryError("no memory for a copy")
        return empty(shape, *args, **options)

    if rank == poor:
        torch.empty = refuse
    try:
        weights.load_model(made, path, group=group)
    finally:
        torch.empty = empty


def test_a_rank_without_memory_for_a_copy_is_an_error_on_all(ranks: Ranks, tmp_path: Path) -> None:
    wt.save_model(module(1), tmp_path / "x")
    errors = ranks.errors(load_without_memory, [(tmp_path / "x", 1)] * 2)
    assert "rank 1 failed" in str(errors[0]) and isinstance(errors[1], MemoryError)
    assert ranks.run(load_without_memory, [(tmp_path / "x", -1)] * 2) == [None, None]


def load_without_threads(group: Any, rank: int, path: Path, poor: int) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if rank == poor:
        threading.Thread.start = refuse  # type: ignore[method-assign]
    try:
        wt.load_file(path, group=group)
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


def test_a_rank_that_can_start_no_thread_is_an_error_on_all(ranks: Ranks, file: Path) -> None:
    errors = ranks.errors(load_without_threads, [(file, 1)] * 2)
    assert "rank 1 failed" in str(errors[0]) and "thread" in str(errors[1])
    assert ranks.run(load_without_threads, [(file, -1)] * 2) == [None, None]


def test_the_benchmark_of_several_ranks_runs_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    bench = Path(__file__).parents[2] / "bench" / "weights_gpus.py"
    done = subprocess.run(
        [sys.executable, bench, "--device", "cpu", "--ranks", "2", "--size", "1M", "--runs", "1",
         "--tmpfs", tmp_path, "--disk", ""], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "copies" in done.stdout, done.stdout + done.stderr


# ---- Devices of one process ---------------------------------------------------------------------


def test_load_copies_reads_once_for_all_devices(file: Path, wanted: dict[str, Any]) -> None:
    with weights.safe_open(file, "pt") as f:
        before = f.bytes_read()
        found = wt.load_copies(f, ["cpu"] * 3)
        assert f.bytes_read() - before == sum(len(data) for _, _, data in wanted.values())
    assert [plain(tensors) for tensors in found] == [wanted] * 3
    found[0]["long"].zero_()
    assert plain(found[1]) == wanted


def test_small_tensors_take_64_mib_of_each_device_at_most(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {f"{i:03}": torch.full((1000,), i) for i in range(600)}
    wt.save_file(small, tmp_path / "x")
    taken = []
    run = Spread.run

    def look(self: Spread, files: Any, keep: object) -> Exception | None:
        taken.append([sum(whole[rank].nbytes for whole in self._buffers) for rank in range(2)])
        return run(self, files, keep)

    monkeypatch.setattr(Spread, "run", look)
    for tensors in wt.load_copies(tmp_path / "x", ["cpu"] * 2):
        assert all(tensors[name].equal(t) for name, t in small.items())
    assert taken and 0 < max(taken[0]) <= 64 << 20


def test_load_copies_refuses_no_devices(file: Path) -> None:
    with pytest.raises(weights.WeightsError, match="no devices"):
        wt.load_copies(file, [])


# ---- Shares -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.sampled_from([1, 2, 3, 4096, 70_000, 1 << 25])),
                min_size=1, max_size=60), st.integers(1, 9))
def test_pieces_cover_all_rows_once_in_fair_shares(tensors: list[tuple[int, int]],
                                                   world: int) -> None:
    rows = np.array([n for n, _ in tensors])
    row = np.array([nbytes for _, nbytes in tensors])
    pieces = cut(rows * row, rows, world)
    ends = dict.fromkeys(range(len(tensors)), 0)
    for tensor, begin, end in zip(*(column.tolist() for column in pieces[:3])):
        assert begin == ends[tensor] < end
        ends[tensor] = end
    assert list(ends.values()) == rows.tolist()
    assert (pieces.nbytes == (pieces.end - pieces.begin) * row[pieces.tensor]).all()
    buckets = np.bincount(pieces.bucket, pieces.nbytes)
    assert (np.diff(pieces.bucket) >= 0).all() and (buckets > 0).all()
    assert buckets.max() <= BUCKET + max(BUCKET, row.max())
    shares = np.bincount(pieces.owner, pieces.nbytes, world)
    assert shares.max() - shares.min() <= buckets.max()


# ---- On GPUs ------------------------------------------------------------------------------------


def load_on_gpus(rank: int, world: int, init: str, path: Path, folder: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{init}", rank=rank, world_size=world)
    found = wt.load_file(path, "cuda", group=dist.group.WORLD)
    made = module(5 + rank, "meta", "bfloat16")
    weights.load_model(made, path.parent / "module", device="cuda", group=dist.group.WORLD)
    assert all(t.device.index == rank for t in (*found.values(), *made.parameters()))
    home = {name: t.view(torch.uint8).cpu().view(t.dtype) if t.dim() else t.cpu()
            for name, t in found.items()}
    torch.save((plain(home), plain(made.cpu().state_dict())), f"{folder}/{rank}")
    dist.destroy_process_group()


def test_all_gpus_get_all_tensors_by_nccl(gpu: str, file: Path, wanted: dict[str, Any],
                                          tmp_path: Path) -> None:
    if not dist.is_nccl_available():
        pytest.skip("this PyTorch has no NCCL")
    n = torch.cuda.device_count()
    wt.save_model(module(1), file.parent / "module")
    torch.multiprocessing.spawn(load_on_gpus, (n, str(tmp_path / "init"), file, str(tmp_path)), n)
    state = plain(module(1, dtype="bfloat16").state_dict())
    for rank in range(n):
        assert torch.load(tmp_path / str(rank), weights_only=False) == (wanted, state)


def test_copies_come_to_all_gpus(gpu: str, file: Path, wanted: dict[str, Any]) -> None:
    devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] + ["cuda:0", "cpu"]
    for device, tensors in zip(devices, wt.load_copies(file, devices)):
        assert all(t.device == torch.device(device) for t in tensors.values())
        assert plain({name: t.view(torch.uint8).cpu().view(t.dtype) if t.dim() else t.cpu()
                      for name, t in tensors.items()}) == wanted
