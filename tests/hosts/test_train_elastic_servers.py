#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests train_cifar10 with parameter servers in an elastic job: workers join, leave and die, and servers die."""
import os
import re
import signal
import subprocess
import time

from elastic_training import BATCH, EPOCHS, IMAGES, LONG, SHORT, TRAIN, ElasticTrainingCase, check_audit
from hosts_case import main
from launch_case import wait_until


def without_zeromq():
    said = subprocess.run([TRAIN, "--strategy", "ps"], capture_output=True, text=True, timeout=300).stderr
    return "install libzmq3-dev" in said


class WithServers(ElasticTrainingCase):
    """Most tests stop their job when it has completed two epochs after the last event: then it has completed the epoch of the
    event. Other tests check how a job ends by itself."""
    def end_process(self, role, number):
        _, pid = self.processes(TRAIN, role)[number]
        os.kill(pid, signal.SIGKILL)


class Synchronous(WithServers):
    STRATEGY = ("--strategy", "ps")

    def test_workers_join_and_leave(self):
        self.hosts_join_and_leave_until_stopped()
        self.assertIn("parameter server over ZeroMQ with CURVE, 2 servers, windows to 1 on this host", self.job.out)

    def test_a_server_and_the_first_worker_die(self):
        self.begin("--elastic-at", "step", "--restart-budget", 0, epochs=100000)
        self.wait_for_steps(5)
        self.end_process("server", 0)
        self.wait_for_steps(5)
        self.end_process("worker", 0)
        self.wait_for_epochs(2)
        self.stop()
        self.assertEqual(self.count(), (0, 0))
        self.assertEqual(self.job.err.count("the other servers take over its part"), 1, self.job.err)
        self.assertEqual([e["ranks"] for e in self.events() if e["event"] == "members"], [2, 1])

    def test_a_host_with_a_server_is_cut_off(self):
        self.begin("--elastic-at", "step", "--rank-timeout", 6, "--restart-budget", 0, epochs=100000)
        self.wait_for_steps(5)
        self.cluster.cut(1)
        try:
            self.wait_for_steps(10)
        finally:
            self.cluster.heal(1)
        self.wait_for_epochs(2)
        self.stop()
        self.assertEqual(self.count(), (0, 0))
        self.assertIn("server 1 on", self.job.err)

    def test_the_last_server_dies(self):
        self.begin("--elastic-at", "step", "-s", 1, epochs=100000)
        self.wait_for_steps(5)
        self.end_process("server", 0)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 5, self.job.out + self.job.err)
        self.assertIn("[server 0 on", self.job.err)


class Asynchronous(WithServers):
    """Tests a job that distributes 120 steps of 8 images per epoch among its workers."""
    STRATEGY = ("--strategy", "ps_async")

    def check_lost(self, deaths, epochs=EPOCHS):
        """Checks the end of a job in which workers were killed: no sample is missing. A step that a killed worker had
        begun may have been done twice."""
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 0, self.job.out + self.job.err)
        _, said = check_audit(self.run_dir, "--epochs", epochs)
        self.assertEqual(said.count(f": {IMAGES} of {IMAGES} samples"), epochs, said)
        again = sum(int(n) for n in re.findall(r"^epoch .*, (\d+) seen again$", said, re.M))
        self.assertLessEqual(again, deaths * BATCH, said)
        last = [e for e in self.events() if e["event"] == "epoch"][-1]
        self.assertEqual(last["epoch"], epochs)
        self.assertLessEqual(abs(last["step"] - epochs * IMAGES // BATCH), deaths)

    def test_workers_join_and_leave(self):
        self.hosts_join_and_leave_until_stopped()
        self.assertIn("asynchronous parameter server over ZeroMQ with CURVE, 2 servers, windows to 1 on this host",
                      self.job.out)
        self.assertIn("left the job", self.job.out)
        # Each worker has a separate file, and did some of the steps.
        self.assertEqual(sorted(p.name for p in self.run_dir.glob("audit-*")), [f"audit-rank{n}.txt" for n in range(3)])
        self.assertEqual([e["ranks"] for e in self.events() if e["event"] == "members"], [3, 2])
        self.assertTrue((self.run_dir / "checkpoints").is_dir())

    def stop_after_loss(self, deaths):
        """Stops a job in which workers were killed. No sample of a complete epoch is missing."""
        self.wait_for_epochs(2)
        self.stop()
        lost, again = self.count()
        self.assertEqual(lost, 0)
        self.assertLessEqual(again, deaths * BATCH)

    def test_worker_dies_and_is_replaced(self):
        self.begin("--restart-budget", 0, epochs=100000)
        self.wait_for_steps(5)
        self.end_process("worker", 1)
        wait_until(lambda: [e["ranks"] for e in self.events() if e["event"] == "members"] == [1])
        self.edit([0, 2])
        wait_until(lambda: ["ADDED", self.cluster.address(2)] in self.logged())
        self.stop_after_loss(1)
        self.assertIn("warning: worker 1 on", self.job.err)

    def test_the_first_worker_dies(self):
        """If rank 0 dies, the next worker prints the progress, writes the log, evaluates and saves."""
        self.begin("--restart-budget", 0, epochs=LONG)
        self.wait_for_steps(5)
        self.end_process("worker", 0)
        self.check_lost(1, epochs=LONG)
        generations = [e["generation"] for e in self.events() if e["event"] == "step"]
        self.assertEqual(generations, sorted(generations))
        self.assertGreater(generations[-1], generations[0])
        self.assertIn("done: ", self.job.out)
        saved = [p.name for p in (self.run_dir / "checkpoints").iterdir() if p.name.startswith("step-")]
        self.assertIn(f"step-{[e for e in self.events() if e['event'] == 'epoch'][-1]['step']:09}", max(saved))

    def test_death_before_the_first_step(self):
        """A worker dies at different times, even before rank 0 has sent the initial weights: the remaining workers
        continue."""
        for number, delay in enumerate((0.0, 0.06, 0.12, 0.18)):
            with self.subTest(delay=delay):
                self.run_dir = self.folder / f"run{number}"
                self.begin("--restart-budget", 0, epochs=SHORT)
                victim = number % 2
                _, pid = wait_until(lambda: self.processes(TRAIN).get(victim))
                time.sleep(delay)
                os.kill(pid, signal.SIGKILL)
                self.check_lost(1, epochs=SHORT)

    def test_a_cut_off_worker_is_given_up(self):
        """When the host is reachable again, the servers refuse late pushes of its worker. Other workers do the worker's
        steps."""
        self.begin("--rank-timeout", 6, "--restart-budget", 0, "-s", 1, epochs=100000)
        self.wait_for_steps(5)
        self.cluster.cut(1)
        try:
            wait_until(lambda: [e["ranks"] for e in self.events() if e["event"] == "members"] == [1])
        finally:
            self.cluster.heal(1)
        self.stop_after_loss(1)

    def test_one_grows_and_is_resumed(self):
        self.begin(hosts=(0,), epochs=100000)
        self.wait_for_steps(3)
        self.edit([0, 1])
        wait_until(lambda: self.logged() == [["ADDED", self.cluster.address(1)]])
        self.wait_for_steps(10)
        self.stop()
        self.assertEqual([e["ranks"] for e in self.events() if e["event"] == "members"], [2])
        epoch = [e for e in self.events() if e["event"] == "step"][-1]["epoch"]
        self.begin(hosts=(0,), epochs=epoch + 1, program=("--resume",))
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 0, self.job.out + self.job.err)
        self.assertIn("this run continues from", self.job.out)
        self.assertEqual([e for e in self.events() if e["event"] == "epoch"][-1]["epoch"], epoch + 1)

    def test_a_server_dies(self):
        self.begin(epochs=100000)
        self.wait_for_steps(5)
        self.end_process("server", 1)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 5, self.job.out + self.job.err)
        self.assertIn("[server 1 on", self.job.err)

    def test_without_training(self):
        self.begin(program=("--test-io",))
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 0, self.job.out + self.job.err)
        self.assertIn("images/s", self.job.out)

    def test_refused(self):
        for option, said in ((("--elastic-at", "epoch"), "no worker of ps_async waits for another worker"),
                             (("--server-restarts", "1"), "use --resume to continue after the loss of a server")):
            self.begin(*option)
            self.finish(self.job)
            self.assertEqual(self.job.returncode, 2, self.job.err)
            self.assertIn(said, self.job.err)


if __name__ == "__main__":
    if without_zeromq():
        print("SKIP: a build without ZeroMQ (Debian: libzmq3-dev)")
        raise SystemExit(77)
    main(3)
