#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How much of a drive's speed a store brings into GPU memory, or with --op write out of it: a file
read or written whole that is not in the page cache, beside the best that fio reaches on the same
file, turn about in the same run.

    bench/disk_vs_fio.py [--op read|write] [--mem gpu|pinned|host] [--size 4G] [--rounds 5]
                         [--seconds 120] [--out FILE] BUILD-DIR

fio moves the bytes with O_DIRECT and io_uring and host memory, in blocks of 128K to 4M, 4 to 32 in
flight, by one and by four threads. All of these move a quarter of the file once; the three fastest
take turns with the store, which has no option set, and whose bytes are compared. The file is there
before it is written, and both sides flush it at the end, which counts. The file is in
GPUNVME_DISK_DIR (/tmp) and removed. Prints JSON; after --seconds no further round is begun.
GPUNVME_FIO may name fio. Exit code 77: no fio; 1: something failed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

BLOCKS, DEPTHS, JOBS = ("128k", "1m", "4m"), (4, 32), (1, 4)


def nbytes(text):
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text)


def at_least_one(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: not a number from 1 on")
    return int(text)


def drop_cache(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def run(command, seconds):
    """What it prints, as JSON."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"disk_vs_fio: {error}")
    if done.returncode:
        sys.exit(f"disk_vs_fio: {command[0]}: exit code {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def with_store(build, path, args, make):
    """GB/s, and the row of store_rate. It moves all bytes twice, and counts the second time."""
    command = [os.path.join(build, "bench/store_rate"), "--uri", "file:" + path, "--mem", args.mem,
               "--op", args.op, "--cold", "--runs", "1"]
    command += ["--flush"] if args.op == "write" else []
    command += ["--make", str(args.size)] if make else []
    row = run(command, 120)["results"][0]
    return row["gb_per_s"]["median"], row


def with_fio(fio, op, path, size, way):
    """GB/s of `size` bytes of the file, moved once; each thread has its part."""
    block, depth, jobs = way
    drop_cache(path)
    part = size // jobs
    command = [fio, "--name=all", "--filename=" + path, "--rw=" + op, "--direct=1",
               "--ioengine=io_uring", "--bs=" + block, f"--iodepth={depth}", f"--numjobs={jobs}",
               f"--size={part}", f"--offset_increment={part}", "--thread", "--group_reporting",
               "--output-format=json"]
    command += ["--readonly"] if op == "read" else ["--overwrite=1", "--end_fsync=1"]
    job = run(command, 120)["jobs"][0]
    if job["error"] or job[op]["io_bytes"] < size:
        sys.exit(f"disk_vs_fio: fio: {op} of {job[op]['io_bytes']} of {size} bytes, error "
                 f"{job['error']}")
    return job[op]["bw_bytes"] / 1e9


def fio_ways(fio, op, path, size):
    """GB/s of each way, the fastest first."""
    ways = [(b, d, j) for b in BLOCKS for d in DEPTHS for j in JOBS]
    rates = {way: with_fio(fio, op, path, size // 4, way) for way in ways}
    return dict(sorted(rates.items(), key=lambda item: -item[1]))


def stat(rates):
    return {"median": round(statistics.median(rates), 4), "min": round(min(rates), 4),
            "max": round(max(rates), 4), "runs": len(rates)}


def named(way):
    return dict(zip(("block", "depth", "threads"), way))


def told(ours, row, fios, tried):
    """fio's best is the one with the best median."""
    best = max(fios, key=lambda way: statistics.median(fios[way]))
    return {"benchmark": "disk_vs_fio", "bytes": row["bytes"], "mem": row["mem"],
            "op": row["op"],
            "store": {"gb_per_s": stat(ours), "cpu_s_per_gb": row["cpu_s_per_gb"]["median"],
                      "how": row["how"], "bytes_by_route": row["bytes_by_route"]},
            "fio": {**named(best), "gb_per_s": stat(fios[best])},
            "ratio": round(statistics.median(ours) / statistics.median(fios[best]), 3),
            "fio_others": [{**named(way), "gb_per_s": stat(fios[way])}
                           for way in fios if way != best],
            "fio_quarter": [{**named(way), "gb_per_s": round(rate, 4)}
                            for way, rate in tried.items()]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--op", default="read", choices=("read", "write"))
    parser.add_argument("--mem", default="gpu", choices=("gpu", "pinned", "host"))
    parser.add_argument("--size", default="4G", type=nbytes)
    parser.add_argument("--rounds", default=5, type=at_least_one)
    parser.add_argument("--seconds", default=120, type=float)
    parser.add_argument("--out", default=None)
    parser.add_argument("build")
    args = parser.parse_args()
    args.size = max(args.size >> 26, 1) << 26  # whole blocks for each thread
    fio, started = os.environ.get("GPUNVME_FIO", "fio"), time.monotonic()
    try:
        subprocess.run([fio, "--version"], stdout=subprocess.PIPE, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"SKIP: there is no fio: {error}")
        sys.exit(77)
    handle, path = tempfile.mkstemp(prefix="gpunvme-fio-",
                                    dir=os.environ.get("GPUNVME_DISK_DIR", "/tmp"))
    os.close(handle)
    ours, fios, tried = [], {}, {}
    try:
        for number in range(args.rounds):
            if number and time.monotonic() - started > args.seconds:
                break
            rate, row = with_store(args.build, path, args, make=not number)
            ours.append(rate)
            tried = tried or fio_ways(fio, args.op, path, args.size)
            for way in list(tried)[:3]:
                fios.setdefault(way, []).append(
                    with_fio(fio, args.op, path, args.size, way))
            text = json.dumps(told(ours, row, fios, tried), indent=1)
            if args.out:
                with open(args.out, "w", encoding="utf-8") as out:
                    out.write(text + "\n")
    finally:
        os.unlink(path)
    if not args.out:
        print(text)


if __name__ == "__main__":
    main()
