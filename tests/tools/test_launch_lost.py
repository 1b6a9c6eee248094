#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests a training with parameter servers in which a process is killed or stopped: the error names it, and the rest
end."""
import os
import signal
import subprocess
import sys

from launch_case import BUILD, LaunchCase, main

PROGRAM = str(BUILD / "examples" / "train_cifar10")


class Lost(LaunchCase):
    def lose(self, process, number):
        job = self.start("-n", 2, "-s", 1, "--rank-timeout", 4, PROGRAM, "--strategy", "ps", "--dataset", "synthetic",
                         "--num-examples", 25600, "--image-shape", "3,16,16", "--depth", 8, "--epochs", 1000, "--threads", 1,
                         "--run-dir", f"{process} {number}", "--disp-batches", 1)
        for line in job.stdout:
            if "loss" in line:
                break
        path = next((self.runtime / "tutti" / "jobs").glob(f"*/{process.replace(' ', '-')}.process"))
        os.kill(int(path.read_text().split()[0]), number)
        job.stdout.read()
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        return self.message(job)

    def test_killed(self):
        for process in ("worker 0", "worker 1", "server 0"):
            self.assertIn(f"[{process} on localhost] expected exit code 0, got its end by SIGKILL", self.lose(process, signal.SIGKILL))

    def test_stopped(self):
        for process in ("worker 0", "worker 1", "server 0"):
            self.assertIn(f"[{process} on localhost] expected a sign of life within 4 s, got none", self.lose(process, signal.SIGSTOP))


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print(f"SKIP: no {PROGRAM}; CLI11 is missing")
        sys.exit(77)
    if "--ps-plain" not in subprocess.run([PROGRAM, "--help-all"], capture_output=True, text=True).stdout:
        print("SKIP: a build without ZeroMQ (Debian: apt-get install libzmq3-dev)")
        sys.exit(77)
    main()
