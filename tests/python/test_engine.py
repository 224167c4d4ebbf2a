# SPDX-License-Identifier: BSD-3-Clause
"""Engines, registered memory, requests by kind, and what the machine has."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import gpunvme
from gpunvme import _lib
from gpunvme.engine import _registered


def test_an_engine_serves_the_stores_that_are_opened_on_it(path: str, data: bytes) -> None:
    with gpunvme.Engine(threads=3, pinned=32 << 20, cpus="0") as engine:
        with engine.open(path) as store:
            buf = bytearray(5000)
            assert store.pread_async(buf, offset=100).result() == 5000
            assert buf == data[100:5100]
            assert (engine.info().threads, engine.info().stores) == (3, 1)
            with pytest.raises(gpunvme.BusyError):
                engine.close()
        assert engine.info().stores == 0
    with pytest.raises(gpunvme.ClosedError):
        engine.open(path)
    engine.close()


@pytest.mark.parametrize("bad", [{"threads": -1}, {"pinned": -1}, {"gpu": -7}, {"cpus": "x"},
                                 {"threads": 100000}])
def test_an_engine_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(gpunvme.Error):
        gpunvme.Engine(**bad)  # type: ignore[arg-type]


def test_an_engine_near_a_gpu_that_is_not_there_is_refused() -> None:
    gpus = len(gpunvme.info().gpus)
    with pytest.raises(ValueError, match=f"GPU {max(gpus, 1)}: there are {gpus}"):
        gpunvme.Engine(gpu=max(gpus, 1))
    gpunvme.Engine(gpu=0).close()  # without a GPU the host stands in for it


def test_registered_memory_is_counted_and_let_go_of() -> None:
    buf = gpunvme.empty(1 << 16)
    with gpunvme.Engine() as engine:
        engine.register(buf)
        engine.register(buf, 4096)
        assert engine.info().registered > 0
        engine.unregister(buf)
        engine.unregister(buf.ctypes.data)
        assert engine.info().registered == 0
        with pytest.raises(gpunvme.NotFoundError):
            engine.unregister(buf)
    gpunvme.register(buf)
    with gpunvme.open("sim:size=1M", "r+") as store:
        store.pwrite(buf)
        assert store.pread(buf[4096:8192]) == 4096
    gpunvme.unregister(buf)
    assert gpunvme.engine_info().registered == 0


class Memory:
    """An owner of memory, which can be watched as numpy's own arrays can't."""

    def __init__(self, nbytes: int) -> None:
        self.array = gpunvme.empty(nbytes)
        self.address: int = self.array.ctypes.data
        self.__array_interface__ = self.array.__array_interface__

    def __setitem__(self, *_: object) -> None: ...


def test_registered_memory_that_is_dropped_is_held_until_it_is_unregistered() -> None:
    memory = Memory(1 << 16)
    gone, address = weakref.ref(memory), memory.address
    gpunvme.register(memory)
    del memory
    gc.collect()
    assert gone() is not None
    gpunvme.unregister(address)
    gc.collect()
    assert gone() is None


def test_registered_memory_is_let_go_of_by_the_address_of_a_part() -> None:
    memory = Memory(1 << 16)
    gone, address = weakref.ref(memory), memory.address
    with gpunvme.Engine() as engine:
        engine.register(memory)
        del memory
        engine.unregister(address + 4096)
        assert engine.info().registered == 0
    gc.collect()
    assert gone() is None and not _registered.get(0)


def test_memory_is_held_for_each_of_its_registrations() -> None:
    memory = Memory(1 << 16)
    gone, address = weakref.ref(memory), memory.address
    gpunvme.register(address, 1 << 16)
    gpunvme.register(memory)
    del memory
    for _ in range(2):
        gc.collect()
        assert gone() is not None
        gpunvme.unregister(address)
    gc.collect()
    assert gone() is None


def test_memory_that_can_not_be_registered_is_not_held() -> None:
    memory = Memory(1 << 16)
    gone = weakref.ref(memory)
    gpunvme.register(memory.address + 4096, 4096)
    with pytest.raises(gpunvme.ArgumentError, match="registered already"):
        gpunvme.register(memory)
    gpunvme.unregister(memory.address + 4096)
    del memory
    gc.collect()
    assert gone() is None


def test_an_engine_that_is_dropped_lets_go_of_what_is_registered_with_it() -> None:
    memory = Memory(1 << 16)
    gone = weakref.ref(memory)
    gpunvme.Engine().register(memory)
    del memory
    gc.collect()
    assert gone() is None


def test_ctrl_c_at_the_end_of_close_leaves_it_closed(path: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    store, engine = gpunvme.open(path), gpunvme.Engine()
    records = gpunvme.Requests(store)

    def interrupted(close: Callable[[int], int]) -> Callable[[int], int]:
        def call(handle: int) -> int:
            calls.append(close(handle))
            raise KeyboardInterrupt
        return call

    calls: list[int] = []
    for name in ("gpunvme_requests_destroy", "gpunvme_close", "gpunvme_engine_destroy"):
        monkeypatch.setattr(_lib.lib, name, interrupted(getattr(_lib.lib, name)))
    for thing in (records, store, engine):
        if thing is store:
            store._requests.clear()
        with pytest.raises(KeyboardInterrupt):
            thing.close()
        thing.close()  # does nothing
    assert calls == [0, 0, 0]
    assert store.closed


def test_requests_read_records_by_kind_and_index(path: str, data: bytes) -> None:
    buf = np.zeros(10 * 100 + 4 * 512, np.uint8)
    with gpunvme.open(path) as store, gpunvme.Requests(store, buf) as records:
        records.add_kind("users", 5, 10, 100)
        records.add_kind("items", 3, 4, 512)
        assert records.kind("items") == gpunvme.reports.Kind(3, 4, 512)
        records.read("users", 2, 3)
        assert buf[200:500].tobytes() == data[700:1000] and not buf[:200].any()
        records.read("items", 1)
        assert buf[1512:].tobytes() == data[4 * 512 : 7 * 512]
        one, two = bytearray(100), bytearray(512)
        records.read_many([("users", 9, 1), ("items", 0, 1)], [one, two])
        assert (one, two) == (data[1400:1500], data[3 * 512 : 4 * 512])
        buf[:] = 0
        assert records.read_many_async([("users", 0, 10), ("items", 3, 1)]).result() == 1512
        assert buf[:1000].tobytes() == data[500:1500]
        assert buf[1000 + 3 * 512 :].tobytes() == data[6 * 512 : 7 * 512]
        with pytest.raises(gpunvme.BusyError, match="Requests"):
            store.close()


def test_requests_write_records(path: str) -> None:
    with gpunvme.open(path, "r+") as store, gpunvme.Requests(store) as records:
        records.add_kind("users", 5, 10, 100)
        records.write("users", 3, 2, b"u" * 200)
        buf = bytearray(200)
        store.pread(buf, offset=800)
        assert buf == b"u" * 200


def test_requests_in_flight_raise_their_error() -> None:
    with gpunvme.open("sim:size=1M,fault=status=2/81:read:lba=8-15") as store:
        with gpunvme.Requests(store, bytearray(8192)) as records:
            records.add_kind("blocks", 0, 2, 4096)
            assert records.read_many_async([("blocks", 0, 1)]).result() == 4096
            with pytest.raises(gpunvme.StatusError):
                records.read_many_async([("blocks", 0, 1), ("blocks", 1, 1)]).result()
            with pytest.raises(gpunvme.RangeError):
                records.read_many_async([("blocks", 2, 1)])


def test_requests_refuse_what_makes_no_sense(path: str) -> None:
    with gpunvme.open(path) as store, gpunvme.Requests(store) as records:
        records.add_kind("users", 0, 10, 100)
        for use in (lambda: records.read("users", 0), lambda: records.read("users", 9, 2),
                    lambda: records.add_kind("items", 5, 1, 100),
                    lambda: records.read("users", -1), lambda: records.read_many([]),
                    lambda: records.read("users", 0, 2, bytearray(199))):
            with pytest.raises(ValueError):
                use()
        with pytest.raises(FileNotFoundError):
            records.read("nobody", 0, 1, bytearray(1))
    with pytest.raises(gpunvme.ClosedError):
        records.read("users", 0)


def test_info_lists_backends_and_gpus() -> None:
    info = gpunvme.info()
    backends = {backend.name: backend for backend in info.backends}
    assert backends["posix"].works and backends["nvme"].works
    assert all(backend.why for backend in info.backends)
    assert bool(info.gpus) != bool(info.no_gpu)
    assert info.library.endswith("libgpunvme.so") and info.version == gpunvme.__version__
