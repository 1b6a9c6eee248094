#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests that a cluster of several hosts has all its parts, and that no part is left, however the program ends."""
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from netns_cluster import SSH_PORT, NetnsCluster, Unavailable, remove_stale, skip, traces

# Makes a cluster in a separate process, which prints that it is ready, and then waits or runs the given code.
PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
from netns_cluster import NetnsCluster
with NetnsCluster(2) as cluster:
    cluster.run(0, ["sh", "-c", "sleep 1000 & setsid sleep 1000 & :"], stdout=-3, stderr=-3)
    print(cluster.folder, flush=True)
    exec(sys.argv[2])
"""


class Leaving(unittest.TestCase):
    def start(self, then):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(Path(__file__).parent), then],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        folder = process.stdout.readline().strip()
        self.assertTrue(folder and Path(folder).is_dir(), folder)
        self.assertTrue(traces(process.pid))
        return process, Path(folder)

    def check_gone(self, process, folder):
        process.communicate(timeout=300)
        self.assertEqual(traces(process.pid), [])
        self.assertFalse(folder.exists())

    def test_normal_end(self):
        process, folder = self.start("pass")
        self.check_gone(process, folder)
        self.assertEqual(process.returncode, 0)

    def test_exception(self):
        process, folder = self.start("raise RuntimeError('on purpose')")
        self.check_gone(process, folder)
        self.assertEqual(process.returncode, 1)

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process, folder = self.start("time.sleep(1000)")
            process.send_signal(number)
            self.check_gone(process, folder)
            self.assertNotEqual(process.returncode, 0)

    def test_next_cluster_removes_a_killed_one(self):
        process, folder = self.start("time.sleep(1000)")
        process.kill()
        process.communicate(timeout=300)
        self.assertTrue(traces(process.pid))
        remove_stale()
        for _ in range(1200):
            if not traces(process.pid):
                break
            time.sleep(0.05)
        self.assertEqual(traces(process.pid), [])
        subprocess.run(["rm", "-rf", "--", str(folder)], check=True)


class Hosts(unittest.TestCase):
    def test_each_host_is_separate(self):
        with NetnsCluster(3, private=["/mnt"]) as cluster:
            for host in range(3):
                done = subprocess.run(cluster.ssh(host, "hostname; ip -o -4 addr show eth0; cat /etc/hosts; echo x >/mnt/x"),
                                      capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.splitlines()[0], cluster.names[host])
                self.assertIn(f"{cluster.address(host)}/24", done.stdout)
                self.assertIn(f"{cluster.address(2)} {cluster.names[2]}", done.stdout)
            self.assertFalse(Path("/mnt/x").exists())
            self.assertEqual(cluster.run(0, ["cat", "/mnt/x"], capture_output=True).stdout, b"x\n")
            # Hosts reach one another until a link is cut.
            reach = ["ssh-keyscan", "-T", "3", "-t", "ed25519", "-p", str(SSH_PORT), cluster.address(1)]
            self.assertIn(b"ed25519", cluster.run(0, reach, capture_output=True).stdout)
            cluster.cut(1)
            self.assertEqual(cluster.run(0, reach, capture_output=True).stdout, b"")
            cluster.heal(1)
            self.assertIn(b"ed25519", cluster.run(0, reach, capture_output=True).stdout)
            # A host accepts only an authorized key.
            (cluster.folder / "authorized_keys").write_text((cluster.folder / "wrong_id.pub").read_text())
            refused = subprocess.run(cluster.ssh(0, "true"), capture_output=True, text=True, timeout=300)
            self.assertEqual(refused.returncode, 255, refused.stderr)
            self.assertIn("Permission denied", refused.stderr)
        self.assertEqual(traces(os.getpid()), [])

    def test_hosts_file(self):
        with NetnsCluster(2) as cluster:
            self.assertEqual(Path(cluster.hosts_file([1, 4])).read_text(),
                             f"{cluster.address(0)} slots=1\n{cluster.address(1)} slots=4\n")
            self.assertEqual(Path(cluster.hosts_file(2, hosts=[1], names=True)).read_text(), f"{cluster.names[1]} slots=2\n")


if __name__ == "__main__":
    try:
        with NetnsCluster(1):
            pass
    except Unavailable as e:
        skip(str(e))
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
