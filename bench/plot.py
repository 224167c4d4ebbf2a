#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws what bench/gpu_sweep.sh measured, as SVG, and tells which goals were met.

    bench/plot.py FILE.json [FOLDER]     plots into FOLDER (default: beside FILE)
    bench/plot.py --table FILE.json      the goals and what was reached; exit code 1: not all met

Drawing needs matplotlib (Debian: python3-matplotlib); the table does not. Nothing is drawn that is
not in the file, but the line of Little's law, which is arithmetic.
"""

import json
import math
import os
import sys


def rows(sweep, section, **where):
    """The rows of gpu_io in a section that were measured, and have these values."""
    found = []
    for part in sweep["sections"].get(section, []):
        for row in (part.get("result") or {}).get("rows", []):
            if "iops" in row and all(row.get(key) == value for key, value in where.items()):
                found.append(row)
    return found


def results(sweep, section, **where):
    """The results of programs that print one object."""
    found = []
    for part in sweep["sections"].get(section, []):
        result = part.get("result") or {}
        if "rows" not in result and all(result.get(k) == v for k, v in where.items()):
            found.append(result)
    return [result for result in found if result]


def line(rows, key):
    """x, median, and what is below and above it, by rising x; of rows with one x the fastest."""
    best = {}
    for row in rows:
        x = row[key]
        if x not in best or row["iops"]["median"] > best[x]["iops"]["median"]:
            best[x] = row
    xs = sorted(best)
    medians = [best[x]["iops"]["median"] / 1e6 for x in xs]
    below = [m - best[x]["iops"]["min"] / 1e6 for x, m in zip(xs, medians)]
    above = [best[x]["iops"]["max"] / 1e6 - m for x, m in zip(xs, medians)]
    return xs, medians, [below, above]


def little(threads, drives, latency_s, iops):
    """So many commands in flight, each for so long, on drives that have a limit each."""
    return min(threads / latency_s, drives * iops)


# The software controller's profile p5800x (docs/SIM.md): the mean of a lognormal latency with
# median 5 us and sigma 0.05, and reads a second.
P5800X_LATENCY_S = 5e-6 * math.exp(0.05**2 / 2)
P5800X_IOPS = 4.6e6


# --- goals ----------------------------------------------------------------------------------------


def fastest(rows):
    return max((row["iops"]["median"] for row in rows), default=None)


def by(rows, key):
    return {row[key]: row for row in rows}


def ratios(above, below, key="threads"):
    """The smallest ratio of two ways at the points that both have."""
    below = by(below, key)
    return min(
        (
            row["iops"]["median"] / below[row[key]]["iops"]["median"]
            for row in above
            if row[key] in below
        ),
        default=None,
    )


def quotient(a, b):
    return a / b if a and b else None


def goals_of_ways(sweep):
    uris = {row["uri"] for row in rows(sweep, "ways")}
    for uri in sorted(uris):
        ours, apart, lockstep, ticket = (
            rows(sweep, "ways", uri=uri, way=way)
            for way in ("ours", "apart", "lockstep", "ticket")
        )
        varied = "fault=delay" in uri
        name = uri.replace("sim:engine=gpu", "").lstrip(",") or "no latency"
        yield f"{name}: ours / ticket, least of all thread counts", 2, ratios(ours, ticket)
        yield (
            f"{name}: best of ours / best of lockstep",
            1,
            quotient(fastest(ours + apart), fastest(lockstep)),
        )
        if varied:
            yield f"{name}: apart / lockstep, at most 4096 threads", 3, ratios(
                [row for row in apart if row["threads"] <= 4096], lockstep
            )


def goals_of_errors(sweep):
    for result in results(sweep, "errors"):
        yield "errors: reads", 1e9, result["commands"]
        yield "errors: all at the right threads, data right, no violation", 1, int(result["good"])


def goals_at_most(sweep):
    """Name, limit, value: the value must not be above."""
    for result in results(sweep, "latency", tier=1):
        yield (
            f"tier 1, {result['label']}: (latency - model) / round trip",
            1.5,
            result["ratio"]["median"],
        )
    for parts in sweep["sections"].values():
        for part in parts:
            registers = (part.get("result") or {}).get("read_a_block_registers")
            if registers is not None:
                yield "registers of read-a-block", 48, registers
                return


def goals(sweep):
    """Name, what is wanted, what was reached (None: not measured), whether that is enough."""
    threads, writes = rows(sweep, "threads", block=512), rows(sweep, "writes")
    few = [row for row in threads if row["threads"] <= 4096]
    tier1 = rows(sweep, "tier1")
    blocks = rows(sweep, "blocks", block=4096, op="read")
    at_least = [
        ("512-byte reads/s", 100e6, fastest(threads)),
        ("512-byte reads/s, at most 4096 threads", 62e6, fastest(few)),
        ("one queue, reads/s", 20e6, fastest(rows(sweep, "one_queue"))),
        (
            "writes / reads",
            0.8,
            ratios([r for r in writes if r["op"] == "write"], [r for r in writes if r["op"] == "read"]),
        ),
        ("4 KiB reads/s", 50e6, fastest(blocks)),
        (
            "tier 1: by the GPU / by CPU threads",
            0.85,
            max(
                (r["iops"]["median"] / r["cpu_iops"]["median"] for r in tier1 if "cpu_iops" in r),
                default=None,
            ),
        ),
    ]
    table = [(*goal, None) for goal in at_least]
    table += [(*goal, None) for goal in goals_of_ways(sweep)]
    table += [(*goal, None) for goal in goals_of_errors(sweep)]
    table = [(n, w, g, g is not None and g >= w) for n, w, g, _ in table]
    table += [(n, w, g, g is not None and g <= w) for n, w, g in goals_at_most(sweep)]
    return table


def wrongs(sweep):
    """Points with errors, wrong data or violations, and commands that failed."""
    found = []
    for section, parts in sweep["sections"].items():
        for part in parts:
            result = part.get("result") or {}
            if part.get("rc"):
                found.append(f"{section}: exit code {part['rc']}: {part['command']}")
            for row in result.get("rows", []):
                bad = {k: row[k] for k in ("errors", "wrong", "violations") if row.get(k)}
                if bad:
                    found.append(f"{section}: {row['way']} {row['threads']} threads: {bad}")
                if "skipped" in row:
                    found.append(
                        f"{section}: {row['way']} {row['threads']} threads: {row['skipped']}"
                    )
    return found


def number(value):
    if value is None:
        return "not measured"
    return f"{value / 1e6:.4g} M" if value >= 1e5 else f"{value:.4g}"


def print_table(sweep):
    table = goals(sweep)
    for name, wanted, got, met in table:
        print(f"{'yes' if met else 'NO ':3}  {name}: {number(got)} (goal {number(wanted)})")
    for text in wrongs(sweep):
        print(f"     {text}")
    return all(met for _, _, _, met in table)


# --- plots ----------------------------------------------------------------------------------------


def axes(plt, title, x, y="million commands a second", logy=True):
    figure, ax = plt.subplots(figsize=(7, 4.5))
    ax.set_title(title)
    ax.set_xscale("log", base=2)
    if logy:
        ax.set_yscale("log")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(True, which="major", alpha=0.4)
    return figure, ax


def draw(ax, rows, key, label):
    if not rows:
        return
    xs, medians, spread = line(rows, key)
    ax.errorbar(xs, medians, yerr=spread, marker="o", markersize=4, capsize=2, label=label)
    ax.set_xticks(xs, [f"{x // 1024}K" if x >= 1024 and x % 1024 == 0 else str(x) for x in xs])


def save(plt, figure, ax, folder, name):
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
    path = os.path.join(folder, f"{name}.svg")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def plot_simple(plt, sweep, folder):
    """A section a plot: a line for each of the values of one key."""
    plots = [
        ("threads", "threads", "inflight", "512-byte random reads, 16 drives", "GPU threads"),
        ("one_queue", "threads", "inflight", "One queue pair, 512-byte reads", "GPU threads"),
        ("queues", "queues", None, "512-byte reads, one drive, 8192 threads", "queue pairs"),
        ("drives", "drives", "threads", "512-byte reads, 8 queue pairs a drive", "drives"),
        ("blocks", "block", "op", "16 drives, the better of 4096 and 16384 threads", "bytes of a command"),
    ]
    for section, key, split, title, x in plots:
        found = rows(sweep, section)
        if not found:
            continue
        figure, ax = axes(plt, title, x)
        for value in sorted({row[split] for row in found}, key=str) if split else [None]:
            name = {"inflight": f"{value} in flight a thread", "threads": f"{value} threads"}
            draw(ax, [r for r in found if not split or r[split] == value], key,
                 name.get(split, value))
        yield save(plt, figure, ax, folder, f"gpu_{section}")


def plot_ways(plt, sweep, folder):
    for i, uri in enumerate(sorted({row["uri"] for row in rows(sweep, "ways")})):
        figure, ax = axes(plt, f"Ways to share queues: {uri}", "GPU threads")
        for way in ("ours", "apart", "lockstep", "ticket"):
            draw(ax, rows(sweep, "ways", uri=uri, way=way), "threads", way)
        yield save(plt, figure, ax, folder, f"gpu_ways_{i}")


def plot_little(plt, sweep, folder):
    found = rows(sweep, "little")
    if not found:
        return
    figure, ax = axes(plt, "10 drives as a P5800X: Little's law", "GPU threads")
    draw(ax, found, "threads", "measured")
    xs = sorted({row["threads"] for row in found})
    model = [little(x, 10, P5800X_LATENCY_S, P5800X_IOPS) / 1e6 for x in xs]
    ax.plot(xs, model, "--", color="black", label="threads / latency, at most 10 x 4.6 M/s")
    yield save(plt, figure, ax, folder, "gpu_little")


def plot_all(sweep, folder):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gpunvme"
    import matplotlib.pyplot as plt

    os.makedirs(folder, exist_ok=True)
    paths = []
    for plot in (plot_simple, plot_ways, plot_little):
        paths += plot(plt, sweep, folder)
    return paths


def main(arguments):
    table = "--table" in arguments
    names = [a for a in arguments if not a.startswith("--")]
    if not names:
        print(__doc__)
        return 2
    try:
        with open(names[0], encoding="utf-8") as file:
            sweep = json.load(file)
        sweep["sections"].items()
    except (OSError, ValueError) as error:
        print(f"plot.py: {names[0]}: {error}", file=sys.stderr)
        return 2
    except (KeyError, TypeError, AttributeError):
        print(f"plot.py: {names[0]} is not what gpu_sweep.sh writes: no sections", file=sys.stderr)
        return 2
    if table:
        return 0 if print_table(sweep) else 1
    folder = names[1] if len(names) > 1 else os.path.dirname(names[0]) or "."
    try:
        paths = plot_all(sweep, folder)
    except ImportError:
        print("plot.py: matplotlib is not installed (Debian: python3-matplotlib)", file=sys.stderr)
        return 77
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
