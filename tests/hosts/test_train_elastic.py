#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""train_cifar10 while its workers come and go in order, and every sample is seen once an epoch. What else can happen is in
elastic_scenarios.py."""
import os
import signal

from elastic_training import BATCH, IMAGES, TRAIN, ElasticTrainingCase, samples_by_epoch
from hosts_case import main
from launch_case import wait_until


class ElasticTraining(ElasticTrainingCase):
    def test_hosts_join_and_leave(self):
        self.begin("--elastic-at", "step")
        self.wait_for_steps(5)
        self.edit([0, 1, 2])
        wait_until(lambda: self.logged() == [["ADDED", self.bed.address(2)]], 60)
        self.wait_for_steps(5)
        self.edit([1, 2])
        wait_until(lambda: self.logged()[1:] == [["REMOVED", self.bed.address(0)]], 60)
        self.check_end()

    def test_spot_instance_leaves(self):
        """A worker that gets SIGTERM leaves in order, at once, and the job goes on."""
        self.begin()
        self.wait_for_steps(5)
        _, pid = self.processes(TRAIN)[1]
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: self.logged() == [["REMOVED", self.bed.address(1)]], 60)
        self.check_end()
        self.assertIn("left the job", self.job.out)

    def test_all_leave(self):
        """Who would leave nobody behind saves, as in any job that is stopped."""
        self.begin(hosts=(0,), epochs=1000)
        self.wait_for_steps(5)
        _, pid = self.processes(TRAIN)[0]
        os.kill(pid, signal.SIGTERM)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 143, self.job.out + self.job.err)
        self.assertIn("state saved", self.job.out)

    def test_one_grows_at_epochs(self):
        """A job that began with one worker; the launcher's signal then stops all."""
        self.begin(hosts=(0,), epochs=100000)
        self.wait_for_steps(3)
        self.edit([0, 1])
        wait_until(lambda: self.logged() == [["ADDED", self.bed.address(1)]], 90)
        self.wait_for_steps(3)
        self.job.send_signal(signal.SIGINT)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 130, self.job.out + self.job.err)
        self.assertIn("state saved", self.job.out)
        joined = [e for e in self.events() if e["event"] == "members"]
        self.assertEqual([e["ranks"] for e in joined], [2])
        self.assertEqual(joined[0]["step"] % (IMAGES // BATCH), 0)
        for epoch, seen in sorted(samples_by_epoch(self.run_dir).items())[:-1]:
            self.assertEqual(sorted(seen), list(range(IMAGES)), f"epoch {epoch}")


if __name__ == "__main__":
    main(3)
