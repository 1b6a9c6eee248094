#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the model of larger clusters with cases calculated by hand, and tests its limits and its directions."""
import math
import os
import random
import sys
import unittest
from dataclasses import fields, replace
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench" / "scaling"))

import model  # noqa: E402
import published  # noqa: E402
from model import Cluster, interval, reduce_seconds, ring_seconds, simulate, slowest, tree_seconds  # noqa: E402
from traces import Trace, gpu_trace  # noqa: E402

MB = 1e6
# A step of 100 ms and an update of 10 ms. There are two buckets of 10 MB, which are final after 50 ms and 100 ms.
TRACE = Trace(32, 0.1, 0.01, ((10 * MB, 0.05), (10 * MB, 0.1)))
NO_OVERHEAD = {"barrier_us": 0, "latency_us": 0, "memory_exponent": 0}


class Limits(unittest.TestCase):
    def test_one_rank_takes_the_time_of_the_trace(self):
        for c in (Cluster(), replace(published.gpu_cluster(), jitter=0.5, channels=40, host_loss=0.2, coordination_us=1e6)):
            p = simulate(TRACE, 1, c)
            self.assertAlmostEqual(p.step, 0.11)
            self.assertEqual(p.exposed, 0)
            self.assertAlmostEqual(p.efficiency, 1)
            self.assertAlmostEqual(p.images_per_second, 32 / 0.11)

    def test_no_bytes(self):
        self.assertAlmostEqual(reduce_seconds(0, 4, Cluster(ranks_per_host=4, barrier_us=7)), 14e-6)
        # Four hosts have two levels of a tree, up and down.
        self.assertAlmostEqual(reduce_seconds(0, 4, Cluster(latency_us=5)), 20e-6)
        self.assertEqual(reduce_seconds(0, 1, Cluster()), 0)
        self.assertEqual(simulate(Trace(1, 1, 0, ()), 8, Cluster(ranks_per_host=8)).step, 1)

    def test_no_network(self):
        slow = Cluster(ranks_per_host=4, network_gbit=1e-6, latency_us=1e6)
        fast = Cluster(ranks_per_host=4, network_gbit=1e6, latency_us=0)
        self.assertEqual(simulate(TRACE, 4, slow), simulate(TRACE, 4, fast))
        self.assertGreater(simulate(TRACE, 5, slow).step, 1000)
        # With infinite speed everywhere the efficiency is that of one rank.
        c = Cluster(ranks_per_host=4, network_gbit=1e12, memory_gb=1e12, **NO_OVERHEAD)
        self.assertAlmostEqual(simulate(TRACE, 1024, c).efficiency, 1, places=6)


class Sums(unittest.TestCase):
    def test_inside_a_host(self):
        # The host reads and writes every byte of 4 ranks: 80 MB at 8 GB/s.
        c = Cluster(ranks_per_host=4, memory_gb=8, **NO_OVERHEAD)
        self.assertAlmostEqual(reduce_seconds(10 * MB, 4, c), 0.01)
        self.assertAlmostEqual(simulate(TRACE, 4, c).exposed, 0.01)  # the backward pass hides only the first bucket
        # A sum of a sixteenth of 16 MiB has half the bandwidth with the exponent 1/4.
        c = replace(c, memory_exponent=0.25)
        self.assertAlmostEqual(reduce_seconds(2**20, 4, c), 2 * 4 * 2**20 / 4e9)

    def test_link_inside_a_host(self):
        c = Cluster(ranks_per_host=8, host_link_gb=10, **NO_OVERHEAD)
        self.assertAlmostEqual(reduce_seconds(80 * MB, 8, c), 2 * 7 / 8 * 8e-3)

    def test_ring_between_hosts(self):
        # A ring of 4 ranks moves 6/4 of the bytes at 1 GB/s, and has 6 latencies of 1 ms.
        self.assertAlmostEqual(ring_seconds(10 * MB, 4, Cluster(network_gbit=8, latency_us=1000)), 0.015 + 0.006)
        self.assertAlmostEqual(ring_seconds(10 * MB, 4, Cluster(network_gbit=8, latency_us=0, network_efficiency=0.5)), 0.03)

    def test_several_network_cards(self):
        two, one = Cluster(network_gbit=25, network_cards=2), Cluster(network_gbit=50)
        self.assertEqual(reduce_seconds(10 * MB, 4, two), reduce_seconds(10 * MB, 4, one))

    def test_tree_between_hosts(self):
        # The same bytes at 0.9 of the speed; 5 hosts need 3 levels, up and down.
        c = Cluster(network_gbit=8, latency_us=1000)
        self.assertAlmostEqual(tree_seconds(9 * MB, 5, c), 1.6 * 9e-3 / 0.9 + 0.006)

    def test_crossover(self):
        """Small sums use the tree, large ones the ring, and they change where both take the same time."""
        c = Cluster(latency_us=30)
        for hosts in (4, 32, 200):
            rounds = 2 * (hosts - 1) - 2 * math.ceil(math.log2(hosts))
            extra = 2 * (hosts - 1) / hosts * (1 / model.TREE - 1) / model.network_rate(c)
            size = rounds * 30e-6 / extra
            self.assertAlmostEqual(ring_seconds(size, hosts, c) / tree_seconds(size, hosts, c), 1)
            self.assertEqual(model.network_seconds(size / 2, hosts, c), tree_seconds(size / 2, hosts, c))
            self.assertEqual(model.network_seconds(size * 2, hosts, c), ring_seconds(size * 2, hosts, c))
            self.assertLess(tree_seconds(size / 2, hosts, c), ring_seconds(size / 2, hosts, c))
            self.assertLess(ring_seconds(size * 2, hosts, c), tree_seconds(size * 2, hosts, c))
        # The latency of the cheaper one grows with the logarithm of the hosts.
        self.assertAlmostEqual(reduce_seconds(0, 1024, c) / reduce_seconds(0, 32, c), 2)

    def test_buckets_wait_for_each_other(self):
        # Each bucket takes 60 ms: the first one ends at 110 ms, the second one at 170 ms.
        c = Cluster(ranks_per_host=2, memory_gb=40 * MB / 0.06 / 1e9, **NO_OVERHEAD)
        p = simulate(TRACE, 2, c)
        self.assertAlmostEqual(p.exposed, 0.07)
        self.assertAlmostEqual(p.step, 0.18)
        self.assertAlmostEqual(p.efficiency, 0.11 / 0.18)

    def test_coordination_delays_each_bucket(self):
        c = Cluster(ranks_per_host=2, memory_gb=1e9, coordination_us=4000, **NO_OVERHEAD)
        self.assertAlmostEqual(simulate(TRACE, 2, c).step, 0.114, places=6)


class Ranks(unittest.TestCase):
    def test_ranks_share_cores(self):
        c = Cluster(ranks_per_host=4, cores=2, threads=1, memory_gb=1e9, **NO_OVERHEAD)
        self.assertAlmostEqual(simulate(TRACE, 4, c).step, 0.22, places=6)
        self.assertAlmostEqual(simulate(TRACE, 2, c).step, 0.11, places=6)
        c = replace(c, sharing_cost=0.1)
        self.assertAlmostEqual(simulate(TRACE, 4, c).step, 0.22 * 1.1, places=6)
        self.assertAlmostEqual(simulate(TRACE, 2, c).step, 0.11, places=6)

    def test_loss_of_a_host(self):
        c = Cluster(ranks_per_host=8, memory_gb=1e9, network_gbit=1e6, host_loss=0.14, **NO_OVERHEAD)
        self.assertAlmostEqual(simulate(TRACE, 8, c).efficiency, 0.86, places=4)
        self.assertAlmostEqual(simulate(TRACE, 4, c).efficiency, 1 - 0.14 * 3 / 7, places=4)
        self.assertAlmostEqual(simulate(TRACE, 64, c).efficiency, 0.86, places=2)

    def test_sums_take_a_share_of_a_gpu(self):
        # The first sum lasts 20 ms, in which a quarter of the GPU is taken: 5 ms later. The second begins when the pass has ended.
        c = Cluster(network_gbit=8, latency_us=0, multiprocessors=80, channels=20)
        trace = replace(TRACE, buckets=((20 * MB, 0.05), (10 * MB, 0.1)))
        p = simulate(trace, 2, c)
        self.assertAlmostEqual(p.exposed, 0.01)
        self.assertAlmostEqual(p.step, 0.1 + 0.005 + 0.01 + 0.01)
        # A sum of 1 GB/s with 3 passes takes 3 of 12 GB/s, too.
        c = replace(c, channels=0, memory_passes=3, device_memory_gb=12)
        self.assertAlmostEqual(simulate(trace, 2, c).step, 0.1 + 0.005 + 0.01 + 0.01)
        self.assertAlmostEqual(simulate(trace, 2, replace(c, channels=20)).step, 0.1 + 0.02 * (1 - 0.75 * 0.75) + 0.01 + 0.01)
        self.assertAlmostEqual(simulate(trace, 2, replace(c, multiprocessors=0)).step, 0.12)
        # The pass ends within the sum: only its last 40 ms are slowed, to 80 ms of the sum's 100 ms.
        late = replace(TRACE, buckets=((100 * MB, 0.06),))
        p = simulate(late, 2, Cluster(network_gbit=8, latency_us=0, multiprocessors=80, channels=40))
        self.assertAlmostEqual(p.step, 0.06 + 0.1 + 0.01)
        self.assertAlmostEqual(p.exposed, 0.02)

    def test_decoding_limits_a_step(self):
        # 4 ranks of 32 images, 2 cores of 100 images/s: 0.64 s.
        c = Cluster(ranks_per_host=4, jpeg_cores=2, jpeg_per_core=100)
        p = simulate(TRACE, 8, c)
        self.assertEqual((p.step, p.limit), (0.64, model.INPUT))
        self.assertAlmostEqual(p.images_per_second, 400)
        self.assertEqual(simulate(TRACE, 8, replace(c, jpeg_cores=1000)).limit, model.SUMS)
        self.assertEqual(Cluster().jpeg_per_core, 1461)

    def test_slowest(self):
        """Expected maxima of normal variables: tables of order statistics, and a simulation for those that correlate."""
        for n, expected in ((2, 0.56419), (8, 1.42360), (32, 2.06967), (100, 2.50759), (1000, 3.24144)):
            self.assertAlmostEqual(slowest(n, 1, 0), expected, places=3)
            self.assertAlmostEqual(slowest(n, 8, 0.0), expected, places=3)
        self.assertAlmostEqual(slowest(256, 8, 1), 2.06967, places=3)  # 32 hosts
        self.assertAlmostEqual(slowest(4, 8, 1), 0, places=3)  # all ranks of one host are equal
        r, total, rounds = random.Random(5), 0, 4000
        for _ in range(rounds):
            hosts = [(r.gauss(0, 1), size) for size in (8, 8, 8, 4)]
            total += max(math.sqrt(0.4) * h + math.sqrt(0.6) * r.gauss(0, 1) for h, size in hosts for _ in range(size))
        self.assertAlmostEqual(slowest(28, 8, 0.4), total / rounds, delta=0.03)
        values = [slowest(64, 8, c) for c in (0, 0.25, 0.5, 0.75, 1)]
        self.assertEqual(values, sorted(values, reverse=True))

    def test_all_ranks_wait_for_the_slowest(self):
        c = Cluster(ranks_per_host=100, memory_gb=1e9, jitter=0.02, **NO_OVERHEAD)
        self.assertAlmostEqual(simulate(TRACE, 100, c).step, 0.1 * (1 + 0.02 * 2.50759) + 0.01, places=5)


class Directions(unittest.TestCase):
    def clusters(self):
        r = random.Random(7)
        for _ in range(60):
            yield Cluster(ranks_per_host=r.choice((1, 2, 8)), memory_gb=r.uniform(5, 100), host_link_gb=r.choice((0, 20, 120)),
                          host_loss=r.uniform(0, 0.2), network_gbit=r.uniform(1, 400), network_efficiency=r.uniform(0.2, 1),
                          latency_us=r.uniform(1, 500), coordination_us=r.uniform(0, 5000), multiprocessors=80, channels=r.uniform(0, 40),
                          memory_passes=r.uniform(0, 3), jitter=r.uniform(0, 0.1), correlated=r.choice((0, 0.25, 0.5, 1)),
                          jpeg_cores=r.choice((0, 1, 8)))

    def test_monotonic(self):
        """Each uncertain parameter moves the step in the direction that interval() uses."""
        self.assertLessEqual(set(model.LONGER), {f.name for f in fields(Cluster)})
        trace = gpu_trace(64, 0.1, 0.001)
        for c in self.clusters():
            for ranks in (2, 8, 31, 256):
                base = simulate(trace, ranks, c).step
                for name, longer in model.LONGER.items():
                    value = getattr(c, name)
                    if name == "host_link_gb" and value == 0:
                        continue
                    larger = replace(c, **{name: min(1, value * 1.5 + 0.01) if name in ("correlated", "network_efficiency") else value * 1.5 + 0.01})
                    step = simulate(trace, ranks, larger).step
                    self.assertTrue(step >= base * (1 - 1e-6) if longer else step <= base * (1 + 1e-6), f"{name} {ranks} {c}: {base} {step}")

    def test_more_bytes_and_more_hosts_are_not_faster(self):
        trace = gpu_trace(64, 0.1, 0.001)
        double = replace(trace, buckets=tuple((2 * size, ready) for size, ready in trace.buckets))
        for c in self.clusters():
            steps = [simulate(trace, n, c).step for n in (8, 16, 64, 256, 1024)]
            for a, b in zip(steps, steps[1:]):
                self.assertLessEqual(a, b * (1 + 1e-9))
            self.assertGreaterEqual(simulate(double, 64, c).step, steps[2])

    def test_interval(self):
        trace = gpu_trace(256, 256 / 740, 0.004)
        ranges = published.bounds()
        i = interval(trace, 256, published.gpu_cluster(), ranges)
        self.assertLess(i.worst.images_per_second, i.low)
        self.assertTrue(i.low < i.middle < i.high < i.best.images_per_second)
        self.assertEqual(i, interval(trace, 256, published.gpu_cluster(), ranges))
        one = interval(trace, 256, published.gpu_cluster(), {})
        self.assertEqual(one.worst, one.best)
        self.assertEqual((one.low, one.high), (one.best.images_per_second,) * 2)
        # Fewer uncertain parameters make the range narrower.
        del ranges["host_loss"]
        few = interval(trace, 256, published.gpu_cluster(), ranges)
        self.assertLess(few.best.efficiency - few.worst.efficiency, i.best.efficiency - i.worst.efficiency)


if __name__ == "__main__":
    unittest.main()
