#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests an elastic job over an mpirun that ends no rank. A rank that gets no signal, or gets it late, would run
together with the ranks of the next generation and write the same files. Therefore the launcher's agents end all
remaining ranks, even if MPI does not."""
import contextlib
import os
import signal
from pathlib import Path

from launch_case import PROGRESS_RANK, LaunchCase, main, wait_until

# A stand-in for mpirun. It starts the ranks through a daemon that ignores the end of ranks and of mpirun.
MPIRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys
words = sys.argv[1:]
count, command = int(words[words.index("-np") + 1]), words[words.index("--exec-rank") - 1:]
with open(os.environ["GENERATIONS"], "a") as log:
    print(command[-1], file=log)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
daemon = os.fork()
if daemon == 0:
    os.setsid()
    number = "OMPI_COMM_WORLD_"
    ranks = [subprocess.Popen(command, start_new_session=True, env={
                 **os.environ, number + "RANK": str(rank), number + "SIZE": str(count), number + "LOCAL_RANK": str(rank),
                 number + "LOCAL_SIZE": str(count)}) for rank in range(count)]
    for rank in ranks:
        rank.wait()
    os._exit(0)
os.waitpid(daemon, 0)
sys.exit(1)
"""

# A program that answers the launcher's query with MPI.
PROGRAM = """#!/bin/sh
# tutti-launch may ask this program by TUTTI_ASK
[ -z "$TUTTI_ASK" ] || { echo "TUTTI-ANSWER 1 strategy=mpi mpi=1 servers=0 elastic=1"; exit 0; }
exec "$@"
"""


def fields(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()


def lives(pid, start):
    try:
        now = fields(pid)
    except (OSError, IndexError):
        return False
    return now[0] != "Z" and now[19] == start


class MpiGenerations(LaunchCase):
    def setUp(self):
        super().setUp()
        programs = self.folder / "bin"
        programs.mkdir()
        for name, text in (("mpirun", MPIRUN), ("train", PROGRAM)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.train = programs / "train"
        self.generations = self.folder / "generations"
        self.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        self.environment["GENERATIONS"] = str(self.generations)

    def begun(self):
        return self.generations.read_text().split() if self.generations.exists() else []

    def ranks(self):
        """Returns {process id: start time} of the living processes of progress_rank."""
        found = {}
        for pid in self.marked():
            with contextlib.suppress(OSError):
                if os.path.samefile(f"/proc/{pid}/exe", PROGRESS_RANK):
                    found[pid] = fields(pid)[19]
        return found

    def step(self):
        try:
            return int((self.folder / "at-0").read_text())
        except (OSError, ValueError):
            return -1

    def test_ranks_of_the_last_generation_have_ended_when_the_next_begins(self):
        (self.folder / "elastic").mkdir()
        job = self.start("--elastic", "--elastic-dir", self.folder / "elastic", "-n", 2, "--restart-budget", 100, self.train,
                         PROGRESS_RANK, self.folder, 1000000, 10)
        wait_until(lambda: job.poll() is not None or (len(self.begun()) == 1 and self.step() > 3 and len(self.ranks()) == 2))
        before = self.ranks()
        self.assertEqual(len(before), 2, job.poll() is not None and job.communicate())
        os.kill(min(before), signal.SIGKILL)
        wait_until(lambda: job.poll() is not None or len(self.begun()) == 2)
        alive = [pid for pid, start in before.items() if lives(pid, start)]
        self.assertEqual(alive, [], "ranks of generation 1 beside generation 2")
        job.send_signal(signal.SIGINT)
        self.finish(job)
        self.assertEqual(self.begun()[:2], ["1", "2"], job.err)


if __name__ == "__main__":
    main()
