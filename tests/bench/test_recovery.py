#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests bench/baselines/recovery.py: its audit of what workers were given, its options and its table; and a short run of tutti
on four hosts, which needs root. The other systems need packages of PyPI, so a measurement runs them."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "bench" / "baselines"), str(ROOT / "tests" / "hosts")]
import netns_cluster  # noqa: E402
import recovery  # noqa: E402
import recovery_systems  # noqa: E402
from recovery_worker import IMAGES  # noqa: E402

RACE = ROOT / "bench" / "baselines" / "recovery.py"
GOOD = {"system": "tutti", "case": "killed", "still": 0.25, "step": 0.1, "continued": True, "finished": True, "steps": 48, "lost": 0, "twice": 3,
        "repeated": None, "loss": 2.0, "versions": "tutti x", "settings": {}, "load": 1.0}


class Audit(unittest.TestCase):
    def audit(self, kind, *workers):
        with tempfile.TemporaryDirectory() as folder:
            system = kind(None, Path(folder), 1, 10, None)
            for i, (start, *lines) in enumerate(workers):
                (Path(folder) / "steps" / f"steps-{i}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in (start, *lines)))
            system.ended = lambda: True
            found = system.audit()
            system.out.close()
            return found

    @staticmethod
    def start(generation, rank):
        return {"event": "start", "generation": generation, "rank": rank, "pid": 1}

    @staticmethod
    def step(number, samples, end="done"):
        return [{"event": "given", "step": number, "epoch": 0, "samples": samples}, {"event": end, "step": number + 1, "loss": 2.0}]

    def test_newest_generation_of_a_step_counts(self):
        half = IMAGES // 2
        old = [self.start(1, 0), *self.step(0, list(range(half))), *self.step(1, list(range(half, IMAGES - 4)))]
        new = [self.start(2, 0), *self.step(1, [*range(half, IMAGES - 2), 0])]
        found = self.audit(recovery_systems.Torchrun, old, new)
        self.assertEqual((found["lost"], found["twice"], found["repeated"]), (2, 1, 1))

    def test_only_committed_steps_count(self):
        half = IMAGES // 2
        found = self.audit(recovery_systems.Torchft, [self.start(1, 0), *self.step(0, list(range(half)))],
                           [self.start(1, 1), *self.step(0, list(range(half, IMAGES - 8))), *self.step(1, list(range(IMAGES - 8, IMAGES)), "dropped")])
        self.assertEqual((found["lost"], found["twice"], found["repeated"]), (8, 0, 1))


class Still(unittest.TestCase):
    BEFORE = [-0.45, -0.35, -0.25, -0.15, -0.05]

    def still(self, *after):
        return round(recovery.still([*self.BEFORE, *after]), 6)

    def test_gap_that_contains_the_event(self):
        self.assertEqual(self.still(2.0, 2.1, 2.2), 2.05)
        self.assertEqual(self.still(2.0, 2.1, 9.0), 2.05)  # the job stands still for another reason later

    def test_gap_that_follows_from_the_event(self):
        # A host that joins is ready after a few steps.
        self.assertEqual(self.still(0.05, 0.15, 0.75, 0.85, 2.0), 0.6)

    def test_no_long_gap(self):
        self.assertEqual(self.still(0.05, 0.15, 0.4, 0.5), 0.25)

    def test_no_step_after_the_event(self):
        self.assertIsNone(recovery.still(self.BEFORE))
        self.assertIsNone(recovery.still([]))
        self.assertEqual(recovery.still([-0.5, 1.5]), 2.0)


class Program(unittest.TestCase):
    def call(self, *options, code=0):
        done = subprocess.run([sys.executable, RACE, *map(str, options)], text=True, capture_output=True, timeout=600, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_wrong_options(self):
        for wrong in (["--systems", "horovod"], ["--cases", "fire"], ["--repeats", "0"], ["--limit", "x"]):
            self.assertIn("error: ", self.call(*wrong, code=2).stderr)

    def test_table(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results"
            self.assertIn("no runs", self.call("--table", "--results", file, code=1).stderr)
            calm = {**GOOD, "case": "quiet", "loss": 1.5, "processor": {"steps": 10, "seconds": 2.0, "workers": 1.0, "others": 0.1}}
            ended = {**GOOD, "still": None, "continued": False, "finished": False}
            # The times of steps count, not the number that was computed from them.
            timed = {**GOOD, "still": 9.0, "times": [-0.3, -0.2, -0.1, 0.65, 0.75, 9.75]}
            file.write_text("".join(json.dumps(x) + "\n" for x in (calm, GOOD, timed, ended)))
            out = self.call("--table", "--results", file).stdout
        self.assertRegex(out, r"SIGKILL of the last rank \| +tutti \| +2 of 3 \| +0.[27]5 \| +0.75 \| +0 \| +3 \| +- \| +2.000 \(\+0.500\) \|")
        self.assertRegex(out, r"\| tutti +\| +100 \| +100.0 \| +10.0 \| +5.0 \|")

    def test_tutti_survives_a_kill(self):
        with tempfile.TemporaryDirectory() as folder:
            options = ["--systems", "tutti", "--cases", "killed0", "--repeats", 1, "--epochs", 1, "--results", Path(folder) / "results"]
            first = subprocess.run([sys.executable, RACE, *map(str, options)], text=True, capture_output=True, timeout=600, check=False)
            if first.returncode == 77:
                self.skipTest(first.stdout.strip())
            self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
            line = json.loads((Path(folder) / "results").read_text())
            self.assertTrue(line["continued"] and line["finished"], line)
            self.assertEqual((line["lost"], line["twice"]), (0, 0), line)
            self.assertEqual(recovery.still(line["times"]), line["still"])
            self.assertTrue(line["times"][0] < 0 < line["times"][-1], line)
            self.assertNotIn("tutti killed0", self.call(*options).stderr)  # the run is in the file


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    if program.result.wasSuccessful() and program.result.skipped:
        netns_cluster.skip(program.result.skipped[0][1])
    sys.exit(0 if program.result.wasSuccessful() else 1)
