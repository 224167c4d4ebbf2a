# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.tiers: files by name, wherever they lie."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpunvme
from gpunvme import tiers

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The directories of a new set."""
    made = tmp_path / "hot", tmp_path / "warm", tmp_path / "cold"
    for folder in made:
        folder.mkdir()
    try:
        tiers.create(*made, hot_capacity=4 * MIB)
    except gpunvme.UnsupportedError as why:
        pytest.skip(str(why))
    return made


@pytest.fixture
def files(dirs: tuple[Path, Path, Path]) -> Iterator[tiers.Tiers]:
    with tiers.Tiers(dirs[0]) as opened:
        yield opened


def test_a_file_is_put_and_read_wherever_it_lies(files: tiers.Tiers, data: bytes) -> None:
    for tier in ("hot", "warm", "cold"):
        files.put(f"in/{tier}", data, tier)  # type: ignore[arg-type]
        assert files.stat(f"in/{tier}").tier == tier
        buf = bytearray(1000)
        assert files.read(f"in/{tier}", buf, 500) == 1000
        assert buf == data[500:1500]
        assert files.read(f"in/{tier}", buf, len(data) - 10) == 10
        assert bytes(files.read_direct(f"in/{tier}")) == data


def test_the_files_are_ordinary_files(files: tiers.Tiers, dirs: tuple[Path, Path, Path],
                                      data: bytes) -> None:
    files.put("in/a", data, "warm")
    assert (dirs[1] / "in/a").read_bytes() == data


@pytest.mark.parametrize("device", ["cpu", "pinned", "cuda"])
def test_read_direct_makes_memory(files: tiers.Tiers, data: bytes, device: str) -> None:
    files.put("a", data)

    def contents(memory: object) -> bytes:
        return (memory.copy_to_host() if isinstance(memory, gpunvme.DeviceMemory)
                else np.asarray(memory)).tobytes()

    assert contents(files.read_direct("a", device=device)) == data
    assert contents(files.read_direct("a", 7, 100, device)) == data[7:107]
    assert contents(files.read_direct("a", len(data) - 5, 100, device)) == data[-5:]


def test_a_read_at_the_end_is_empty(files: tiers.Tiers) -> None:
    files.put("empty", b"")
    assert files.stat("empty").nbytes == 0
    assert files.read_direct("empty").size == 0  # type: ignore[union-attr]
    assert files.read("empty", bytearray(10)) == 0
    assert files.read_direct("empty", 100, 10).size == 0  # type: ignore[union-attr]


def test_large_reads_are_of_one_call_and_whole(files: tiers.Tiers) -> None:
    large = np.random.default_rng(1).integers(0, 256, 20 * MIB, np.uint8)
    files.put("large", large)
    buf = np.zeros_like(large)
    assert files.read("large", buf) == large.nbytes
    assert (buf == large).all()
    assert files.write_direct("copy", buf) == large.nbytes
    assert (files.read_direct("copy") == large).all()  # type: ignore[operator]


def test_writes_in_place_make_files_longer(files: tiers.Tiers) -> None:
    assert files.write_direct("w", b"abcdef") == 6
    assert files.write_direct("w", b"XY", 2) == 2
    assert files.write_direct("w", b"!", 8) == 1
    files.flush("w")
    assert bytes(files.read_direct("w")) == b"abXYef\0\0!"
    assert files.stat("w").checksum is None


def test_many_ranges_are_written_at_once(files: tiers.Tiers) -> None:
    files.put("old", b"0123456789", "warm")
    done = files.write_many([("old", 2, b"ab"), ("new", 0, b"xyz"), ("old", 8, b"cdef")])
    assert [one.nbytes for one in done] == [2, 3, 4] and done[0].tier == "warm"
    assert bytes(files.read_direct("old")) == b"01ab4567cdef"
    assert bytes(files.read_direct("new")) == b"xyz"
    assert files.write_many([]) == []
    with pytest.raises(gpunvme.ArgumentError):
        files.write_many([("../old", 0, b"x")])


def test_put_file_takes_paths_uris_and_stores(files: tiers.Tiers, path: str, data: bytes) -> None:
    files.put_file("of-path", path)
    files.put_file("of-uri", f"file:{path}", "cold")
    with gpunvme.open(path) as store:
        files.put_file("of-store", store, "warm")
        assert not store.closed
    with gpunvme.open("sim:size=1M") as drive:
        files.put_file("of-drive", drive)
    assert [bytes(files.read_direct(f"of-{what}")) == data
            for what in ("path", "uri", "store", "drive")] == [True, True, True, False]
    assert files.stat("of-drive").nbytes == MIB
    with pytest.raises(gpunvme.NotFoundError):
        files.put_file("of-nothing", path + ".missing")


def test_many_reads_are_one_call(files: tiers.Tiers, data: bytes) -> None:
    files.put("a", data, "hot")
    files.put("b", data[::-1], "cold")
    bufs = [bytearray(1000) for _ in range(3)]
    got = files.read_many([("a", 0, bufs[0]), ("b", 5, bufs[1]), ("a", len(data) - 10, bufs[2])])
    assert got == [tiers.Many(1000, "hot"), tiers.Many(1000, "cold"), tiers.Many(10, "hot")]
    assert bufs[0] == data[:1000] and bufs[1] == data[::-1][5:1005]
    assert bufs[2][:10] == data[-10:]
    assert files.read_many([]) == []
    with pytest.raises(gpunvme.NotFoundError):
        files.read_many([("a", 0, bufs[0]), ("nowhere", 0, bufs[1])])


def test_an_open_store_stays_its_version(files: tiers.Tiers) -> None:
    files.put("a", b"old" * 1000, "hot")
    with files.open_store("a") as store:
        files.move("a", "cold")
        files.put("a", b"new" * 1000)
        buf = bytearray(3000)
        assert store.pread(buf) == 3000
        assert buf == b"old" * 1000
        files.remove("a")
        assert store.pread_async(buf).result() == 3000
    with pytest.raises(FileNotFoundError):
        files.open_store("a")


def test_files_move_with_their_bytes(files: tiers.Tiers, data: bytes) -> None:
    files.put("a", data, "hot")
    before = files.stat("a")
    assert files.move("a", "warm", pin=True) == "warm"
    after = files.stat("a")
    assert (after.tier, after.pinned) == ("warm", "warm")
    assert (after.nbytes, after.mtime) == (before.nbytes, before.mtime)
    assert files.auto_tier("a") == "cold"
    assert files.stat("a").pinned is None
    assert bytes(files.read_direct("a")) == data


def test_use_moves_files(files: tiers.Tiers, data: bytes) -> None:
    files.put("used", data, "cold")
    files.put("unused", data, "cold")
    for _ in range(12):
        files.read("used", bytearray(10))
    with files.open_store("used", accesses=100):
        pass
    moves = files.migrate()
    assert (moves.up, moves.down, moves.nbytes) == (1, 0, len(data))
    assert [(f.name, f.tier) for f in files.list()] == [("unused", "cold"), ("used", "hot")]
    assert files.stat("used").score == pytest.approx(files.stat("unused").score + 112, rel=0.01)
    assert files.migrate() == gpunvme.tiers.Moves(0, 0, 0, 0, 0, 0)


def test_a_policy_decides_in_place_of_the_thresholds(dirs: tuple[Path, Path, Path],
                                                     data: bytes) -> None:
    told: list[tuple[str, str, str, int, object]] = []

    def policy(file: tiers.TieredFile) -> tiers.TierName:
        return "hot" if file.name.endswith(".idx") else "cold"

    with tiers.Tiers(dirs[2], policy=policy, moved=lambda *move: told.append(move)) as files:
        files.put("a.idx", data, "cold")
        files.put("b.bin", data, "cold")
        files.migrate()
        assert {file.name: file.tier for file in files.list()} == {"a.idx": "hot", "b.bin": "cold"}
    assert told == [("a.idx", "cold", "hot", len(data), None)]


def test_a_policy_that_raises_leaves_files_where_they_are(
        dirs: tuple[Path, Path, Path], data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: raised.append(args.exc_value))

    def policy(file: tiers.TieredFile) -> tiers.TierName:
        raise LookupError(file.name)

    with tiers.Tiers(dirs[0], policy=policy) as files:
        files.put("a", data, "warm")
        files.migrate()
        assert files.stat("a").tier == "warm"
    assert raised and all(isinstance(why, LookupError) for why in raised)


def test_a_file_that_cannot_be_moved_is_told(dirs: tuple[Path, Path, Path], data: bytes) -> None:
    told: list[tuple[object, ...]] = []
    with tiers.Tiers(dirs[0], policy=lambda _: "warm", moved=lambda *move: told.append(move)) as files:
        files.put("good", data, "cold")
        files.put("rotten", data, "cold")
        rotten, mtime = dirs[2] / "rotten", (dirs[2] / "rotten").stat().st_mtime_ns
        rotten.write_bytes(data[:-1] + b"!")
        os.utime(rotten, ns=(mtime, mtime))
        moves = files.migrate()
        assert (moves.up, moves.failed) == (1, 1)
        assert files.stat("rotten").tier == "cold"
    assert told[0] == ("good", "cold", "warm", len(data), None)
    assert told[1][:4] == ("rotten", "cold", "warm", len(data))
    assert isinstance(told[1][4], gpunvme.Error) and told[1][4].name == "GPUNVME_ERR_VERIFY"


def test_ctrl_c_ends_a_pass(dirs: tuple[Path, Path, Path], data: bytes) -> None:
    def moved(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

    with tiers.Tiers(dirs[0], policy=lambda _: "warm", moved=moved) as files:
        for i in range(3):
            files.put(f"{i}", data, "cold")
        with pytest.raises(KeyboardInterrupt):
            files.migrate()
        assert sum(file.tier == "warm" for file in files.list()) == 1
        files.put("3", data)  # the set still works


def test_a_thread_migrates_in_the_background(dirs: tuple[Path, Path, Path], data: bytes) -> None:
    moved = threading.Event()
    with tiers.Tiers(dirs[0], migrate=True, interval=0.05, policy=lambda _: "warm",
                     moved=lambda *_: moved.set()) as files:
        files.put("a", data, "cold")
        assert moved.wait(60)
        assert bytes(files.read_direct("a")) == data
        assert files.info().migrating


def test_list_takes_a_prefix(files: tiers.Tiers) -> None:
    for name in ("a/1", "a/2", "b", "größe"):
        files.put(name, name.encode())
    assert [file.name for file in files.list("a/")] == ["a/1", "a/2"]
    assert [file.name for file in files.list()] == ["a/1", "a/2", "b", "größe"]
    assert files.list("c") == []


def test_info_has_tiers_and_settings(files: tiers.Tiers, dirs: tuple[Path, Path, Path],
                                     data: bytes) -> None:
    files.put("a", data, "warm")
    info = files.info()
    assert [tier.name for tier in info.tiers] == ["hot", "warm", "cold"]
    assert [Path(tier.directory) for tier in info.tiers] == list(dirs)
    assert [tier.capacity for tier in info.tiers] == [4 * MIB, None, None]
    assert (info.tiers[1].nfiles, info.tiers[1].nbytes) == (1, len(data))
    assert (info.hot_at, info.warm_at, info.half_life, info.rate) == (100, 10, 604800, None)
    assert (info.moving, info.migrating) == (0, False)
    files.configure(hot_capacity=math.inf, warm_at=5, half_life=math.inf, rate=10 * MIB)
    info = files.info()
    assert (info.tiers[0].capacity, info.warm_at, info.half_life) == (None, 5, math.inf)
    assert info.rate == 10 * MIB
    files.configure(rate=math.inf)
    assert files.info().rate is None


def test_path_tells_the_tier_and_the_way(files: tiers.Tiers) -> None:
    files.put("a", b"x" * 100, "cold")
    tier, path = files.path("a")
    assert tier == "cold" and path.backend and path.how


def test_scrub_tells_and_mends(files: tiers.Tiers, dirs: tuple[Path, Path, Path],
                               data: bytes) -> None:
    files.put("a", data, "warm")
    assert files.scrub().findings == ()
    (dirs[1] / "a").write_bytes(b"other")
    (dirs[2] / "b").write_bytes(b"new")
    with pytest.raises(gpunvme.DeviceError) as failed:
        files.read("a", bytearray(5))
    assert failed.value.name == "GPUNVME_ERR_VERIFY"
    found = files.scrub(read_all=True)
    assert {(f.kind, f.name) for f in found.findings} == {("changed", "a"), ("new", "b")}
    assert found.files == 2
    assert bytes(files.read_direct("a")) == b"other" and bytes(files.read_direct("b")) == b"new"


def test_a_catalogue_that_is_gone_is_made_anew(dirs: tuple[Path, Path, Path], data: bytes) -> None:
    with tiers.Tiers(dirs[0]) as files:
        files.put("a", data, "cold")
    for file in (dirs[0] / ".gpunvme-tiers").glob("catalogue*"):
        file.unlink()
    with pytest.raises(gpunvme.DeviceError, match="rebuild"):
        tiers.Tiers(dirs[0])
    tiers.rebuild(dirs[1])
    with tiers.Tiers(dirs[0]) as files:
        assert bytes(files.read_direct("a")) == data


@pytest.mark.parametrize("name", ["", "/a", "a/../b", "..", "a//b", "./a", ".gpunvme-tiers/set",
                                  "a\nb", "x" * 2000])
def test_bad_names_are_refused(files: tiers.Tiers, name: str) -> None:
    with pytest.raises(gpunvme.ArgumentError):
        files.put(name, b"x")
    with pytest.raises(gpunvme.ArgumentError):
        files.stat(name)


def test_bad_arguments_are_refused(files: tiers.Tiers, tmp_path: Path) -> None:
    files.put("a", b"abc")
    with pytest.raises(gpunvme.ArgumentError):
        files.put("a\0b", b"x")
    with pytest.raises(gpunvme.ArgumentError, match="lukewarm"):
        files.move("a", "lukewarm")  # type: ignore[arg-type]
    with pytest.raises(gpunvme.ArgumentError, match="pin"):
        files.move("a", pin=True)
    with pytest.raises(gpunvme.ArgumentError):
        files.read("a", bytearray(3), -1)
    with pytest.raises(gpunvme.ArgumentError):
        files.configure(rate=0)
    with pytest.raises(gpunvme.ArgumentError, match="half_life"):
        files.configure(half_life=-1)
    with pytest.raises(gpunvme.NotFoundError):
        files.remove("nowhere")
    with pytest.raises(gpunvme.NotFoundError):
        tiers.Tiers(tmp_path)
    with pytest.raises(gpunvme.ArgumentError):
        tiers.create(tmp_path / "cold", hot_at=1, warm_at=2)


def test_a_directory_belongs_to_one_set(dirs: tuple[Path, Path, Path]) -> None:
    with pytest.raises(FileExistsError):
        tiers.create(*dirs)


def test_a_full_tier_is_told(files: tiers.Tiers) -> None:
    with pytest.raises(gpunvme.DeviceError) as failed:
        files.put("big", bytes(5 * MIB), "hot")
    assert failed.value.name == "GPUNVME_ERR_NOSPC"
    assert files.list() == []


def test_a_closed_set_refuses_calls(dirs: tuple[Path, Path, Path]) -> None:
    files = tiers.Tiers(dirs[0])
    files.put("a", b"x")
    store = files.open_store("a")
    files.close()
    files.close()
    assert files.closed and "closed" in repr(files)
    with pytest.raises(gpunvme.ClosedError):
        files.stat("a")
    assert store.size == 1  # its own life
    store.close()


def test_nothing_holds_a_set_that_was_dropped(dirs: tuple[Path, Path, Path]) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        dropped = weakref.ref(tiers.Tiers(dirs[0], moved=print, policy=lambda file: "hot"))
        gc.collect()
    assert dropped() is None


def test_several_threads_use_a_set(files: tiers.Tiers) -> None:
    wrong = []

    def work(i: int) -> None:
        for turn in range(20):
            files.put(f"{i}", bytes([i, turn]) * 4 * KIB)
            if bytes(files.read_direct(f"{i}")) != bytes([i, turn]) * 4 * KIB:
                wrong.append((i, turn))
            files.move(f"{i}", ("hot", "warm", "cold")[turn % 3])  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [file.nbytes for file in files.list()] == [8 * KIB] * 4


def test_a_child_of_fork_opens_the_set_again(files: tiers.Tiers, dirs: tuple[Path, Path, Path]
                                             ) -> None:
    files.put("a", b"parent")
    child = os.fork()
    if not child:
        code = 1
        try:
            try:
                files.stat("a")
            except gpunvme.UnsupportedError:
                with tiers.Tiers(dirs[0]) as again:
                    code = 0 if bytes(again.read_direct("a")) == b"parent" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(files.read_direct("a")) == b"parent"
