#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests train_cifar10 over Gloo on two hosts with a network of their own: the bits are those of one host, and errors
name lost processes."""
import hashlib
import os
import re
import signal
import subprocess
import sys
import time

from hosts_case import BUILD, HostsCase, main
from launch_case import wait_until

TRAIN = str(BUILD / "examples" / "train_cifar10")


class Gloo(HostsCase):
    def setUp(self):
        super().setUp()
        for name in ("TUTTI_DATA", "GLOO_SOCKET_IFNAME"):
            self.environment.pop(name, None)

    def command(self, run, *more):
        return [TRAIN, "--dataset", "synthetic", "--num-examples", 240, "--image-shape", "3,16,16", "--depth", 8,
                "--batch-size", 8, "--threads", 1, "--seed", 3, "--disp-batches", 1, "--strategy", "gloo", "--run-dir",
                self.folder / run, *more]

    def weights(self, run, step):
        file = self.folder / run / "checkpoints" / f"step-{step:09d}" / "model.safetensors"
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def test_several_hosts_learn_the_same_as_one_host(self):
        self.launch("-n", 2, *self.command("one", "--epochs", 1))
        for run, names in (("addresses", False), ("names", True)):
            done = self.launch("-n", 2, "-H", self.cluster.hosts_file(1, names=names), *self.command(run, "--epochs", 1))
            self.assertIn("strategy gloo, 2 ranks", done.out)
            self.assertEqual(self.weights(run, 15), self.weights("one", 15), run)
        # Two ranks run on each of two hosts, and one rank of each host communicates with the other host.
        self.launch("-n", 4, "-H", self.cluster.hosts_file(2), *self.command("four", "--epochs", 1))

    def run_long(self, run, *options):
        job = self.start("-n", 4, *options, "-H", self.cluster.hosts_file(2),
                         *self.command(run, "--epochs", 10000, "--comm-deadline", 60))
        log = self.folder / run / "log.jsonl"
        wait_until(lambda: job.poll() is not None or (log.exists() and '"step":5,' in log.read_text()))
        if job.poll() is not None:
            self.finish(job)
            self.fail(job.err)
        return job

    def sockets(self, host):
        return self.cluster.run(host, ["ss", "-Htnp"], stdout=subprocess.PIPE, text=True, check=True).stdout

    def test_only_leaders_connect_hosts(self):
        job = self.run_long("sockets")
        workers = self.processes(TRAIN)
        lines = [line for line in self.sockets(0).splitlines() if any(f"pid={pid}," in line for _, pid in workers.values())]
        job.send_signal(signal.SIGINT)
        self.finish(job)
        self.assertEqual(job.returncode, 130, job.err)
        self.assertIn(len(lines), (1, 2), lines)  # with encryption, one for each direction
        ends = {end for line in lines for end in re.findall(r"(\S+):\d+\s+(\S+):\d+", line)}
        self.assertEqual(ends, {(self.cluster.address(0), self.cluster.address(1))})

    def test_killed(self):
        for rank in (0, 3):
            job = self.run_long(f"killed-{rank}")
            host, pid = self.processes(TRAIN)[rank]
            os.kill(pid, signal.SIGKILL)
            start = time.monotonic()
            self.finish(job)
            self.assertLess(time.monotonic() - start, 60)  # shorter than the deadline of a wait
            self.assertEqual(job.returncode, 5, job.err)
            name = f"worker {rank} on {self.cluster.address(host)}"
            self.assertRegex(self.message(job), rf"\[{name}\].*SIGKILL")
            self.assertIn(f"the loss of {name}", job.err)

    def test_cut_off(self):
        job = self.run_long("cut", "--rank-timeout", 4, "--host-timeout", 60)
        self.cluster.cut(1)
        start = time.monotonic()
        try:
            self.finish(job)
            self.assertLess(time.monotonic() - start, 60)
            self.assertEqual(job.returncode, 5, job.err)
            # The job may remove both workers at the same time.
            self.assertRegex(job.err, rf"\[worker [23] on {self.cluster.address(1)}\] expected a sign of life within 4 s")
            self.assertRegex(job.err, rf"rank [01] on .* the loss of worker [23] on {self.cluster.address(1)}")
            wait_until(lambda: not self.processes(TRAIN))
        finally:
            self.cluster.heal(1)


if __name__ == "__main__":
    if b"install libgloo-dev" in subprocess.run([TRAIN, "--strategy", "gloo"], capture_output=True).stderr:
        print("SKIP: a build without Gloo (Debian: libgloo-dev)")
        sys.exit(77)
    main(2)
