#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests two hosts that cannot reach each other but can reach the launcher: the job removes one of them, and the rest
train on."""
import contextlib
import re
import subprocess
import time

from elastic_training import BATCH, IMAGES, LONG, TRAIN, ElasticTrainingCase
from hosts_case import main
from launch_case import at_night, wait_until
from test_train_elastic_servers import without_zeromq

TIMEOUT = 4  # the value of --rank-timeout


class Unreached(ElasticTrainingCase):
    def route(self, change, host, other):
        """Removes or restores the route from one host to another, and changes no other route."""
        subprocess.run(["ip", "-n", self.cluster.names[host], "route", change, "blackhole", f"{self.cluster.address(other)}/32"],
                       check=True, timeout=30)

    @contextlib.contextmanager
    def cut(self, *ways):
        for host, other in ways:
            self.route("add", host, other)
        try:
            yield
        finally:
            for host, other in ways:
                self.route("del", host, other)

    def members(self):
        return [e["ranks"] for e in self.events() if e["event"] == "members"]

    def others_train_on(self, *ways, gone, hosts=(0, 1, 2), options=()):
        """Checks that errors name the workers and servers `gone`, which the job removes, and that the remaining
        processes complete the epoch and the next one, after which the test stops them."""
        self.begin("--elastic-at", "step", "--rank-timeout", TIMEOUT, *options, epochs=100000, hosts=hosts)
        self.wait_for_steps(5)
        began = time.monotonic()
        with self.cut(*ways):
            wait_until(lambda: self.job.poll() is not None or "cannot reach each other" in (self.folder / "err").read_text())
            noticed = time.monotonic() - began
            self.wait_for_steps(5)
            print(f"noticed after {noticed:.2f} s, trained on after {time.monotonic() - began:.2f} s")
            self.wait_for_epochs(2)
            self.stop()
        self.check_samples()
        said = re.findall(r"warning: (\w+ \d) on [\d.]+: it and (\w+ \d) on [\d.]+ cannot reach each other", self.job.err)
        self.assertEqual([of[0] for of in said], gone, self.job.err)
        self.assertGreaterEqual(noticed, 0.9 * TIMEOUT)
        self.assertNotIn("terminate called", self.job.err)
        self.assertNotIn("--restart-budget", self.job.err)

    def check_samples(self):
        """Checks that the job has seen each sample once in each complete epoch."""
        self.assertEqual(self.count(), (0, 0))

    def job_ends(self, way, gone, on, other, at, hosts, options=()):
        """Without --elastic the job can lose neither host: it ends, and the error names both."""
        self.job = self.start("--rank-timeout", TIMEOUT, *options, "-n", hosts, "-H", self.cluster.hosts_file(1, range(hosts)),
                              TRAIN, "--dataset", "synthetic", "--num-examples", IMAGES, "--image-shape", "3,16,16",
                              "--depth", 8, "--batch-size", BATCH, "--threads", 1, "--epochs", 100000, "--disp-batches", 1,
                              "--run-dir", self.run_dir, *self.STRATEGY)
        self.addCleanup(self.tell)
        self.wait_for_steps(5)
        with self.cut(way):
            self.finish(self.job)
        self.assertEqual(self.job.returncode, 5, self.job.out[-3000:] + self.job.err)
        self.assertIn(f"[{gone} on {self.cluster.address(on)}] expected to reach the other processes within {TIMEOUT} s, got it and "
                      f"{other} on {self.cluster.address(at)} cannot reach each other", self.job.err)
        self.assertNotIn("terminate called", self.job.err)


class Gloo(Unreached):
    STRATEGY = ("--strategy", "gloo")

    @at_night
    def test_both_ways(self):
        self.others_train_on((1, 2), (2, 1), gone=["worker 2"])
        self.assertEqual(self.members(), [2])

    def test_one_way(self):
        self.others_train_on((0, 2), gone=["worker 2"])

    @at_night
    def test_other_way(self):
        self.others_train_on((2, 1), gone=["worker 2"])

    @at_night
    def test_one_host_from_all_others(self):
        self.others_train_on((1, 0), (1, 2), gone=["worker 1"])

    def test_short_deadline(self):
        """The reduction and the first attempt to form a new group fail before the rank time-out."""
        self.STRATEGY = (*self.STRATEGY, "--comm-deadline", "2")
        self.others_train_on((1, 2), gone=["worker 2"])

    def test_without_elastic(self):
        self.job_ends((1, 2), gone="worker 2", on=2, other="worker 1", at=1, hosts=3)

    @at_night
    def test_short_cut_has_no_effect(self):
        """If the route is restored before the time-out, all members stay."""
        self.begin("--elastic-at", "step", "--rank-timeout", 3 * TIMEOUT, epochs=LONG, hosts=(0, 1, 2))
        self.wait_for_steps(5)
        with self.cut((1, 2)):
            time.sleep(TIMEOUT)
        self.finish(self.job)
        self.check_end(epochs=LONG, steps=LONG * IMAGES // (3 * BATCH))
        self.assertEqual(self.members(), [])


class Servers(Unreached):
    STRATEGY = ("--strategy", "ps")

    def test_both_ways(self):
        """Each host has a worker and a server: the job removes the worker and the server of one host."""
        self.others_train_on((0, 1), (1, 0), gone=["server 1", "worker 1"], hosts=(0, 1), options=("-s", 2))

    def test_one_way_to_the_only_server(self):
        self.others_train_on((1, 0), gone=["worker 1"], hosts=(0, 1), options=("-s", 1))

    def test_without_elastic(self):
        self.job_ends((1, 0), gone="server 0", on=0, other="worker 1", at=1, hosts=2, options=("-s", 1))


class AsynchronousServers(Unreached):
    STRATEGY = ("--strategy", "ps_async")

    def check_samples(self):
        """A step that the lost worker had begun may have been done twice."""
        self.assertEqual(self.count()[0], 0)

    def test_one_way_to_the_only_server(self):
        self.others_train_on((1, 0), gone=["worker 1"], hosts=(0, 1), options=("-s", 1))


if __name__ == "__main__":
    if without_zeromq():
        print("SKIP: a build without ZeroMQ (Debian: libzmq3-dev)")
        raise SystemExit(77)
    main(3)
