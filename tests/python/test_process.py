# SPDX-License-Identifier: BSD-3-Clause
"""Processes: fork, the interpreter's end, Ctrl-C, and what an import loads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpunvme
from gpunvme import _lib

PATIENCE = 120  # seconds


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True,
                          timeout=PATIENCE, env={**os.environ, **environment})


def in_child(code: str) -> str:
    """What a child says that is forked while a transfer is in flight, which it has as `t`."""
    done = run(f"""
import os, gpunvme
store = gpunvme.open("sim:size=1M,read_latency=300ms")
t = store.pread_async(bytearray(512))
pid = os.fork()
if not pid:
    try:
        {code}
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)
status = os.waitpid(pid, 0)[1]
assert t.result() == 512, "the parent's transfer"
store.close()
assert status == 0, status
""")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_child_opens_stores_of_its_own() -> None:
    in_child("""
        with gpunvme.open(gpunvme.__file__) as own:
            assert own.pread(bytearray(100)) == 100
            assert own.pread_async(bytearray(100)).result() == 100
""")


def test_a_child_is_told_of_its_parent_s_stores_and_transfers() -> None:
    in_child("""
        for use in (t.result, lambda: store.pread(bytearray(1)), store.close,
                    lambda: store.pread_async(bytearray(1))):
            try:
                use()
                raise SystemExit("no error")
            except gpunvme.UnsupportedError as error:
                assert "parent" in str(error) or "fork" in str(error), error
""")


def test_a_child_may_end_as_any_other() -> None:
    done = run("""
import multiprocessing, gpunvme
def read(path):
    with gpunvme.open(path) as store:
        return store.pread_async(bytearray(10)).result()
if __name__ == "__main__":
    store = gpunvme.open(gpunvme.__file__)
    store.pread_async(bytearray(10)).add_done_callback(lambda f: None)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(read, [gpunvme.__file__] * 8) == [10] * 8
    store.close()
""", PYTHONWARNINGS="ignore::DeprecationWarning")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("way", [
    "keep = store.pread_async(buf)",
    "store.pread_async(buf)",
    "store.pread_async(buf).add_done_callback(print)",
    "batch = gpunvme.Batch(store, buf, [0, 512], 512).submit()",
])
def test_the_interpreter_ends_with_transfers_in_flight(way: str) -> None:
    done = run(f"""
import gpunvme
store = gpunvme.open("sim:size=1M,read_latency=500ms")
buf = bytearray(1024)
{way}
""", PYTHONWARNINGS="ignore::ResourceWarning")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_interpreter_ends_though_a_drive_hangs() -> None:
    done = run("""
import gpunvme
store = gpunvme.open("sim:size=1M,fault=lose:read?timeout=1s")
keep = store.pread_async(bytearray(512))
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", [
    "store.pread(bytearray(512))",
    "store.pread_async(bytearray(512)).result()",
    "store.size",
    "gpunvme.open(gpunvme.__file__).pread(bytearray(512))",
])
@pytest.mark.parametrize("uri", ["gpunvme.__file__", '"sim:size=1M,read_latency=20ms"'])
def test_the_interpreter_ends_though_daemon_threads_go_on(use: str, uri: str) -> None:
    done = run(f"""
import gpunvme, threading, time
store = gpunvme.open({uri})
began = threading.Event()
def work():
    while True:
        {use}
        began.set()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
began.wait()
""", PYTHONWARNINGS="ignore::ResourceWarning")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_daemon_thread_can_be_joined_at_the_end() -> None:
    done = run("""
import atexit, threading
def work():
    try:
        while True:
            store.pread(bytearray(512))
            began.set()
    except gpunvme.ClosedError:
        print("closed")
began, thread = threading.Event(), threading.Thread(target=work, daemon=True)
atexit.register(lambda: thread.join(60))
import gpunvme
store = gpunvme.open(gpunvme.__file__)
thread.start()
began.wait()
""", PYTHONWARNINGS="ignore::ResourceWarning")
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def test_stores_are_closed_to_what_runs_after_their_end() -> None:
    done = run("""
import atexit
@atexit.register
def late():
    for use in (lambda: store.pread(bytearray(1)), lambda: store.path(), lambda: store.size,
                lambda: store.pread_async(bytearray(1))):
        try:
            use()
        except gpunvme.ClosedError:
            print("closed")
import gpunvme
store = gpunvme.open(gpunvme.__file__)
""", PYTHONWARNINGS="ignore::ResourceWarning")
    assert (done.stdout, done.stderr) == ("closed\n" * 4, "")


def test_an_image_is_whole_though_its_store_was_not_closed(tmp_path: Path) -> None:
    uri = f"sim:size=1M,vwc=on,image={tmp_path}/drive.img"
    done = run(f"""
import gpunvme
store = gpunvme.open({uri!r}, "r+")
store.pwrite(b"kept")
""")
    assert done.returncode == 0, done.stderr
    with gpunvme.open(uri) as store:
        buf = bytearray(4)
        store.pread(buf)
    assert buf == b"kept"


@pytest.mark.parametrize("wait", [
    "store.pread_async(buf).result()",
    "store.pread(buf)",
    "store.readv([buf])",
    "gpunvme.Batch(store, buf, [0], len(buf)).run()",
    "asyncio.run(wait())",
])
def test_ctrl_c_ends_a_wait(wait: str) -> None:
    # A mebibyte a second, one at a time: a wait that Ctrl-C does not end has read all of it.
    child = subprocess.Popen([sys.executable, "-c", f"""
import asyncio, gpunvme
store = gpunvme.open("sim:size=64M,read_bandwidth=1M?threads=1,depth=1,chunk=1M")
buf = bytearray(20 << 20)
async def wait():
    await store.pread_async(buf)
print("ready", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    print(sum(store.path().bytes_read.values()) < len(buf), flush=True)
"""], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)  # into the wait; before it, it would be interrupted as well
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "True\n"
        child.kill()


def test_import_loads_neither_numpy_nor_asyncio() -> None:
    done = run("import sys, gpunvme; print({'numpy', 'asyncio', 'dataclasses'} & {*sys.modules})")
    assert done.stdout == "set()\n", done.stderr


def test_a_missing_library_is_told(tmp_path: Path) -> None:
    done = run("import gpunvme", GPUNVME_LIBRARY_DIR=str(tmp_path))
    assert f"can't load {tmp_path}/libgpunvme.so" in done.stderr
    assert "GPUNVME_LIBRARY_DIR" in done.stderr and "ImportError" in done.stderr


def test_a_library_of_another_version_is_told(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("const char *gpunvme_err_name(int e) { return e ? 0 : 0; }\n")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o",
                    tmp_path / "libgpunvme.so"], check=True)
    done = run("import gpunvme", GPUNVME_LIBRARY_DIR=str(tmp_path))
    assert "ImportError" in done.stderr and "another version" in done.stderr


@pytest.mark.parametrize(("name", "abi", "load"), [
    ("libgpunvme.so", "gpunvme_abi", "import gpunvme"),
    ("libgpunvme_ops.so", "gpunvme_ops_abi", "import gpunvme; gpunvme.ops.variants()"),
])
def test_a_library_of_another_interface_is_told(tmp_path: Path, name: str, abi: str,
                                                load: str) -> None:
    own = Path(gpunvme.info().library)
    for library in ("libgpunvme.so", "libgpunvme_ops.so"):
        (tmp_path / library).symlink_to(own.with_name(library))
    (tmp_path / name).unlink()
    (tmp_path / "other.c").write_text(f"unsigned {abi}(void) {{ return 4711; }}\n")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", tmp_path / "other.c", "-o",
                    tmp_path / name], check=True)
    done = run(load, GPUNVME_LIBRARY_DIR=str(tmp_path))
    wanted = _lib.ABI if name == "libgpunvme.so" else _lib.OPS_ABI
    assert "ImportError" in done.stderr and f"{tmp_path}/{name}" in done.stderr
    assert "interface 4711" in done.stderr and f"for {wanted}:" in done.stderr


def test_names_that_do_not_exist_are_told() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        gpunvme.opne  # type: ignore[attr-defined]
    assert {name for name in dir(gpunvme) if not hasattr(gpunvme, name)} == set()
