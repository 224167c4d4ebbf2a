#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Many files into GPU memory by one thread of a caller's with default options: from tmpfs, from the
page cache and from the drive, in 4 files and in 400, whole and in small random blocks, and back.

    bench/store_files.py [--mem gpu|pinned|host] [--size 8G] [--runs 5] [--seconds 300]
                         [--only JOB,…] [--out FILE] BUILD-DIR

Each run is a process of its own (bench/store_files.c says what counts). The files lie in /dev/shm
and in GPUNVME_DISK_DIR (/tmp), `--size` bytes in all in either, and are removed. Prints JSON: for
each job median, least and most of the runs. After --seconds no further run is begun. Exit code 1:
something failed or was wrong.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# Name: folder, files, what, bytes of a block, number of blocks.
JOBS = {
    "tmpfs_4_files": ("ram", 4, "whole", 0, 0),
    "tmpfs_again": ("ram", 4, "again", 0, 0),
    "tmpfs_write_4_files": ("ram", 4, "write", 0, 0),
    "tmpfs_400_files": ("ram", 400, "whole", 0, 0),
    "tmpfs_write_400_files": ("ram", 400, "write", 0, 0),
    "tmpfs_64k_random": ("ram", 100, "again", 65536, 10000),
    "tmpfs_4k_random": ("ram", 100, "again", 4096, 1000000),
    "tmpfs_4k_flow": ("ram", 100, "flow", 4096, 1000000),
    "cached_4_files": ("disk", 4, "whole", 0, 0),
    "cached_again": ("disk", 4, "again", 0, 0),
    "cached_400_files": ("disk", 400, "whole", 0, 0),
    "cached_64k_random": ("disk", 100, "again", 65536, 10000),
    "cached_4k_random": ("disk", 100, "again", 4096, 1000000),
}


def nbytes(text):
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text)


def make_files(program, folder, number, size):
    """Their paths; each has whole MiB, so that direct I/O is possible."""
    os.makedirs(folder)
    paths = [os.path.join(folder, f"{i:03}") for i in range(number)]
    subprocess.run([program, "-", "make", str(max(size // number >> 20, 1) << 20), "0"] + paths,
                   check=True, timeout=120)
    return paths


def stat(values):
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4),
            "max": round(max(values), 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mem", default="gpu", choices=("gpu", "pinned", "host"))
    parser.add_argument("--size", default="8G", type=nbytes)
    parser.add_argument("--runs", default=5, type=int)
    parser.add_argument("--seconds", default=300, type=float)
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--out", default=None)
    parser.add_argument("build")
    args = parser.parse_args()
    program = os.path.join(args.build, "bench/store_files")
    started = time.monotonic()
    folders = {"ram": tempfile.mkdtemp(prefix="gpunvme-files-", dir="/dev/shm"),
               "disk": tempfile.mkdtemp(prefix="gpunvme-files-",
                                        dir=os.environ.get("GPUNVME_DISK_DIR", "/tmp"))}
    results, made = {}, {}
    try:
        for name in args.only.split(","):
            where, number, what, block, count = JOBS[name]
            if (where, number) not in made:
                for key in list(made):
                    shutil.rmtree(os.path.dirname(made.pop(key)[0]))
                made[where, number] = make_files(program, os.path.join(folders[where], str(number)),
                                                 number, args.size)
            rows = []
            while len(rows) < args.runs and time.monotonic() - started < args.seconds:
                done = subprocess.run([program, args.mem, what, str(block), str(count)]
                                      + made[where, number], stdout=subprocess.PIPE, text=True,
                                      timeout=120, check=False)
                if done.returncode:
                    sys.exit(f"store_files: {name}: exit code {done.returncode}")
                rows.append(json.loads(done.stdout))
            if not rows:
                continue
            results[name] = {**rows[0], "runs": len(rows)}
            for key in ("gb_per_s", "transfers_per_s", "cpu_s_per_gb", "opening_ms", "closing_ms"):
                results[name][key] = stat([row[key] for row in rows])
            print(f"{name:24}{results[name]['gb_per_s']['median']:8.2f} GB/s"
                  f"{results[name]['transfers_per_s']['median']:12.0f} /s"
                  f"{results[name]['cpu_s_per_gb']['median']:8.3f} CPU s/GB", file=sys.stderr)
            text = json.dumps({"benchmark": "store_files", "results": results}, indent=1)
            if args.out:
                with open(args.out, "w", encoding="utf-8") as out:
                    out.write(text + "\n")
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
    if not args.out:
        print(text)


if __name__ == "__main__":
    main()
