# SPDX-License-Identifier: BSD-3-Clause
"""bench/plot.py on results of the right shape. The numbers here are made up: they test arithmetic."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench"))
import plot  # noqa: E402


def row(**fields):
    iops = fields.pop("iops", 1e6)
    base = {
        "label": "", "uri": "sim:engine=gpu", "way": "ours", "op": "read", "drives": 1,
        "queues": 8, "entries": 1024, "threads": 1024, "block": 512, "inflight": 1, "batches": 1,
        "tier": 3, "reaper": "waiters", "errors": 0, "wrong": 0, "violations": 0,
        "iops": {"median": iops, "min": iops * 0.9, "max": iops * 1.1},
    }
    return {**base, **fields}


def sweep(**sections):
    return {
        "benchmark": "gpu_sweep",
        "sections": {
            name: [{"command": name, "rc": 0, "seconds": 1, "result": {"rows": found}}]
            for name, found in sections.items()
        },
    }


def reached(sweep, name):
    return next((got, met) for n, _, got, met in plot.goals(sweep) if n == name)


def point(**fields):
    rate = fields.pop("rate", 1.0)
    base = {
        "way": "store", "uri": "/data", "pattern": "random", "block": 4096, "depth": 1,
        "gb_per_s": {"median": rate, "min": rate * 0.9, "max": rate * 1.1},
        "cpu_s_per_gb": {"median": 0.5, "min": 0.4, "max": 0.6},
        "verified_bytes": 4096, "wrong": 0,
    }
    base = {**base, **fields}
    iops = rate * 1e9 / base["block"]
    return {**base, "iops": {"median": iops, "min": iops * 0.9, "max": iops * 1.1}}


def store_ways(points, **absent):
    """With the ways that the points have, and others that say why they are absent."""
    found = dict.fromkeys((p["way"], p["uri"]) for p in points)
    return {
        "benchmark": "store_ways", "command": "bench/store_ways.sh", "rc": 0,
        "result": {
            "gpu": None, "medium": "cached", "points": points,
            "ways": [{"way": way, "uri": uri, "works": True} for way, uri in found]
            + [{"way": w, "uri": "", "works": False, "why": why} for w, why in absent.items()],
        },
    }


def table_of(ways):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        good = plot.print_ways_table(ways)
    return said.getvalue(), good


class Ways(unittest.TestCase):
    def test_best_depth_of_each_block_is_drawn(self):
        points = [point(depth=1, rate=1.0), point(depth=16, rate=3.0), point(block=65536, rate=2.0)]
        found = plot.best_by(points, "block")
        self.assertEqual({x: p["depth"] for x, p in found.items()}, {4096: 16, 65536: 1})

    def test_points_left_out_are_not_drawn(self):
        left = point()
        del left["gb_per_s"]
        left["skipped"] = "it would need more than 64 threads"
        self.assertEqual(plot.ways_points(store_ways([left])), [])

    def test_way_on_several_drives_has_a_label_for_each(self):
        ways = store_ways([
            point(way="gpu", uri="sim:size=64,threads=4?issue=gpu"),
            point(way="gpu", uri="sim:size=64,engine=gpu?issue=gpu"),
            point(way="store"),
        ])
        self.assertEqual(
            list(plot.ways_labels(ways)), ["gpu, sim:threads=4", "gpu, sim:engine=gpu", "store"]
        )

    def test_table_has_the_best_of_each_way_and_why_one_is_absent(self):
        text, good = table_of(
            store_ways([point(rate=1.0), point(rate=4.0, depth=64)], cufile="no libcufile")
        )
        self.assertTrue(good)
        self.assertIn("| store | not measured | 4 GB/s (3.6 – 4.4), 4 KiB × 64 ", text)
        self.assertIn("no libcufile", text)

    def test_wrong_bytes_are_told(self):
        text, good = table_of(store_ways([point(wrong=2)]))
        self.assertFalse(good)
        self.assertIn("2 blocks are wrong", text)

    def test_sizes_are_written_in_units(self):
        self.assertEqual(
            [plot.size_text(n) for n in (512, 4096, 1 << 20, 4 << 20)],
            ["512 B", "4 KiB", "1 MiB", "4 MiB"],
        )

    def test_every_question_gets_its_plot(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is not installed")
        points = [
            point(way=way, pattern=pattern, block=block, depth=depth)
            for way in ("pageable", "store")
            for pattern in ("sequential", "random")
            for block in (4096, 65536)
            for depth in (1, 16)
        ]
        ways = store_ways(points, cufile="no libcufile")
        with tempfile.TemporaryDirectory() as folder:
            paths = plot.plot_all(ways, folder)
            self.assertEqual(
                [os.path.basename(path) for path in paths],
                ["store_rate_sequential.svg", "store_rate_random.svg", "store_iops.svg",
                 "store_cpu.svg"],
            )
            for path in paths:
                with open(path, encoding="utf-8") as file:
                    self.assertIn("<svg", file.read(2000))
            for path in plot.plot_all(ways, folder, "png"):
                with open(path, "rb") as file:
                    self.assertEqual(file.read(4), b"\x89PNG")

    def test_ways_without_points_are_drawn_empty(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is not installed")
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(len(plot.plot_all(store_ways([]), folder)), 4)


class Plot(unittest.TestCase):
    def test_line_rises_in_x_and_keeps_the_fastest(self):
        xs, medians, _ = plot.line(
            [row(threads=64, iops=2e6), row(threads=32), row(threads=64, iops=3e6)], "threads"
        )
        self.assertEqual(xs, [32, 64])
        self.assertEqual(medians, [1, 3])

    def test_spread_is_from_smallest_to_largest(self):
        _, _, (below, above) = plot.line([row(iops=10e6)], "threads")
        self.assertAlmostEqual(below[0], 1)
        self.assertAlmostEqual(above[0], 1)

    def test_points_left_out_are_not_drawn_but_told(self):
        left = row()
        del left["iops"]
        left["skipped"] = "does not fit"
        s = sweep(threads=[left])
        self.assertEqual(plot.rows(s, "threads"), [])
        self.assertIn("does not fit", plot.wrongs(s)[0])

    def test_a_file_that_is_no_sweep_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("broken", "{"), ("other", "{}"), ("list", "[]"),
                               ("ways", '{"benchmark": "store_ways", "result": {}}')):
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    self.assertEqual(plot.main([path, "--table"]), 2)
                self.assertIn(path, said.getvalue())
            with contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(plot.main([os.path.join(folder, "absent")]), 2)

    def test_violations_are_told(self):
        self.assertIn("violations", plot.wrongs(sweep(threads=[row(violations=1)]))[0])

    def test_goal_with_few_threads_counts_few_threads(self):
        s = sweep(threads=[row(threads=4096, iops=50e6), row(threads=8192, iops=120e6)])
        self.assertEqual(reached(s, "512-byte reads/s"), (120e6, True))
        self.assertEqual(reached(s, "512-byte reads/s, at most 4096 threads"), (50e6, False))

    def test_goal_that_was_not_measured_is_not_met(self):
        self.assertEqual(reached(sweep(), "512-byte reads/s"), (None, False))

    def test_ways_are_compared_at_the_worst_thread_count(self):
        s = sweep(
            ways=[
                row(threads=1024, iops=4e6), row(threads=2048, iops=9e6),
                row(threads=1024, iops=1e6, way="ticket"),
                row(threads=2048, iops=3e6, way="ticket"),
                row(threads=2048, iops=9e6, way="lockstep"),
            ]
        )
        self.assertEqual(
            reached(s, "no latency: ours / ticket, least of all thread counts"), (3, True)
        )
        self.assertEqual(reached(s, "no latency: best of ours / best of lockstep"), (1, True))

    def test_varied_latency_asks_for_three_times_lockstep(self):
        uri = "sim:engine=gpu,latency=20us,fault=delay=180us:io:p=0.03"
        s = sweep(ways=[row(uri=uri, iops=2e6, way="apart"), row(uri=uri, way="lockstep")])
        name = f"{uri[15:]}: apart / lockstep, at most 4096 threads"
        self.assertEqual(reached(s, name), (2, False))

    def test_latency_must_be_at_most_its_goal(self):
        s = sweep()
        result = {"tier": 1, "label": "x", "ratio": {"median": 1.6, "min": 1.5, "max": 1.7}}
        s["sections"]["latency"] = [{"command": "", "rc": 0, "result": result}]
        self.assertFalse(reached(s, "tier 1, x: (latency - model) / round trip")[1])

    def test_command_that_failed_is_told(self):
        s = sweep()
        s["sections"]["errors"] = [{"command": "gpu_errors", "rc": 1, "result": None}]
        self.assertIn("exit code 1", plot.wrongs(s)[0])

    def test_littles_law_has_a_slope_and_a_limit(self):
        self.assertAlmostEqual(plot.little(10, 10, 5e-6, 4.6e6), 2e6)
        self.assertAlmostEqual(plot.little(65536, 10, 5e-6, 4.6e6), 46e6)

    def test_every_section_gets_its_plots(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is not installed")
        names = ("threads", "one_queue", "queues", "drives", "blocks", "ways", "little")
        s = sweep(**{name: [row(), row(threads=2048)] for name in names})
        with tempfile.TemporaryDirectory() as folder:
            paths = plot.plot_all(s, folder)
            self.assertEqual(len(paths), 7)
            for path in paths:
                with open(path, encoding="utf-8") as file:
                    self.assertIn("<svg", file.read(2000))


if __name__ == "__main__":
    unittest.main()
