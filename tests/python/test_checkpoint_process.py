# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.checkpoint where programs are killed or end, and where disks are full or read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpunvme
from gpunvme import checkpoint

HERE = Path(__file__).parent


def run(code: str, *arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """A program of its own, which begins with a state of 8 MiB."""
    begin = ("import os, signal, sys, threading\nimport numpy as np\n"
             "from gpunvme import checkpoint\nfrom gpunvme.checkpoint import _files\n"
             "root = sys.argv[1]\nstate = {'a': np.arange(1 << 20)}\n")
    return subprocess.run([sys.executable, "-c", begin + code, *map(str, arguments)],
                          capture_output=True, text=True, timeout=timeout)


def leftovers(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith((".saving", ".deleting"))]


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "tmpfs"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder],
                             capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_kill_at_any_instant_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, HERE / "kill_saves.py", "--kills", "60", "--folder",
                           tmp_path], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rank_that_is_killed_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    code = ("ranks = checkpoint.Ranks(1, 2, sys.argv[2])\n"
            "_files.hook = lambda p: p == sys.argv[2] and os.kill(os.getpid(), signal.SIGKILL)\n"
            "checkpoint.save(state, root, step=2, ranks=ranks)\n")
    checkpoint.save({"a": 1}, tmp_path, step=1)
    for point in ("folder", "created", "written", "files", "draft"):
        assert run(code, tmp_path, point).returncode == -9
        other = checkpoint.save_async({}, tmp_path, step=2,
                                      ranks=checkpoint.Ranks(0, 2, point, timeout=0.1))
        assert isinstance(other.exception(60), gpunvme.DeadlineError)
        assert checkpoint.steps(tmp_path) == [1]
    assert run(code, tmp_path, "part").returncode == -9  # its part is whole: rank 0 completes it
    checkpoint.save({"b": 2}, tmp_path, step=2, ranks=checkpoint.Ranks(0, 2, "part"))
    assert set(checkpoint.load(tmp_path)) == {"a", "b"} and leftovers(tmp_path) == []


def test_a_program_that_ends_lets_its_save_end_first(tmp_path: Path) -> None:
    done = run("checkpoint.save_async(state, root, step=4)", tmp_path / "run")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert checkpoint.load(tmp_path / "run")["a"][-1] == (1 << 20) - 1


def test_ctrl_c_cancels_a_save_that_is_waited_for(tmp_path: Path) -> None:
    done = run("_files.hook = lambda p: p == 'created' and os.kill(os.getpid(), signal.SIGINT)\n"
               "try:\n    checkpoint.save(state, root)\n"
               "except KeyboardInterrupt:\n    print('interrupted')\n", tmp_path)
    assert done.stdout == "interrupted\n", done.stderr
    assert checkpoint.latest(tmp_path) is None or not leftovers(tmp_path)
    assert leftovers(tmp_path) == []


def test_ctrl_c_of_result_lets_the_save_go_on(tmp_path: Path) -> None:
    done = run("def hook(point):\n"
               "    if point == 'files':\n        ready.wait(60)\n"
               "        os.kill(os.getpid(), signal.SIGINT)\n        go.wait(60)\n"
               "ready, go = threading.Event(), threading.Event()\n_files.hook = hook\n"
               "save = checkpoint.save_async(state, root)\n"
               "try:\n    ready.set()\n    save.result(60)\n"
               "except KeyboardInterrupt:\n    go.set()\n    print(save.result(60))\n", tmp_path)
    assert done.stdout.strip() == checkpoint.latest(tmp_path), done.stderr


def test_a_full_disk_is_an_error_and_leaves_the_last_checkpoint(tmpfs: Path) -> None:
    state = {"a": np.arange(1 << 20)}  # 8 MiB of 16
    checkpoint.save(state, tmpfs, step=1)
    for save in (checkpoint.save, lambda *a, **k: checkpoint.save_async(*a, **k).result(60)):
        with pytest.raises(OSError, match="space"):
            save({"a": np.arange(1 << 20), "b": np.zeros(1 << 10)}, tmpfs, step=2)
        assert leftovers(tmpfs) == []
    checkpoint.verify(checkpoint.latest(tmpfs) or "")
    assert checkpoint.steps(tmpfs) == [1]


def test_a_limit_of_the_file_size_is_an_error(tmp_path: Path) -> None:
    done = run("import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
               "try:\n    checkpoint.save(state, root)\nexcept OSError as why:\n    print(why)\n",
               tmp_path)
    assert "File too large" in done.stdout, done.stdout + done.stderr
    assert leftovers(tmp_path) == [] and checkpoint.latest(tmp_path) is None


def test_a_read_only_folder_is_an_error_of_the_call(tmpfs: Path) -> None:
    checkpoint.save({"a": 1}, tmpfs)
    subprocess.run(["mount", "-o", "remount,ro", tmpfs], check=True)
    with pytest.raises(OSError, match="[Rr]ead-only"):
        checkpoint.save_async({"a": 2}, tmpfs)
    assert checkpoint.load(tmpfs) == {"a": 1}
    checkpoint.verify(tmpfs)


def test_savers_in_several_programs_share_a_folder(tmp_path: Path) -> None:
    code = ("for step in range(int(sys.argv[2]), 20, 2):\n"
            "    checkpoint.save({'step': step, 'a': np.full(10000, step)}, root, step=step)\n")
    begin = "import sys\nimport numpy as np\nfrom gpunvme import checkpoint\nroot = sys.argv[1]\n"
    programs = [subprocess.Popen([sys.executable, "-c", begin + code, tmp_path, str(first)])
                for first in range(2)]
    assert [program.wait(120) for program in programs] == [0, 0]
    assert checkpoint.steps(tmp_path) == list(range(20))
    for step in range(20):
        assert checkpoint.load(tmp_path, step=step)["a"][-1] == step


def test_a_child_of_fork_has_no_part_in_its_parent_s_save(tmp_path: Path) -> None:
    done = run("go = threading.Event()\n"
               "_files.hook = lambda point: point == 'files' and go.wait(60)\n"
               "save = checkpoint.save_async(state, root, step=1)\n"
               "pid = os.fork()\n"
               "if not pid:\n"
               "    print(type(save.exception(5)).__name__, flush=True)\n"
               "    _files.hook = None\n"
               "    checkpoint.save({'child': 1}, root, step=2)\n"
               "    os._exit(0)\n"
               "assert os.waitpid(pid, 0)[1] == 0\n"
               "go.set()\nprint(save.result(60)[-1])\n", tmp_path)
    assert done.stdout.split() == ["UnsupportedError", "1"], done.stderr
    assert checkpoint.steps(tmp_path) == [1, 2]
    checkpoint.verify(tmp_path, 1)


def test_memory_is_not_kept_by_a_save_that_has_ended(tmp_path: Path) -> None:
    import weakref

    class Array(np.ndarray):
        pass

    array = np.arange(10).view(Array)
    gone = weakref.ref(array)
    saving = checkpoint.save_async({"a": array}, tmp_path)
    assert isinstance(saving, checkpoint.Save) and saving.result(60)
    del array
    assert gone() is None


def test_an_error_of_a_save_has_a_type_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        checkpoint.save({}, tmp_path / "file" / "run")
    with pytest.raises(gpunvme.NotFoundError):
        checkpoint.load(tmp_path)
