#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# fast
"""Tests bench/baselines/goodput.py without hosts: the changes that it replays, the shares that it computes, and its options."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "bench" / "baselines"))
import goodput  # noqa: E402
import spot_traces  # noqa: E402


class Goodput(unittest.TestCase):
    def test_changes_leave_out_times_without_hosts(self):
        trace = spot_traces.SpotTrace(300, [4, 4, 2, 0, 0, 2, 3, 8])
        self.assertEqual(goodput.changes(trace, 100), [(0, 4), (6, 2), (12, 3), (15, 4)])  # a fleet of four has at most four of eight
        self.assertEqual(goodput.changes(spot_traces.SpotTrace(300, [0, 3, 3, 1]), 1), [(0, 4), (600, 1)])  # the same share as 3 and 1 of 3

    def test_shares(self):
        # Steps of 1 s; after the event at 10.5 one takes 3 s, and the two hosts that remain need 2 s a step.
        steps = [(float(k), k + 1) for k in range(11)] + [(13.0 + 2 * k, 12 + k) for k in range(10)]
        got = goodput.evaluate(steps, [(0, 4), (11, 2)], [10.5])
        self.assertEqual(got["quiet"], {"2": 2, "4": 1})
        self.assertEqual((got["wall"], got["seconds_per_event"]), (31, 1))
        self.assertAlmostEqual(got["share"], 30 / 31)
        self.assertAlmostEqual(got["share_of_events"], 30 / 31)
        # A slow step far from the event does not count as its cost.
        slow = [(t + (5 if t > 25 else 0), s) for t, s in steps]
        self.assertEqual(goodput.evaluate(slow, [(0, 4), (11, 2)], [10.5])["seconds_per_event"], 1)
        self.assertEqual(goodput.evaluate(steps[:11], [(0, 4)], [])["share"], 1)

    def test_epochs_and_few_steps(self):
        images = goodput.recovery_systems.IMAGES
        # Three hosts at the job's start have 21 images each, four have 16.
        self.assertEqual([goodput.epochs([(0.0, 0), (9.0, images)], hosts) for hosts in (1, 2, 3, 4)], [64, 64, 63, 64])
        for steps in ([], [(0.0, 3)], [(0.0, 1), (1.0, 2), (2.0, 3)]):
            with self.assertRaisesRegex(goodput.TooShort, "expected time for at least 4 steps, got 0.01"):
                goodput.measured(steps, 0.01)
        self.assertEqual(goodput.measured([(0.0, 1), (1.0, 2), (2.0, 3), (3.0, 4)], 1), [(2.0, 3), (3.0, 4)])

    def test_wrong_trace_names_its_line(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            trace.write_text('{"metadata": {"gap_seconds": 300},\n "data": [4,\n  -1]}\n')
            done = subprocess.run([sys.executable, ROOT / "bench/baselines/goodput.py", "--trace", trace], text=True, capture_output=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"goodput.py: [{trace} line 3] expected ", done.stderr)
        self.assertIn("got -1", done.stderr)

    def test_options(self):
        for wrong, why in ((["--scale", "0"], "expected numbers above 0"), (["--scale", "nan"], "expected numbers above 0"),
                           (["--minutes", "inf"], "expected numbers above 0"), (["--price", "nan"], "--price: from 0"),
                           (["--without-notice", "2"], "from 0 to 1"), (["--trace", "zone:"], "[--trace] expected zone: and one of")):
            done = subprocess.run([sys.executable, ROOT / "bench/baselines/goodput.py", *wrong], text=True, capture_output=True, timeout=300, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
