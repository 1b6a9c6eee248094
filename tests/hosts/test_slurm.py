#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests train_cifar10 and tutti-launch in jobs of Slurm on two nodes."""
import os
import re
import sys
import time
import unittest
from pathlib import Path

import netns_cluster
import slurm as slurm_module

BUILD = Path(os.environ["TUTTI_BUILD_DIR"])
TRAIN, LAUNCH = str(BUILD / "examples" / "train_cifar10"), str(BUILD / "tools" / "tutti-launch")
EXAMPLES = 96
SMALL = ["--dataset", "synthetic", "--num-examples", EXAMPLES, "--image-shape", "3,16,16", "--depth", 8, "--batch-size", 8,
         "--threads", 1, "--seed", 3, "--disp-batches", 1]
SLURM = None


class SlurmJob(unittest.TestCase):
    def setUp(self):
        self.run_dir = SLURM.folder / self.id().rsplit(".", 1)[-1]

    def train(self, *more, run=None):
        return [TRAIN, *SMALL, "--epochs", 1, "--run-dir", run or self.run_dir, *more]

    def run_job(self, *argv, host=0, code=0):
        done = SLURM.run(argv, host=host)
        self.assertEqual(done.returncode, code, f"{done.stdout}{done.stderr}\n{SLURM.logs()}")
        return done.stdout + done.stderr

    def batch(self, *script, options=("-N2", "-n4"), code=0):
        file = SLURM.folder / f"{self.run_dir.name}.sh"
        file.write_text("#!/bin/sh\n" + "\n".join(script) + "\n")
        out = file.with_suffix(".out")
        out.unlink(missing_ok=True)
        done = SLURM.run(["sbatch", "--wait", "-o", out, *options, file])
        said = out.read_text() if out.exists() else done.stderr
        self.assertEqual(done.returncode, code, f"{done.stderr}{said}\n{SLURM.logs()}")
        return said

    def stopped(self, command, *signal):
        """Runs a batch script until it trains, sends it the signal, and returns the steps of the checkpoints that exist
        then."""
        file = SLURM.folder / f"{self.run_dir.name}.sh"
        file.write_text(f"#!/bin/sh\n{command}\n")
        out = file.with_suffix(".out")
        job = self.run_job("sbatch", "--parsable", "-N2", "-n2", "-o", out, file).strip()
        log = self.run_dir / "log.jsonl"
        wait_until(lambda: log.exists() and '"step":3,' in log.read_text())
        self.run_job("scancel", *signal, job)
        wait_until(lambda: not re.search("JobState=(RUNNING|COMPLETING)", self.run_job("scontrol", "show", "job", job)))
        self.assertIn("ExitCode=143:0", self.run_job("scontrol", "show", "job", job), out.read_text())
        steps = [int(p.name[5:14]) for p in (self.run_dir / "checkpoints").glob("step-*")]
        self.assertTrue(steps, out.read_text())
        return steps

    def check_one_net(self, ranks, run=None):
        run = run or self.run_dir
        self.assertIn(f'"world":{ranks},', (run / "log.jsonl").read_text())
        seen = sorted(int(n) for f in run.glob("audit-rank*.txt") for line in f.read_text().splitlines()
                      if line.startswith("0 ") for n in line.split(": ", 1)[1].split())
        self.assertEqual(seen, list(range(EXAMPLES)))
        self.assertEqual(len(list(run.glob("audit-rank*.txt"))), ranks)

    def refused(self, *argv, says, host=0):
        said = self.run_job(*argv, host=host, code=2)
        for text in says:
            self.assertIn(text, said)
        self.assertFalse(self.run_dir.exists(), said)
        return said


def words(argv):
    return " ".join(str(a) for a in argv)


class Srun(SlurmJob):
    def test_ranks_of_one_net_by_pmix(self):
        said = self.run_job("srun", "--mpi=pmix", "-N2", "-n4", *self.train("--audit"))
        self.assertIn("strategy mpi, 4 ranks", said)
        self.assertEqual(said.count("epoch 1/1"), 1, said)
        self.check_one_net(4)

    def test_one_task_trains_alone(self):
        self.run_job("srun", "-n1", *self.train("--audit"))
        self.check_one_net(1)

    def test_without_pmix_no_process_trains_alone(self):
        for strategy in ([], ["--strategy", "mpi"], ["--strategy", "gloo"], ["--kv-store", "dist_async"], ["--strategy", "solo"]):
            self.refused("srun", "--mpi=none", "-n3", *self.train(*strategy),
                         says=["[environment SLURM_STEP_NUM_TASKS]", "'srun --mpi=pmix -n 3'", "'tutti-launch -n 3'"])
        self.refused("srun", "--mpi=none", "-n1", *self.train("--strategy", "mpi"), says=["[--strategy mpi]", "'srun --mpi=pmix'"])

    def test_requests_that_need_tutti_launch(self):
        for options in (["--strategy", "gloo"], ["--strategy", "ps"], ["--elastic-batch", "worker"], ["--spot-notice", "file"]):
            self.refused("srun", "--mpi=pmix", "-n2", *self.train(*options), says=["tutti-launch"])
        self.refused("srun", "--mpi=pmix", "-n2", *self.train("--strategy", "gloo"), says=["got srun"])
        self.refused("srun", "--mpi=none", "-n2", LAUNCH, "-n", 2, *self.train(),
                     says=["call tutti-launch without srun"])

    def test_run_stops_in_order_and_continues(self):
        # With --signal=TERM@60 Slurm sends this signal to all processes of srun before the time limit.
        steps = self.stopped(f"srun --mpi=pmix {words(self.train('--epochs', 100000))}", "--signal=TERM")
        said = self.run_job("srun", "--mpi=pmix", "-N2", "-n2", *self.train("--epochs", 100000, "--resume", "--max-steps", max(steps) + 2))
        self.assertIn(f"this run continues from {self.run_dir}/checkpoints/step-", said)
        self.assertIn(f"done: {max(steps) + 2} steps", said)


class Launch(SlurmJob):
    def test_batch_script_over_all_nodes(self):
        for strategy, ranks in (("gloo", 4), ("ps", 4), ("mpi", 4)):
            run = self.run_dir.with_name(f"batch-{strategy}")
            said = self.batch(f"exec {LAUNCH} {words(self.train('--strategy', strategy, '--audit', run=run))}")
            self.assertIn("4 workers", said)
            self.assertIn("on 2 hosts, " + ("mpi" if strategy == "mpi" else "srun"), said)
            self.check_one_net(ranks, run)

    def test_launcher_on_a_host_that_is_not_a_node(self):
        self.run_job("salloc", "-N2", "-n2", LAUNCH, *self.train("--strategy", "gloo", "--audit"), host=None)
        self.check_one_net(2)

    def test_batch_script_stops_in_order(self):
        # With --signal=B:TERM@60 Slurm sends it only to the batch script.
        self.stopped(f"exec {LAUNCH} {words(self.train('--strategy', 'gloo', '--epochs', 100000))}", "--batch", "--signal=TERM")

    def test_node_of_the_allocation_joins(self):
        file = SLURM.folder / "joins.sh"
        elastic = SLURM.folder / "elastic"
        elastic.mkdir()
        command = [LAUNCH, "-n", 1, "--elastic", "--elastic-dir", elastic, "--elastic-at", "step",
                   *self.train("--strategy", "gloo", "--epochs", 100000)]
        file.write_text(f"#!/bin/sh\nexec {words(command)}\n")
        job = self.run_job("sbatch", "--parsable", "-N2", "-n2", "-o", file.with_suffix(".out"), file).strip()
        log, joined = self.run_dir / "log.jsonl", elastic / "host_worker_log"
        wait_until(lambda: log.exists() and '"step":3,' in log.read_text())
        here = (elastic / "host_worker").read_text().split()[0]
        other = next(n for n in SLURM.cluster.names if n != here)
        (elastic / "new").write_text(f"{here}\n{other}\n")
        (elastic / "new").rename(elastic / "host_worker")
        wait_until(lambda: f"ADDED {other}" in joined.read_text())
        self.run_job("scancel", "--batch", "--signal=TERM", job)
        wait_until(lambda: not re.search("JobState=(RUNNING|COMPLETING)", self.run_job("scontrol", "show", "job", job)))
        self.assertIn("ExitCode=143:0", self.run_job("scontrol", "show", "job", job))


def wait_until(done, seconds=300):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise AssertionError("it did not happen\n" + SLURM.logs())
        time.sleep(0.1)


if __name__ == "__main__":
    if slurm_module.missing():
        netns_cluster.skip(slurm_module.missing())
    for needed in (TRAIN, LAUNCH):
        if not os.access(needed, os.X_OK):
            netns_cluster.skip(f"no {needed}; the examples or CLI11 are missing")
    try:
        with netns_cluster.NetnsCluster(2) as made, slurm_module.Slurm(made, cpus=8) as SLURM:
            program = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False)
    except netns_cluster.Unavailable as e:
        netns_cluster.skip(str(e))
    netns_cluster.finish(program)
