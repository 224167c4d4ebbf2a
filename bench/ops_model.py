#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Is what "auto" chooses for a product as fast as the best variant?

    bench/ops_model.py --gpunvme build/release/bin/gpunvme --json model.json

Times all variants of random products on the GPU, without the two plainest, and compares the one that
"auto" takes with the fastest of them. Sizes are as often between 16 and 32 as between 4096 and 8192;
some are multiples of 64, some of 8, others anything. The goal: 95 % of the choices cost at most 5 %.
Exit code 1: fewer do. A minute on an H200.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

PLAINEST = "naive,tiled"
MOST_ELEMENTS, MOST_FLOPS = 1 << 25, 1 << 37
TYPES = ["bf16"] * 12 + ["f16"] * 2 + ["f32"] * 3 + ["tf32"] * 2 + ["e4m3-row"]


def size(r, least, most):
    x = int(least * (most / least) ** r.random())
    step = r.choice((1, 8, 64))
    return max((x + step // 2) // step * step, step)


def shapes(seed, count):
    r = random.Random(seed)
    found = []
    while len(found) < count:
        dtype = r.choice(TYPES)
        m, n, k = size(r, 1, 8192), size(r, 16, 16384), size(r, 16, 16384)
        if max(m * n, n * k, m * k) <= MOST_ELEMENTS and 2 * m * n * k <= MOST_FLOPS:
            found.append(f"matmul {dtype} {m}x{n}x{k}")
    return found


def measure(gpunvme, lines, rounds):
    # No peer: choosing among its proposals would take longer than all else.
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write("\n".join(lines) + "\n")
        f.flush()
        done = subprocess.run(
            [gpunvme, "ops", "bench", "--device", "cuda", "--shapes", f.name, "--without", PLAINEST,
             "--rounds", str(rounds), "--time", "8ms", "--burst", "1ms", "--json"],
            stdout=subprocess.PIPE, check=False, text=True,
            env={**os.environ, "GPUNVME_CUBLASLT": "/none"})
    if done.returncode not in (0, 1):
        sys.exit(f"ops_model.py: gpunvme ended with {done.returncode}")
    return json.loads(done.stdout)["tables"]


def judge(table):
    seconds = {v["variant"]: v["seconds"] for v in table["variants"] if "seconds" in v}
    chosen = table["auto"]
    best = min(seconds, key=seconds.get)
    return {"dtype": table["dtype"], "m": table["m"], "n": table["n"], "k": table["k"],
            "auto": chosen, "best": best,
            "ratio": seconds[best] / seconds[chosen] if chosen in seconds else None,
            "us": {name: round(x * 1e6, 2) for name, x in seconds.items()}}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--gpunvme", default="gpunvme")
    p.add_argument("--cases", type=int, default=400)
    p.add_argument("--seed", type=int, default=19)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--list", action="store_true", help="print the shapes and stop")
    p.add_argument("--json", metavar="FILE")
    args = p.parse_args()
    lines = shapes(args.seed, args.cases)
    if args.list:
        print("\n".join(lines))
        return 0
    rows = [judge(t) for t in measure(args.gpunvme, lines, args.rounds)]
    good = sum(x["ratio"] is not None and x["ratio"] >= 1 / 1.05 for x in rows)
    for x in sorted(rows, key=lambda x: x["ratio"] or 0)[:30]:
        print(f'{x["dtype"]:9} {x["m"]}x{x["n"]}x{x["k"]:<7} auto {x["auto"]}, best {x["best"]}, '
              f'ratio {x["ratio"] or float("nan"):.3f}  {x["us"]}')
    print(f"{good} of {len(rows)} choices ({good / len(rows):.1%}) cost at most 5 %")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"benchmark": "ops_model", "command": " ".join(["bench/ops_model.py"] + sys.argv[1:]),
                       "cases": len(rows), "within_5_percent": good, "rows": rows}, f, indent=1)
            f.write("\n")
    return 0 if good >= 0.95 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
