#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""train_cifar10 with parameter servers while members come and go: workers join, leave and die, and servers die."""
import os
import signal
import subprocess

from elastic_training import TRAIN, ElasticTrainingCase
from hosts_case import main


def without_zeromq():
    said = subprocess.run([TRAIN, "--strategy", "ps"], capture_output=True, text=True, timeout=60).stderr
    return "install libzmq3-dev" in said


class Synchronous(ElasticTrainingCase):
    STRATEGY = ("--strategy", "ps")

    def end_process(self, role, number):
        _, pid = self.processes(TRAIN, role)[number]
        os.kill(pid, signal.SIGKILL)

    def test_workers_join_and_leave(self):
        self.hosts_join_and_leave()
        self.assertIn("parameter server over ZeroMQ with CURVE, 2 servers (no windows: members change)", self.job.out)

    def test_a_server_and_the_first_worker_die(self):
        self.begin("--elastic-at", "step", "--restart-budget", 0)
        self.wait_for_steps(5)
        self.end_process("server", 0)
        self.wait_for_steps(5)
        self.end_process("worker", 0)
        self.wait_for_steps(5)
        self.check_end()
        self.assertEqual(self.job.err.count("the others do its part"), 1, self.job.err)
        self.assertEqual([e["ranks"] for e in self.events() if e["event"] == "members"], [2, 1])

    def test_a_host_with_a_server_is_cut_off(self):
        self.begin("--elastic-at", "step", "--rank-timeout", "1.5", "--restart-budget", 0)
        self.wait_for_steps(5)
        self.bed.cut(1)
        try:
            self.wait_for_steps(10)
        finally:
            self.bed.heal(1)
        self.check_end()
        self.assertIn("server 1 on", self.job.err)

    def test_the_last_server_dies(self):
        self.begin("--elastic-at", "step", "-s", 1, epochs=100000)
        self.wait_for_steps(5)
        self.end_process("server", 0)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 5, self.job.out + self.job.err)
        self.assertIn("[server 0 on", self.job.err)


if __name__ == "__main__":
    if without_zeromq():
        print("SKIP: a build without ZeroMQ (Debian: libzmq3-dev)")
        raise SystemExit(77)
    main(3)
