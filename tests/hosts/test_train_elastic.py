#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests train_cifar10 while workers join and leave: each sample is seen once per epoch. elastic_scenarios.py has the
other events."""
import contextlib
import os
import signal
import time

from elastic_training import BATCH, EPOCHS, IMAGES, SHORT, TRAIN, ElasticTrainingCase, check_audit
from hosts_case import main
from launch_case import at_night, parent, wait_until


class ElasticTraining(ElasticTrainingCase):
    def test_hosts_join_and_leave(self):
        self.hosts_join_and_leave(epochs=2 * EPOCHS)
        self.check_end(epochs=2 * EPOCHS)

    def test_spot_instance_leaves(self):
        """A worker that gets SIGTERM leaves after the current step, and the job continues."""
        self.begin()
        self.wait_for_steps(5)
        _, pid = self.processes(TRAIN)[1]
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: self.logged() == [["REMOVED", self.cluster.address(1)]])
        self.check_end()
        self.assertIn("left the job", self.job.out)

    def test_all_leave(self):
        """If all workers leave at the same time, they save, as in a job that is stopped."""
        self.begin(hosts=(0,), epochs=1000)
        self.wait_for_steps(5)
        _, pid = self.processes(TRAIN)[0]
        os.kill(pid, signal.SIGTERM)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 143, self.job.out + self.job.err)
        self.assertIn("state saved", self.job.out)

    def test_one_grows_at_epochs(self):
        """A job grows from one worker. Then a signal to the launcher stops all workers."""
        self.begin(hosts=(0,), epochs=100000)
        self.wait_for_steps(3)
        self.edit([0, 1])
        wait_until(lambda: self.logged() == [["ADDED", self.cluster.address(1)]])
        self.wait_for_steps(3)
        self.stop()
        joined = [e for e in self.events() if e["event"] == "members"]
        self.assertEqual([e["ranks"] for e in joined], [2])
        self.assertEqual(joined[0]["step"] % (IMAGES // BATCH), 0)
        self.assertEqual(check_audit(self.run_dir)[0], 0, check_audit(self.run_dir))

    def test_batch_and_rate_follow_the_workers(self):
        """Each image is seen once per epoch, for any batch. The rate follows the batch in small steps. The same is true
        if the job is resumed with another number of workers."""
        options = ("--elastic-batch", "worker", "--elastic-ramp-steps", 4, "--lr", 0.1, "--lr-schedule", "constant",
                   "--warmup-epochs", 0)
        self.begin("--elastic-at", "step", epochs=1000, program=options)
        self.wait_for_steps(5)
        self.edit([0, 1, 2])
        wait_until(lambda: self.logged() == [["ADDED", self.cluster.address(2)]])
        self.wait_for_steps(10)
        os.kill(self.processes(TRAIN)[0][1], signal.SIGKILL)
        self.wait_for_steps(10)
        self.stop()
        steps = [e for e in self.events() if e["event"] == "step"]
        self.assertLessEqual({16, 24}, {e["batch"] for e in steps})
        for before, now in zip(steps, steps[1:]):
            goal = 0.1 * now["batch"] / 16  # the rate reaches this value within four steps, and keeps it
            self.assertLessEqual(abs(now["lr"] - goal), abs(before["lr"] - goal) + 1e-12, now)
        self.assertLess(abs(steps[4]["lr"] - 0.1), 1e-9)
        changes = [e for e in self.events() if e["event"] == "members"]
        first = changes[0]["step"]
        self.assertEqual([round(e["lr"], 6) for e in steps if first < e["step"] <= first + 5],
                         [0.1, 0.1125, 0.125, 0.1375, 0.15])
        self.assertEqual(check_audit(self.run_dir)[0], 0, check_audit(self.run_dir))
        done = max(e["step"] for e in steps)
        seen = [e for e in steps if e["step"] == done][-1]
        self.begin("--elastic-at", "step", epochs=seen["epoch"] + 1, hosts=(0,), program=(*options, "--resume"))
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 0, self.job.out + self.job.err)
        again = [e for e in self.events() if e["event"] == "step" and e["step"] > done]
        self.assertEqual({e["batch"] for e in again}, {8})
        self.assertLess(abs(again[-1]["lr"] - 0.05), 1e-9)
        self.assertEqual(check_audit(self.run_dir, "--epochs", seen["epoch"] + 1)[0], 0, check_audit(self.run_dir))

    def test_death_before_the_first_step(self):
        """A worker dies while workers start, connect, or prepare their net: the remaining workers train.
        """
        for number, delay in enumerate((0.0, 0.03, 0.06, 0.09, 0.12, 0.16, 0.2)):
            with self.subTest(delay=delay):
                self.run_dir = self.folder / f"run{number}"
                self.begin("--elastic-at", "step", "--restart-budget", 0, epochs=SHORT)
                victim = number % 2
                _, pid = wait_until(lambda: self.processes(TRAIN).get(victim))
                time.sleep(delay)
                os.kill(pid, signal.SIGKILL)
                self.check_end(epochs=SHORT)
                self.assertIn(f"warning: worker {victim} on", self.job.err)
                self.assertEqual(self.events()[0]["event"], "start")

    @at_night
    def test_death_before_the_first_step_while_one_joins(self):
        """A new worker joins when its net is ready. That takes a while, and a worker that is stopped delays it
        further."""
        for number, delay in enumerate((0.05, 0.07, 0.09, 0.12)):
            with self.subTest(delay=delay):
                self.run_dir = self.folder / f"run{number}"
                (self.elastic / "host_worker").unlink(missing_ok=True)
                self.begin("--elastic-at", "step", "--restart-budget", 0, epochs=1, program=("--depth", 164))
                victim = number % 2
                _, pid = wait_until(lambda: self.processes(TRAIN).get(victim))
                time.sleep(delay)
                os.kill(pid, signal.SIGSTOP)
                wait_until((self.elastic / "host_worker").exists)
                self.edit([0, 1, 2])
                with contextlib.suppress(AssertionError):  # fails if the job had not begun
                    wait_until(lambda: self.processes(TRAIN).get(2), 2)
                time.sleep(0.7)
                with contextlib.suppress(ProcessLookupError):  # fails if the job has already removed the worker
                    os.kill(pid, signal.SIGKILL)
                self.check_end(epochs=1)
                self.assertIn(f"warning: worker {victim} on", self.job.err)

    def test_worker_that_cannot_write_its_audit(self):
        """A worker ends after a step that all workers have completed, but before it has written the samples of that
        step to the audit. Rank 0 writes these samples."""
        audit = self.run_dir / "audit-rank1.txt"
        self.run_dir.mkdir()
        audit.symlink_to("/dev/full")
        self.begin("--elastic-at", "step", "--restart-budget", 0, program=("--resume",))  # the folder exists
        self.finish(self.job)
        audit.unlink()
        self.check_end()
        self.assertRegex(self.job.err, r"\[1\] train_cifar10: .*audit-rank1\.txt")
        self.assertIn(f"warning: worker 1 on {self.cluster.address(1)}: exit code 3; the other workers continue", self.job.err)

    def test_stopped_coordinator_while_it_saves(self):
        """A paused coordinator is removed from the job. Files that it writes later replace no file of the remaining
        workers."""
        self.begin("--elastic-at", "step", "--rank-timeout", 6, "--restart-budget", 0, epochs=100000,
                   program=("--save-steps", 1, "--keep", 3))
        self.wait_for_steps(3)
        _, pid = self.processes(TRAIN)[0]
        agent = parent(pid)
        folder = self.run_dir / "checkpoints"

        def saves():
            return any(folder.glob(".tmp-step-*"))
        while True:
            self.assertIsNone(self.job.poll())
            if not saves():
                continue
            os.kill(pid, signal.SIGSTOP)
            if saves():
                break
            os.kill(pid, signal.SIGCONT)
        os.kill(agent, signal.SIGSTOP)  # otherwise the agent kills the worker when the job removes it
        try:
            wait_until(lambda: any(e["event"] == "members" for e in self.events()))
            os.kill(pid, signal.SIGCONT)
            self.wait_for_steps(10)
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_until(lambda: any(e["event"] == "epoch" and e["generation"] == 2 for e in self.events()))
        self.wait_for_steps(5)
        self.stop()
        self.assertEqual({p.name.split(".g")[1] for p in folder.glob("step-*")}, {"2"})
        self.assertTrue((folder / "best.g2.json").exists())
        generations = [e["generation"] for e in self.events() if e["event"] != "start"]
        self.assertEqual(generations, sorted(generations))
        last = [e for e in self.events() if e["event"] == "step"][-1]
        self.begin(epochs=last["epoch"] + 1, program=("--resume",))
        self.finish(self.job)
        self.assertIn(f"this run continues from {folder}/step-{last['step']:09}.g2", self.job.out)
        self.assertEqual(self.job.returncode, 0, self.job.out + self.job.err)


if __name__ == "__main__":
    main(3)
