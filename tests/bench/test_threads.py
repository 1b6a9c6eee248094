#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that bench/threads counts the right numbers from plans of a small net, and rejects bad options."""
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

THREADS = Path(os.environ.get("TUTTI_BUILD_DIR", "build")) / "bench" / "threads"


def run(*arguments):
    return subprocess.run([THREADS, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=300)


def rows(out):
    found = re.findall(r"^\| +(\d+) \| +(\d+) \| +([0-9.]+) \| +([0-9.]+) % \| +(\d+) \| +([-+][0-9.]+) % \|$", out, re.M)
    return {int(r[0]): [float(x) for x in r[1:]] for r in found}


class Threads(unittest.TestCase):
    def test_counts(self):
        done = run("--model", "resnet20", "--batch", "96", "--threads", "1,3,24,48", "--loops")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = rows(done.stdout)
        self.assertEqual(list(found), [1, 3, 24, 48])
        self.assertEqual(found[1][1], 1)  # the busiest thread does all the work
        # 8 shards of 12 rows over 3 threads: the busiest thread has 3 of 8 shards instead of a third. The factor is
        # smaller, because some work is not split by rows.
        self.assertEqual(found[3][0], 8)
        self.assertTrue(1.05 < found[3][1] < 1.2, found[3])
        self.assertEqual(found[24][0], 48)
        self.assertTrue(1 <= found[24][1] < found[48][1], found)
        # Memory grows with the threads, which have a workspace each, and with the shards, which have partial sums each.
        self.assertEqual(found[1][4], 0)
        self.assertTrue(found[1][3] <= found[3][3] < found[24][3] < found[48][3], found)
        lost = [float(x) for x in re.findall(r"^ *([0-9.]+) ms  .* tasks$", done.stdout, re.M)]
        self.assertEqual(len(lost), 16)
        self.assertEqual(lost, sorted(lost, reverse=True))

    def test_memory_speed_has_an_effect(self):
        # If memory costs no time, only products do. Then no thread is delayed by the sums over the shards.
        slow, fast = (rows(run("--model", "resnet20", "--batch", "96", "--threads", "48", "--gbytes", g).stdout)[48][1] for g in ("1", "1000000"))
        self.assertGreater(slow, fast)

    def test_wrong_options_are_refused(self):
        for wrong in (["--threads", "0"], ["--threads", "2,"], ["--model", "vgg"], ["--backend", "none"], ["--precision", "f16"], ["--batch"], ["--speed", "1"],
                      ["--gflops", "x"]):
            done = run(*wrong)
            self.assertEqual(done.returncode, 2, f"{wrong}: {done.stdout}{done.stderr}")
            self.assertIn("expected", done.stderr)
        self.assertIn("usage", run("--help").stdout)


if __name__ == "__main__":
    if not THREADS.exists():
        print("SKIP: bench/threads is not built (TUTTI_BUILD_BENCH is off)")
        sys.exit(77)
    unittest.main(verbosity=2)
