#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Replays a short trace with bench/baselines/goodput.py on four hosts, which needs root: a host is killed, one joins and one
leaves. 50 seconds of processor time. The share of useful time depends on the load of the machine, and is not checked here."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
import netns_cluster  # noqa: E402


class Replay(unittest.TestCase):
    def test_kill_join_and_leave(self):
        with tempfile.TemporaryDirectory() as folder:
            trace, results = Path(folder) / "trace.json", Path(folder) / "results"
            trace.write_text(json.dumps({"metadata": {"gap_seconds": 500}, "data": [4, 3, 4, 3, 3]}))
            # With this seed, all processes of a host are killed first, and another host leaves in order later.
            done = subprocess.run([sys.executable, ROOT / "bench/baselines/goodput.py", "--trace", trace, "--scale", "100", "--minutes", "0.33",
                                   "--seed", "2", "--results", results], text=True, capture_output=True, timeout=600, check=False)
            if done.returncode == 77:
                self.skipTest(done.stdout.strip())
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            line = json.loads(results.read_text())
        self.assertEqual((line["lost"], line["twice"]), (0, 0), done.stdout)
        self.assertEqual(line["events"], {"join": 1, "kill": 1, "leave": 1}, done.stdout)
        self.assertGreater(line["steps"], 0)
        # A step may be shorter than the median, so the share may be a little above 1.
        self.assertTrue(0 < line["share"] < 1.5 and line["share_at_rate"] <= 1.5, done.stdout)
        self.assertIn("samples lost: 0, seen twice: 0", done.stdout)


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    if program.result.wasSuccessful() and program.result.skipped:
        netns_cluster.skip(program.result.skipped[0][1])
    sys.exit(0 if program.result.wasSuccessful() else 1)
