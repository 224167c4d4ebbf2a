# SPDX-License-Identifier: BSD-3-Clause
"""Many threads at once on the same objects; it matters most to builds of Python without a GIL."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable

import numpy as np
import pytest

import gpunvme
from gpunvme import dlpack, engine, future, ops

from conftest import NBYTES
from test_buffers import Owner

THREADS, ROUNDS = 6, 60


def at_once(work: Callable[[random.Random], None]) -> None:
    """Runs ``work`` by several threads, and raises what the first that failed has raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def run(seed: int) -> None:
        try:
            start.wait(60)
            work(random.Random(seed))
        except BaseException as why:
            failures.append(why)

    threads = [threading.Thread(target=run, args=(seed,), daemon=True) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def free_threaded() -> str:
    """A Python without a GIL that can run these tests: $FREE_THREADED_PYTHON, or one of PATH's."""
    names = (os.environ.get("FREE_THREADED_PYTHON"), "python3.14t", "python3.13t")
    for python in filter(None, (shutil.which(name) for name in names if name)):
        asks = "import hypothesis, numpy, pytest, sys; sys.exit(sys._is_gil_enabled())"
        if not subprocess.run([python, "-c", asks], capture_output=True).returncode:
            return python
    pytest.skip("there is no free-threaded Python with numpy, pytest and hypothesis")


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
                    reason="this Python is free-threaded itself")
def test_threads_run_without_a_gil() -> None:
    python = free_threaded()
    package = os.path.dirname(os.path.dirname(gpunvme.__file__))
    done = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k",
                           "not without_a_gil", __file__], capture_output=True, text=True,
                          timeout=600, env={**os.environ, "PYTHONPATH": package})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"),
                    reason="this Python has a GIL: see test_threads_run_without_a_gil")
def test_the_package_does_not_bring_the_gil_back() -> None:
    assert not sys._is_gil_enabled()  # type: ignore[attr-defined]


def test_a_store_serves_threads_in_any_way_at_once(store: gpunvme.Store, data: bytes) -> None:
    called: list[gpunvme.Future] = []

    def work(random: random.Random) -> None:
        for _ in range(ROUNDS):
            at, n = random.randrange(NBYTES - 5000), random.randrange(1, 5000)
            buf = bytearray(n)
            way = random.randrange(5)
            if way == 0:
                store.pread(buf, offset=at)
            elif way == 1:
                store.pread_async(buf, offset=at).result()
            elif way == 2:
                store.readv([memoryview(buf)[: n // 2 + 1], bytearray(8)], at)
                store.pread(buf, offset=at)
            elif way == 3:
                gpunvme.Batch(store, buf, [at], n).run()
            else:
                transfer = store.pread_async(buf, offset=at)
                transfer.add_done_callback(called.append)
                assert transfer.route == "host" and transfer.result() == n
            assert buf == data[at : at + n]
            store.path(), store.size, store.info()

    at_once(work)
    assert not future.in_flight(store)


def test_stores_are_opened_and_closed_by_many(path: str) -> None:
    def work(random: random.Random) -> None:
        for _ in range(ROUNDS // 3):
            with gpunvme.open(path) as own:
                flying = [own.pread_async(bytearray(100), offset=i) for i in range(3)]
            assert [transfer.result() for transfer in flying] == [100] * 3

    at_once(work)


def test_one_store_is_closed_once_by_many(path: str) -> None:
    for _ in range(ROUNDS // 10):
        shared = gpunvme.open(path)

        def work(random: random.Random, shared: gpunvme.Store = shared) -> None:
            try:
                for _ in range(random.randrange(10)):
                    shared.pread_async(bytearray(10)).result()
            except gpunvme.ClosedError:
                pass
            shared.close()

        at_once(work)
        assert shared.closed


def test_memory_is_registered_by_many_as_often_as_it_says(store: gpunvme.Store) -> None:
    memory = gpunvme.empty(1 << 16)

    def work(random: random.Random) -> None:
        for _ in range(ROUNDS):
            part = memory[4096 * random.randrange(8) :][: 4096 * random.randrange(1, 8)]
            gpunvme.register(part)
            store.pread(part)
            gpunvme.unregister(part)

    gpunvme.register(memory)
    at_once(work)
    (known,) = engine._registered[0]
    assert known.count == 1 and gpunvme.engine_info().registered == 1
    gpunvme.unregister(memory)
    assert not engine._registered[0]


def test_requests_are_made_and_closed_by_many(store: gpunvme.Store) -> None:
    def work(random: random.Random) -> None:
        for _ in range(ROUNDS):
            with gpunvme.Requests(store, bytearray(1000)) as records:
                records.add_kind("users", 0, 10, 100)
                records.read("users", random.randrange(10), 1)

    at_once(work)
    assert not store._requests


def test_memory_is_exported_by_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlpack, "CUDA", dlpack.CPU)
    before = len(dlpack._live)

    def work(random: random.Random) -> None:
        for _ in range(ROUNDS):
            assert np.from_dlpack(Owner()).sum() == 15

    at_once(work)
    assert len(dlpack._live) == before


def test_operators_are_run_by_many() -> None:
    a = np.random.default_rng(1).standard_normal((50, 60), dtype=np.float32)
    want = ops.matmul(a, a.T, threads=1)

    def work(random: random.Random) -> None:
        for _ in range(ROUNDS // 3):
            assert (ops.matmul(a, a.T, threads=1) == want).all()

    at_once(work)
