#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests that two hosts can run the scripts of generate-trainer unchanged: encrypted, without showing the secret. Errors
name lost processes."""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from hosts_case import BUILD, HostsCase, main
from launch_case import wait_until

TRAIN = str(BUILD / "examples" / "train_cifar10")
GENERATE = str(BUILD / "tools" / "generate-trainer")
# Writes all bytes that pass a network interface to a file.
CAPTURE = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
s.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
s.bind(("eth0", 0))
print("ready", flush=True)
with open(sys.argv[1], "wb", buffering=0) as f:
    while True:
        f.write(s.recv(1 << 17))
"""


class Scripts(HostsCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.kill_all)

    def generate(self, *more):
        hosts = self.folder / "workers"
        hosts.write_text("".join(f"{self.cluster.address(h)}\n" for h in range(2)))
        done = subprocess.run(
            [GENERATE, "--workers_file_path", hosts, "--worker_count", "2", "--worker_gpu_count", "0",
             "--trainer_script_dir", self.folder / "scripts", "--log_dir", self.folder / "logs", "--training_script",
             TRAIN, "--dataset=synthetic", "--num_examples=240", "--image_shape=3,16,16", "--depth=8", "--batch_size=8",
             "--threads=1", "--seed=3", f"--train_dir={self.folder / 'train'}", *more],
            cwd=self.folder, text=True, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)

    def run_scripts(self):
        """Runs the scripts in a loop over the hosts, as the article does."""
        for host in range(2):
            done = subprocess.run(self.cluster.ssh(host, f"bash {self.folder}/scripts/{self.cluster.address(host)}.sh"),
                                  text=True, capture_output=True, timeout=300)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def processes(self):
        """Returns {name of a process, such as "ps0": process id}."""
        found = {}
        for host in range(2):
            for pid in self.cluster.pids(host):
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                except OSError:
                    continue
                if words[0] == TRAIN:
                    values = dict(w[2:].split("=", 1) for w in words if w.startswith("--") and "=" in w)
                    found[values["job_name"] + values["task_index"]] = pid
        return found

    def kill_all(self):
        for pid in self.processes().values():
            os.kill(pid, signal.SIGKILL)

    def log(self, name):
        file = self.folder / "logs" / name
        return file.read_text(errors="replace") if file.exists() else ""

    def logs(self):
        return "".join(f"--- {n}\n{self.log(n)[-1500:]}\n" for n in ("ps0", "ps1", "worker0", "worker1"))

    def until(self, condition):
        try:
            return wait_until(condition)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.logs()}") from None

    def start_long(self, *more):
        self.generate("--max_steps=100000000", *more)
        self.run_scripts()
        self.until(lambda: all("step 20," in self.log(f"worker{w}") for w in range(2)))
        running = self.processes()
        self.assertEqual(sorted(running), ["ps0", "ps1", "worker0", "worker1"], self.logs())
        return running

    def until_gone(self):
        self.until(lambda: not self.processes())

    def capture(self):
        """Captures the bytes on host 1's interface. Returns a function that ends the capture and returns the bytes."""
        file = self.folder / "capture"
        process = subprocess.Popen(self.cluster.inside(1, [sys.executable, "-c", CAPTURE, str(file)]),
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end_capture, process)
        self.assertEqual(process.stdout.readline(), "ready\n")

        def end():
            self.end_capture(process)
            return file.read_bytes()
        return end

    @staticmethod
    def end_capture(process):
        process.kill()
        process.wait()
        process.stdout.close()

    def test_a_job_and_its_secret(self):
        self.generate("--max_steps=300")
        key = (self.folder / "scripts" / "job.key").read_text().strip()
        self.assertRegex(key, "^[0-9a-f]{64}$")
        self.assertEqual(os.stat(self.folder / "scripts" / "job.key").st_mode & 0o777, 0o600)
        captured = self.capture()
        self.run_scripts()
        seen = b""
        sought = set()
        end = time.monotonic() + 90
        while time.monotonic() < end and "done: " not in self.log("worker0"):
            for name, pid in self.processes().items():
                try:
                    for file in ("cmdline", "environ"):
                        seen += Path(f"/proc/{pid}/{file}").read_bytes()
                    sought.add(name)
                except OSError:
                    pass
            time.sleep(0.05)
        self.until_gone()
        self.assertEqual(len(sought), 4)
        self.assertRegex(self.log("worker0"), r"done: 30\d steps", self.logs())
        self.assertIn("asynchronous parameter server over ZeroMQ with CURVE, 2 servers", self.log("worker0"))
        for worker in range(2):
            self.assertRegex(self.log(f"worker{worker}"), r"(?m)^\S+ \S+: step 20, loss = \d+\.\d\d \(\d+\.\d examples/sec; "
                                                          r"\d+\.\d{3} sec/batch\)$")
        for server in range(2):
            self.assertEqual(self.log(f"ps{server}"), f"server {server} of 2, for 2 workers\n")
        traffic = captured()
        self.assertGreater(len(traffic), 10_000_000)
        self.assertIn(b"CURVE", traffic)
        for text in (b"job/terms", b"tutti\0", b"ps/worker"):
            self.assertNotIn(text, traffic)
        seen += b"".join(self.log(n).encode() for n in ("ps0", "ps1", "worker0", "worker1"))
        seen += b"".join(p.read_bytes() for p in (self.folder / "train").rglob("*") if p.is_file())
        seen += b"".join(p.read_bytes() for p in (self.folder / "scripts").glob("*.sh"))
        for where in (seen, traffic):
            for form in (key.encode(), key.upper().encode(), bytes.fromhex(key)):
                self.assertNotIn(form, where)
        # The same commands continue the run.
        self.run_scripts()
        self.until(lambda: "this run continues from" in self.log("worker0") and "done: " in self.log("worker0"))
        self.until_gone()

    def test_in_clear(self):
        """Without encryption, the capture contains readable text."""
        self.generate("--max_steps=60", "--ps_plain")
        self.assertFalse((self.folder / "scripts" / "job.key").exists())
        captured = self.capture()
        self.run_scripts()
        self.until(lambda: "done: " in self.log("worker0"))
        self.until_gone()
        traffic = captured()
        self.assertIn(b"job/terms", traffic)
        self.assertNotIn(b"CURVE", traffic)

    def named(self, text, names):
        for name in names:
            self.until(lambda n=name: re.search(text, self.log(n)))

    def test_killed(self):
        running = self.start_long()
        os.kill(running["worker1"], signal.SIGKILL)
        self.named(rf"rank 1 on {self.cluster.address(1)} is gone: its connection ended", ["ps0", "ps1"])
        # The other processes continue, and the worker joins again.
        before = self.log("worker0").count("step ")
        self.until(lambda: self.log("worker0").count("step ") > before + 2)
        script = (self.folder / "scripts" / f"{self.cluster.address(1)}.sh").read_text().splitlines()
        again = [line for line in script if "--job_name=worker" in line]
        self.assertEqual(len(again), 1)
        subprocess.run(self.cluster.ssh(1, again[0]), timeout=300, check=True)
        self.until(lambda: "is back" in self.log("ps0") and "step 10," in self.log("worker1"))
        os.kill(running["ps1"], signal.SIGKILL)
        self.named(rf"server 1 (on|at) {self.cluster.address(1)}", ["ps0", "worker0", "worker1"])
        self.until_gone()

    def test_cut_off(self):
        self.start_long("--rank_timeout=4")
        self.cluster.cut(1)
        try:
            self.named(rf"server 1 on {self.cluster.address(1)}", ["ps0"])
            self.named(rf"server 1 (on|at) {self.cluster.address(1)}", ["worker0"])
            self.named(rf"server 0 at {self.cluster.address(0)}", ["worker1", "ps1"])
            self.until_gone()
        finally:
            self.cluster.heal(1)


if __name__ == "__main__":
    if not os.access(TRAIN, os.X_OK):
        print(f"SKIP: no {TRAIN}; CLI11 is missing")
        sys.exit(77)
    main(2)
