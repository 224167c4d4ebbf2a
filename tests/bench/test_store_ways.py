# SPDX-License-Identifier: BSD-3-Clause
"""bench/store_ways.sh --quick, on whatever this machine has: its JSON is whole, every way is in it
with figures or with the reason why not, and the bytes were right. No times are looked at.

    test_store_ways.py BUILD-DIR
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
WAYS = ("pageable", "pinned", "cufile", "store", "driver")
BUILD = None


def run(*arguments):
    return subprocess.run(
        [os.path.join(SOURCE, "bench", "store_ways.sh"), *arguments],
        capture_output=True, text=True, timeout=110, check=False,
    )


class StoreWays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            done = run("--quick", "--dir", folder, BUILD, "16M")
            cls.left = os.listdir(folder)
        cls.said = done.stderr
        cls.rc = done.returncode
        cls.found = json.loads(done.stdout)

    def test_it_ends_well(self):
        self.assertEqual(self.rc, 0, self.said)
        self.assertEqual(self.left, [])

    def test_command_machine_and_target_are_told(self):
        self.assertIn("--quick", self.found["command"])
        self.assertGreater(self.found["machine"]["processors"], 0)
        result = self.found["result"]
        self.assertTrue(result["gpu"] or result["why_no_gpu"])
        self.assertIn("GPU memory" if result["gpu"] else "host memory", result["target"])

    def test_every_way_is_there_or_says_why_not(self):
        ways = self.found["result"]["ways"]
        self.assertEqual({way["way"] for way in ways}, set(WAYS))
        for way in ways:
            self.assertIn(way["works"], (True, False))
            if not way["works"]:
                self.assertTrue(way["why"], way)
        works = {way["way"] for way in ways if way["works"]}
        self.assertLessEqual({"pageable", "pinned", "store"}, works)

    def test_stores_tell_the_route_of_their_bytes(self):
        for way in self.found["result"]["ways"]:
            if way["works"] and way["way"] not in ("pageable", "pinned"):
                self.assertIn(way["route"], ("p2p", "bounce", "compat"))
                self.assertTrue(way["how"])

    def test_points_have_figures_and_right_bytes_or_say_why_not(self):
        points = self.found["result"]["points"]
        measured = 0
        for point in points:
            self.assertIn(point["way"], WAYS)
            self.assertIn(point["pattern"], ("sequential", "random"))
            if "skipped" in point:
                self.assertTrue(point["skipped"])
                continue
            measured += 1
            self.assertEqual(point["wrong"], 0, point)
            self.assertGreaterEqual(point["verified_bytes"], point["block"])
            for what in ("gb_per_s", "iops", "cpu_s_per_gb"):
                stat = point[what]
                self.assertLessEqual(stat["min"], stat["median"])
                self.assertLessEqual(stat["median"], stat["max"])
            self.assertGreater(point["iops"]["min"], 0)
        self.assertGreater(measured, 0)

    def test_each_way_that_works_has_points_of_both_patterns(self):
        points = self.found["result"]["points"]
        for way in self.found["result"]["ways"]:
            if way["works"]:
                patterns = {p["pattern"] for p in points if p["way"] == way["way"]}
                self.assertEqual(patterns, {"sequential", "random"}, way["way"])

    def test_what_it_can_not_do_is_refused(self):
        self.assertEqual(run("--quick").returncode, 2)
        self.assertEqual(run("--nonsense", BUILD).returncode, 2)
        self.assertNotEqual(run("--quick", BUILD, "3").returncode, 0)

    def test_a_file_that_is_there_is_left_alone(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"mine")
            file.flush()
            program = os.path.join(BUILD, "bench", "store_ways")
            done = subprocess.run(
                [program, f"file={file.name}", "quick"], capture_output=True, check=False
            )
            self.assertEqual(done.returncode, 2)
            with open(file.name, "rb") as again:
                self.assertEqual(again.read(), b"mine")


if __name__ == "__main__":
    BUILD = sys.argv.pop(1)
    unittest.main()
