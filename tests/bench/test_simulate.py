#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the model of larger clusters with cases calculated by hand."""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
SIMULATE = ROOT / "bench" / "scaling" / "simulate.py"
sys.path.insert(0, str(SIMULATE.parent))

from simulate import Cluster, Trace, published, reduce_seconds, simulate  # noqa: E402

MB = 1e6
# A step of 100 ms and an update of 10 ms. There are two buckets of 10 MB, which are final after 50 ms and 100 ms.
TRACE = Trace(32, 0.1, 0.01, [(10 * MB, 0.05), (10 * MB, 0.1)])
NO_OVERHEAD = {"barrier_us": 0, "latency_us": 0}


class Model(unittest.TestCase):
    def test_one_rank_takes_the_time_of_the_trace(self):
        p = simulate(TRACE, 1, Cluster())
        self.assertAlmostEqual(p.step, 0.11)
        self.assertEqual((p.exposed, p.efficiency), (0, 1))
        self.assertAlmostEqual(p.images_per_second, 32 / 0.11)

    def test_inside_a_host(self):
        # The host reads and writes every byte of 4 ranks: 80 MB at 8 GB/s.
        c = Cluster(ranks_per_host=4, memory_gb=8, **NO_OVERHEAD)
        self.assertAlmostEqual(reduce_seconds(10 * MB, 4, c), 0.01)
        self.assertAlmostEqual(simulate(TRACE, 4, c).exposed, 0.01)  # the backward pass hides only the first bucket
        self.assertAlmostEqual(reduce_seconds(0, 4, Cluster(ranks_per_host=4, barrier_us=7)), 14e-6)

    def test_link_inside_a_host(self):
        c = Cluster(ranks_per_host=8, host_link_gb=10, **NO_OVERHEAD)
        self.assertAlmostEqual(reduce_seconds(80 * MB, 8, c), 2 * 7 / 8 * 8e-3)

    def test_between_hosts(self):
        # A ring of 4 ranks moves 6/4 of the bytes at 1 GB/s, and has 6 latencies of 1 ms.
        c = Cluster(network_gbit=8, latency_us=1000, barrier_us=0)
        self.assertAlmostEqual(reduce_seconds(10 * MB, 4, c), 0.015 + 0.006)

    def test_buckets_wait_for_each_other(self):
        # Each bucket takes 60 ms: the first one ends at 110 ms, the second one at 170 ms.
        c = Cluster(ranks_per_host=2, memory_gb=40 * MB / 0.06 / 1e9, **NO_OVERHEAD)
        p = simulate(TRACE, 2, c)
        self.assertAlmostEqual(p.exposed, 0.07)
        self.assertAlmostEqual(p.step, 0.18)
        self.assertAlmostEqual(p.efficiency, 0.11 / 0.18)

    def test_ranks_share_cores(self):
        c = Cluster(ranks_per_host=4, cores=2, threads=1, memory_gb=1e9, **NO_OVERHEAD)
        self.assertAlmostEqual(simulate(TRACE, 4, c).step, 0.22, places=6)
        self.assertAlmostEqual(simulate(TRACE, 2, c).step, 0.11, places=6)
        c.sharing_cost = 0.1
        self.assertAlmostEqual(simulate(TRACE, 4, c).step, 0.22 * 1.1, places=6)
        self.assertAlmostEqual(simulate(TRACE, 2, c).step, 0.11, places=6)

    def test_all_ranks_wait_for_the_slowest(self):
        c = Cluster(ranks_per_host=100, memory_gb=1e9, jitter=0.02, **NO_OVERHEAD)
        late = 1 + 0.02 * math.sqrt(2 * math.log(100))
        self.assertAlmostEqual(simulate(TRACE, 100, c).step, 0.1 * late + 0.01, places=5)

    def test_more_hosts_are_never_more_efficient(self):
        trace, cluster = published()
        efficiencies = [simulate(trace, n, cluster).efficiency for n in (8, 16, 64, 256, 1024)]
        self.assertEqual(efficiencies, sorted(efficiencies, reverse=True))
        self.assertTrue(0.85 <= simulate(trace, 256, cluster).efficiency <= 0.9)


class CommandLine(unittest.TestCase):
    def run_it(self, *arguments):
        return subprocess.run([sys.executable, SIMULATE, *arguments], text=True, capture_output=True, timeout=300)

    def test_trace_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            path.write_text(json.dumps({"images": 32, "backward_end": 0.1, "update": 0.01,
                                        "buckets": [{"bytes": 10 * MB, "ready": 0.05}]}))
            done = self.run_it(path, "--ranks", "1,2", "--network-gbit", "10")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("network-gbit 10", done.stdout)
            self.assertIn("| 1 | 1 | 290.9 | 100.0 % | 110.0 | 0.0 |", done.stdout)
            for text in ("", "{", "[]", '{"images": 1}', '{"images": 0, "backward_end": 1, "update": 0, "buckets": []}',
                         '{"images": 1, "backward_end": -1, "update": 0, "buckets": []}',
                         '{"images": 1, "backward_end": 1, "update": 0, "buckets": [{"bytes": NaN, "ready": 0}]}'):
                path.write_text(text)
                done = self.run_it(path)
                self.assertEqual(done.returncode, 1, text)
                self.assertIn("[simulate] expected", done.stderr)

    def test_usage(self):
        for arguments in ([], ["--published", "x"], ["--published", "--ranks", "a"], ["--published", "--ranks", "0"],
                          ["--published", "--network-gbit", "0"], ["--published", "--memory-gb", "-1"]):
            self.assertEqual(self.run_it(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
