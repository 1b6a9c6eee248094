# SPDX-License-Identifier: MIT
"""Base class for tests of tutti-launch on several hosts."""
import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import netns_cluster  # noqa: E402
from launch_case import BUILD, CONTROL_RANK, ELASTIC_RANK, LAUNCH, PROGRESS_RANK, LaunchCase  # noqa: E402,F401

CLUSTER = None


class HostsCase(LaunchCase):
    """Runs each test on the hosts of CLUSTER, and gives the launcher the options to reach them."""

    def setUp(self):
        super().setUp()
        self.cluster = CLUSTER

    def options(self):
        # A time-out for connections that is long enough on a busy machine.
        return [*super().options(), "--ssh-config", self.cluster.ssh_config, "--connect-timeout", "40"]

    def state_files(self, job):
        """Returns the files of a job, from the separate state folder of each host."""
        def on(host):
            find = ["find", f"/run/user/{os.geteuid()}", "-mindepth", "1", "-path", f"*{job}*/*"]
            return self.cluster.run(host, find, text=True, capture_output=True, check=True).stdout.split()
        return super().state_files(job) + [f"host {h}: {file}" for h in range(self.cluster.count) for file in on(h)]

    def kill(self, *arguments):
        return subprocess.run([LAUNCH, "--kill", "--ssh-config", self.cluster.ssh_config, *arguments], text=True,
                              env=self.environment, capture_output=True, timeout=300)

    def marked_on(self, host):
        """Returns the processes of the test that run in the network namespace of a host."""
        inside = set(self.cluster.pids(host))
        return {p: c for p, c in self.marked().items() if p in inside}

    def processes(self, program, role="worker"):
        """Returns {number of the process in this role: (host, process id)} for the job's processes that run this
        program. Leaves out a process that only prints how to start the program."""
        found = {}
        for host in range(self.cluster.count):
            for pid in self.cluster.pids(host):
                try:
                    if not netns_cluster.runs(pid, program):
                        continue
                    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if f"TUTTI_ROLE={role}".encode() in words and b"TUTTI_ASK=launch" not in words:
                    found.update({int(w[11:]): (host, pid) for w in words if w.startswith(b"TUTTI_RANK=")})
        return found


def main(hosts, private=()):
    global CLUSTER
    for program in (LAUNCH, PROGRESS_RANK, CONTROL_RANK, ELASTIC_RANK):
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} has not been built")
    try:
        with netns_cluster.NetnsCluster(hosts, private) as CLUSTER:
            program = unittest.main(module="__main__", argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False)
    except netns_cluster.Unavailable as e:
        netns_cluster.skip(str(e))
    netns_cluster.finish(program)
