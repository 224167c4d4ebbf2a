# SPDX-License-Identifier: BSD-3-Clause
"""Stores: blocking transfers, what they are told, and what they refuse."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpunvme

from conftest import NBYTES

same_file = settings(max_examples=60, deadline=None,
                     suppress_health_check=[HealthCheck.function_scoped_fixture])


@same_file
@given(offset=st.integers(0, NBYTES + 100), size=st.integers(1, NBYTES))
def test_pread_is_the_file_s_bytes(store: gpunvme.Store, data: bytes, offset: int,
                                   size: int) -> None:
    buf = np.zeros(size, np.uint8)
    assert store.pread(buf, offset=offset) == len(data[offset : offset + size])
    assert buf.tobytes().startswith(data[offset : offset + size])


@same_file
@given(offset=st.integers(0, 3 * NBYTES), new=st.binary(min_size=1, max_size=10000))
def test_pwrite_changes_just_those_bytes(path: str, data: bytes, offset: int, new: bytes) -> None:
    Path(path).write_bytes(data)
    with gpunvme.open(path, "r+") as store:
        assert store.pwrite(new, offset=offset) == len(new)
    want = bytearray(data.ljust(offset, b"\0"))
    want[offset : offset + len(new)] = new
    assert Path(path).read_bytes() == want


def test_size_limits_what_is_read(store: gpunvme.Store, data: bytes) -> None:
    buf = bytearray(b"\1" * 100)
    assert store.pread(buf, 40, 7) == 40
    assert buf == data[7:47] + b"\1" * 60


def test_more_than_one_call_moves_is_moved(tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(9 << 20)
    with gpunvme.open(tmp_path / "large", "w") as store:
        assert store.pwrite(data) == len(data)
        buf = bytearray(len(data) + 5)
        assert store.pread(buf) == len(data)
    assert buf[:-5] == data


def test_readv_fills_buffers_in_turn(store: gpunvme.Store, data: bytes) -> None:
    bufs = [bytearray(3), np.zeros(5000, np.uint8), bytearray(1)]
    assert store.readv(bufs, 10) == 5004
    assert b"".join(bytes(b) for b in bufs) == data[10:5014]


def test_writev_writes_buffers_in_turn(store: gpunvme.Store, path: str) -> None:
    assert store.writev([b"abc", np.arange(4, dtype=np.uint8), b"d"], 100) == 8
    assert Path(path).read_bytes()[100:108] == b"abc\0\1\2\3d"


def test_gather_puts_ranges_where_they_belong(store: gpunvme.Store, data: bytes) -> None:
    offsets = [70000, 3, 500000]
    buf = np.zeros(3 * 64, np.uint8)
    assert store.gather(buf, offsets, 50, 64) == 150
    for i, offset in enumerate(offsets):
        assert buf[64 * i : 64 * i + 50].tobytes() == data[offset : offset + 50]
        assert not buf[64 * i + 50 : 64 * i + 64].any()


def test_scatter_writes_ranges_to_their_offsets(store: gpunvme.Store, path: str) -> None:
    store.scatter(b"aabbcc", np.array([10, 0, 20]), 2)
    written = Path(path).read_bytes()
    assert (written[10:12], written[0:2], written[20:22]) == (b"aa", b"bb", b"cc")


def test_flush_resize_size_and_advise(store: gpunvme.Store, path: str) -> None:
    assert store.size == NBYTES
    store.resize(5000)
    store.flush()
    store.advise("will_need")
    store.advise("dont_need", 0, 4096)
    assert store.size == os.path.getsize(path) == 5000


def test_path_counts_the_bytes_of_each_route(store: gpunvme.Store) -> None:
    store.pread(bytearray(1000))
    store.pwrite(bytes(500))
    path = store.path()
    assert path.backend == "posix"
    assert sum(path.bytes_read.values()) == 1000
    assert sum(path.bytes_written.values()) == 500
    assert set(path.bytes_read) == {"host", "p2p", "bounce", "compat"}
    assert path.how


def test_info_is_what_was_opened(store: gpunvme.Store, path: str) -> None:
    info = store.info()
    assert (info.backend, info.uri, info.writable, info.timeout) == ("posix", path, True, 30.0)
    assert store.timeout == 30.0 and info.block_size == store.block_size


@pytest.mark.parametrize(
    ("flags", "there", "absent"),
    [("r", "reads", FileNotFoundError), ("r+", "writes", FileNotFoundError),
     ("a", "writes", "writes"), ("w", "empties", "writes"), ("x", FileExistsError, "writes")],
)
def test_flags_are_those_of_files(tmp_path: Path, flags: str, there: object,
                                  absent: object) -> None:
    for name, want in (("there", there), ("absent", absent)):
        file = tmp_path / name
        if name == "there":
            file.write_bytes(b"old")
        if isinstance(want, type):
            with pytest.raises(want):
                gpunvme.open(file, flags)  # type: ignore[arg-type]
            continue
        with gpunvme.open(file, flags) as store:  # type: ignore[arg-type]
            assert store.size == (3 if name == "there" and want != "empties" else 0)
            if want == "reads":
                with pytest.raises(PermissionError):
                    store.pwrite(b"new")
            else:
                assert store.pwrite(b"new") == 3


def test_a_descriptor_is_opened_and_stays_the_caller_s(path: str, data: bytes) -> None:
    with open(path, "rb") as file:
        with gpunvme.open(file.fileno()) as store:
            buf = bytearray(10)
            assert store.pread(buf) == 10
        assert buf == data[:10] == file.read(10)


@pytest.mark.parametrize("uri", ["sim:size=1M", "sim:size=1M,vwc=on?threads=1"])
def test_a_software_drive_is_a_store(uri: str) -> None:
    with gpunvme.open(uri, "r+") as store:
        store.pwrite(b"some bytes", offset=1000)
        store.flush()
        buf = bytearray(10)
        store.pread(buf, offset=1000)
        assert buf == b"some bytes"
        assert store.size == 1 << 20


# ---- What is refused -----------------------------------------------------------------------------


def test_a_closed_store_says_so(path: str) -> None:
    store = gpunvme.open(path)
    store.close()
    store.close()
    assert store.closed and "closed" in repr(store)
    for use in (lambda: store.pread(bytearray(1)), lambda: store.pread_async(bytearray(1)),
                lambda: store.size, store.path, store.flush,
                lambda: gpunvme.Batch(store, bytearray(1), [0], 1)):
        with pytest.raises(gpunvme.ClosedError, match="has been closed: .*: open it again"):
            use()


@pytest.mark.parametrize("offset", [-1, 1 << 63, -(1 << 70)])
def test_an_offset_that_is_none_is_refused(store: gpunvme.Store, offset: int) -> None:
    for use in (store.pread, store.pread_async, store.pwrite):
        with pytest.raises(ValueError, match="offset"):
            use(bytearray(1), offset=offset)
    with pytest.raises(TypeError):
        store.pread(bytearray(1), offset=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 11])
def test_a_size_that_does_not_fit_is_refused(store: gpunvme.Store, size: int) -> None:
    with pytest.raises(gpunvme.ArgumentError, match="of a buffer that has 10"):
        store.pread(bytearray(10), size)


def test_memory_that_can_not_be_read_is_an_argument_error(store: gpunvme.Store) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, 8192, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    with pytest.raises(ValueError, match="Bad address"):
        store.pwrite(address, 4096)
    assert store.pread(bytearray(10)) == 10  # it is still of use


def test_gather_refuses_what_does_not_fit(store: gpunvme.Store) -> None:
    for offsets, nbytes, stride in (([], 1, 1), ([-1], 1, 1), ([0, 1], 10, 5), ([0, 1], 6, None),
                                    ([0], 0, None), ([0.5], 1, None), ([[0]], 1, None)):
        with pytest.raises(gpunvme.ArgumentError):
            store.gather(bytearray(10), offsets, nbytes, stride)


def test_an_unknown_uri_is_told(tmp_path: Path) -> None:
    with pytest.raises(gpunvme.NotFoundError, match="did you mean 'nvme:'"):
        gpunvme.open("nmve:0000:01:00.0")
    with pytest.raises(gpunvme.NotFoundError, match="nor a scheme"):
        gpunvme.open("whatever:0000:01:00.0")
    with pytest.raises(ValueError, match="threads"):
        gpunvme.open(f"file:{tmp_path}/x?thraeds=1")
    with pytest.raises(gpunvme.ArgumentError, match="byte 0"):
        gpunvme.open("/tmp/a\0b")
    with pytest.raises(gpunvme.ArgumentError, match="flags"):
        gpunvme.open("/tmp/x", "rw")  # type: ignore[arg-type]


def test_advice_that_is_none_is_refused(store: gpunvme.Store) -> None:
    with pytest.raises(gpunvme.ArgumentError, match="sequential"):
        store.advise("sometimes")  # type: ignore[arg-type]


# ---- Its end -------------------------------------------------------------------------------------


def test_close_waits_for_a_read_of_another_thread(slow: gpunvme.Store) -> None:
    buf, got = bytearray(4096), []
    thread = threading.Thread(target=lambda: got.append(slow.pread(buf)))
    thread.start()
    while not slow._users:
        pass
    slow.close()
    thread.join()
    assert got == [4096]


def test_a_store_that_was_not_closed_is_warned_of(path: str) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        gpunvme.open(path)
        gc.collect()


def test_many_threads_read_one_store(store: gpunvme.Store, data: bytes) -> None:
    failed = []

    def read(seed: int) -> None:
        random, buf = np.random.default_rng(seed), bytearray(3000)
        for _ in range(200):
            offset = int(random.integers(0, NBYTES - 3000))
            if seed % 2:
                moved = store.pread(buf, offset=offset)
            else:
                moved = store.pread_async(buf, offset=offset).result()
            if moved != 3000 or buf != data[offset : offset + 3000]:
                failed.append((seed, offset))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and not store._users
