# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.weights for numpy: files of tensors, slices, prefetch, damaged files, saving."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpunvme
from gpunvme import weights
from gpunvme.weights import numpy as wn

pytestmark = pytest.mark.usefixtures("parser")
PATIENCE = 120  # seconds
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32",
          "uint64", "int64", "float64", "complex64"]
# A temporary folder is shared by the examples of one test; each replaces the file.
same_folder = settings(deadline=None, max_examples=40,
                       suppress_health_check=[HealthCheck.function_scoped_fixture])


def raw(dtype: str, shape: tuple[int, ...], seed: int = 1) -> np.ndarray[Any, Any]:
    """An array of random bytes (of 0 and 1 for bool)."""
    kind = np.dtype(dtype)
    data = np.random.default_rng(seed).bytes(int(np.prod(shape)) * kind.itemsize)
    array = np.frombuffer(data, kind if dtype != "bool" else np.uint8).reshape(shape).copy()
    return array if dtype != "bool" else array % 2 == 1


def same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def write(path: Path, header: object, data: bytes) -> Path:
    """A file with any header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path



TENSORS = {
    "b.matrix": raw("float32", (40, 60)),
    "a.vector": raw("int64", (1000,)),
    "c.scalar": raw("float64", ()),
    "d.nothing": raw("int8", (0, 3)),
    "a.bytes": raw("uint8", (3, 5, 7)),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    wn.save_file(TENSORS, tmp_path / "x.safetensors", {"format": "np", "note": "é"})
    return tmp_path / "x.safetensors"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """32 tensors of 512 KiB, number i full of i, and one of 16 MiB."""
    tensors = {f"t{i}": np.full(512 << 10, i, np.uint8) for i in range(32)}
    wn.save_file({**tensors, "large": np.zeros(16 << 20, np.uint8)}, tmp_path / "large")
    return tmp_path / "large"


# ---- Reading ----------------------------------------------------------------------------------


def test_load_file_has_all_arrays_as_they_were_saved(file: Path) -> None:
    loaded = wn.load_file(file)
    assert loaded.keys() == TENSORS.keys()
    assert all(same(loaded[name], array) for name, array in TENSORS.items())


def test_load_takes_a_file_s_bytes(file: Path) -> None:
    loaded = wn.load(file.read_bytes())
    assert all(same(loaded[name], array) for name, array in TENSORS.items())


def test_loaded_arrays_are_the_caller_s_own(file: Path) -> None:
    loaded = wn.load_file(file)
    loaded["b.matrix"][:] = 0
    assert same(wn.load_file(file)["b.matrix"], TENSORS["b.matrix"])


def test_keys_are_sorted_and_offset_keys_in_the_order_of_bytes(file: Path) -> None:
    with weights.safe_open(file, "np") as f:
        assert f.keys() == sorted(TENSORS)
        assert f.offset_keys() == ["a.vector", "c.scalar", "b.matrix", "d.nothing", "a.bytes"]


def test_metadata_are_the_file_s(file: Path, tmp_path: Path) -> None:
    with weights.safe_open(file, "np") as f:
        assert f.metadata() == {"format": "np", "note": "é"}
    wn.save_file({"x": np.zeros(1)}, tmp_path / "none")
    with weights.safe_open(tmp_path / "none", "np") as f:
        assert f.metadata() is None


def test_get_tensors_has_all(file: Path) -> None:
    with weights.safe_open(file, "np") as f:
        assert all(same(array, TENSORS[name]) for name, array in f.get_tensors().items())


def test_a_closed_file_is_an_error(file: Path) -> None:
    with weights.safe_open(file, "np") as f:
        pass
    with pytest.raises(weights.WeightsError, match="closed"):
        f.keys()


def test_a_slice_may_be_used_when_its_file_is_closed(file: Path) -> None:
    with weights.safe_open(file, "np") as f:
        part = f.get_slice("b.matrix")
    assert same(part[3], TENSORS["b.matrix"][3])


def test_closing_frees_the_file(file: Path) -> None:
    def opened() -> bool:
        folder = "/proc/self/fd"
        return str(file) in [os.path.realpath(f"{folder}/{n}") for n in os.listdir(folder)]

    with weights.safe_open(file, "np") as f:
        f.get_tensor("a.vector")
        assert opened()
    assert not opened()


def test_several_files_and_an_index_are_one_set_of_names(tmp_path: Path) -> None:
    wn.save_file({"x": np.arange(3)}, tmp_path / "1.safetensors")
    wn.save_file({"y": np.arange(4), "z": np.arange(5)}, tmp_path / "2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}}))
    with weights.safe_open([tmp_path / "1.safetensors", tmp_path / "2.safetensors"], "np") as f:
        assert f.keys() == ["x", "y", "z"]
    with weights.safe_open(index, "np") as f:
        assert f.keys() == ["x", "y"]
        assert same(f.get_tensor("y"), np.arange(4))


def test_a_drive_is_read_like_a_file(file: Path, tmp_path: Path) -> None:
    image = tmp_path / "drive"
    with gpunvme.open(f"sim:size=1M,image={image}", "r+") as drive:
        drive.pwrite(file.read_bytes())
    loaded = wn.load_file(f"sim:image={image}")
    assert same(loaded["b.matrix"], TENSORS["b.matrix"])


INDEXES = [np.s_[...], np.s_[()], np.s_[1], np.s_[-1], np.s_[::2], np.s_[5:2], np.s_[2:100],
           np.s_[-3:], np.s_[:, 1:3], np.s_[..., 2], np.s_[1, ..., None], np.s_[::-1],
           np.s_[1:3, ::3], np.s_[:, :, None], None, [1, 2], np.array([3, 1]),
           np.s_[:, np.int64(2)]]


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_a_slice_is_what_numpy_has(file: Path, index: Any) -> None:
    with weights.safe_open(file, "np") as f:
        assert same(f.get_slice("b.matrix")[index], TENSORS["b.matrix"][index])


@pytest.mark.parametrize("index", [40, -41, np.s_[:, :, 0], np.s_[..., ...]], ids=str)
def test_an_index_outside_is_an_index_error(file: Path, index: Any) -> None:
    with weights.safe_open(file, "np") as f, pytest.raises(IndexError, match="b.matrix"):
        f.get_slice("b.matrix")[index]


def test_a_slice_knows_shape_and_type_without_reading(file: Path) -> None:
    with weights.safe_open(file, "np") as f:
        part = f.get_slice("a.bytes")
        assert (part.get_shape(), part.get_dtype()) == ([3, 5, 7], "U8")


def test_a_slice_reads_its_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    wn.save_file({"x": np.arange(64 << 10, dtype=np.uint8).reshape(64, 1024)}, path)
    with weights.safe_open(path, "np") as f:
        os.truncate(path, path.stat().st_size - 1024)
        assert f.get_slice("x")[:63].shape == (63, 1024)
        with pytest.raises(gpunvme.Error, match="shorter"):
            f.get_slice("x")[63]


@same_folder
@given(st.data())
def test_any_slice_is_what_numpy_has(tmp_path: Path, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 6), max_size=4)))
    array = raw(data.draw(st.sampled_from(DTYPES)), shape)
    wn.save_file({"x": array}, tmp_path / "x")
    one = st.one_of(st.integers(-7, 7), st.none(), st.just(...),
                    st.slices(6).filter(lambda s: s.step != 0))
    index = tuple(data.draw(st.lists(one, max_size=5)))
    with weights.safe_open(tmp_path / "x", "np") as f:
        try:
            wanted = array[index]
        except IndexError:
            with pytest.raises(IndexError):
                f.get_slice("x")[index]
            return
        found = f.get_slice("x")[index]
        assert found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


# ---- Saving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_numpy_comes_back(tmp_path: Path, dtype: str) -> None:
    array = raw(dtype, (5, 7))
    wn.save_file({"x": array}, tmp_path / "x")
    assert same(wn.load_file(tmp_path / "x")["x"], array)
    assert same(wn.load(wn.save({"x": array}))["x"], array)


arrays = st.builds(raw, st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4).map(tuple),
                   st.integers(0, 99))
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@same_folder
@given(st.dictionaries(names.filter(lambda name: name != "__metadata__"), arrays, max_size=6),
       st.none() | st.dictionaries(names, names, min_size=1, max_size=4))
def test_what_was_saved_is_loaded(tmp_path: Path, tensors: dict[str, Any],
                                  metadata: dict[str, str] | None) -> None:
    wn.save_file(tensors, tmp_path / "x", metadata)
    loaded = wn.load_file(tmp_path / "x")
    assert loaded.keys() == tensors.keys()
    assert all(same(loaded[name], array) for name, array in tensors.items())
    assert (tmp_path / "x").read_bytes() == wn.save(tensors, metadata)
    with weights.safe_open(tmp_path / "x", "np") as f:
        assert f.metadata() == metadata


def test_arrays_that_are_not_contiguous_are_saved_as_they_look(tmp_path: Path) -> None:
    array = np.arange(24, dtype=">i4").reshape(4, 6).T
    wn.save_file({"x": array, "y": array[::2]}, tmp_path / "x")
    loaded = wn.load_file(tmp_path / "x")
    assert np.array_equal(loaded["x"], array) and np.array_equal(loaded["y"], array[::2])


@pytest.mark.parametrize("dtype", ["complex128", "U3", "datetime64[s]", "O"])
def test_a_type_that_files_have_not_is_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(weights.WeightsError, match="type"):
        wn.save_file({"x": np.zeros(2, dtype)}, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_metadata_that_are_no_strings_are_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="strings"):
        wn.save_file({}, tmp_path / "x", {"a": 1})  # type: ignore[dict-item]


def test_a_save_that_fails_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = file.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no rename today")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="today"):
        wn.save_file({"new": np.zeros(9)}, file)
    assert file.read_bytes() == old
    assert list(file.parent.iterdir()) == [file]


def test_a_save_through_a_link_replaces_what_it_refers_to(file: Path) -> None:
    link = file.parent / "link"
    link.symlink_to(file)
    wn.save_file({"new": np.zeros(9)}, link)
    assert link.is_symlink() and list(wn.load_file(file)) == ["new"]


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(weights.WeightsError, match="regular"):
        wn.save_file({"new": np.zeros(9)}, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_kill_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    code = f"""
import numpy as np
from gpunvme.weights.numpy import save_file
i = 0
while True:
    save_file({{"a": np.full(1 << 18, i, np.int64), "b": np.full(9, i, np.int64)}}, {str(path)!r})
    if not i:
        print("saved", flush=True)
    i += 1
"""
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"saved\n"
            time.sleep(0.05)
            child.kill()
        loaded = wn.load_file(path)
        assert (loaded["a"] == loaded["b"][0]).all()


# ---- Damaged files ----------------------------------------------------------------------------


def entry(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> object:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape,
            "data_offsets": [begin, end]}


BROKEN: dict[str, tuple[object, bytes]] = {
    "no JSON": (b"{", b""),
    "no object": (b"[]", b""),
    "wrong UTF-8": (b'{"\xff": 1}', b""),
    "nested deeply": (b'{"a":' * 5000 + b"1" + b"}" * 5000, b""),
    "the same name twice": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
                            b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b""),
    "an overlap": ({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)),
    "a hole": ({"a": entry(0, 4), "b": entry(5, 6)}, bytes(6)),
    "behind the end": ({"a": entry(0, 9)}, bytes(4)),
    "bytes that no tensor has": ({"a": entry(0, 2)}, bytes(4)),
    "more than 2^63 bytes": ({"a": entry(0, 2, "U8", [1 << 63, 2])}, bytes(2)),
    "a negative size": ({"a": entry(0, 2, "U8", [-1, -2])}, bytes(2)),
    "the wrong size": ({"a": entry(0, 2, "F32", [1])}, bytes(2)),
    "no type": ({"a": {"shape": [2], "data_offsets": [0, 2]}}, bytes(2)),
    "metadata that are no strings": ({"__metadata__": {"a": 1}}, b""),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_a_weights_error_that_names_it(tmp_path: Path, what: str) -> None:
    path = write(tmp_path / "broken", *BROKEN[what])
    with pytest.raises(weights.WeightsError, match="broken"):
        weights.safe_open(path, "np")
    with pytest.raises(weights.WeightsError):
        wn.load(path.read_bytes())


@pytest.mark.parametrize("data", [b"", b"1234567", b"\xff" * 8, (100).to_bytes(8, "little")],
                         ids=["empty", "7 bytes", "2^64", "cut off"])
def test_a_file_without_a_header_is_a_weights_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "broken").write_bytes(data)
    with pytest.raises(weights.WeightsError, match="broken"):
        weights.safe_open(tmp_path / "broken", "np")


@same_folder
@given(st.integers(0, 399), st.integers(0, 255))
def test_a_changed_byte_is_an_error_or_other_data(file: Path, at: int, value: int) -> None:
    data = bytearray(file.read_bytes())
    data[at % len(data)] = value
    (file.parent / "changed").write_bytes(data)
    try:
        wn.load_file(file.parent / "changed")
    except gpunvme.Error:
        pass


def test_a_file_that_is_not_there_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        weights.safe_open(tmp_path / "none", "np")


def test_a_tensor_that_is_not_there_is_a_weights_error(file: Path) -> None:
    with weights.safe_open(file, "np") as f:
        for get in (f.get_tensor, f.get_slice):
            with pytest.raises(weights.WeightsError, match='"none"'):
                get("none")


def test_a_type_that_numpy_has_not_is_a_weights_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {"a": entry(0, 3, "F6_E2M3", [4])}, bytes(3))
    with weights.safe_open(path, "np") as f:
        assert f.get_slice("a").get_dtype() == "F6_E2M3"
        with pytest.raises(weights.WeightsError, match="no type for F6_E2M3"):
            f.get_tensor("a")


@pytest.mark.parametrize("arguments", [("tf",), ("np", "cuda"), ("np", 0)], ids=str)
def test_a_framework_or_device_that_there_is_not_is_a_weights_error(
    file: Path, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(weights.WeightsError):
        weights.safe_open(file, *arguments)


@pytest.mark.parametrize("framework", ["jax", "flax", "tf", "tensorflow", "mlx", "paddle"])
def test_other_frameworks_are_refused_with_a_way_to_get_there(file: Path, framework: str) -> None:
    with pytest.raises(weights.WeightsError, match=f"{framework}.*arrays of numpy"):
        weights.safe_open(file, framework)


def test_a_file_that_became_shorter_is_an_error(large: Path) -> None:
    with weights.safe_open(large, "np") as f:
        os.truncate(large, large.stat().st_size // 2)
        with pytest.raises(gpunvme.Error, match="shorter"):
            f.get_tensors()


def test_a_drive_that_does_not_answer_is_an_error(large: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    with gpunvme.open(f"sim:size=64M,image={image}", "r+") as drive:
        drive.pwrite(large.read_bytes())
    uri = f"sim:image={image},fault=lose:read:lba=8192-16383?timeout=1s"  # from byte 4 Mi on
    with weights.safe_open(uri, "np") as f:
        assert (f.get_tensor("t0") == 0).all()
        with pytest.raises(gpunvme.Error):
            f.get_tensors()


def test_require_is_an_error_where_the_way_is_not_there(file: Path) -> None:
    if not gpunvme.info().gpus:
        with pytest.raises(gpunvme.Error, match="p2p"):
            weights.prefetch(file, framework="np", require="p2p")


# ---- Prefetch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arena", [False, True])
def test_prefetch_hands_out_each_tensor_once(file: Path, arena: bool) -> None:
    with weights.prefetch(file, framework="np", arena=arena) as loader:
        assert len(loader) == len(TENSORS)
        first = loader.take("b.matrix")
        rest = dict(loader)
        assert same(first, TENSORS["b.matrix"])
        assert rest.keys() == TENSORS.keys() - {"b.matrix"}
        assert all(same(array, TENSORS[name]) for name, array in rest.items())
        assert dict(loader) == {}
        with pytest.raises(weights.WeightsError, match="handed out"):
            loader.take("a.vector")


def test_prefetch_takes_in_any_order(large: Path) -> None:
    with weights.prefetch(large, framework="np") as loader:
        for i in reversed(range(32)):
            assert (loader.take(f"t{i}") == i).all()


@pytest.mark.parametrize("arena", [False, True])
def test_tensors_alike_get_what_their_own_index_picks(tmp_path: Path, arena: bool) -> None:
    indexes: list[Any] = [1, slice(1), slice(1, 2), (1, slice(None)), (slice(None), 1), (1, 1),
                          np.int64(1), slice(None, None, 2), np.array([1, 0]), None, ...]
    tensors = {f"{kind}.{i}.{k}": np.random.default_rng(i).integers(0, 99, shape).astype(dtype)
               for kind, (shape, dtype) in enumerate([((4, 6), "i4"), ((4, 6), "u1"),
                                                      ((6, 4), "i4")])
               for i in range(len(indexes)) for k in range(2)}
    path = tmp_path / "alike.safetensors"
    wn.save_file(tensors, path)
    plan = {name: indexes[int(name.split(".")[1])] for name in tensors}
    with weights.prefetch(path, plan, framework="np", arena=arena) as loader:
        for name, found in loader:
            index = plan[name]
            assert same(found, tensors[name] if index is None else tensors[name][index]), name


@pytest.mark.parametrize("plan, wanted", [
    ("t1?", {f"t{i}": np.s_[...] for i in range(10, 20)}),
    (["t3", "t1"], {"t1": np.s_[...], "t3": np.s_[...]}),
    ({"t3": None, "t4": np.s_[10:20], "t5": np.s_[::100]},
     {"t3": np.s_[...], "t4": np.s_[10:20], "t5": np.s_[::100]}),
    ([], {}),
], ids=["pattern", "names", "slices", "nothing"])
def test_prefetch_loads_what_is_planned(large: Path, plan: Any, wanted: dict[str, Any]) -> None:
    whole = wn.load_file(large)
    for arena in (False, True):
        with weights.prefetch(large, plan, framework="np", arena=arena) as loader:
            found = dict(loader)
        assert found.keys() == wanted.keys()
        assert all(same(found[name], whole[name][index]) for name, index in wanted.items())


def test_prefetch_refuses_a_name_that_is_not_there(large: Path) -> None:
    with pytest.raises(weights.WeightsError, match='"t99"'):
        weights.prefetch(large, ["t99"], framework="np")
    with weights.prefetch(large, ["t1"], framework="np") as loader:
        with pytest.raises(weights.WeightsError, match="not in the plan"):
            loader.take("t2")


def test_prefetch_of_an_opened_file_goes_on_when_that_is_closed(large: Path) -> None:
    with weights.safe_open(large, "np") as f:
        loader = f.prefetch({"t7": np.s_[:10]})
    assert (loader.take("t7") == 7).all()


def test_arguments_of_safetensors_that_mean_nothing_here_are_ignored(large: Path) -> None:
    with weights.safe_open(large, "np", backend="pread") as f:
        assert (f.prefetch({"t7": None}, device="cpu", threads=4).take("t7") == 7).all()


def test_tensors_outlive_their_prefetch(large: Path) -> None:
    loader = weights.prefetch(large, framework="np", arena=True)
    tensor = loader.take("t9")
    loader.close()
    del loader
    gc.collect()
    assert (tensor == 9).all()


def test_an_arena_is_freed_with_its_last_view(large: Path) -> None:
    with weights.prefetch(large, framework="np", arena=True) as loader:
        first, second = loader.take("t1"), loader.take("t2")
        dict(loader)
    arena = weakref.ref(first.base)
    assert first.base is second.base
    del loader, first
    gc.collect()
    assert arena() is not None and (second == 2).all()
    del second
    gc.collect()
    assert arena() is None


def test_tensors_of_their_own_share_nothing(large: Path) -> None:
    with weights.prefetch(large, framework="np") as loader:
        assert all(array.base is None for _, array in loader)


def test_an_error_reaches_who_takes_and_who_iterates(large: Path) -> None:
    with weights.safe_open(large, "np") as f:
        os.truncate(large, large.stat().st_size - 1)
        loader = f.prefetch()
        with pytest.raises(gpunvme.Error, match="shorter"):
            loader.take(f.offset_keys()[-1])
        with pytest.raises(gpunvme.Error, match="shorter"):
            dict(loader)


def test_several_threads_take(large: Path) -> None:
    right = []
    with weights.prefetch(large, framework="np") as loader:
        def take(i: int) -> None:
            right.append(bool((loader.take(f"t{i}") == i).all()))

        threads = [threading.Thread(target=take, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert right == [True] * 32


def test_a_closed_prefetch_hands_out_nothing(large: Path) -> None:
    loader = weights.prefetch(large, framework="np")
    loader.close()
    with pytest.raises(weights.WeightsError, match="closed"):
        loader.take("t1")
    assert dict(loader) == {}


# ---- Ctrl-C and processes ---------------------------------------------------------------------


SLOW = "read_bandwidth=256K?threads=1,depth=1,chunk=64K"  # 128 s for what `large` has


@pytest.fixture
def slow(large: Path, tmp_path: Path) -> str:
    """`large` on a drive that takes two minutes to read it."""
    with gpunvme.open(f"sim:size=64M,image={tmp_path}/image", "r+") as drive:
        drive.pwrite(large.read_bytes())
    return f"sim:image={tmp_path}/image,{SLOW}"


@pytest.mark.parametrize("call", ["wn.load_file(uri)",
                                  "weights.safe_open(uri, 'np').get_tensor('large')",
                                  "dict(weights.prefetch(uri, framework='np'))"])
def test_ctrl_c_ends_a_load(slow: str, call: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"""
import time
from gpunvme import weights
from gpunvme.weights import numpy as wn
uri = {slow!r}
print("ready", flush=True)
begin = time.monotonic()
try:
    {call}
except KeyboardInterrupt:
    print(time.monotonic() - begin < 64, flush=True)  # before all had been read
"""], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.5)  # into the wait; before it, it would be interrupted as well
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "True\n"
        child.kill()


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True,
                          timeout=PATIENCE)


def test_the_interpreter_ends_while_tensors_load(slow: str) -> None:
    done = run(f"""
from gpunvme import weights
loader = weights.prefetch({slow!r}, framework="np")
print("ready")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


def test_a_child_gets_an_error_for_its_parent_s_load(large: Path) -> None:
    done = run(f"""
import os
import gpunvme
from gpunvme import weights
loader = weights.prefetch({str(large)!r}, framework="np")
child = os.fork()
if not child:
    try:
        for i in range(32):
            loader.take(f"t{{i}}")
        os._exit(0)  # all had landed before the fork
    except gpunvme.UnsupportedError:
        os._exit(0)
    os._exit(1)
print(os.waitpid(child, 0)[1], len(dict(loader)))
""")
    assert done.stdout == "0 33\n", done.stderr


def test_weights_load_neither_torch_nor_transformers() -> None:
    done = run("import sys, gpunvme.weights; "
               "print({'torch', 'transformers'} & {*sys.modules})")
    assert done.stdout == "set()\n", done.stderr


# ---- As safetensors has it --------------------------------------------------------------------


@pytest.fixture
def theirs() -> Any:
    return pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")


@pytest.mark.parametrize("metadata", [None, {}, {"key": "value \x01\x7f\u20ac\""}])
def test_a_file_is_the_same_bytes_as_safetensors_writes(
    theirs: Any, metadata: dict[str, str] | None
) -> None:
    tensors = {name + "\u20ac\n": array for name, array in TENSORS.items()}
    tensors.update({dtype: raw(dtype, (3, 4)) for dtype in DTYPES})
    assert wn.save(tensors, metadata) == theirs.save(tensors, metadata)


def test_arrays_are_those_that_safetensors_loads(theirs: Any, tmp_path: Path) -> None:
    theirs.save_file({dtype: raw(dtype, (3, 4)) for dtype in DTYPES}, tmp_path / "x")
    ours, wanted = wn.load_file(tmp_path / "x"), theirs.load_file(tmp_path / "x")
    assert ours.keys() == wanted.keys()
    assert all(same(ours[name], array) for name, array in wanted.items())


@pytest.mark.parametrize("broken", BROKEN)
def test_what_safetensors_refuses_is_a_safetensor_error(theirs: Any, tmp_path: Path,
                                                        broken: str) -> None:
    import safetensors

    path = write(tmp_path / "broken", *BROKEN[broken])
    opens: list[Callable[..., Any]] = [weights.safe_open, safetensors.safe_open]
    for each in opens:
        if each is safetensors.safe_open and broken == "the same name twice":
            continue  # which takes the last
        with pytest.raises(safetensors.SafetensorError):
            each(path, "np")
