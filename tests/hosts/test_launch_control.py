#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests the channel to the arbiter over ssh between hosts of a separate network: enrolment, secrecy, silence."""
import os
import signal
from pathlib import Path

from hosts_case import CONTROL_RANK, HostsCase, main


class Control(HostsCase):
    def start_ranks(self, *words):
        job = self.start("-H", self.cluster.hosts_file(), "-n", 3, "-s", 2, *words)
        for _ in range(10):
            job.stdout.readline()
        return job

    def rank_on(self, host):
        return next(p for p, c in self.marked_on(host).items() if c.startswith(CONTROL_RANK) and "wait" in c)

    def test_processes_of_all_hosts_meet(self):
        done = self.launch("-H", self.cluster.hosts_file(), "-n", 3, "-s", 3, CONTROL_RANK)
        for role, name in (("", "worker"), ("s", "server")):
            for rank in range(3):
                self.assertIn(f"[{role}{rank}] generation 1: {name} {rank} of 3 workers and 3 servers\n", done.out)
                self.assertIn(f"[{role}{rank}] found 360000 bytes, no nothing\n", done.out)

    def test_published_texts_are_not_in_files_or_command_lines(self):
        job = self.start_ranks("--log-dir", "logs", CONTROL_RANK, "sleep=1500")
        for pid in self.marked():
            for name in ("cmdline", "environ"):
                self.assertNotIn(b"secret-of", Path(f"/proc/{pid}/{name}").read_bytes())
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.err)
        for file in self.folder.rglob("*"):
            if file.is_file():
                self.assertNotIn(b"secret-of", file.read_bytes(), file)

    def test_server_on_another_host_is_started_again_on_it(self):
        job = self.start("-H", self.cluster.hosts_file(), "-n", 2, "-s", 2, "--server-restarts", 1, CONTROL_RANK, "serve=0",
                         "generations=2")
        said = [job.stdout.readline() for _ in range(8)]
        server = next(p for p, c in self.marked_on(0).items()
                      if c.startswith(CONTROL_RANK) and b"TUTTI_ROLE=server" in Path(f"/proc/{p}/environ").read_bytes())
        os.kill(server, signal.SIGKILL)
        said += job.stdout.readlines()
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.err)
        self.assertEqual(sorted(line for line in said if "saved" in line), ["[s0] saved\n", "[s1] saved\n"])
        for rank in range(2):
            self.assertIn(f"[{rank}] generation 2: server 0 has id 4, its text begins with secret-of\n", said)
        self.assertIn(f"warning: server 0 on {self.cluster.address(0)}: its end by SIGKILL; it is started again", job.err)

    def test_stopped_process_is_lost(self):
        job = self.start_ranks("--rank-timeout", 4, CONTROL_RANK, "wait")
        os.kill(self.rank_on(1), signal.SIGSTOP)
        self.finish(job)
        self.assertEqual(job.returncode, 5, job.err)
        self.assertRegex(self.message(job), rf"\[(worker|server) 1 on {self.cluster.address(1)}\] expected a sign of life "
                         r"within 4 s, got none; it is stopped, as by SIGSTOP\. hint: set a longer time with --rank-timeout\.")

    def test_cut_host_is_lost(self):
        """The rank time-out (4 s) removes the process on an unreachable host before the launcher removes the host (60
        s)."""
        job = self.start_ranks("--rank-timeout", 4, "--host-timeout", 60, CONTROL_RANK, "wait")
        self.cluster.cut(2)
        try:
            self.finish(job)
            self.assertEqual(job.returncode, 5, job.err)
            self.assertIn(f"[worker 2 on {self.cluster.address(2)}] expected a sign of life within 4 s, got none", job.err)
        finally:
            self.cluster.heal(2)


if __name__ == "__main__":
    main(3)
