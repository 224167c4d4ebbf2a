#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws what bench/gpu_sweep.sh, bench/store_ways.sh or `gpunvme ops bench --json` measured, and tells
it as a table.

    bench/plot.py [--png] FILE.json [FOLDER]  plots into FOLDER (default: beside FILE), as SVG
    bench/plot.py --table FILE.json           gpu_sweep: the goals and what was reached
                                              store_ways: the best of each way, in Markdown
                                              ops bench: each ladder in Markdown, and its goal

The exit code of --table is 1 if a goal was not met, a point of store_ways failed, or a rung of a
ladder did or was wrong. Drawing needs
matplotlib (Debian: python3-matplotlib); the table does not. Nothing is drawn that is not in the
file, but the line of Little's law, which is arithmetic.
"""

import json
import math
import os
import sys
import textwrap


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


def goals_of_tier1(sweep):
    """One for each controller, so that what one reaches does not hide what another does not."""
    found = {}
    for row in rows(sweep, "tier1"):
        if "cpu_iops" in row:
            ratio = row["iops"]["median"] / row["cpu_iops"]["median"]
            found[row["uri"]] = max(ratio, found.get(row["uri"], 0))
    for uri, ratio in (found or {"": None}).items():
        name = uri and f", {uri}"
        yield f"tier 1{name}: by the GPU / by CPU threads, best thread count", 0.85, ratio


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
    ]
    table = [(*goal, None) for goal in at_least]
    table += [(*goal, None) for goal in goals_of_tier1(sweep)]
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


# --- store_ways -----------------------------------------------------------------------------------


def ways_points(ways, **where):
    """The points that were measured, and have these values."""
    return [
        point
        for point in ways["result"]["points"]
        if "gb_per_s" in point and all(point.get(k) == v for k, v in where.items())
    ]


def ways_labels(ways):
    """Label -> what its points have: the way, and the drive where the way has several."""
    found = [(w["way"], w["uri"]) for w in ways["result"]["ways"] if w["works"]]
    labels = {}
    for way, uri in found:
        several = sum(1 for other, _ in found if other == way) > 1
        labels[f"{way}, {short_uri(uri)}" if several else way] = {"way": way, "uri": uri}
    return labels


def short_uri(uri):
    """Without what all have: the size, and issue=gpu, which stores no longer know (h200/store_ways.json)."""
    head, _, options = uri.partition("?")
    scheme, colon, rest = head.partition(":")
    rest = ",".join(key for key in rest.split(",") if not key.startswith("size="))
    options = ",".join(key for key in options.split(",") if key and key != "issue=gpu")
    return scheme + colon + rest + (f"?{options}" if options else "")


def best(points, what="gb_per_s"):
    return max(points, key=lambda point: point[what]["median"], default=None)


def best_by(points, key, what="gb_per_s"):
    """x -> the best of the points that have it."""
    found = {}
    for point in points:
        found.setdefault(point[key], []).append(point)
    return {x: best(found[x], what) for x in sorted(found)}


def size_text(nbytes):
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << shift and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


def ways_wrongs(ways):
    """Points whose bytes were wrong or that failed, and a run that did not end well."""
    found = [
        f"{p['way']} {p['pattern']} {p['block']} x {p['depth']}: {p['wrong']} blocks are wrong"
        for p in ways_points(ways)
        if p["wrong"]
    ]
    if ways.get("rc"):
        found.append(f"exit code {ways['rc']}: {ways['command']}")
    return found


def ways_cell(point, what):
    """Median (smallest – largest), and where that was."""
    if not point:
        return "not measured"
    low, mid, high = (point[what][key] for key in ("min", "median", "max"))
    unit, factor = "GB/s", 1
    if what == "iops":
        unit, factor = ("M/s", 1e-6) if mid >= 1e6 else ("k/s", 1e-3)
    low, mid, high = (f"{x * factor:.3g}" for x in (low, mid, high))
    return f"{mid} {unit} ({low} – {high}), {size_text(point['block'])} × {point['depth']}"


def print_ways_table(ways):
    print("| way | sequential, best | random, best | 4 KiB random, best | CPU s/GB, sequential best |")
    print("|---|---|---|---|---|")
    for label, where in ways_labels(ways).items():
        sequential = best(ways_points(ways, pattern="sequential", **where))
        random = best(ways_points(ways, pattern="random", **where))
        small = best(ways_points(ways, pattern="random", block=4096, **where), "iops")
        cpu = f"{sequential['cpu_s_per_gb']['median']:.3g}" if sequential else "not measured"
        print(
            f"| {label} | {ways_cell(sequential, 'gb_per_s')} | {ways_cell(random, 'gb_per_s')} "
            f"| {ways_cell(small, 'iops')} | {cpu} |"
        )
    for way in ways["result"]["ways"]:
        if not way["works"]:
            print(f"\n{way['way']} ({way['uri']}): {way['why']}")
    wrong = ways_wrongs(ways)
    for text in wrong:
        print(f"\n{text}")
    return not wrong


# --- ladders of operators -------------------------------------------------------------------------


def ladder_rungs(table, peer=False):
    """The variants that were measured and right, or what they are compared with."""
    return [
        row
        for row in table["variants"]
        if row["peer"] == peer and "gflops" in row and row.get("right")
    ]


def ladder_wrongs(table):
    """Those that were not, with the reason."""
    found = []
    for row in table["variants"]:
        if "failed" in row:
            found.append((row["variant"], f"not measured: {row['failed']}"))
        elif not row["right"]:
            error = "not a number" if row["error"] is None else f"{row['error']:.3g}"
            found.append((row["variant"], f"WRONG: the error is {error} of what f32 may lose"))
    return found


def ladder_vendor(table):
    """Who it is compared with, and the key of the ratio."""
    return ("cuBLASLt", "to_cublaslt") if table["device"] == "cuda" else ("OpenBLAS", "to_openblas")


def ladder_name(table):
    return "_".join(
        [table["operator"].replace("-", "_"), table["device"], table["dtype"]]
        + ["x".join(str(table[key]) for key in "mnk")]
        + (["no_preact"] if table.get("preact") is False else [])
    )


def ladder_title(table):
    shape = " × ".join(str(table[key]) for key in "mnk")
    activation = f", {table['activation']}" if "activation" in table else ""
    machine = table.get("gpu") or table.get("cpu")
    return f"{table['operator']} {table['dtype']}, {shape}{activation}: {machine}"


def ladder_unit(table):
    """The name of a unit, and how many GFLOP/s it is."""
    return ("TFLOP/s", 1e3) if table["device"] == "cuda" else ("GFLOP/s", 1.0)


def ladder_goal(table):
    """The least that the best rung shall be to the vendor's library, for the shapes that have one."""
    shape = tuple(table[key] for key in "mnk")
    cube = shape[0] if len(set(shape)) == 1 else None
    if table["device"] == "cpu":
        one = (table["operator"], table["dtype"], cube) == ("matmul", "f32", 2048)
        return 0.8 if one else None
    if table["operator"] == "linear-forward":
        return 1.0
    if table["operator"] == "linear-backward":
        return 0.97
    if table["dtype"] in ("f32", "tf32"):
        return 0.95 if cube == 4096 or (cube == 8192 and table["dtype"] == "f32") else None
    ragged = shape[2] % 8 != 0 or shape[2] % 64 != 0
    return 0.97 if cube in (2048, 4096, 8192) or shape == (8192, 16384, 4096) or ragged else None


def ladder_reached(table):
    """The best ratio of a rung to the vendor's library: on a CPU with one thread."""
    key = ladder_vendor(table)[1]
    ratios = [
        row[key]
        for row in ladder_rungs(table)
        if row.get(key) is not None and row["threads"] == 1
    ]
    return max(ratios, default=None)


def share(value):
    return "-" if value is None else f"{value * 100:.1f} %"


def times(value):
    return "-" if value is None else f"{value:.2f} ×"


def print_ladder(table):
    unit, factor = ladder_unit(table)
    vendor, ratio = ladder_vendor(table)
    print(f"\n{ladder_title(table)}\n")
    print(f"| variant | threads | {unit} | best | of peak | GB/s | of the copy | to the rung before "
          f"| to {vendor} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in ladder_rungs(table) + ladder_rungs(table, peer=True):
        fastest = row["gflops"] * row["seconds"] / row["seconds_min"]
        print(f"| {row['variant']} | {row['threads']} | {row['gflops'] / factor:.4g} "
              f"| {fastest / factor:.4g} | {share(row['of_peak'])} | {row['gb_per_s']:.4g} "
              f"| {share(row['of_bandwidth'])} | {times(row.get('to_variant_before'))} "
              f"| {times(row.get(ratio))} |")
    for peak in table["peaks"]:
        rate = peak.get("gflops"), peak.get("gb_per_s")
        told = f"{rate[0] / factor:.4g} {unit}" if rate[0] else f"{rate[1]:.4g} GB/s" if rate[1] else "-"
        print(f"\nPeak of {peak['threads']}: {told}, {peak['by']}")


def print_ladders(found):
    good = True
    for table in found["tables"]:
        print_ladder(table)
        for name, why in ladder_wrongs(table):
            print(f"\n{name}: {why}")
            good = False
        goal, reached = ladder_goal(table), ladder_reached(table)
        if goal is not None:
            met = reached is not None and reached >= goal
            good = good and met
            print(f"\n{'yes' if met else 'NO'}: best rung to {ladder_vendor(table)[0]}: "
                  f"{number(reached)} (goal {goal})")
    return good


# --- plots ----------------------------------------------------------------------------------------


def drives(found, count=None):
    """What the commands went to, for a title: nobody shall take a simulated drive for a real one."""
    kind = "simulated drive" if all(row["uri"].startswith("sim:") for row in found) else "drive"
    count = count or max((row["drives"] for row in found), default=1)
    return f"{count} {kind}s" if count != 1 else f"one {kind}"


def axes(plt, title, x, y="million commands/s", logy=True):
    figure, ax = plt.subplots(figsize=(7, 4.5))
    ax.set_title(textwrap.fill(title, 72), fontsize=11)
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


def ticks(ax, found, key):
    """A tick for each x that some line has, and numbers on y as people write them."""
    xs = sorted({row[key] for row in found})
    ax.set_xticks(xs, [f"{x // 1024}K" if x >= 1024 and x % 1024 == 0 else str(x) for x in xs])
    ax.xaxis.set_minor_locator(matplotlib_ticker().NullLocator())
    plain_numbers(ax, found)


def save(plt, figure, ax, folder, name):
    """The legend stands below the plot, where it hides nothing."""
    labels = ax.get_legend_handles_labels()[1]
    if labels:
        columns = 2 if max(map(len, labels)) > 24 else min(len(labels), 4)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=columns, frameon=False,
                  fontsize=9)
    kind = plt.rcParams["savefig.format"]
    path = os.path.join(folder, f"{name}.{kind}")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)
    return path


def plot_simple(plt, sweep, folder):
    """A section a plot: a line for each of the values of one key."""
    plots = [
        ("threads", "threads", "inflight", "512-byte random reads by the GPU, {}", "GPU threads"),
        ("one_queue", "threads", "inflight", "512-byte reads by the GPU, one queue pair, {}", "GPU threads"),
        ("queues", "queues", None, "512-byte reads by 8192 GPU threads, {}", "queue pairs"),
        ("drives", "drives", "threads", "512-byte reads by the GPU, 8 queue pairs per drive, {}", "drives"),
        ("blocks", "block", "op", "Commands by the GPU, {}, better of 4096 and 16384 threads",
         "bytes per command"),
    ]
    for section, key, split, title, x in plots:
        found = rows(sweep, section)
        if not found:
            continue
        figure, ax = axes(plt, title.format(drives(found)), x)
        for value in sorted({row[split] for row in found}, key=str) if split else [None]:
            name = {"inflight": f"{value} in flight per thread", "threads": f"{value} GPU threads"}
            draw(ax, [r for r in found if not split or r[split] == value], key,
                 name.get(split, value))
        ticks(ax, found, key)
        yield save(plt, figure, ax, folder, f"gpu_{section}")


WAYS = {
    "ours": "gpunvme, blocking calls",
    "apart": "gpunvme, split phase",
    "lockstep": "a block owns a queue, in lockstep",
    "ticket": "ticket and lock",
}


def plot_ways(plt, sweep, folder):
    for i, uri in enumerate(sorted({row["uri"] for row in rows(sweep, "ways")})):
        found = rows(sweep, "ways", uri=uri)
        figure, ax = axes(plt, f"512-byte reads by the GPU, ways to share a queue, {drives(found)}: {uri}",
                          "GPU threads")
        for way, label in WAYS.items():
            draw(ax, rows(sweep, "ways", uri=uri, way=way), "threads", label)
        ticks(ax, found, "threads")
        yield save(plt, figure, ax, folder, f"gpu_ways_{i}")


def plot_little(plt, sweep, folder):
    found = rows(sweep, "little")
    if not found:
        return
    title = f"512-byte reads by the GPU, {drives(found, 10)} with a P5800X's latency and rate"
    figure, ax = axes(plt, title, "GPU threads")
    draw(ax, found, "threads", "measured")
    ticks(ax, found, "threads")
    xs = sorted({row["threads"] for row in found})
    model = [little(x, 10, P5800X_LATENCY_S, P5800X_IOPS) / 1e6 for x in xs]
    ax.plot(xs, model, "--", color="black", label="Little's law: threads / latency, at most 10 × 4.6 M/s")
    yield save(plt, figure, ax, folder, "gpu_little")


def ways_title(ways):
    result = ways["result"]
    return f"{result['gpu'] or 'no GPU: into host memory'}, {result['medium']} file"


def plot_label(label, where):
    """A way, and whether its drive is one."""
    return f"{label} (simulated drive)" if where["uri"].startswith("sim:") else label


def draw_ways(ax, points, key, what, label, factor=1.0):
    """A line of the best points by x, with their spread."""
    if not points:
        return
    by_x = best_by(points, key)
    stats = [point[what] for point in by_x.values()]
    medians = [stat["median"] * factor for stat in stats]
    spread = [
        [m - stat["min"] * factor for m, stat in zip(medians, stats)],
        [stat["max"] * factor - m for m, stat in zip(medians, stats)],
    ]
    ax.errorbar(list(by_x), medians, yerr=spread, marker="o", markersize=4, capsize=2, label=label)


def ways_ticks(ax, points, key):
    xs = sorted({point[key] for point in points})
    ax.set_xticks(xs, [size_text(x) if key == "block" else str(x) for x in xs])
    ax.xaxis.set_minor_locator(matplotlib_ticker().NullLocator())


def matplotlib_ticker():
    import matplotlib.ticker

    return matplotlib.ticker


def plain_numbers(ax, points):
    """A logarithmic axis from a power of ten to the next, with numbers as people write them."""
    low, high = ax.get_ylim()
    if points:
        ax.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
    ticker = matplotlib_ticker()
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}"))
    ax.yaxis.set_minor_locator(ticker.NullLocator())


def plot_ways_rate(plt, ways, folder):
    """How fast is each way at each size of a block?"""
    for pattern in ("sequential", "random"):
        figure, ax = axes(
            plt, f"{pattern.capitalize()} reads, best depth: {ways_title(ways)}", "block size", "GB/s (10⁹ bytes)"
        )
        for label, where in ways_labels(ways).items():
            points = ways_points(ways, pattern=pattern, **where)
            draw_ways(ax, points, "block", "gb_per_s", plot_label(label, where))
        ways_ticks(ax, ways_points(ways, pattern=pattern), "block")
        plain_numbers(ax, ways_points(ways, pattern=pattern))
        yield save(plt, figure, ax, folder, f"store_rate_{pattern}")


def plot_ways_iops(plt, ways, folder):
    """How many small reads does each way make, with so many in flight?"""
    figure, ax = axes(
        plt, f"4 KiB random reads: {ways_title(ways)}", "blocks in flight", "thousand reads/s"
    )
    for label, where in ways_labels(ways).items():
        points = ways_points(ways, pattern="random", block=4096, **where)
        draw_ways(ax, points, "depth", "iops", plot_label(label, where), 1e-3)
    ways_ticks(ax, ways_points(ways, pattern="random", block=4096), "depth")
    plain_numbers(ax, ways_points(ways, pattern="random", block=4096))
    yield save(plt, figure, ax, folder, "store_iops")


def plot_ways_cpu(plt, ways, folder):
    """What does each way cost of the CPU, where it is fastest?"""
    labels = ways_labels(ways)
    blocks = [b for b in (4096, 65536, 1048576) if ways_points(ways, block=b)]
    figure, ax = axes(plt, f"Sequential reads, best depth: {ways_title(ways)}", "",
                      "CPU seconds per GB (10⁹ bytes)")
    ax.set_xscale("linear")
    width = 0.8 / max(len(blocks), 1)
    for i, block in enumerate(blocks):
        bars = []
        for at, where in enumerate(labels.values()):
            point = best(ways_points(ways, pattern="sequential", block=block, **where))
            if point:
                bars.append((at + (i - (len(blocks) - 1) / 2) * width, point["cpu_s_per_gb"]["median"]))
        ax.bar([x for x, _ in bars], [y for _, y in bars], width, label=size_text(block))
    names = [textwrap.fill(plot_label(*each), 14) for each in labels.items()]
    ax.set_xticks(range(len(labels)), names, fontsize=7)
    ax.grid(False, axis="x")
    plain_numbers(ax, ways_points(ways, pattern="sequential"))
    yield save(plt, figure, ax, folder, "store_cpu")


def level(ax, rate, style, color, label):
    """A line across all rungs."""
    ax.axhline(rate, linestyle=style, color=color, linewidth=1.2, label=label)


def draw_levels(ax, table, factor):
    """The vendor's library and the peaks, with each number of threads."""
    several = len({row["threads"] for row in table["variants"]}) > 1
    styles = {n: s for n, s in zip(sorted({p["threads"] for p in table["peaks"]}), ("--", ":"))}

    def name(what, threads):
        return f"{what}, {threads} thread{'s' if threads > 1 else ''}" if several else what

    for row in ladder_rungs(table, peer=True):
        level(ax, row["gflops"] / factor, styles.get(row["threads"], "--"), "tab:orange",
              name(row["variant"], row["threads"]))
    for peak in table["peaks"]:
        if peak.get("gflops"):
            level(ax, peak["gflops"] / factor, styles[peak["threads"]], "black",
                  name("peak", peak["threads"]))


def plot_ladder(plt, table, folder):
    """A bar for each rung, from the slowest run to the fastest a whisker."""
    unit, factor = ladder_unit(table)
    rungs, wrong = ladder_rungs(table), dict(ladder_wrongs(table))
    names = [row["variant"] for row in table["variants"] if not row["peer"]]
    figure, ax = axes(plt, ladder_title(table), "", unit)
    ax.set_xscale("linear")
    ax.title.set_fontsize(10)
    for row in rungs:
        x, y = names.index(row["variant"]), row["gflops"] / factor
        slowest, fastest = (y * row["seconds"] / row[key] for key in ("seconds_max", "seconds_min"))
        ax.bar([x], [y], 0.7, color="tab:blue", yerr=[[max(y - slowest, 0)], [max(fastest - y, 0)]], capsize=3)
        ax.annotate(f"{y:.3g}", (x, fastest), ha="center", va="bottom", fontsize=8)
    draw_levels(ax, table, factor)
    ax.set_xticks(range(len(names)), [n + ("\n(left out)" if n in wrong else "") for n in names])
    ax.grid(False, axis="x")
    if rungs:
        lowest = min(row["gflops"] for row in rungs) / factor
        ax.set_ylim(bottom=10 ** math.floor(math.log10(lowest)))
    plain_numbers(ax, rungs)
    return save(plt, figure, ax, folder, f"ops_{ladder_name(table)}")


def plot_ladders(plt, found, folder):
    for table in found["tables"]:
        yield plot_ladder(plt, table, folder)


def plot_all(sweep, folder, kind="svg"):
    import matplotlib

    matplotlib.use("svg" if kind == "svg" else "agg")
    matplotlib.rcParams["svg.hashsalt"] = "gpunvme"
    matplotlib.rcParams["savefig.format"] = kind
    import matplotlib.pyplot as plt

    os.makedirs(folder, exist_ok=True)
    plots = (plot_simple, plot_ways, plot_little)
    if sweep["benchmark"] == "store_ways":
        plots = (plot_ways_rate, plot_ways_iops, plot_ways_cpu)
    if sweep["benchmark"] == "ops":
        plots = (plot_ladders,)
    paths = []
    for plot in plots:
        paths += plot(plt, sweep, folder)
    return paths


def load(path):
    """What one of the programs wrote; ValueError for anything else."""
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    try:
        if found.get("benchmark") == "store_ways":
            if not all("works" in way for way in found["result"]["ways"]):
                raise KeyError("works")
            found["result"]["points"][:0]
        elif "tables" in found:
            for table in found["tables"]:
                [row["peer"] for row in table["variants"]], table["peaks"][:0], ladder_title(table)
            found["benchmark"] = "ops"
        else:
            found["sections"].items()
            found.setdefault("benchmark", "gpu_sweep")
    except (KeyError, TypeError, AttributeError):
        raise ValueError(
            "not what gpu_sweep.sh, store_ways.sh or gpunvme ops bench --json writes"
        ) from None
    return found


def main(arguments):
    table = "--table" in arguments
    kind = "png" if "--png" in arguments else "svg"
    names = [a for a in arguments if not a.startswith("--")]
    if not names:
        print(__doc__)
        return 2
    try:
        found = load(names[0])
    except (OSError, ValueError) as error:
        print(f"plot.py: {names[0]}: {error}", file=sys.stderr)
        return 2
    if table:
        tell = {"store_ways": print_ways_table, "ops": print_ladders}
        return 0 if tell.get(found["benchmark"], print_table)(found) else 1
    folder = names[1] if len(names) > 1 else os.path.dirname(names[0]) or "."
    try:
        paths = plot_all(found, folder, kind)
    except ImportError:
        print("plot.py: matplotlib is not installed (Debian: python3-matplotlib)", file=sys.stderr)
        return 77
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
