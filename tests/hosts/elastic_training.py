# SPDX-License-Identifier: MIT
"""Base class for tests of elastic training: a job of train_cifar10 on several hosts, its hosts file, its log, and
the samples in its audit."""
import json
import re
import signal
import subprocess
from pathlib import Path

from hosts_case import BUILD, HostsCase
from launch_case import wait_until

TRAIN = str(BUILD / "examples" / "train_cifar10")
CHECK_AUDIT = str(BUILD / "tools" / "tutti-check-audit")
IMAGES, BATCH, EPOCHS = 960, 8, 6
SHORT = 3  # for events before the first step
LONG = 4 * EPOCHS  # takes longer than the events of a test, even on a busy machine


def check_audit(run, *options):
    """Runs tutti-check-audit on a run. Returns its exit code and its output."""
    done = subprocess.run([CHECK_AUDIT, *map(str, options), str(run)], text=True, capture_output=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


class OutputInFiles:
    """Writes the output of a job to files, which a test can read while the job runs. With a pipe the launcher keeps the
    output until the test reads it, and a job with much output waits for that."""
    def start(self, *arguments, **more):
        out, err = (open(self.folder / name, "w", encoding="utf-8") for name in ("out", "err"))
        with out, err:
            process = super().start(*arguments, stdout=out, stderr=err, **more)
        process.stdout, process.stderr = (open(self.folder / name, encoding="utf-8", errors="replace") for name in ("out", "err"))
        return process

    def finish(self, process, timeout=900):
        process.wait(timeout)
        for stream in (process.stdout, process.stderr):
            stream.seek(0)
        process.out, process.err = process.stdout.read(), process.stderr.read()
        self.jobs += re.findall(r"job ([0-9a-f]{16})", process.err)
        return process


class ElasticTrainingCase(OutputInFiles, HostsCase):
    OPTIONS, STRATEGY = (), ()  # options of the launcher, and of the program

    def setUp(self):
        super().setUp()
        self.environment.pop("TUTTI_DATA", None)
        self.elastic = self.folder / "elastic"
        self.elastic.mkdir()
        self.run_dir = self.folder / "run"
        self.job = None

    def begin(self, *options, epochs=EPOCHS, hosts=(0, 1), program=()):
        self.tell()  # for a subtest that has failed
        self.job = self.start("--elastic", "--elastic-dir", self.elastic, *self.OPTIONS, *options, "-n", len(hosts), "-H",
                              self.cluster.hosts_file(1, hosts), TRAIN, "--dataset", "synthetic", "--num-examples", IMAGES,
                              "--image-shape", "3,16,16", "--depth", 8, "--batch-size", BATCH, "--threads", 1,
                              "--epochs", epochs, "--disp-batches", 1, "--audit", "--run-dir", self.run_dir, *self.STRATEGY,
                              *program)
        self.addCleanup(self.tell)

    def tell(self):
        """Kills a job that the test has not ended, and prints its output."""
        if self.job is not None and not hasattr(self.job, "err"):
            self.job.kill()
            self.finish(self.job)
            print(self.job.out[-3000:], self.job.err[-6000:], sep="\n")

    def events(self):
        log = self.run_dir / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for_steps(self, more):
        """Waits until the job has done this number of further steps."""
        def step():
            return max((e["step"] for e in self.events() if e["event"] == "step"), default=0)
        if self.job.poll() is not None:
            self.finish(self.job)
            self.fail(self.job.out[-3000:] + self.job.err)
        goal = step() + more
        wait_until(lambda: self.job.poll() is not None or step() >= goal)

    def wait_for_epochs(self, more):
        """Waits until the job has completed this number of further epochs."""
        def epoch():
            return max((e["epoch"] for e in self.events() if e["event"] == "epoch"), default=0)
        goal = epoch() + more
        wait_until(lambda: self.job.poll() is not None or epoch() >= goal)

    def count(self):
        """Returns how many samples were lost, and seen twice. Lost samples of the last, incomplete epoch do not
        count."""
        code, said = check_audit(self.run_dir)
        self.assertIn(code, (0, 3), said)
        epochs = re.findall(r"^epoch \d+: (\d+) of \d+ samples(?:, (\d+) seen again)?", said, re.M)
        self.assertTrue(epochs, said)
        lost = sum(IMAGES - int(there) for there, _ in epochs[:-1])
        twice = sum(int(again or 0) for _, again in epochs)
        return lost, twice

    def edit(self, hosts):
        new = self.elastic / "new"
        new.write_text(Path(self.cluster.hosts_file(1, hosts)).read_text())
        new.rename(self.elastic / "host_worker")

    def logged(self):
        log = self.elastic / "host_worker_log"
        return [line.split()[1:3] for line in log.read_text().splitlines()] if log.exists() else []

    def hosts_join_and_leave(self, epochs):
        """A host joins. Then the host on which the job started leaves."""
        self.begin("--elastic-at", "step", epochs=epochs)
        self.wait_for_steps(5)
        self.edit([0, 1, 2])
        wait_until(lambda: self.logged() == [["ADDED", self.cluster.address(2)]])
        self.wait_for_steps(5)
        self.edit([1, 2])
        wait_until(lambda: self.logged()[1:] == [["REMOVED", self.cluster.address(0)]])

    def hosts_join_and_leave_until_stopped(self):
        """Stops the job when it has completed the epoch of the last event. It has seen each sample once per complete epoch."""
        self.hosts_join_and_leave(epochs=100000)
        self.wait_for_epochs(2)
        self.stop()
        self.assertEqual(self.count(), (0, 0))

    def stop(self):
        """Ends a running job as its user does."""
        self.job.send_signal(signal.SIGINT)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 130, self.job.out + self.job.err)
        self.assertIn("state saved", self.job.out)

    def check_end(self, epochs=EPOCHS, steps=None):
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 0, self.job.out + self.job.err)
        self.assertEqual(check_audit(self.run_dir, "--epochs", epochs)[0], 0, check_audit(self.run_dir))
        last = [e for e in self.events() if e["event"] == "epoch"][-1]
        self.assertEqual(last["epoch"], epochs)
        if steps is None:
            steps = epochs * IMAGES // (2 * BATCH)
        self.assertEqual(last["step"], steps)
