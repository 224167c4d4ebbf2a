#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What scripts/gpu-check.sh tells at its end: what failed, with its last lines, the figures beside
their goals, what could not be run and why, and which files hold what. At most 60 lines.

    scripts/gpu-check-summary.py WORK OUT PART…

WORK has a folder for each part, with steps.tsv (name, how it went, seconds, log, why), seconds
(taken, budget), and what the steps measured; OUT is where archives of them lie. A result that was
cut off is read as far as it goes. The exit code is 1 if a step failed, was cut off or had no time.
"""

import json
import math
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
import plot  # noqa: E402  what gpu_sweep.sh's results mean

MOST_LINES, MOST_FAILURES, MOST_LACKING = 60, 20, 9
WIDTH = 150


# --- reading --------------------------------------------------------------------------------------


def mend(text):
    """JSON that was cut off: up to the last object that is whole, and closed after it."""
    stack, quoted, escaped, good = [], False, False, None
    for i, c in enumerate(text):
        if quoted:
            quoted = escaped or c != '"'
            escaped = c == "\\" and not escaped
        elif c == '"':
            quoted = True
        elif c in "{[":
            stack.append("}" if c == "{" else "]")
        elif c in "}]" and stack:
            stack.pop()
            if c == "}":
                good = (i + 1, "".join(reversed(stack)))
    if not good:
        return None
    try:
        return json.loads(text[: good[0]] + good[1])
    except ValueError:
        return None


def load(*path):
    try:
        with open(os.path.join(*path), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return mend(text)


def lines_of(*path):
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def steps_of(work, part):
    keys = ("name", "how", "seconds", "log", "why")
    rows = [line.split("\t") for line in lines_of(work, part, "steps.tsv")]
    return [dict(zip(keys, row), part=part) for row in rows if len(row) == len(keys)]


# --- what failed ----------------------------------------------------------------------------------

ENDED = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*(.*?) +[\d.]+ sec")
STARTED = re.compile(r"^ +Start +\d+: (\S+)")
END_OF_TESTS = re.compile(r"\d+% tests passed|Label Time Summary|The following tests|Total Test time")
TELLING = re.compile(r"ERROR|FAILED|error:|not so|Sanitizer|SUMMARY|WRONG")


def telling(lines, most):
    """The lines that say most, else the last ones."""
    lines = [line.strip() for line in lines if line.strip()]
    found = [line for line in lines if TELLING.search(line)]
    return found[:most] if found else lines[-most:]


def failed_tests(log):
    """Name -> how it failed and what it said, from what ctest printed."""
    found, begun, said = {}, [], None
    for line in log:
        ended, started = ENDED.match(line), STARTED.match(line)
        if ended:
            name, how = ended.group(1), ended.group(2).strip(" .*")
            begun = [b for b in begun if b != name]
            said = None
            if not re.match(r"Passed|Skipped|Not Run \(Disabled\)", how):
                said = []
                found[name] = (how, said)
        elif started:
            begun.append(started.group(1))
            said = None
        elif END_OF_TESTS.match(line):
            said = None
        elif said is not None:
            said.append(line)
    for name in begun:
        found[name] = ("had not ended when the time was over", [])
    return found


def failures_of_tests(work, step):
    log = lines_of(work, step["part"], step["log"])
    alone = failed_tests(lines_of(work, step["part"], "again_alone.log"))
    again = any("Test time" in x for x in lines_of(work, step["part"], "again_alone.log"))
    for name, (how, said) in failed_tests(log).items():
        also = "" if not again else "; alone, too" if name in alone else "; passes alone"
        yield f"{name}: {how}{also}", telling(said, 3)


def failures(work, steps):
    """Text and last lines of each, tests one by one."""
    for step in steps:
        if step["how"] not in ("failed", "cut", "late") or step["name"] == "again_alone":
            continue
        one_by_one = []
        if step["part"] == "tests":
            one_by_one = list(failures_of_tests(work, step))
        if one_by_one and step["how"] == "failed":
            yield from one_by_one
            continue
        log = lines_of(work, step["part"], step["log"]) if step["log"] else []
        yield f"{step['part']}, {step['name']}: {step['why']}", telling(log, 3)
        yield from one_by_one


# --- figures --------------------------------------------------------------------------------------
# A figure: what it is, the value as text, the goal as text, whether that is enough (None: no goal).


def at_least(what, value, goal, unit="", note=""):
    return what, f"{value:.4g}{unit}{note}", f"{goal:g}{unit}", value >= goal


def figures_of_sweep(folder):
    sweep = load(folder, "gpu_sweep.json") or {"sections": {}}
    for what, wanted, got, met in plot.goals(sweep):
        if got is not None:
            yield what, plot.number(got), plot.number(wanted), met
    errors = load(folder, "gpu_errors.json")
    if errors:
        yield "reads with errors among them", plot.number(errors["commands"]), "1000 M", (
            errors["commands"] >= 1e9
        )
        yield "their errors at the right threads, data right", (
            "yes" if errors["good"] else "NO"
        ), "yes", errors["good"]
    shares = [
        row["iops"]["median"]
        / plot.little(row["threads"], 10, plot.P5800X_LATENCY_S, plot.P5800X_IOPS)
        for row in plot.rows(sweep, "little")
    ]
    if shares:
        yield "10 drives as a P5800X / Little's law, least and most", (
            f"{min(shares):.2f} to {max(shares):.2f}"
        ), "", None
    for section, what in (("queues", "queue pairs"), ("drives", "drives")):
        best = max(plot.rows(sweep, section), key=lambda r: r["iops"]["median"], default=None)
        if best:
            yield f"fastest of 1 to n {what}", (
                f"{best['iops']['median'] / 1e6:.4g} M/s with {best[section]}"
            ), "", None


AB_GOALS = {
    ("best", "65536 threads"): ("512-byte reads/s (ab)", 100),
    ("best", "4096 threads"): ("512-byte reads/s, 4096 threads (ab)", 62),
    ("queue", "1024 threads"): ("one queue, reads/s (ab)", 20),
}


def figures_of_ab(folder):
    ab = load(folder, "gpu_ab.json")
    if not ab or not ab["rows"]:
        return
    first = ab["builds"][0]
    for row in ab["rows"]:
        for (point, what), (name, goal) in AB_GOALS.items():
            if row["point"] == point and row["what"].startswith(what) and row["unit"] == "M/s":
                best = max(row["builds"], key=lambda b: row["builds"][b]["median"])
                note = "" if best == first else f", {best} {row['builds'][best]['median']:.4g}"
                if first in row["builds"]:
                    yield at_least(name, row["builds"][first]["median"], goal, " M", note)
        if row["point"] == "latency" and row["what"] == "unlimited, ratio":
            for build, cell in row["builds"].items():
                yield f"tier 1, depth 1, / round trip: {build}", f"{cell['median']:.3g}", "1.5", (
                    cell["median"] <= 1.5
                )
    for build in ab["builds"][1:]:
        for unit, what in (("M/s", "rates"), ("ns", "times")):
            shares = [
                row["builds"][build]["median"] / row["builds"][first]["median"]
                for row in ab["rows"]
                if row["unit"] == unit and build in row["builds"] and first in row["builds"]
                and row["builds"][first]["median"] and row["builds"][build]["median"]
            ]
            if shares:
                mean = math.exp(sum(map(math.log, shares)) / len(shares))
                yield f"{build}: {what} beside the plain build's, {len(shares)} points", (
                    f"x {mean:.3f} ({min(shares):.2f} to {max(shares):.2f})"
                ), "", None


STORE_GOALS = (
    ("tmpfs_read_whole", "tmpfs to GPU, opening counted", "gb_per_s", 40),
    ("cached_read_whole", "page cache to GPU, opening counted", "gb_per_s", 40),
    ("tmpfs_read", "tmpfs to GPU", "gb_per_s", 40),
    ("cached_read", "page cache to GPU", "gb_per_s", 40),
    ("tmpfs_write", "GPU to tmpfs", "gb_per_s", 30),
    ("tmpfs_64k", "random 64 KiB of tmpfs, batches", "gb_per_s", 15),
    ("tmpfs_4k", "4 KiB of tmpfs, batches, M/s", "requests_per_s", 1),
    ("cold_read", "cold file", "gb_per_s", None),
)


FILES_GOALS = (
    ("tmpfs_4_files", "8 GiB in 4 files of tmpfs, whole", "gb_per_s", 48),
    ("tmpfs_400_files", "the same in 400 files", "gb_per_s", 48),
    ("tmpfs_again", "the same, open stores", "gb_per_s", 51),
    ("tmpfs_64k_random", "random 64 KiB over 100 files", "gb_per_s", 40),
    ("tmpfs_4k_random", "4 KiB over 100 files, M/s", "transfers_per_s", 2.5),
    ("tmpfs_write_4_files", "GPU to 4 files of tmpfs", "gb_per_s", 44),
    ("tmpfs_write_400_files", "the same, 400 files", "gb_per_s", None),
    ("cached_4_files", "8 GiB in 4 files, page cache", "gb_per_s", 48),
    ("cached_400_files", "the same in 400 files", "gb_per_s", 48),
    ("cached_again", "the same, open stores", "gb_per_s", 51),
    ("cached_64k_random", "random 64 KiB over 100 files", "gb_per_s", None),
    ("cached_4k_random", "4 KiB over 100 files, M/s", "transfers_per_s", None),
)


def figures_of_files(folder):
    results = (load(folder, "store_files.json") or {}).get("results") or {}
    for name, what, key, goal in FILES_GOALS:
        row = results.get(name)
        if row:
            value = row[key]["median"] / (1 if key == "gb_per_s" else 1e6)
            cpu = row["cpu_s_per_gb"]["median"]
            note = f" ({row[key]['min']:.3g} to {row[key]['max']:.3g}), {cpu:.2g} CPU s/GB"
            if goal is None:
                yield what, f"{value:.4g}{note}", "", None
            else:
                yield at_least(what, value, goal, "", note)


def store_value(row, key):
    return row["gb_per_s"]["median"] if key == "gb_per_s" else row[key] / 1e6


def figures_of_storage(folder):
    for name, what, key, goal in STORE_GOALS:
        rows = (load(folder, "store_rate", f"{name}.json") or {}).get("results") or []
        rows = [row for row in rows if key in row]
        if not rows:
            continue
        plain, best = rows[0], max(rows, key=lambda row: store_value(row, key))
        note = f", {plain['cpu_s_per_gb']['median']:.2g} CPU s/GB"
        if best is not plain:
            note += f"; best {store_value(best, key):.4g}, {best['uri'].partition('?')[2]}"
        if goal is None:
            yield what, f"{store_value(plain, key):.4g} GB/s{note}", "", None
        else:
            yield at_least(what, store_value(plain, key), goal, "", note)
        if not all(row.get("verified", True) for row in rows):
            yield f"{what}: bytes", "WRONG", "right", False
    cold = load(folder, "disk_vs_fio.json")
    if cold:
        yield at_least("cold file to GPU / fio's best", cold["ratio"], 0.97, "",
                       f", {cold['store']['gb_per_s']['median']:.3g} GB/s")
    ways = load(folder, "store_ways.json")
    if ways and ways["result"]:
        into = "" if ways["result"].get("gpu") else ", no GPU: into host memory"
        for label, where in plot.ways_labels(ways).items():
            best = plot.best(plot.ways_points(ways, **where))
            if best:
                yield f"store_ways, {label}{into}", plot.ways_cell(best, "gb_per_s"), "", None
    memory = load(folder, "gpu_memory.json") or {}
    for key in ("gpu_checksum_gb_per_s", "pinned_to_gpu_gb_per_s"):
        if key in memory:
            yield key, f"{memory[key]['median']:.4g}", "", None


OPS_GOALS = {
    ("matmul", "f32"): 0.95,
    ("matmul", "tf32"): 0.95,
    ("matmul", "bf16"): 0.97,
    ("linear-forward", "bf16"): 1.0,
    ("linear-backward", "bf16"): 0.97,
}


def attention_ladder(table):
    """All rungs in a line: TFLOP/s, or over a cache GB/s."""
    paged = table["operator"] in ("attention-paged", "kv-append")
    rate, unit, scale = ("gb_per_s", "GB/s", 1) if paged else ("gflops", "TFLOP/s", 1e3)
    rungs = [f"{r['variant']} {r[rate] / scale:.4g}" for r in table["variants"] if rate in r]
    what = f"{table['operator']} {table['dtype']} {table['m']} x {table['n']} x {table['k']}"
    return what + (" causal" if table.get("causal") else ""), f"{', '.join(rungs)} {unit}", "", None


def figures_of_ops(folder):
    best, bad, ladders = {}, [], []
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if not name.endswith(".json") or name.startswith("check_"):
            continue
        for table in (load(folder, name) or {}).get("tables", []):
            if table["operator"].startswith(("attention", "kv-append")):
                ladders.append(attention_ladder(table))
            key = tuple(table[k] for k in ("operator", "dtype", "m", "n", "k"))
            key += ("" if table.get("preact", True) else " (no pre-activation)",)
            for row in table.get("variants", []):
                if row.get("right", True) is False:
                    bad.append(f"{key[0]} {row['variant']} {key[1]}")
                elif row.get("to_cublaslt") is not None and not row.get("peer"):
                    if key not in best or row["seconds"] < best[key]["seconds"]:
                        best[key] = row
    for (op, dtype, m, n, k, how), row in sorted(best.items()):
        what = f"{op}{how} {dtype} {m} x {n} x {k}, {row['variant']} / cuBLASLt"
        goal = OPS_GOALS.get((op, dtype))
        note = f", {row['gflops'] / 1e3:.4g} TFLOP/s"
        if goal is None:
            yield what, f"{row['to_cublaslt']:.3g}{note}", "", None
        else:
            yield at_least(what, row["to_cublaslt"], goal, "", note)
    yield from ladders
    wrong = [
        f"{r['operator']} {r['variant']} {r['dtype']}"
        for name in names
        if name.startswith("check_")
        for r in (load(folder, name) or {}).get("checks", [])
        if not r.get("right", True)
    ]
    wrong = sorted(set(wrong + bad))
    if wrong:
        yield "results that are wrong", ", ".join(wrong), "none", False


FIGURES = {
    "queues": (figures_of_sweep, figures_of_ab),
    "storage": (figures_of_files, figures_of_storage),
    "ops": (figures_of_ops,),
}


def figures(work, part):
    for find in FIGURES.get(part, ()):
        try:
            yield from find(os.path.join(work, part))
        except Exception as error:  # whatever a program left there: the rest is told all the same
            yield f"{part}: results that can't be read", repr(error), "", False


# --- what could not be run ------------------------------------------------------------------------


def lacking(work, parts, steps):
    for step in steps:
        if step["how"] == "skipped":
            yield f"{step['name']}: {step['why'] or 'see ' + step['log']}"
    if "tests" in parts:
        reasons = {}
        for step in steps:
            if step["part"] == "tests":
                for line in lines_of(work, "tests", step["name"] + ".skips"):
                    count, _, why = line.strip().partition(" ")
                    reasons[why] = reasons.get(why, 0) + int(count)
        for why, count in sorted(reasons.items(), key=lambda r: -r[1]):
            yield f"{count} tests or parts of them: {why}"
    yield from lines_of(work, "lacking")
    ways = (load(work, "storage", "store_ways.json") or {}) if "storage" in parts else {}
    for way in (ways.get("result") or {}).get("ways", []):
        if not way["works"]:
            yield f"store_ways, {way['way']}: {way['why']}"


# --------------------------------------------------------------------------------------------------

HOLDS = {
    "tests": "logs of ctest, STEP.full.log.gz with all output",
    "sanitize": "a log for each program and checker",
    "queues": "gpu_sweep.json, gpu_errors.json, gpu_ab.json; ab.log has all builds side by side",
    "storage": "store_files.json, store_rate/*.json, disk_vs_fio.json, store_ways.json, gpu_{memory,copy_batch,register}.json, quickstart.json",
    "ops": "check_VARIANT.json, OPERATOR_DTYPE_SHAPE.json",
    "python": "pytest.log, python_cost.json, torch_cost.json",
}


def shortened(found, most, what):
    found = list(found)
    if len(found) > most:
        found = found[: most - 1] + [f"    … and {len(found) - most + 1} more {what}"]
    return found


def summary(work, out, parts):
    steps = [step for part in parts for step in steps_of(work, part)]
    bad = [step for step in steps if step["how"] in ("failed", "cut", "late")]
    text = []
    for part in parts:
        hows = [step["how"] for step in steps if step["part"] == part]
        counts = ", ".join(
            f"{hows.count(how)} {how}" for how in ("ok", "failed", "cut", "late", "skipped") if how in hows
        )
        taken, _, budget = " ".join(lines_of(work, part, "seconds")).partition(" ")
        text.append(f"{part}: {counts or 'nothing'}; {taken} of {budget} s")
    failed = []
    for what, said in failures(work, bad):
        failed += [f"  {what}"] + [f"      {line}" for line in said]
    if failed:
        text += ["FAILED:"] + shortened(failed, MOST_FAILURES, "lines: see the logs")
    lack = []
    try:
        lack += ("  " + line for line in lacking(work, parts, steps))
    except Exception as error:  # as above
        lack.append(f"  what else: {error!r}")
    lack = ["Not run here:"] + shortened(lack, MOST_LACKING, "") if lack else []
    files = ["Files:"]
    for part in parts:
        files.append(f"  {os.path.join(out, part)}.tar.gz: steps.tsv, machine.txt, {HOLDS[part]}")
    table = []
    for part in parts:
        for what, value, goal, met in figures(work, part):
            mark = {None: "   ", True: "yes", False: "NO "}[bool(met) if met is not None else None]
            table.append(f"  {mark} {what}: {value}" + (f" (goal {goal})" if goal else ""))
    last = ["gpu-check.sh: " + ("FAILED: " + ", ".join(f"{s['part']} {s['name']}" for s in bad) if bad
                               else "all passed that was run")]
    room = MOST_LINES - len(text) - len(lack) - len(files) - len(last) - 1
    if table:
        text += ["Figures, and whether they reach their goal:"] + shortened(table, room, "figures")
    text += lack + files + last
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in text], bool(bad)


def main(arguments):
    if len(arguments) < 3:
        print(__doc__)
        return 2
    text, bad = summary(arguments[0], arguments[1], arguments[2:])
    print("\n".join(text))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
