# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.checkpoint with numpy arrays; test_checkpoint_torch.py has PyTorch's tensors."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpunvme
from gpunvme import _safetensors, checkpoint
from gpunvme.checkpoint import Ranks, Slice, _files, _load, _memory, _save, _state

QUICK = settings(max_examples=40, deadline=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32",
          "uint64", "int64", "float64", "complex64"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | \
    st.text() | st.binary() | st.binary().map(bytearray) | \
    st.sampled_from(DTYPES).flatmap(lambda name: hnp.from_dtype(np.dtype(name)))
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda name: hnp.arrays(
    name, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)))
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.none()
STATES = st.dictionaries(KEYS, st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12), max_size=4)


def same(a: Any, b: Any) -> bool:
    """Of the same types and bytes, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(
            map(same, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def leftovers(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith((".saving", ".deleting"))]


@pytest.fixture
def at_points() -> Any:
    """Has a function called at each step of a save."""
    def use(hook: Any) -> None:
        _files.hook = hook

    yield use
    _files.hook = None


# ---- What comes back --------------------------------------------------------------------------


@QUICK
@given(state=STATES)
def test_a_state_comes_back_as_it_was(state: dict[Any, Any], tmp_path: Path) -> None:
    folder = checkpoint.save(state, tmp_path / "run")
    assert same(checkpoint.load(folder), state)


@QUICK
@given(sizes=st.lists(st.integers(0, 9000), max_size=8), shard=st.integers(1, 20_000))
def test_a_snapshot_comes_back_as_it_was(sizes: list[int], shard: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(sizes))
    state = {str(i): rng.integers(0, 256, n, np.uint8) for i, n in enumerate(sizes)}
    expected = {name: array.copy() for name, array in state.items()}
    saving = checkpoint.save_async(state, tmp_path / "run", shard_nbytes=shard)
    for array in state.values():
        array[:] = 0  # the training goes on
    assert same(checkpoint.load(saving.result(60)), expected)


def test_a_tensor_of_several_blocks_comes_back(tmp_path: Path) -> None:
    state = {"a": np.arange(3), "big": np.random.default_rng(1).bytes(_memory.BLOCK * 2 + 4097)}
    state["big"] = np.frombuffer(state["big"], np.uint8)
    saving = checkpoint.save_async(state, tmp_path, memory=_memory.BLOCK)  # of a buffer at a time
    assert same(checkpoint.load(saving.result(60)), state)
    assert saving.progress() == (state["big"].nbytes + 24, state["big"].nbytes + 24)


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    random.seed(5)
    np.random.seed(5)
    checkpoint.save({"python": random.getstate(), "numpy": np.random.get_state()}, tmp_path)
    expected = random.random(), np.random.random()
    loaded = checkpoint.load(tmp_path)
    random.setstate(loaded["python"])
    np.random.set_state(loaded["numpy"])
    assert (random.random(), np.random.random()) == expected


def test_arrays_that_are_one_are_stored_once_and_come_back_as_one(tmp_path: Path) -> None:
    array = np.arange(1000)
    folder = Path(checkpoint.save({"in": array, "out": {"again": array}}, tmp_path))
    loaded = checkpoint.load(folder)
    assert loaded["in"] is loaded["out"]["again"]
    assert (folder / "00000-00000.safetensors").stat().st_size < 4096 + 2 * array.nbytes


def test_what_needs_pickle_is_refused_and_its_place_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"state\['a'\]\[1\]: a .*Thing can't be stored"):
        checkpoint.save_async({"a": [0, type("Thing", (), {})()]}, tmp_path / "run")
    with pytest.raises(ValueError, match=r"state\['a'\]: safetensors has no type for complex128"):
        checkpoint.save({"a": np.zeros(2, complex)}, tmp_path / "run")
    with pytest.raises(ValueError, match=r"state\['a'\]: a MaskedArray"):
        checkpoint.save({"a": np.ma.masked_array([1, 2], [0, 1])}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_into_fills_arrays_in_place_and_replaces_the_rest(tmp_path: Path) -> None:
    checkpoint.save({"a": [np.arange(4), {"b": np.eye(3)}], "lr": 0.5, "more": 1, "s": {7: 8}},
                    tmp_path)
    a, b = np.zeros(4, int), np.zeros((3, 3), order="F")
    into = {"a": [a, {"b": b}], "lr": 0.0, "s": {}}
    assert checkpoint.load(tmp_path, into) is into
    assert (a == np.arange(4)).all() and (b == np.eye(3)).all() and into["a"][0] is a
    assert into["lr"] == 0.5 and into["s"] == {7: 8} and "more" not in into


@pytest.mark.parametrize(("into", "message"), [
    ({"a": np.zeros(4, np.float32)}, "F32 of shape"),
    ({"a": np.zeros(5, int)}, "I64 of shape"),
    ({"b": np.zeros(4, int)}, r"state\['b'\] is not in the checkpoint"),
    ({"x": np.zeros(4, int)}, "no tensor there"),
])
def test_into_that_does_not_fit_is_refused(into: dict[str, Any], message: str,
                                           tmp_path: Path) -> None:
    checkpoint.save({"a": np.zeros(4, int), "x": 1}, tmp_path)
    with pytest.raises(ValueError, match=message):
        checkpoint.load(tmp_path, into)


# ---- Files ------------------------------------------------------------------------------------


def test_others_read_the_files(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    state = {"model": {"w": np.arange(12.0).reshape(3, 4), "odd": np.ones(3, np.uint8)},
             "__metadata__": np.ones(2), "empty": np.zeros((0, 5))}
    folder = Path(checkpoint.save(state, tmp_path, shard_nbytes=50))
    found: dict[str, Any] = {}
    for name in folder.glob("*.safetensors"):
        found |= safetensors.load_file(name)
    assert same(dict(sorted(found.items())), {
        "__metadata__#2": state["__metadata__"], "empty": state["empty"],
        "model.odd": state["model"]["odd"], "model.w": state["model"]["w"]})


def test_a_large_state_is_spread_over_files_that_are_written_at_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_save, "_LEAST", 1000)
    monkeypatch.setattr(_memory, "BLOCK", 500)
    state = {f"w{i}": np.full(1000, i, np.uint8) for i in range(128)}
    encoder = _state.Encoder()
    encoder.tree(state)
    chunks = _save.Files(tmp_path, 0, encoder.leaves, 1, 1 << 30).chunks
    assert [chunk.file for chunk in chunks] == [*range(64)] * 4
    assert [chunk.blocks[0].start for chunk in chunks[::64]] == [0, 500, 0, 500]


def test_the_engine_that_is_given_serves_the_files(tmp_path: Path) -> None:
    with gpunvme.Engine(threads=3) as engine:
        before = engine.info().threads
        checkpoint.save({"w": np.ones(1 << 20)}, tmp_path, engine=engine)
        assert (before, engine.info().threads) == (0, 3)


@QUICK
@given(n=st.integers(0, 200))
def test_data_begins_where_direct_io_can(n: int) -> None:
    head = _safetensors.header((f"t{i}", "F32", (2, i), 8 * i) for i in range(n))
    assert len(head) % _safetensors.ALIGN == 0
    table = json.loads(head[8:8 + int.from_bytes(head[:8], "little")])
    assert all(table[f"t{i}"]["data_offsets"] == [4 * i * (i - 1), 4 * i * (i + 1)]
               for i in range(n))


def test_elements_are_aligned_in_their_file(tmp_path: Path) -> None:
    state = {"a": np.ones(3, np.uint8), "b": np.ones(3), "c": np.ones(5, np.float16),
             "d": np.ones(1, np.float32)}
    tensors = _files.read_manifest(Path(checkpoint.save(state, tmp_path)))["tensors"]
    for name, array in state.items():
        assert tensors[name]["slices"][0]["at"] % array.itemsize == 0


@pytest.mark.parametrize("name", ["00000-00000.safetensors", "manifest.json"])
def test_damage_is_found(name: str, tmp_path: Path) -> None:
    folder = Path(checkpoint.save({"a": np.arange(1000), "n": 12345}, tmp_path))
    content = bytearray((folder / name).read_bytes())
    content[content.rindex(b"12345") if name.endswith("json") else -5] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(gpunvme.Error, match=name):
        checkpoint.verify(folder)
    with pytest.raises(gpunvme.Error, match=name):
        checkpoint.load(folder)


def test_a_sound_checkpoint_is_verified(tmp_path: Path) -> None:
    checkpoint.save({"a": np.arange(1000), "b": np.zeros(0)}, tmp_path)
    checkpoint.verify(tmp_path)


# ---- Which there are --------------------------------------------------------------------------


def test_latest_passes_over_what_is_not_whole(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None
    for step in (9, 10, 11):
        last = Path(checkpoint.save({"a": np.arange(100)}, tmp_path, step=step))
    os.truncate(last / "00000-00000.safetensors", 4096)
    (tmp_path / "step-0000000010/manifest.json").unlink()
    assert checkpoint.steps(tmp_path) == [9, 10, 11]
    assert checkpoint.latest(tmp_path) == str(tmp_path / "step-0000000009")


def test_steps_count_on_where_none_is_told(tmp_path: Path) -> None:
    for _ in range(2):
        checkpoint.save({}, tmp_path)
    checkpoint.save({}, tmp_path, step=7)
    checkpoint.save({}, tmp_path)
    assert checkpoint.steps(tmp_path) == [0, 1, 7, 8]


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    for step in (5, 1, 2, 3):
        checkpoint.save({"step": step}, tmp_path, step=step, keep=2)
    assert checkpoint.steps(tmp_path) == [3, 5]
    checkpoint.save({}, tmp_path, step=0, keep=2)  # the one just written stays
    assert checkpoint.steps(tmp_path) == [0, 3, 5]
    assert leftovers(tmp_path) == []


def test_a_step_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    checkpoint.save({"a": 1}, tmp_path, step=3)
    with pytest.raises(FileExistsError):
        checkpoint.save({"a": 2}, tmp_path, step=3)
    assert checkpoint.load(tmp_path) == {"a": 1} and leftovers(tmp_path) == []


def test_replace_exchanges_it(tmp_path: Path) -> None:
    checkpoint.save({"a": 1}, tmp_path, step=3)
    checkpoint.save({"a": 2}, tmp_path, step=3, replace=True)
    assert checkpoint.load(tmp_path) == {"a": 2} and leftovers(tmp_path) == []


def test_a_step_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    for use in (checkpoint.load, checkpoint.verify):
        with pytest.raises(gpunvme.NotFoundError, match="no checkpoint of step 2, but none at all"):
            use(tmp_path, step=2)
    for step in range(1, 24, 2):
        checkpoint.save({"a": step}, tmp_path, step=step)
    with pytest.raises(FileNotFoundError, match="step 2, but of 1, 3, 5, 7, …, 17, 19, 21, 23: "):
        checkpoint.load(tmp_path, step=2)


def test_what_is_left_of_dead_programs_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".saving-step-0000000001-x").mkdir(parents=True)
    (tmp_path / ".deleting-y").mkdir()
    checkpoint.save({}, tmp_path)
    assert leftovers(tmp_path) == []


def test_what_another_is_writing_is_not_cleared(tmp_path: Path) -> None:
    draft = _files.Draft(tmp_path / "step-0000000009", None, False)
    checkpoint.save({}, tmp_path, step=1)
    checkpoint.save({}, tmp_path, step=2)
    assert leftovers(tmp_path) == [draft.folder.name]
    draft.lock.release()
    checkpoint.save({}, tmp_path, step=3)
    assert leftovers(tmp_path) == []


def test_the_name_comes_when_all_is_on_the_medium(tmp_path: Path, at_points: Any,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_rename(path: Path, target: Path) -> Path:
        done.append(f"rename {Path(target).name}")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(os, "fsync", lambda fd: (fsync(fd), done.append(
        "fsync " + Path(os.readlink(f"/proc/self/fd/{fd}")).name.split("-step")[0]))[0])
    at_points(lambda point: done.append(point) if point == "written" else None)
    (tmp_path / "run").mkdir()
    checkpoint.save({"a": np.ones(9), "b": np.ones(9)}, tmp_path / "run", shard_nbytes=72)
    assert done == ["written", "written", "fsync 00000-00000.safetensors",
                    "fsync 00000-00001.safetensors", "fsync .saving",
                    "fsync manifest.json.draft", "rename manifest.json", "fsync .saving",
                    "rename step-0000000000", "fsync run"]


# ---- Several ranks ----------------------------------------------------------------------------


def boxes(shape: tuple[int, ...], cuts: list[list[int]]) -> list[_load.Box]:
    """The grid of boxes that cuts through each dimension make."""
    edges = [sorted({0, n, *(c % (n + 1) for c in cut)}) for n, cut in zip(shape, cuts)]
    found: list[_load.Box] = [((), ())]
    for edge in edges:
        found = [((*at, a), (*size, b - a)) for at, size in found
                 for a, b in zip(edge, edge[1:])]
    return found


def part(array: Any, box: _load.Box) -> Any:
    return array[tuple(slice(i, i + n) for i, n in zip(*box))]


CUTS = st.lists(st.lists(st.integers(0, 40), max_size=2), min_size=3, max_size=3)


@QUICK
@given(shape=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple), saved=CUTS,
       loaded=CUTS, run=st.sampled_from([1, 64, 4096]))
def test_any_division_is_loaded_as_any_other(
        shape: tuple[int, ...], saved: list[list[int]], loaded: list[list[int]], run: int,
        tmp_path: Path) -> None:
    whole = np.random.default_rng(1).integers(0, 1000, shape, np.int32)
    written = boxes(shape, saved)
    session = f"run-{len(list(tmp_path.iterdir()))}"
    root = tmp_path / session
    saves = [checkpoint.save_async(
        {"w": Slice(part(whole, box), shape, box[0]), "rank": rank}, root, step=0,
        ranks=Ranks(rank, len(written), session)) for rank, box in enumerate(written)]
    assert {save.result(60) for save in saves} == {str(root / "step-0000000000")}
    before, _load._RUN = _load._RUN, run
    try:
        for box in boxes(shape, loaded):
            mine = Slice(np.zeros(box[1], np.int32), shape, box[0])
            checkpoint.load(root, {"w": mine})
            assert (mine.tensor == part(whole, box)).all()
        assert (checkpoint.load(root)["w"] == whole).all()
    finally:
        _load._RUN = before
    assert checkpoint.load(root, rank=len(written) - 1)["rank"] == len(written) - 1


def test_a_large_box_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load, "_SPAN", 1000)
    whole = np.arange(60 * 50).reshape(60, 50)
    checkpoint.save({"w": whole}, tmp_path)
    mine = Slice(np.zeros((50, 7), int), (60, 50), (5, 11))
    checkpoint.load(tmp_path, {"w": mine})
    assert (mine.tensor == whole[5:55, 11:18]).all()


def test_slices_with_a_hole_are_refused(tmp_path: Path) -> None:
    checkpoint.save({"w": Slice(np.ones(3), (10,), (0,))}, tmp_path)
    with pytest.raises(ValueError, match="do not make up"):
        checkpoint.load(tmp_path)
    mine = Slice(np.zeros(2), (10,), (1,))
    checkpoint.load(tmp_path, {"w": mine})
    assert mine.tensor.all()


def test_a_checkpoint_is_there_when_all_ranks_have_saved(tmp_path: Path) -> None:
    first = checkpoint.save_async({"a": 1, "all": {"x": 1}}, tmp_path, step=1,
                                  ranks=Ranks(0, 2, "s"))
    with pytest.raises(TimeoutError):
        first.result(0.2)
    assert checkpoint.latest(tmp_path) is None
    second = checkpoint.save_async({"b": 2, "all": {7: 2}}, tmp_path, step=1,
                                   ranks=Ranks(1, 2, "s"))
    assert first.result(60) == second.result(60) == checkpoint.latest(tmp_path)
    assert checkpoint.load(tmp_path) == {"a": 1, "b": 2, "all": {"x": 1, 7: 2}}
    assert sorted(os.listdir(first.path)) == ["00000-00000.safetensors", "00001-00000.safetensors",
                                              "manifest.json"]


def test_parts_of_a_run_that_died_are_not_used(tmp_path: Path) -> None:
    old = checkpoint.save_async({"a": "old"}, tmp_path, step=1, ranks=Ranks(0, 2, "first"))
    new = checkpoint.save_async({"b": "new"}, tmp_path, step=1, ranks=Ranks(1, 2, "second"))
    with pytest.raises(TimeoutError):
        new.result(0.3)
    assert checkpoint.latest(tmp_path) is None
    for save in (old, new):
        save.cancel()
        assert isinstance(save.exception(60), gpunvme.CanceledError)


def test_a_rank_that_fails_fails_the_others(tmp_path: Path, at_points: Any) -> None:
    first = checkpoint.save_async({}, tmp_path, step=1, ranks=Ranks(0, 2, "s"))

    def fail(point: str) -> None:
        if point == "files" and threading.current_thread() not in before:
            raise OSError("no more")

    before = set(threading.enumerate())
    at_points(fail)
    second = checkpoint.save_async({}, tmp_path, step=1, ranks=Ranks(1, 2, "s"))
    assert "no more" in str(second.exception(60))
    with pytest.raises(gpunvme.CanceledError, match="rank 1 failed: no more"):
        first.result(60)


def test_a_rank_waits_for_the_others_for_so_long(tmp_path: Path) -> None:
    alone = checkpoint.save_async({}, tmp_path, step=1, ranks=Ranks(0, 2, "s", timeout=0.1))
    assert isinstance(alone.exception(60), gpunvme.DeadlineError)


# ---- Saves that are under way -----------------------------------------------------------------


@pytest.mark.parametrize(("memory", "buffers"), [(None, 5), (2 << 20, 2)])
def test_the_first_save_allocates_what_all_need(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int | None, buffers: int) -> None:
    allocated: list[int] = []
    empty, copy = _memory.empty, _memory.Snapshot.copy

    def count(nbytes: int, kind: str) -> Any:
        allocated.append(nbytes)
        return empty(nbytes, kind)

    def copy_late(snapshot: Any, chunk: Any) -> Any:
        time.sleep(0.1)  # so that the buffer of the one before is free again, most likely
        return copy(snapshot, chunk)

    monkeypatch.setattr(_memory.Snapshot, "copy", copy_late)
    for module in (_memory, _save, _load):
        monkeypatch.setattr(module, "BLOCK", 1 << 20)
    monkeypatch.setattr(_memory, "pool", _memory.Pool())
    monkeypatch.setattr(_memory, "empty", count)
    state = {"a": np.arange(5 << 17, dtype=np.int64)}
    for step in range(3):
        checkpoint.save_async(state, tmp_path, step=step, memory=memory).result(60)
        assert len(allocated) == buffers
    assert np.array_equal(checkpoint.load(tmp_path)["a"], state["a"])


def test_a_rank_whose_folder_the_last_one_has_renamed_has_saved(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = _files.write_json

    def write_and_wait(path: Path, manifest: Any) -> None:
        write(path, manifest)
        late = time.monotonic() + 20
        while path.name == "part-0" and path.exists() and time.monotonic() < late:
            time.sleep(0.01)

    monkeypatch.setattr(_files, "write_json", write_and_wait)
    saves = [checkpoint.save_async({"rank": 0}, tmp_path, step=1, ranks=Ranks(0, 2, "s"))]
    end = time.monotonic() + 20
    while not list(tmp_path.glob("*/part-0")) and time.monotonic() < end:
        time.sleep(0.01)
    saves += [checkpoint.save_async({"rank": 1}, tmp_path, step=1, ranks=Ranks(1, 2, "s"))]
    assert {save.result(60) for save in saves} == {str(tmp_path / "step-0000000001")}
    assert [checkpoint.load(tmp_path, rank=rank)["rank"] for rank in range(2)] == [0, 1]


def test_two_savers_on_one_path_each_get_their_step(tmp_path: Path) -> None:
    def run(steps: range) -> None:
        for step in steps:
            checkpoint.save({"step": step, "a": np.full(1000, step)}, tmp_path, step=step)

    threads = [threading.Thread(target=run, args=(range(i, 12, 2),)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert checkpoint.steps(tmp_path) == list(range(12))
    for step in range(12):
        assert checkpoint.load(tmp_path, step=step)["a"][0] == step
    assert leftovers(tmp_path) == []


def test_of_two_savers_of_one_step_one_gets_it(tmp_path: Path, at_points: Any) -> None:
    other = _files.Draft(tmp_path / "step-0000000001", None, False)

    def be_faster(point: str) -> None:
        if point == "files":
            tree = {"who": "the other"}
            other.commit({"tree": tree, "tensors": {}, "files": {}}, 1, lambda: False)
            other.lock.release()

    at_points(be_faster)
    with pytest.raises(FileExistsError):
        checkpoint.save({"who": "this one"}, tmp_path, step=1)
    assert checkpoint.load(tmp_path) == {"who": "the other"} and leftovers(tmp_path) == []


def test_the_next_save_waits_for_the_one_before(tmp_path: Path, at_points: Any) -> None:
    go = threading.Event()
    at_points(lambda point: go.wait(60) and None if point == "files" else None)
    first = checkpoint.save_async({}, tmp_path)
    threading.Timer(0.05, go.set).start()
    second = checkpoint.save_async({}, tmp_path)
    assert first.done() and second.result(60)


def test_a_canceled_save_leaves_nothing(tmp_path: Path, at_points: Any) -> None:
    reached, go = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "created":
            reached.set()
            go.wait(60)

    at_points(hold)
    saving = checkpoint.save_async({"a": np.zeros(1 << 20)}, tmp_path)
    assert reached.wait(60) and not saving.done()
    with pytest.raises(TimeoutError):
        saving.result(0.01)
    assert saving.cancel()
    go.set()
    with pytest.raises(gpunvme.CanceledError):
        saving.result(60)
    assert leftovers(tmp_path) == [] and checkpoint.latest(tmp_path) is None
    assert not saving.cancel()


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "sim:size=1M?a=b;c %41\n"
    checkpoint.save({"a": np.arange(3)}, folder)
    assert same(checkpoint.load(folder), {"a": np.arange(3)})


def test_buffers_are_used_again_and_freed_by_trim(tmp_path: Path) -> None:
    checkpoint.trim()
    checkpoint.reserve(_memory.BLOCK + 1, pinned=False)
    for _ in range(3):
        checkpoint.save_async({"a": np.zeros(100)}, tmp_path).result(60)
        assert len(_memory.pool._free["cpu"]) == 2
    checkpoint.trim()
    assert _memory.pool._free == {"cpu": [], "pinned": []}
