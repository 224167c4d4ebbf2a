#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Storage tiers: files by name over a fast, a warm and a cold directory.

    tiers.py [HOT WARM COLD]

The directories are three folders of its own by default. One of four files in the cold directory is
read again and again, and moves up when files are migrated; a policy of the caller's keeps index
files in the hot tier whatever their use.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import gpunvme
from gpunvme import tiers


def show(files: tiers.Tiers) -> None:
    for file in files.list("train/"):
        print(f"  {file.name:18}{file.tier:6}score {file.score:.1f}")


def by_use(hot: Path) -> None:
    with tiers.Tiers(hot) as files:  # with migrate=True, a thread migrates
        for i in range(4):
            files.put(f"train/shard-{i}", bytes([i]) * (1 << 20), "cold")
        buf = gpunvme.empty(1 << 20, "cuda")  # host memory where there is no GPU
        for _ in range(20):
            files.read("train/shard-2", buf)
        print("before:")
        show(files)
        moves = files.migrate()
        print(f"moved {moves.up} up and {moves.down} down:")
        show(files)
        print("its bytes take this way:", files.path("train/shard-2")[1].how)


def by_name(hot: Path) -> None:
    def policy(file: tiers.TieredFile) -> tiers.TierName:
        return "hot" if file.name.endswith(".idx") else "hot" if file.score >= 100 else "cold"

    with tiers.Tiers(hot, policy=policy, moved=lambda *move: print("moved", *move[:3])) as files:
        files.put("train/shards.idx", b"0 1048576 2097152", "cold")
        files.migrate()
        show(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("dirs", nargs="*", type=Path, help="of the hot, the warm and the cold tier")
    dirs = parser.parse_args().dirs
    if len(dirs) not in (0, 3):
        parser.error("three directories, or none")
    with tempfile.TemporaryDirectory() as folder:
        if not dirs:
            dirs = [Path(folder) / tier for tier in ("hot", "warm", "cold")]
            for made in dirs:
                made.mkdir()
        try:
            tiers.create(*dirs)
        except gpunvme.UnsupportedError as why:
            print(f"SKIP: {why}")
            return
        by_use(dirs[0])
        by_name(dirs[0])


if __name__ == "__main__":
    main()
