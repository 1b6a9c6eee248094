#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the numbers of the model of larger clusters (their sources, the fits, and that held-out speeds are used for nothing), and
the command line of simulate.py."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
SIMULATE = ROOT / "bench" / "scaling" / "simulate.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SIMULATE.parent))

import model  # noqa: E402
import published  # noqa: E402
import simulate  # noqa: E402

# Held-out speeds outside of the predicted range, which is known and stands in bench/RESULTS.md.
OUTSIDE = {("TensorFlow, p3.16xlarge, CUDA 9", 256), ("MXNet, 100 Gbit/s", 16), ("MXNet, 100 Gbit/s", 32),
           ("TensorFlow with XLA, 100 Gbit/s", 16), ("TensorFlow with XLA, 100 Gbit/s", 32)}
WIDEST = 0.25  # of the range of an efficiency


class Numbers(unittest.TestCase):
    def test_each_number_has_a_source(self):
        sources = [row.source for table in (published.HOST_POINTS, published.NETWORK, published.LINKS, published.CALIBRATION,
                                            published.HELD_OUT) for row in table]
        for r in published.ranges().values():
            self.assertLess(r.low, r.high)
            sources += r.sources
            self.assertTrue(r.sources or (r.low, r.high) == (0, 1), "only a range of all that is possible has no source")
        for s in sources:
            self.assertTrue(len(s.title) > 10 and 2015 <= s.year <= 2026, s)
            self.assertRegex(s.place, r"^https://\S+$|^bench/RESULTS\.md$")
            if s.place == "bench/RESULTS.md":
                self.assertTrue(f"\n## {s.title}" in (ROOT / s.place).read_text(), s)
        self.assertEqual(set(published.ranges()) - set(model.LONGER), set())

    def test_held_out_speeds_are_used_for_nothing(self):
        used = {row.source for table in (published.HOST_POINTS, published.NETWORK, published.LINKS, published.CALIBRATION) for row in table}
        used |= {s for r in published.ranges().values() for s in r.sources}
        held = {speed.source for speed in published.HELD_OUT}
        self.assertEqual({s.place for s in used} & {s.place for s in held}, set())
        speeds = {x for speed in published.HELD_OUT for _, images in speed.points for x in (images if isinstance(images, tuple) else (images,))}
        self.assertEqual(speeds & {images for speed in published.CALIBRATION for _, images in speed.points}, set())
        self.assertTrue(all(gpus <= 8 for speed in published.CALIBRATION for gpus, _ in speed.points))
        # If the held-out speeds were others, the ranges would be the same.
        before, kept = published.ranges(), published.HELD_OUT
        try:
            published.HELD_OUT = ()
            published.ranges.cache_clear()
            self.assertEqual(published.ranges(), before)
        finally:
            published.HELD_OUT = kept

    def test_fit_of_the_measured_sums(self):
        worst = 0
        for machine in ("Zen 5", "Zen 3"):
            exponent, fitted = published.fit_host(machine)
            for p in published.HOST_POINTS:
                if p.machine == machine:
                    worst = max(worst, abs(published.host_point_error(p, exponent, *fitted[p.ranks])))
        self.assertLessEqual(worst, published.FIT_ERROR)
        self.assertLessEqual(published.FIT_ERROR, 0.16)
        # The defaults of a cluster are the fit of two ranks on Zen 5.
        exponent, fitted = published.fit_host("Zen 5")
        default = model.Cluster()
        self.assertEqual(default.memory_exponent, exponent)
        self.assertAlmostEqual(default.memory_gb, fitted[2][0], delta=0.05)
        self.assertAlmostEqual(default.barrier_us, fitted[2][1], delta=0.005)

    def test_measured_sums_stand_in_the_results(self):
        text = (ROOT / "bench" / "RESULTS.md").read_text()
        for quoted in ("| 44.7 MB, 2 ranks | 2.56 ms |", "| 44.7 MB, 4 ranks | 7.1 ms |", "| 4 KB, 4 ranks, back to back | 5.3 us", "| 1 MB, 2 ranks | 0.038 |",
                       "| 16 MB, 2 ranks | 1.27 |", "| 45 MB, 2 ranks | 4.38 ", "| 16 MB, 4 ranks | 3.7 |", "| 45 MB, 4 ranks | 9.4 |", "2.92 us now",
                       "and 278 us now", "| original size | horovod | 1,461 "):
            self.assertTrue(quoted in text, quoted)

    def test_loss_of_a_host_gives_the_published_speed(self):
        found = {name: r for name, r in published.ranges().items() if name != "host_loss"}
        losses = [published.fit_host_loss(speed, found) for speed in published.CALIBRATION]
        self.assertEqual((min(losses), max(losses)), (published.ranges()["host_loss"].low, published.ranges()["host_loss"].high))
        # PyTorch on 8 A100 has 84.1 % of 8 times one.
        self.assertTrue(0.1 < losses[3] < 1 - 16621 / 8 / 2470)

    def test_ranges_contain_the_held_out_speeds(self):
        """All but those in OUTSIDE; and the ranges are narrow enough to say something."""
        outside, widths = set(), []
        for speed in published.HELD_OUT:
            for gpus, (low, high), i in published.compare(speed):
                if not i.worst.images_per_second <= low <= high <= i.best.images_per_second:
                    outside.add((speed.series, gpus))
                widths.append(i.best.efficiency - i.worst.efficiency)
                self.assertLess(i.high - i.low, 0.15 * gpus * speed.alone)
        self.assertEqual(outside, OUTSIDE)
        self.assertTrue(0.05 < min(widths) and max(widths) <= WIDEST, widths)
        self.assertGreaterEqual(len(widths), 4 * len(OUTSIDE))


class CommandLine(unittest.TestCase):
    def run_it(self, *arguments, code=0):
        done = subprocess.run([sys.executable, SIMULATE, *map(str, arguments)], text=True, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        self.assertNotIn("Traceback", done.stderr)
        if code:
            self.assertRegex(done.stderr, r"^simulate\.py: \[.+\] expected .+, got .+\.\n$")
        return done.stdout if code == 0 else done.stderr

    def test_trace_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            path.write_text(json.dumps({"images": 32, "backward_end": 0.1, "update": 0.01, "buckets": [{"bytes": 1e7, "ready": 0.05}]}))
            certain = [f"--{name.replace('_', '-')}={getattr(model.Cluster(), name):g}" for name in (*simulate.ALWAYS, "memory_gb")]
            text = self.run_it(path, "--ranks", "1,2", "--network-gbit", "10", *certain)
            self.assertIn("network-gbit 10", text)
            self.assertIn("| 1 | 1 | 290.9 | 100.0 % | 110.0 | 0.0 |", text)
            text = self.run_it(path, "--ranks", "4", "--jitter", "0.01:0.02")
            self.assertRegex(text, r"\| 4 \| 4 \| \S+ to \S+ \| \S+ to \S+ \| \S+ to \S+ % \| \S+ to \S+ \| \S+ to \S+ \|")
            self.assertIn("jitter 0.01:0.02, correlated 0:1", text)
            self.assertIn("limited by decoding", self.run_it(path, "--ranks", "4", "--jpeg-cores", "0.01"))
            for text in ("", "{", "[]", '{"images": 1}', '{"images": 1, "backward_end": 1, "update": 0, "buckets": [{"bytes": NaN, "ready": 0}]}'):
                path.write_text(text)
                self.run_it(path, code=3)

    def test_gpu(self):
        text = self.run_it("--gpu", "V100", "--speed", 740, "--ranks", "1,256")
        low, high = map(float, re.search(r"^\| 256 \| 32 \| (\S+) to (\S+) \|", text, re.M).groups())
        self.assertTrue(0.7 * 256 * 740 < low < high < 256 * 740)
        for gpu in simulate.GPU_HOSTS:
            self.run_it("--gpu", gpu, "--speed", 1000, "--ranks", 16)

    def test_published(self):
        text = self.run_it("--published")
        rows = [line for line in text.splitlines() if re.match(r"\| .* \| \d+ \|", line)]
        self.assertEqual({tuple(row.split(" | ")[:2]) for row in rows if "**outside**" in row}, {("| " + series, str(gpus)) for series, gpus in OUTSIDE})
        self.assertIn(f"{len(rows) - len(OUTSIDE)} of {len(rows)} published speeds lie inside", text)
        # The section of the results has the same table.
        results = (ROOT / "bench" / "RESULTS.md").read_text().splitlines()
        self.assertEqual([row for row in rows if row not in results], [])

    def test_sources(self):
        text = self.run_it("--sources")
        for name in published.ranges():
            self.assertIn(f"| {name.replace('_', '-')} | ", text)

    def test_usage(self):
        gpu = ["--gpu", "V100", "--speed", "740"]
        for arguments in ([], ["--published", "x"], ["--published", "--sources"], ["--published", "--jitter", "0"], ["--published", "--ranks", "8"], ["--gpu", "V100"],
                          ["--gpu", "T4", "--speed", "1"], ["x", "--speed", "1"], [*gpu, "--speed", "0"], [*gpu, "--speed", "inf"], [*gpu, "--batch", "0.5"],
                          [*gpu, "--gradient-bytes", "3"], [*gpu, "--ranks", "a"], [*gpu, "--ranks", "0"], [*gpu, "--ranks", ""],
                          [*gpu, "--ranks", "1000001"], [*gpu, "--ranks", ",".join(["1"] * 1001)], [*gpu, "--network-gbit", "0"],
                          [*gpu, "--network-gbit", "1:2"], [*gpu, "--memory-gb", "-1"], [*gpu, "--jitter", "2"], [*gpu, "--jitter", "0.2:0.1"],
                          [*gpu, "--jitter", "0.1:"], [*gpu, "--jitter", "nan"], [*gpu, "--correlated", "0:1.1"], [*gpu, "--ranks-per-host", "1.5"],
                          [*gpu, "--network-cards", "0"], ["--what"]):
            self.run_it(*arguments, code=2)


class Installed(unittest.TestCase):
    def test_plan_finds_its_files(self):
        """tutti-plan runs with the files that are installed, and no others."""
        text = (ROOT / "cmake" / "TuttiInstall.cmake").read_text()
        files = re.search(r"install\(FILES ([^)]*) DESTINATION \"\$\{CMAKE_INSTALL_DATADIR\}/tutti/plan\"\)", text)[1].split()
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "share" / "tutti" / "plan"
            place.mkdir(parents=True)
            (Path(folder) / "bin").mkdir()
            for file in files:
                shutil.copy(ROOT / file, place)
            shutil.copy(ROOT / "tools" / "tutti-plan", Path(folder) / "bin")
            for command in ([Path(folder) / "bin" / "tutti-plan", "668:256", "--type", "p3.16xlarge", "--nodes", "4"],
                            [place / "simulate.py", "--gpu", "H100", "--speed", "3000", "--ranks", "16"]):
                done = subprocess.run([sys.executable, *command], text=True, capture_output=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
