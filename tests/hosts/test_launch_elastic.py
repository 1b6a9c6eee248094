#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests tutti-launch --elastic between hosts of a separate network: hosts join and leave over ssh, and a link is cut.
"""
import os
import signal
import time
from pathlib import Path

from hosts_case import HostsCase, main
from launch_case import wait_until
from elastic_case import Job


class Elastic(HostsCase):
    def job(self, *options, hosts=(), words=(), **more):
        """Starts a job with one worker on this host and one on each of `hosts`."""
        file = self.folder / "hosts"
        file.write_text("".join(f"{line}\n" for line in ("localhost", *map(self.cluster.address, hosts))))
        return Job(self, "-H", file, *options, words=("steps=30", "epochs=400", *words), **more)

    def stop(self, job):
        job.process.send_signal(signal.SIGTERM)
        return job.end(code=143)

    def test_hosts_join_leave_and_are_replaced(self):
        a, b = self.cluster.address(1), self.cluster.address(2)
        job = self.job()  # one worker, on this host
        job.wait_for(1)
        job.edit("localhost", a)
        job.wait_for(2, workers=2)
        self.assertEqual(len([c for c in self.marked_on(1).values() if "elastic_rank" in c]), 1)
        job.edit("localhost", b)
        wait_until(lambda: job.logged() == [f"0 ADDED {a}", f"1 REMOVED {a}", f"2 ADDED {b}"])
        job.wait_for(4, workers=2)
        self.assertEqual(self.marked_on(1), {})
        done = self.stop(job)
        for generation in (1, 2, 3):
            self.assertEqual(max(s for g, s, _ in job.steps() if g == generation) % job.epoch, 0)
        self.assertRegex(done.out, r"\[2\] joins as 2 of 2 in epoch \d+, elastic 1\n")

    def test_killed_worker_and_killed_connection(self):
        job = self.job("--elastic-at", "step", "--rank-timeout", 4, hosts=(0, 1))
        job.wait_for(1, workers=3)
        os.kill(next(p for p, c in self.marked_on(0).items() if "elastic_rank" in c and "exec" not in c), signal.SIGKILL)
        job.wait_for(3, workers=3)
        children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
        ssh = next(int(p) for p in children if self.cluster.address(1).encode() in Path(f"/proc/{p}/cmdline").read_bytes())
        os.kill(ssh, signal.SIGKILL)
        job.wait_for(5, workers=3)
        self.stop(job)
        a, b = self.cluster.address(0), self.cluster.address(1)
        self.assertEqual(job.logged(), [f"0 REMOVED {a}", f"1 ADDED {a}", f"2 REMOVED {b}", f"3 ADDED {b}"])

    def cut(self, until):
        writes = self.folder / "writes"
        job = self.job("--elastic-at", "step", "--rank-timeout", 4, "--host-timeout", 8, hosts=(1, 2),
                       words=(f"writes={writes}",))
        job.wait_for(1, workers=3)
        self.cluster.cut(1)
        try:
            job.wait_for(2, workers=2)
            wait_until(lambda: until in "".join(job.err))
        finally:
            self.cluster.heal(1)
        job.wait_for(3, workers=3)
        self.stop(job)
        # The lost worker wrote no step of generation 2, in which the remaining workers continued without it.
        self.assertEqual({n for g, _, n in job.steps() if g == 2}, {0, 2})
        last = max(int(line.split()[1]) for line in writes.read_text().splitlines() if line.startswith("1 "))
        self.assertLess(last, job.begun(2))

    def test_cut_host_that_comes_back_soon(self):
        self.cut("no message for 4 s; the other workers continue")

    def test_cut_host_with_a_late_return(self):
        self.cut("no message from it for 8 s")

    def test_unknown_host(self):
        """A host with an unknown key joins if unknown keys are allowed."""
        for options, joins in (((), False), (("--accept-new-hosts",), True)):
            self.folder.joinpath("audit").unlink(missing_ok=True)
            known = self.folder / f"known-{joins}"
            known.write_text("".join(line for line in Path(self.cluster.folder, "known_hosts").read_text().splitlines(True)
                                     if self.cluster.address(1) not in line))
            config = self.folder / f"config-{joins}"
            config.write_text(Path(self.cluster.ssh_config).read_text().replace(f"{self.cluster.folder}/known_hosts", str(known)))
            job = self.job("--ssh-config", config, "--elastic-at", "step", *options, hosts=(0,), folder=f"known{joins}")
            job.wait_for(1, workers=2)
            job.edit("localhost", self.cluster.address(0), self.cluster.address(1))
            if joins:
                job.wait_for(2, workers=3)
            else:
                wait_until(lambda: "hint: add the host's key to known_hosts. The next attempt is in 1 s." in "".join(job.err))
            self.stop(job)
            self.assertEqual(job.logged(), [f"0 ADDED {self.cluster.address(1)}"] if joins else [])


if __name__ == "__main__":
    main(3)
