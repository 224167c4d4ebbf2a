# SPDX-License-Identifier: BSD-3-Clause
"""bench/plot.py on results of the right shape. The numbers here are made up: they test arithmetic."""

import contextlib
import io
import json
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


def rung(variant, gflops, **fields):
    seconds = 2 * 4096**3 / gflops * 1e-9
    base = {
        "variant": variant, "peer": False, "threads": 1, "error": 0.1, "right": True, "runs": 3,
        "seconds": seconds, "seconds_min": seconds * 0.9, "seconds_max": seconds * 1.2,
        "gflops": gflops, "peak_gflops": 800e3, "of_peak": gflops / 800e3,
        "gb_per_s": 100.0, "peak_gb_per_s": 4000.0, "of_bandwidth": 0.025,
        "to_variant_before": None, "to_cublaslt": gflops / 700e3, "to_openblas": None,
    }
    return {**base, **fields}


def ladder(*rows, **fields):
    base = {
        "operator": "matmul", "device": "cuda", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096,
        "gpu": "a GPU", "features": "sm_90a", "cublaslt": "cuBLASLt 1", "variants": list(rows),
        "peaks": [
            {"by": "bf16 wgmma in shared memory", "threads": 1, "gflops": 800e3},
            {"by": "a copy by a kernel", "threads": 1, "gb_per_s": 4000.0},
        ],
    }
    return {**base, **fields}


def whole_ladder(**fields):
    return ladder(
        rung("naive", 5e3),
        rung("hopper", 690e3, to_variant_before=138.0),
        rung("cuBLASLt", 700e3, peer=True, to_cublaslt=None),
        **fields,
    )


def ladder_text(*tables):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        good = plot.print_ladders({"benchmark": "ops", "tables": list(tables)})
    return said.getvalue(), good


class Ladders(unittest.TestCase):
    def test_table_has_rungs_shares_and_ratios(self):
        text, good = ladder_text(whole_ladder())
        self.assertTrue(good)
        self.assertIn("| hopper | 1 | 690 | 766.7 | 86.2 % | 100 | 2.5 % | 138.00 × | 0.99 × |", text)
        self.assertIn("| cuBLASLt | 1 | 700 |", text)
        self.assertIn("Peak of 1: 800 TFLOP/s, bf16 wgmma in shared memory", text)
        self.assertIn("yes: best rung to cuBLASLt: 0.9857 (goal 0.97)", text)

    def test_goal_that_is_missed_fails(self):
        text, good = ladder_text(ladder(rung("hopper", 600e3), rung("cuBLASLt", 700e3, peer=True)))
        self.assertFalse(good)
        self.assertIn("NO: best rung to cuBLASLt: 0.8571", text)

    def test_without_the_vendors_library_the_goal_is_not_met(self):
        text, good = ladder_text(ladder(rung("hopper", 600e3, to_cublaslt=None)))
        self.assertFalse(good)
        self.assertIn("not measured (goal 0.97)", text)

    def test_shapes_without_a_goal_need_none(self):
        self.assertIsNone(plot.ladder_goal(whole_ladder(m=1024, n=1024, k=1024)))
        self.assertEqual(plot.ladder_goal(whole_ladder(k=4099)), 0.97)
        self.assertEqual(plot.ladder_goal(whole_ladder(dtype="f32")), 0.95)
        self.assertEqual(plot.ladder_goal(whole_ladder(operator="linear-forward")), 1.0)

    def test_wrong_rungs_have_no_figures_and_fail(self):
        table = whole_ladder()
        table["variants"][1].update(right=False, error=None)
        text, good = ladder_text(table)
        self.assertFalse(good)
        self.assertNotIn("| hopper |", text)
        self.assertIn("hopper: WRONG: the error is not a number", text)

    def test_rungs_that_failed_say_why(self):
        failed = {"variant": "tensorcore", "peer": False, "threads": 1, "failed": "too old a GPU"}
        text, good = ladder_text(ladder(rung("naive", 5e3), failed, dtype="f16", m=64))
        self.assertFalse(good)
        self.assertIn("tensorcore: not measured: too old a GPU", text)

    def test_peak_that_was_not_measured_is_a_dash(self):
        row = rung("naive", 5e3, peak_gflops=None, of_peak=None, of_bandwidth=None)
        text, _ = ladder_text(ladder(row, peaks=[], m=64))
        self.assertIn("| naive | 1 | 5 | 5.556 | - | 100 | - | - | 0.01 × |", text)

    def test_every_table_gets_its_plot(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is not installed")
        failed = {"variant": "hopper", "peer": False, "threads": 1, "failed": "too old a GPU"}
        both = ladder(
            rung("naive", 2.0), rung("openmp", 400.0, threads=2),
            rung("OpenBLAS", 200.0, peer=True), rung("OpenBLAS", 390.0, peer=True, threads=2),
            device="cpu", dtype="f32", operator="linear-forward", activation="gelu", preact=False,
            peaks=[{"by": "x", "threads": n, "gflops": 250.0 * n} for n in (1, 2)],
        )
        tables = [whole_ladder(), both, ladder(rung("naive", 5e3), failed, peaks=[]), ladder(failed)]
        tables[2]["m"], tables[3]["m"] = 1, 2
        found = {"benchmark": "ops", "tables": tables}
        with tempfile.TemporaryDirectory() as folder:
            for kind, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
                paths = plot.plot_all(found, folder, kind)
                self.assertEqual(
                    [os.path.basename(path) for path in paths],
                    [f"ops_matmul_cuda_bf16_4096x4096x4096.{kind}",
                     f"ops_linear_forward_cpu_f32_4096x4096x4096_no_preact.{kind}",
                     f"ops_matmul_cuda_bf16_1x4096x4096.{kind}",
                     f"ops_matmul_cuda_bf16_2x4096x4096.{kind}"],
                )
                for path in paths:
                    with open(path, "rb") as file:
                        self.assertEqual(file.read(len(start)), start)

    def test_files_of_ops_bench_are_known_and_others_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ops.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"tables": [whole_ladder()]}, file)
            self.assertEqual(plot.load(path)["benchmark"], "ops")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"tables": [{"variants": []}]}, file)
            with self.assertRaises(ValueError):
                plot.load(path)


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

    def test_titles_and_labels_say_that_a_drive_is_simulated(self):
        self.assertEqual(plot.drives([row(drives=16)]), "16 simulated drives")
        self.assertEqual(plot.drives([row(drives=1)]), "one simulated drive")
        self.assertEqual(plot.drives([row(uri="nvme:0000:01:00.0")]), "one drive")
        self.assertEqual(plot.plot_label("driver", {"uri": "sim:"}), "driver (simulated drive)")
        self.assertEqual(plot.plot_label("store", {"uri": "/data"}), "store")

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

    def test_each_controller_on_cpu_threads_has_the_goal_for_itself(self):
        few, many = "sim:threads=1,spin", "sim:threads=8,spin"
        s = sweep(
            tier1=[
                row(uri=few, iops=1e6, cpu_iops={"median": 2e6}),
                row(uri=many, iops=1e6, cpu_iops={"median": 4e6}),
                row(uri=many, iops=9e6, cpu_iops={"median": 9e6}, threads=4096),
            ]
        )
        name = "tier 1, {}: by the GPU / by CPU threads, best thread count"
        self.assertEqual(reached(s, name.format(few)), (0.5, False))
        self.assertEqual(reached(s, name.format(many)), (1, True))

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
