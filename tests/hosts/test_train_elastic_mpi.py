#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests train_cifar10 over MPI with changing workers, one mpirun after the other: hosts join and leave, ranks die, each
sample is seen once per epoch."""
import os
import shutil
import signal
import sys
from pathlib import Path

from elastic_training import BATCH, IMAGES, TRAIN, ElasticTrainingCase, check_audit
from hosts_case import main
from launch_case import wait_until


class ElasticMpi(ElasticTrainingCase):
    STRATEGY = ("--strategy", "mpi")

    def options(self):
        net = f"{self.cluster.net}.0/24"
        arguments = ["--mca", "oob_tcp_if_include", net, "--mca", "btl_tcp_if_include", net, "--mca", "btl", "tcp,self",
                     "--mca", "mpi_yield_when_idle", "1"]
        return [*super().options(), *[w for a in arguments for w in ("--mpi-arg", a)]]

    def said(self):
        return (self.folder / "err").read_text()

    def begin(self, *options, **more):
        super().begin(*options, **more)
        self.wait_for_steps(5)

    def pid(self, rank):
        return wait_until(lambda: self.processes(TRAIN).get(rank))[1]

    def members(self):
        """Returns (step, number of ranks) for each change of members."""
        return [(e["step"], e["ranks"]) for e in self.events() if e["event"] == "members"]

    def wait_for_members(self, ranks, count):
        """Waits until this number of changes has happened, the last of which resulted in this number of ranks."""
        def there():
            if self.job.poll() is not None:
                self.finish(self.job)
                self.fail(self.job.out + self.job.err)
            return len(self.members()) >= count and self.members()[-1][1] == ranks
        wait_until(there)
        self.wait_for_steps(3)

    def stop(self):
        """Ends the job as its user does. Checks that each complete epoch has had each sample once."""
        self.job.send_signal(signal.SIGTERM)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 143, self.job.out + self.job.err)
        self.assertIn("state saved", self.job.out)
        self.assertEqual(check_audit(self.run_dir)[0], 0, check_audit(self.run_dir))

    def test_hosts_join_and_leave_at_steps(self):
        """A host joins. Then the host of rank 0 leaves, and another host gets rank 0."""
        self.begin("--elastic-at", "step", epochs=100000)
        self.edit([0, 1, 2])
        self.wait_for_members(3, 1)
        wait_until(lambda: self.logged() == [["ADDED", self.cluster.address(2)]])
        self.edit([1, 2])
        self.wait_for_members(2, 2)
        wait_until(lambda: self.logged()[1:] == [["REMOVED", self.cluster.address(0)]])
        self.assertEqual(set(self.processes(TRAIN)), {0, 1})
        self.assertEqual(self.processes(TRAIN)[0][0], 1)
        self.assertEqual(self.cluster.pids(0), [])
        # The change was not at the end of an epoch: the last step of an epoch does not depend on the number of workers.
        self.assertTrue(any(step % (IMAGES // (2 * BATCH)) for step, _ in self.members()), self.members())
        self.stop()

    def test_a_job_of_one_grows_at_an_epoch(self):
        """A change takes effect after the last step of an epoch. A damaged hosts file has no effect, and the last host
        stays."""
        self.begin(hosts=(0,), epochs=100000)
        (self.elastic / "host_worker").write_text("-oProxyCommand=touch /tmp/x\n")
        wait_until(lambda: "This edit is ignored" in self.said())
        self.edit([0, 1])
        self.wait_for_members(2, 1)
        step, _ = self.members()[0]
        self.assertEqual(step % (IMAGES // BATCH), 0)
        (self.elastic / "new").write_text(f"{self.cluster.address(2)}:2223\n")  # no server answers at this port
        (self.elastic / "new").rename(self.elastic / "host_worker")
        wait_until(lambda: "stays in the job until other workers have joined" in self.said())
        self.stop()
        self.assertEqual(self.logged()[0], ["ADDED", self.cluster.address(1)])

    def test_first_rank_dies_and_is_replaced(self):
        """All ranks continue from the last checkpoint and repeat the later steps. The audit has no step twice."""
        self.begin("--elastic-at", "step", epochs=100000, program=("--save-steps", 25))
        self.wait_for_steps(30)
        os.kill(self.pid(0), signal.SIGKILL)
        self.wait_for_members(1, 1)
        events = self.events()
        resumed = next(i for i, e in enumerate(events) if e["event"] == "resume")
        repeated = max(e["step"] for e in events[:resumed] if e["event"] == "step") - events[resumed]["step"]
        self.assertLessEqual(repeated, 25)
        self.wait_for_members(2, 2)  # a new mpirun
        self.stop()
        self.assertIn("SIGKILL", self.job.err)
        self.assertEqual(self.logged(), [["REMOVED", self.cluster.address(0)], ["ADDED", self.cluster.address(0)]])

    def test_rank_that_gets_sigterm_leaves(self):
        self.begin(epochs=20)
        os.kill(self.pid(1), signal.SIGTERM)
        self.wait_for_members(1, 1)
        self.check_end(epochs=20)
        self.assertIn("left the job after step", self.job.out)
        self.assertEqual(self.logged(), [["REMOVED", self.cluster.address(1)]])

    def test_cut_off(self):
        """The job removes a host with a cut link."""
        self.begin("--elastic-at", "step", "--rank-timeout", 4, "--restart-budget", 0, epochs=100000,
                   program=("--save-steps", 20))
        self.wait_for_steps(25)
        pid = self.pid(1)
        self.cluster.cut(1)
        try:
            self.wait_for_members(1, 1)
        finally:
            self.cluster.heal(1)
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
        self.stop()

    def test_stopped(self):
        """The job also removes a rank that is stopped, here rank 0."""
        self.begin("--elastic-at", "step", "--rank-timeout", 4, "--restart-budget", 0, epochs=100000,
                   program=("--save-steps", 20))
        self.wait_for_steps(25)
        os.kill(self.pid(0), signal.SIGSTOP)
        self.wait_for_members(1, 1)
        self.stop()
        self.assertIn("worker 0 on " + self.cluster.address(0) + " has been stopped for 4 s", self.job.err)

    def test_spot_notice(self):
        """A worker leaves if a notice says that its host will end. Each host has a separate /run."""
        self.begin(epochs=100000, program=("--spot-notice", "/run/notice"))
        self.cluster.run(1, ["touch", "/run/notice"], check=True)
        try:
            self.wait_for_members(1, 1)
        finally:
            self.cluster.run(1, ["rm", "/run/notice"])
        self.stop()
        self.assertIn("/run/notice exists: stopping after this step", self.job.err)
        self.assertEqual(self.logged(), [["REMOVED", self.cluster.address(1)]])

    def test_newcomers_that_fail(self):
        """One new host cannot be reached, one has another key, and one cannot be prepared. The remaining new hosts
        join."""
        script = self.folder / "prepare.sh"
        script.write_text(f'#!/bin/sh\necho "prepares $TUTTI_HOST"\ntest "$TUTTI_HOST" != {self.cluster.address(3)}\n')
        script.chmod(0o755)
        known = Path(self.cluster.folder / "known_hosts")
        right = known.read_text()
        keys = {line.split()[0]: line.split(" ", 1)[1] for line in right.splitlines()}
        other = f"[{self.cluster.address(2)}]:2200"
        known.write_text(right.replace(keys[other], keys[f"[{self.cluster.address(1)}]:2200"]))
        self.addCleanup(known.write_text, right)
        self.begin("--elastic-at", "step", "--prepare-script", script, "--connect-timeout", 5, hosts=(0,), epochs=100000)
        away = f"{self.cluster.net}.200"
        new = self.elastic / "new"
        new.write_text(Path(self.cluster.hosts_file(1, (0, 1, 2, 3))).read_text() + f"{away} slots=1\n")
        new.rename(self.elastic / "host_worker")
        self.wait_for_members(2, 1)
        for host in (away, self.cluster.address(2), self.cluster.address(3)):
            wait_until(lambda h=host: f"warning: [host {h}] expected" in self.said())
        self.wait_for_steps(5)
        self.assertEqual(self.members()[1:], [])
        self.stop()
        self.assertEqual(self.logged(), [["ADDED", self.cluster.address(1)]])
        self.assertIn("Host key verification failed", self.job.err)
        self.assertIn(f"[host {self.cluster.address(3)}] expected exit code 0 of --prepare-script", self.job.err)
        self.assertIn(f"prepares {self.cluster.address(1)}\n", self.job.out)

    def test_all_leave(self):
        self.begin(hosts=(0,), epochs=100000)
        os.kill(self.pid(0), signal.SIGTERM)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 143, self.job.out + self.job.err)
        self.assertIn("state saved", self.job.out)


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        sys.exit("no mpirun (Debian: apt-get install openmpi-bin)")
    main(4)
