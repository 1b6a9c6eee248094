#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests train_cifar10 with parameter servers on three hosts: encrypted between hosts, with the bits of one host. Errors
name lost processes."""
import hashlib
import os
import re
import signal
import sys
import time
from pathlib import Path

from hosts_case import BUILD, HostsCase, main
from launch_case import wait_until

TRAIN = str(BUILD / "examples" / "train_cifar10")


class Servers(HostsCase):
    def setUp(self):
        super().setUp()
        self.environment.pop("TUTTI_DATA", None)

    def command(self, run, *more):
        return [TRAIN, "--dataset", "synthetic", "--num-examples", 240, "--image-shape", "3,16,16", "--depth", 8,
                "--batch-size", 8, "--threads", 1, "--seed", 3, "--disp-batches", 1, "--strategy", "ps", "--run-dir",
                self.folder / run, *more]

    def weights(self, run, step):
        file = self.folder / run / "checkpoints" / f"step-{step:09d}" / "model.safetensors"
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def test_several_hosts_learn_the_same_as_one_host(self):
        one = self.launch("-n", 3, "-s", 2, *self.command("one", "--epochs", 1))
        self.assertIn("note: parameter server over windows, 2 servers", one.out)
        for run, words, said in (("keys", [], "ZeroMQ with CURVE"), ("plain", ["--ps-plain"], "ZeroMQ")):
            done = self.launch("-n", 3, "-s", 2, "-H", self.cluster.hosts_file(2), *self.command(run, "--epochs", 1, *words))
            # Both servers are on the host of rank 0.
            self.assertIn(f"note: parameter server over {said}, 2 servers, windows to 2 on this host", done.out)
            self.assertEqual(self.weights(run, 10), self.weights("one", 10), run)

    def run_long(self, run):
        job = self.start("-n", 3, "-s", 2, "-H", self.cluster.hosts_file(2),
                         *self.command(run, "--epochs", 10000, "--comm-deadline", 60))
        log = self.folder / run / "log.jsonl"
        wait_until(lambda: job.poll() is not None or (log.exists() and '"step":5,' in log.read_text()))
        if job.poll() is not None:
            self.finish(job)
            self.fail(job.err)
        return job

    def test_killed(self):
        for role, rank in (("worker", 2), ("server", 1)):
            job = self.run_long(f"killed-{role}")
            host, pid = self.processes(TRAIN, role)[rank]
            os.kill(pid, signal.SIGKILL)
            start = time.monotonic()
            self.finish(job)
            self.assertLess(time.monotonic() - start, 60)  # shorter than the deadline of a wait
            self.assertEqual(job.returncode, 5, job.err)
            self.assertRegex(self.message(job), rf"\[{role} {rank} on {self.cluster.address(host)}\].*SIGKILL")

    # Matches words of 40 characters with several of the signs that are frequent in ZeroMQ's keys and absent from paths
    # and times.
    KEY = re.compile(rb"(?=(?:[^\s]*?[!*?&<>()\[\]{}@%$#^+]){3})(?<!\S)[!-~]{40}(?!\S)")

    def test_keys_are_not_visible(self):
        """No argument, environment or output of a process contains a key."""
        self.assertEqual(len(self.KEY.findall(b"the key rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7 is one")), 1)
        job = self.run_long("keys")
        seen = b""
        for role in ("worker", "server"):
            processes = self.processes(TRAIN, role).values()
            self.assertEqual(len(processes), 3 if role == "worker" else 2)
            for _, pid in processes:
                for file in ("cmdline", "environ"):
                    words = Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")
                    seen += b"\n".join(w.split(b"=", 1)[-1] for w in words) + b"\n"
        job.send_signal(signal.SIGINT)
        self.finish(job)
        self.assertEqual(job.returncode, 130, job.err)
        seen += job.out.encode() + job.err.encode()
        self.assertEqual(self.KEY.findall(seen), [])


if __name__ == "__main__":
    main(3)
