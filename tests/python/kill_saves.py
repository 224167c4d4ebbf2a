#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Kills programs amid saves, and looks whether the last whole checkpoint is still there.

    kill_saves.py [--kills N] [--seed N] [--folder FOLDER]

Each program saves steps one after the other into a folder that all of them share, keeps three, and
tells when a step is done; some replace the last one again and again. Every second one is killed at a random instant, the others at one of the
steps of a save. Afterwards the last checkpoint must be at least the one that was told, and have the
bytes of its step: files are compared without the package. Prints what was found as JSON; exits with
1 if a checkpoint was lost or wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from gpunvme import checkpoint
from gpunvme.checkpoint import _files

POINTS = ["locked", "folder", "created", "written", "flushed", "files", "draft", "manifest",
          "synchronized", "renamed", "committed", "doomed", "deleted", "exchanged"]
WAIT = 60.0  # seconds that a program may take for its first step


def state_of(step: int) -> dict[str, object]:
    """What is saved at a step: some files, with arrays of odd sizes."""
    rng = np.random.default_rng(step)
    return {"step": step, "a": rng.integers(0, 256, 300_001, np.uint8),
            "b": rng.standard_normal((70, 1001), np.float32), "c": np.float64(step)}


def is_right(folder: Path, step: int) -> bool:
    """Whether a checkpoint has the bytes of its step."""
    manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
    expected = state_of(step)
    for name in ("a", "b"):
        [piece] = manifest["tensors"][name]["slices"]
        with (folder / piece["file"]).open("rb") as file:
            file.seek(piece["at"])
            if file.read(piece["nbytes"]) != expected[name].tobytes():  # type: ignore[attr-defined]
                return False
    return manifest["step"] == step and manifest["trees"][0]["step"] == step


def save_for_ever(root: Path, first: int, replace: bool, point: str | None, at: int,
                  tell: int) -> None:
    """The program: ends by being killed. With ``replace`` it saves steps that are there again."""
    counts: Counter[str] = Counter()

    def die(reached: str) -> None:
        counts[reached] += 1
        if reached == point and counts[reached] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    _files.hook = die if point else None
    for i in range(1000):
        step = first if replace else first + i
        if i % 2:
            checkpoint.save(state_of(step), root, step=step, keep=3, replace=replace,
                            shard_nbytes=200_000)
        else:
            checkpoint.save_async(state_of(step), root, step=step, keep=3, replace=replace,
                                  shard_nbytes=200_000).result()
        os.write(tell, step.to_bytes(8, "little"))


def one_kill(root: Path, rng: random.Random, point: str | None) -> str | None:
    """What is wrong after it; None if nothing is."""
    before = checkpoint.steps(root)
    replace = bool(before) and (rng.random() < 0.2 if point is None else point == "exchanged")
    first = before[-1] + (not replace) if before else 0
    listen, tell = os.pipe()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            save_for_ever(root, first, replace, point, rng.choice((1, 2, 5)), tell)
        os._exit(1)
    os.close(tell)
    told = b""
    end = time.monotonic() + (WAIT if point else rng.uniform(0, 0.3))
    while (left := end - time.monotonic()) > 0 and select.select([listen], [], [], left)[0]:
        if not (more := os.read(listen, 8)):
            break
        told = more
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while more := os.read(listen, 8):
        told = more
    os.close(listen)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        return f"the program ended by itself: {status}"
    least = int.from_bytes(told, "little") if told else (before[-1] if before else None)
    last = checkpoint.latest(root)
    if last is None:
        return None if least is None else f"step {least} is lost, and there is no other"
    step = int(Path(last).name.removeprefix("step-"))
    if step != checkpoint.steps(root)[-1]:
        return f"step {checkpoint.steps(root)[-1]} is not whole"
    if least is not None and step < least:
        return f"step {least} is lost: the last is {step}"
    return None if is_right(Path(last), step) else f"step {step} has wrong bytes"


def kill_saves(root: Path, kills: int, seed: int) -> dict[str, object]:
    """Kills so many programs; says what was wrong."""
    rng = random.Random(seed)
    wrong: list[str] = []
    left = Counter[str]()
    for i in range(kills):
        point = POINTS[i // 2 % len(POINTS)] if i % 2 else None
        failure = one_kill(root, rng, point)
        if failure:
            wrong.append(f"kill {i} ({point or 'at random'}): {failure}")
        for name in os.listdir(root) if root.exists() else ():
            left[name.split("-")[0]] += 1
    steps = checkpoint.steps(root)
    return {"kills": kills, "seed": seed, "saves": steps[-1] + 1 if steps else 0,
            "torn_folders_seen": left[".saving"] + left[".deleting"], "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="a folder on the file system to use")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = kill_saves(Path(folder) / "run", options.kills, options.seed)
    print(json.dumps(found, indent=2))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
