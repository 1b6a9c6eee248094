#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests train_cifar10 as six ranks on three hosts: it learns the same as six ranks on one host, and ends correctly."""
import json
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

from netns_cluster import runs
from hosts_case import BUILD, HostsCase, main
from launch_case import wait_until

TRAIN = str(BUILD / "examples" / "train_cifar10")
STEPS = 20


class Train(HostsCase):
    def setUp(self):
        super().setUp()
        net = f"{self.cluster.net}.0/24"
        # Settings of a machine's administrator. Ranks that share two cores must not spin inside MPI.
        self.environment.update(OMPI_MCA_oob_tcp_if_include=net, OMPI_MCA_btl_tcp_if_include=net,
                                OMPI_MCA_mpi_yield_when_idle="1")
        self.environment.pop("TUTTI_DATA", None)

    def command(self, run, *more):
        """Returns the command for a net of 78,000 parameters, in about four buckets, of which the first one has the
        step's flags."""
        return [TRAIN, "--dataset", "synthetic", "--num-examples", 960, "--image-shape", "3,16,16", "--depth", 8,
                "--network", "resnet_postact", "--batch-size", 4, "--threads", 1, "--seed", 3, "--disp-batches", 1, "--lr", 0.01, "--warmup-epochs", 0,
                "--kv-store", "dist_device_sync", "--run-dir", self.folder / run, *more]

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

    def test_several_hosts_learn_the_same_as_one_host(self):
        # With this algorithm, rounding changes the sign of the fewest activations. The net sees few images.
        three = self.train("three", self.cluster.hosts_file(2), "--convolution", "direct")
        one = self.train("one", None, "--convolution", "direct")
        self.assertLess(sum(three[-5:]), sum(three[:5]))
        # Rounding differences grow from step to step, which depends on the compilation of the program.
        for step, (a, b) in enumerate(zip(three, one)):
            self.assertLess(abs(a - b), (1e-5 if step < 5 else 1e-4) * abs(b), f"step {step}: {a} and {b}")

    def test_first_command_of_a_cluster(self):
        """Tests launch.py -n N -H hosts train_cifar10 --network resnet ... --kv-store dist_device_sync. Without further
        options it starts N ranks. This host is last in the file, but has rank 0 and therefore the run's folder."""
        hosts = self.folder / "hosts"
        hosts.write_text(f"root@{self.cluster.address(0)}\n{self.cluster.names[1]}\nlocalhost\n")
        for gpus in (["--gpus", ""], ["--gpus"]):
            done = self.launch("-n", 3, "-H", hosts, TRAIN, *gpus, "--network", "resnet", "--num-layers", 8, "--kv-store",
                               "dist_device_sync", "--dataset", "synthetic", "--num-examples", 96, "--image-shape",
                               "3,16,16", "--batch-size", 4, "--max-steps", 2, "--run-dir", f"first{len(gpus)}")
            self.assertIn("3 workers on 3 hosts, mpi; rank 0 on localhost", done.err)
            self.assertIn("strategy mpi, 3 ranks", done.out)
            starts = [e for e in map(json.loads, (self.folder / f"first{len(gpus)}" / "log.jsonl").read_text().splitlines())
                      if e["event"] == "start"]
            self.assertEqual([e["world"] for e in starts], [3])

    def test_launcher_that_starts_no_ranks(self):
        done = self.launch("--launcher", "ssh", "-H", self.cluster.hosts_file(), *self.command("no"), code=2)
        self.assertIn("[--launcher] expected mpi", self.message(done))
        # If a program does not answer how to start it, the launcher starts it unchanged, and the program refuses to
        # run.
        words = shlex.join(str(w) for w in self.command("no"))
        done = self.launch("-H", self.cluster.hosts_file(), "sh", "-c", words, code=2)
        self.assertIn("[--strategy mpi] expected 3 ranks, because 3 processes were started, got 1 rank. hint: "
                      "'tutti-launch -n 3 --launcher mpi'", done.err)
        self.assertFalse((self.folder / "no").exists())

    def test_without_hierarchy_the_bits_are_those_of_one_host(self):
        three = self.train("three", self.cluster.hosts_file(2), "--no-hierarchical", "--no-shared-memory")
        one = self.train("one", None, "--no-hierarchical", "--no-shared-memory")
        self.assertEqual(three, one)

    def run_long(self, *options):
        """Starts six ranks that train without an end. Returns {host: process ids of its ranks}."""
        job = self.start("--mpi-arg", "--mca", "--mpi-arg", "btl", "--mpi-arg", "tcp,self", *options, "-H",
                         self.cluster.hosts_file(2), *self.command("long", "--epochs", 1000, "--comm-deadline", 60))
        log = self.folder / "long" / "log.jsonl"
        wait_until(lambda: job.poll() is not None or (log.exists() and '"step":5,' in log.read_text()))
        if job.poll() is not None:
            self.finish(job)
            self.fail(job.err)
        ranks = [self.ranks_on(h) for h in range(self.cluster.count)]
        self.assertEqual([len(r) for r in ranks], [2, 2, 2])
        return job, ranks

    def ranks_on(self, host):
        """Returns {local rank: process id} of the ranks on a host, from the launcher's variables."""
        found = {}
        for pid in self.cluster.pids(host):
            try:
                if not runs(pid, TRAIN):
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
        self.assertLess(time.monotonic() - start, 60)  # shorter than the deadline of a wait
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(self.message(job), rf"\[worker 3 on {self.cluster.address(1)}\].*SIGKILL.*step \d+, bucket \d ")

    def test_stopped_rank(self):
        job, ranks = self.run_long("--stall-warning", 2, "--stall-deadline", 6)
        os.kill(ranks[2][0], signal.SIGSTOP)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(job.err, rf"warning: worker 4 on {self.cluster.address(2)} .*step \d+, bucket \d")
        self.assertRegex(self.message(job), rf"\[worker 4 on {self.cluster.address(2)}\].*SIGSTOP")

    def test_cut_link(self):
        job, _ = self.run_long("--host-timeout", 5)
        time.sleep(3)  # until the launcher has reports of each rank
        self.cluster.cut(1)
        try:
            self.finish(job)
            self.assertEqual(job.returncode, 5, job.err)
            self.assertRegex(self.message(job), rf"\[host {self.cluster.address(1)}\].*last reported at step \d+, bucket \d")
            wait_until(lambda: not self.ranks_on(1))
        finally:
            self.cluster.heal(1)

    def test_other_options_on_one_rank(self):
        script = self.folder / "run.sh"
        words = shlex.join(str(w) for w in self.command("differ"))
        script.write_text(f"if [ $TUTTI_RANK = 5 ]; then lr=0.02; else lr=0.01; fi\nexec {words} --lr $lr\n")
        done = self.launch("--launcher", "mpi", "--mpi-arg", "--mca", "--mpi-arg", "btl", "--mpi-arg", "tcp,self", "-H",
                           self.cluster.hosts_file(2), "sh", script, code=2)
        self.assertRegex(done.err, r"rank 5 on .*--lr")


if __name__ == "__main__":
    if shutil.which("mpirun") is None or not os.access(TRAIN, os.X_OK):
        sys.exit("no mpirun, or no train_cifar10 (Debian: apt-get install openmpi-bin libopenmpi-dev libcli11-dev)")
    main(3)
