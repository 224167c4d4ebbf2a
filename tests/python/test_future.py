# SPDX-License-Identifier: BSD-3-Clause
"""Transfers in flight: waits, callbacks, event loops, what is held, and many by one call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import gpunvme
from gpunvme import _lib, future

from conftest import NBYTES


def test_result_is_what_pread_returns(store: gpunvme.Store, data: bytes) -> None:
    bufs = [bytearray(1000) for _ in range(300)]
    futures = [store.pread_async(buf, offset=i * 3500) for i, buf in enumerate(bufs)]
    lengths = [len(data[i * 3500 : i * 3500 + 1000]) for i in range(300)]
    assert [f.result() for f in futures] == lengths
    assert all(buf[:n] == data[i * 3500 : i * 3500 + n]
               for i, (buf, n) in enumerate(zip(bufs, lengths)))
    assert all(f.done() and f.exception() is None for f in futures)
    assert not future.in_flight(store)


def test_writes_are_futures_too(store: gpunvme.Store) -> None:
    assert store.pwrite_async(b"x" * 5000, offset=3).result() == 5000
    buf = bytearray(5000)
    assert store.gather_async(buf, [3, 4], 2500).result() == 5000
    assert buf == b"x" * 5000


def test_a_future_says_what_it_is(store: gpunvme.Store) -> None:
    transfer = store.pread_async(bytearray(10))
    assert transfer.nbytes == 10
    assert transfer.route == "host"
    transfer.result()
    assert "done" in repr(transfer)


def test_the_route_is_the_one_that_the_transfer_took(store: gpunvme.Store) -> None:
    buf = np.zeros(2048, np.uint8)
    with gpunvme.Requests(store) as records:
        records.add_kind("users", 0, 10, 100)
        for transfer in (store.pread_async(buf), store.gather_async(buf, [0, 9], 1024),
                         gpunvme.Batch(store, buf, [5, 10], 512).submit(),
                         records.read_many_async([("users", 0, 10)], [buf])):
            transfer.result()
            assert transfer._routes == 1 << _lib.ROUTE_HOST and transfer.route == "host"
    # What the library says of memory on a GPU: tests/storage has it.
    for routes, name in ((1 << _lib.ROUTE_P2P, "p2p"),
                         (1 << _lib.ROUTE_P2P | 1 << _lib.ROUTE_BOUNCE, "bounce")):
        transfer._routes = routes
        assert transfer.route == name
    assert store.pread_async(buf, offset=NBYTES).route == "host"  # moves nothing


def test_it_is_in_flight_before_it_is_done(slow: gpunvme.Store) -> None:
    transfer = slow.pread_async(bytearray(512))
    assert not transfer.done() and "in flight" in repr(transfer)
    with pytest.raises(TimeoutError, match="has not ended in 0.01 s"):
        transfer.result(timeout=0.01)
    assert transfer.result() == 512


def test_the_transfer_s_error_is_raised_each_time() -> None:
    with gpunvme.open("sim:size=1M,fault=status=2/81:read:lba=8-15") as store:
        failed, fine = store.pread_async(bytearray(4096), offset=4096), store.pread_async(
            bytearray(4096))
        for _ in range(2):
            with pytest.raises(gpunvme.StatusError, match="UNRECOVERED_READ") as raised:
                failed.result()
        assert (raised.value.sct, raised.value.sc) == (2, 0x81)
        assert str(failed.exception()) == str(raised.value)
        assert fine.result() == 4096 and fine.exception() is None


def test_a_future_at_the_address_of_one_that_ended_has_its_own_result(data: bytes) -> None:
    """Transfers are known by their address, which the next one may get."""
    addresses = []
    with gpunvme.open("sim:size=1M,fault=status=2/81:read:lba=8-15") as store:
        for i in range(2000):
            fails = i % 3 == 0
            transfer = store.pread_async(bytearray(512), offset=4096 if fails else 8192)
            addresses.append(transfer.address)
            if i % 5 == 0:
                continue  # dropped in flight
            assert isinstance(transfer.exception(), gpunvme.StatusError) == fails
            if not fails:
                assert transfer.result() == 512
        assert len(set(addresses)) < len(addresses)
    assert not set(addresses) & set(future._flying)


def test_two_threads_wait_for_transfers_that_end_in_any_order(slow: gpunvme.Store) -> None:
    got = []
    futures = [slow.pread_async(bytearray(512), offset=512 * i) for i in range(8)]
    threads = [threading.Thread(target=lambda f=f: got.append(f.result()))  # type: ignore[misc]
               for f in futures + futures]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [512] * 16


def test_a_callback_is_called_once_whoever_waits(slow: gpunvme.Store) -> None:
    called = threading.Event()
    seen = []
    transfer = slow.pread_async(bytearray(512))
    transfer.add_done_callback(lambda f: (seen.append(f), called.set()))
    assert called.wait(60)
    transfer.add_done_callback(seen.append)
    assert seen == [transfer, transfer] and transfer.done()


def test_a_callback_may_wait_for_another_transfer(slow: gpunvme.Store) -> None:
    got: list[int] = []
    called = threading.Event()
    first, second = (slow.pread_async(bytearray(512), offset=512 * i) for i in range(2))
    first.add_done_callback(lambda _: (got.append(second.result()), called.set()))
    assert called.wait(60)
    assert got == [512]


def test_an_exception_of_a_callback_is_printed(store: gpunvme.Store,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    transfer = store.pread_async(bytearray(1))
    transfer.result()
    transfer.add_done_callback(lambda _: 1 // 0)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_callback_that_ends_its_thread_does_not_end_those_of_others(
        slow: gpunvme.Store, capsys: pytest.CaptureFixture[str]) -> None:
    called = threading.Event()
    slow.pread_async(bytearray(512)).add_done_callback(lambda _: sys.exit(3))
    slow.pread_async(bytearray(512)).add_done_callback(lambda _: called.set())
    assert called.wait(60)
    called.clear()
    slow.pread_async(bytearray(512)).add_done_callback(lambda _: called.set())
    assert called.wait(60)
    assert "SystemExit: 3" in capsys.readouterr().err


def test_callbacks_go_on_after_their_thread_could_not_be_started(
        slow: gpunvme.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    called = threading.Event()
    transfer = slow.pread_async(bytearray(512))
    with monkeypatch.context() as patched:
        patched.setattr(future, "_queue", None)
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="no more threads"):
            transfer.add_done_callback(lambda _: None)
        patched.undo()
        patched.setattr(future, "_queue", future._queue)  # as the failure left it
        transfer.add_done_callback(lambda _: called.set())
        assert called.wait(60)


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("no more threads")


# ---- What is held ------------------------------------------------------------------------------


def test_memory_is_held_until_the_transfer_has_ended(slow: gpunvme.Store) -> None:
    buf = np.zeros(4096, np.uint8)
    gone = weakref.ref(buf)
    slow.pread_async(buf)
    del buf
    gc.collect()
    assert gone() is not None
    while future.in_flight(slow):
        slow.pread_async(bytearray(1)).result()
    gc.collect()
    assert gone() is None


def test_an_error_that_was_caught_holds_no_memory() -> None:
    def failing(store: gpunvme.Store) -> weakref.ref[object]:
        buf = np.zeros(4096, np.uint8)
        transfer = store.pread_async(buf)
        with contextlib.suppress(gpunvme.StatusError):
            transfer.result()
        return weakref.ref(buf)

    gc.disable()  # which would break a cycle, some day
    try:
        with gpunvme.open("sim:size=1M,fault=status=2/81:read") as store:
            assert failing(store)() is None
    finally:
        gc.enable()


def test_a_batch_that_timed_out_is_held_by_each_of_its_stores(store: gpunvme.Store) -> None:
    hung = gpunvme.open(HANGS)
    batch = gpunvme.Batch((store, hung), np.zeros(1024, np.uint8), [0, 0], 512)
    with pytest.raises(gpunvme.DeadlineError):
        batch.run()
    gone = weakref.ref(batch)
    del batch
    store.close()
    gc.collect()
    assert gone() is not None
    close_late(hung)


def test_the_buffers_of_requests_that_timed_out_are_held() -> None:
    hung = gpunvme.open(HANGS)
    whole, part = np.zeros(512, np.uint8), np.zeros(512, np.uint8)
    records = gpunvme.Requests(hung, whole)
    records.add_kind("blocks", 0, 1, 512)
    with pytest.raises(gpunvme.DeadlineError):
        records.read("blocks", 0)
    with pytest.raises(gpunvme.DeadlineError):
        records.read("blocks", 0, into=part)
    gone = [weakref.ref(whole), weakref.ref(part)]
    del whole, part, records
    gc.collect()
    assert all(ref() is not None for ref in gone)
    close_late(hung)


HANGS = "sim:size=1M,read_latency=1500ms?timeout=200ms"


def close_late(store: gpunvme.Store) -> None:
    """Closes what hangs for longer than its timeout, but not for ever."""
    for _ in range(100):
        try:
            store.close()
        except gpunvme.DeadlineError:
            continue
        return
    raise AssertionError("it does not end")


def test_close_waits_for_threads_that_ask_whether_anything_moves(
        slow: gpunvme.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, done = threading.Event(), []

    class Slow:
        def __getattr__(self, name: str) -> object:
            if name == "gpunvme_close":
                return lambda handle: (done.append("closed"), lib.gpunvme_close(handle))[1]
            return getattr(lib, name)

        def gpunvme_store_path(self, handle: int, path: object) -> None:
            asked.set()
            while not transfer._done:
                time.sleep(0.01)
            time.sleep(0.3)  # meanwhile the store is closed
            lib.gpunvme_store_path(handle, path)
            done.append("asked")

    lib, transfer = gpunvme.store.lib, slow.pread_async(bytearray(512))  # type: ignore[attr-defined]
    monkeypatch.setattr(gpunvme.store, "lib", Slow())
    waiter = threading.Thread(target=transfer.result)
    waiter.start()
    assert asked.wait(60)
    while not transfer.done():
        time.sleep(0.01)
    slow.close()
    waiter.join()
    assert done == ["asked", "closed"]


def test_a_bytearray_in_flight_can_not_be_resized(slow: gpunvme.Store) -> None:
    buf = bytearray(512)
    transfer = slow.pread_async(buf)
    with pytest.raises(BufferError):
        buf.extend(b"more")
    transfer.result()
    buf.extend(b"more")


def test_a_store_is_held_until_its_transfers_have_ended() -> None:
    transfer = gpunvme.open("sim:size=1M,read_latency=200ms").pread_async(bytearray(512))
    gc.collect()
    assert transfer.result() == 512
    transfer._stores[0].close()


def test_close_waits_for_what_is_in_flight(slow: gpunvme.Store) -> None:
    futures = [slow.pread_async(bytearray(512), offset=512 * i) for i in range(4)]
    slow.close()
    assert [f.result() for f in futures] == [512] * 4


# ---- Cancellation and deadlines ------------------------------------------------------------------


def test_what_is_canceled_ends_with_its_error() -> None:
    with gpunvme.open("sim:size=64M,read_latency=300ms,channels=1?threads=1,depth=1") as store:
        futures = [store.pread_async(bytearray(512), offset=512 * i) for i in range(4)]
        assert futures[-1].cancel()
        with pytest.raises(gpunvme.CanceledError):
            futures[-1].result()
        assert [f.result() for f in futures[:-1]] == [512] * 3
        assert not futures[0].cancel()


def test_a_wait_without_progress_ends(stuck: gpunvme.Store) -> None:
    with pytest.raises(TimeoutError):
        stuck.pread_async(bytearray(512)).result()


# ---- asyncio -------------------------------------------------------------------------------------


def test_futures_are_awaited(store: gpunvme.Store, data: bytes) -> None:
    async def read(offset: int) -> bytes:
        buf = bytearray(2000)
        await store.pread_async(buf, offset=offset)
        return bytes(buf)

    async def main() -> list[bytes]:
        return await asyncio.gather(*(read(offset) for offset in range(0, 200000, 2000)))

    assert b"".join(asyncio.run(main())) == data[:200000]
    assert not future._watched


def test_the_loop_runs_on_while_a_transfer_is_awaited(slow: gpunvme.Store) -> None:
    ticks = []

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def main() -> int:
        ticking = asyncio.create_task(tick())
        try:
            return await slow.pread_async(bytearray(512))
        finally:
            ticking.cancel()

    assert asyncio.run(main()) == 512
    assert len(ticks) > 3


def test_an_awaited_transfer_raises_its_error() -> None:
    async def main(store: gpunvme.Store) -> None:
        with pytest.raises(gpunvme.StatusError):
            await store.pread_async(bytearray(512))

    with gpunvme.open("sim:size=1M,fault=status=2/81:read") as store:
        asyncio.run(main(store))


def test_a_canceled_task_cancels_its_transfer(slow: gpunvme.Store) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(), 0.05)

    async def wait() -> int:
        return await slow.pread_async(bytearray(512))

    asyncio.run(main())
    slow.close()
    assert not future.in_flight(slow) and not future._watched


def test_two_loops_and_a_waiter_share_one_source(slow: gpunvme.Store) -> None:
    got: list[int] = []

    async def main(n: int) -> None:
        reads = [slow.pread_async(bytearray(512), offset=512 * i) for i in range(n)]
        for read in reads:
            got.append(await read)

    threads = [threading.Thread(target=lambda: asyncio.run(main(5))) for _ in range(2)]
    threads.append(threading.Thread(
        target=lambda: got.extend(slow.pread_async(bytearray(512)).result() for _ in range(3))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [512] * 13


# ---- Batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["run", "submit", "await"])
def test_a_batch_reads_every_range(store: gpunvme.Store, data: bytes, way: str) -> None:
    random = np.random.default_rng(2)
    buf = np.zeros((500, 1024), np.uint8)
    batch = gpunvme.Batch(store, buf, np.zeros(500, np.int64), 1024)
    assert (len(batch), batch.nbytes) == (500, 500 * 1024)

    async def awaited() -> int:
        return await batch.submit()

    for _ in range(2):  # it is used again
        buf[:] = 0
        batch.offsets[:] = random.integers(0, NBYTES - 1024, 500)
        total = (batch.run() if way == "run" else batch.submit().result() if way == "submit"
                 else asyncio.run(awaited()))
        assert total == 500 * 1024
        assert all(row.tobytes() == data[int(o) : int(o) + 1024]
                   for row, o in zip(buf, batch.offsets))
        assert (batch.done == 1024).all() and not batch.errors.any()


def test_a_batch_of_several_stores_writes_and_reads(path: str) -> None:
    with gpunvme.open(path, "r+") as file, gpunvme.open("sim:size=1M", "r+") as drive:
        source = np.arange(600, dtype=np.uint8)
        stores, offsets, sizes = [file, drive, file], [5, 10, 1000], np.array([100, 300, 200])
        assert gpunvme.Batch(stores, source, offsets, sizes, write=True).run() == 600
        buf = np.zeros(1000, np.uint8)
        at = [900, 0, 600]
        assert gpunvme.Batch(stores, buf, offsets, sizes, at).run() == 600
        assert (buf[900:] == source[:100]).all() and (buf[:300] == source[100:400]).all()
        assert (buf[600:800] == source[400:]).all() and not buf[300:600].any()


def test_a_batch_takes_addresses(store: gpunvme.Store, data: bytes) -> None:
    memory = [np.zeros(50, np.uint8) for _ in range(3)]
    addresses = [m.ctypes.data for m in memory]
    assert gpunvme.Batch(store, None, [0, 70, 10], 50, addresses).run() == 150
    assert [m.tobytes() for m in memory] == [data[o : o + 50] for o in (0, 70, 10)]


def test_a_batch_tells_each_error_and_raises_the_first() -> None:
    with gpunvme.open("sim:size=1M,fault=status=2/81:read:lba=8-15") as store:
        batch = gpunvme.Batch(store, bytearray(3 * 4096), [0, 4096, 8192], 4096)
        for run in (batch.run, lambda: batch.submit().result()):
            with pytest.raises(gpunvme.StatusError):
                run()
            assert batch.errors.astype(bool).tolist() == [False, True, False]
            assert batch.done.tolist() == [4096, 0, 4096]


def test_a_batch_in_flight_is_not_begun_again(slow: gpunvme.Store) -> None:
    batch = gpunvme.Batch(slow, bytearray(1024), [0, 512], 512)
    transfer = batch.submit()
    with pytest.raises(gpunvme.BusyError):
        batch.submit()
    with pytest.raises(gpunvme.ArgumentError, match="has not ended"):
        batch.run()
    assert transfer.result() == 1024
    assert batch.run() == 1024


def test_a_batch_refuses_what_makes_no_sense(store: gpunvme.Store) -> None:
    buf = bytearray(100)
    for offsets, nbytes, at in (([], 10, None), ([0], 0, None), ([-1], 10, None), ([0.5], 10, None),
                                ([0, 1], 60, None), ([0], 10, [91]), ([0], [10, -10], None),
                                ([0], 10, [-1])):
        with pytest.raises(ValueError):
            gpunvme.Batch(store, buf, offsets, nbytes, at)
    with pytest.raises(gpunvme.ArgumentError, match="2 stores for 3"):
        gpunvme.Batch([store, store], buf, [0, 1, 2], 10)
