#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: 2
"""train_cifar10 as six ranks on three hosts: it learns what six ranks of one host learn, and ends as it should."""
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from hosts_case import BUILD, HostsCase, main
from launch_case import wait_until

TRAIN = str(BUILD / "examples" / "train_cifar10")
STEPS = 20


class Train(HostsCase):
    def setUp(self):
        super().setUp()
        self.environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.environment.pop("TUTTI_DATA", None)

    def options(self):
        net = f"{self.bed.net}.0/24"
        # Ranks that share two cores must not spin inside MPI either.
        arguments = ["--mca", "oob_tcp_if_include", net, "--mca", "btl_tcp_if_include", net, "--mca",
                     "mpi_yield_when_idle", "1"]
        return [*super().options(), "--launcher", "mpi", *[w for a in arguments for w in ("--mpi-arg", a)]]

    def command(self, run, *more):
        """A net of 78,000 parameters in four buckets or so: the first one is that of the step's word."""
        return [TRAIN, "--dataset", "synthetic", "--num-examples", 960, "--image-shape", "3,16,16", "--depth", 8,
                "--batch-size", 4, "--threads", 1, "--seed", 3, "--disp-batches", 1, "--lr", 0.01, "--warmup-epochs", 0,
                "--strategy", "mpi",
                "--run-dir", self.folder / run, *more]

    def losses(self, run):
        events = [json.loads(line) for line in (self.folder / run / "log.jsonl").read_text().splitlines()]
        losses = [e["train_loss"] for e in events if e["event"] == "step"]
        self.assertEqual(len(losses), STEPS)
        return losses

    def train(self, run, hosts, *more):
        btl = "tcp,self" if hosts is not None else "vader,self"
        where = ["-H", hosts] if hosts is not None else ["-n", 6]
        done = self.launch("--mpi-arg", "--mca", "--mpi-arg", "btl", "--mpi-arg", btl, *where,
                           *self.command(run, "--max-steps", STEPS, *more))
        self.assertIn("strategy mpi, 6 ranks", done.out)
        return self.losses(run)

    def test_hosts_learn_what_one_host_learns(self):
        three = self.train("three", self.bed.hosts_file(2))
        one = self.train("one", None)
        self.assertLess(sum(three[-5:]), sum(three[:5]))
        for step, (a, b) in enumerate(zip(three, one)):
            self.assertLess(abs(a - b), 1e-5 * abs(b), f"step {step}: {a} and {b}")

    def test_without_hierarchy_the_bits_are_those_of_one_host(self):
        three = self.train("three", self.bed.hosts_file(2), "--no-hierarchical", "--no-shared-memory")
        one = self.train("one", None, "--no-hierarchical", "--no-shared-memory")
        self.assertEqual(three, one)

    def run_long(self, *options):
        """Six ranks that train until something ends them; the process ids of the ranks, by host."""
        job = self.start("--mpi-arg", "--mca", "--mpi-arg", "btl", "--mpi-arg", "tcp,self", *options, "-H",
                         self.bed.hosts_file(2), *self.command("long", "--epochs", 1000, "--comm-deadline", 20))
        log = self.folder / "long" / "log.jsonl"
        wait_until(lambda: job.poll() is not None or (log.exists() and '"step":5,' in log.read_text()), 90)
        if job.poll() is not None:
            self.finish(job)
            self.fail(job.err)
        ranks = [self.ranks_on(h) for h in range(self.bed.count)]
        self.assertEqual([len(r) for r in ranks], [2, 2, 2])
        return job, ranks

    def ranks_on(self, host):
        """By local rank, from what the launcher told them."""
        found = {}
        for pid in self.bed.pids(host):
            try:
                if os.readlink(f"/proc/{pid}/exe") != os.path.realpath(TRAIN):
                    continue
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            found.update({int(w.split(b"=")[1]): pid for w in words if w.startswith(b"TUTTI_LOCAL_RANK=")})
        return [found[r] for r in sorted(found)]

    def test_killed_rank(self):
        job, ranks = self.run_long()
        os.kill(ranks[1][1], signal.SIGKILL)
        start = time.monotonic()
        self.finish(job)
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(self.message(job), rf"\[worker 3 on {self.bed.address(1)}\].*SIGKILL.*step \d+, bucket \d ")

    def test_stopped_rank(self):
        job, ranks = self.run_long("--stall-warning", 2, "--stall-deadline", 6)
        os.kill(ranks[2][0], signal.SIGSTOP)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(job.err, rf"warning: worker 4 on {self.bed.address(2)} .*step \d+, bucket \d")
        self.assertRegex(self.message(job), rf"\[worker 4 on {self.bed.address(2)}\].*SIGSTOP")

    def test_cut_link(self):
        job, _ = self.run_long("--host-timeout", 5)
        time.sleep(3)  # for the launcher to hear of every rank
        self.bed.cut(1)
        try:
            self.finish(job)
            self.assertEqual(job.returncode, 5, job.err)
            self.assertRegex(self.message(job), rf"\[host {self.bed.address(1)}\].*last reported at step \d+, bucket \d")
            wait_until(lambda: not self.ranks_on(1), 30)
        finally:
            self.bed.heal(1)

    def test_other_options_on_one_rank(self):
        script = self.folder / "run.sh"
        words = " ".join(str(w) for w in self.command("differ"))
        script.write_text(f"if [ $TUTTI_RANK = 5 ]; then lr=0.02; else lr=0.01; fi\nexec {words} --lr $lr\n")
        done = self.launch("--mpi-arg", "--mca", "--mpi-arg", "btl", "--mpi-arg", "tcp,self", "-H",
                           self.bed.hosts_file(2), "sh", script, code=2)
        self.assertRegex(done.err, r"rank 5 on .*--lr")


if __name__ == "__main__":
    if shutil.which("mpirun") is None or not os.access(TRAIN, os.X_OK):
        sys.exit("no mpirun, or no train_cifar10 (Debian: apt-get install openmpi-bin libopenmpi-dev libcli11-dev)")
    main(3)
