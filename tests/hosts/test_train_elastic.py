#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""train_cifar10 while its workers come and go: hosts join and leave, the first worker dies, and every sample is seen
once an epoch."""
import json
import os
import signal
from pathlib import Path

from hosts_case import BUILD, HostsCase, main
from launch_case import wait_until

TRAIN = str(BUILD / "examples" / "train_cifar10")
IMAGES, BATCH, EPOCHS = 960, 8, 6


def samples_by_epoch(run):
    """What the audit's files say was seen, lines that were taken back left out."""
    seen = {}
    for file in run.glob("audit-rank*.txt"):
        lines = []
        for line in file.read_text().splitlines():
            words = line.split()
            if words[0] == "rollback":
                epoch, step = int(words[1]), int(words[2])
                lines = [s for s in lines if s[0] < epoch or (s[0] == epoch and s[1] < step)]
            else:
                lines.append((int(words[0]), int(words[1]), [int(w) for w in words[3:]]))
        for epoch, _, indices in lines:
            seen.setdefault(epoch, []).extend(indices)
    return seen


class ElasticTraining(HostsCase):
    def setUp(self):
        super().setUp()
        self.environment.pop("TUTTI_DATA", None)
        self.elastic = self.folder / "elastic"
        self.elastic.mkdir()
        self.run_dir = self.folder / "run"

    def begin(self, *options, epochs=EPOCHS, hosts=(0, 1)):
        self.job = self.start("--elastic", "--elastic-dir", self.elastic, *options, "-n", len(hosts), "-H",
                              self.bed.hosts_file(1, hosts), TRAIN, "--dataset", "synthetic", "--num-examples", IMAGES,
                              "--image-shape", "3,16,16", "--depth", 8, "--batch-size", BATCH, "--threads", 1,
                              "--epochs", epochs, "--disp-batches", 1, "--audit", "--run-dir", self.run_dir)

    def events(self):
        log = self.run_dir / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for_steps(self, more):
        """Until the job has gone so many steps further."""
        def step():
            return max((e["step"] for e in self.events() if e["event"] == "step"), default=0)
        if self.job.poll() is not None:
            self.finish(self.job)
            self.fail(self.job.err)
        goal = step() + more
        wait_until(lambda: self.job.poll() is not None or step() >= goal, 90)

    def edit(self, hosts):
        new = self.elastic / "new"
        new.write_text(Path(self.bed.hosts_file(1, hosts)).read_text())
        new.rename(self.elastic / "host_worker")

    def logged(self):
        log = self.elastic / "host_worker_log"
        return [line.split()[1:3] for line in log.read_text().splitlines()] if log.exists() else []

    def check_end(self, epochs=EPOCHS):
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 0, self.job.out + self.job.err)
        for epoch, seen in sorted(samples_by_epoch(self.run_dir).items()):
            self.assertEqual(sorted(seen), list(range(IMAGES)), f"epoch {epoch}")
        last = [e for e in self.events() if e["event"] == "epoch"][-1]
        self.assertEqual(last["epoch"], epochs)
        self.assertEqual(last["step"], epochs * IMAGES // (2 * BATCH))

    def test_hosts_join_and_leave(self):
        self.begin("--elastic-at", "step")
        self.wait_for_steps(5)
        self.edit([0, 1, 2])
        wait_until(lambda: self.logged() == [["ADDED", self.bed.address(2)]], 60)
        self.wait_for_steps(5)
        self.edit([1, 2])
        wait_until(lambda: self.logged()[1:] == [["REMOVED", self.bed.address(0)]], 60)
        self.check_end()

    def test_first_worker_dies(self):
        self.begin("--elastic-at", "step", "--restart-budget", 0)
        self.wait_for_steps(5)
        _, pid = self.processes(TRAIN)[0]
        os.kill(pid, signal.SIGKILL)
        self.wait_for_steps(5)
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

    def test_cut_off(self):
        """A host whose link is cut is given up, and writes nothing when it is back."""
        self.begin("--elastic-at", "step", "--rank-timeout", "1.5", "--restart-budget", 0)
        self.wait_for_steps(5)
        _, pid = self.processes(TRAIN)[1]
        self.bed.cut(1)
        try:
            self.wait_for_steps(10)
        finally:
            self.bed.heal(1)
        self.check_end()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 60)

    def test_stopped(self):
        """So is a worker that is stopped, the first one here, and it ends when it goes on."""
        self.begin("--elastic-at", "step", "--rank-timeout", "1.5", "--restart-budget", 0)
        self.wait_for_steps(5)
        _, pid = self.processes(TRAIN)[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            self.wait_for_steps(10)
        finally:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)
        self.check_end()

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
