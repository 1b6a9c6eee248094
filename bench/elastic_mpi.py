#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the parts of a membership change over MPI: ResNet-18 on generated images of 32x32, on three hosts made of
network namespaces. Each change starts another mpirun. There are three kinds: a host leaves in order, a host joins, or
kill -9 ends the worker of a host. Prints for each kind the median of
  saved    from the edit of the hosts file until the checkpoint exists (the current step ends before it)
  ended    until the last process of the old mpirun has ended
  started  until all processes of the new mpirun exist: mpirun, its daemons, ssh
  read     until they have loaded the libraries, met, and read the checkpoint
  step     until the first step is done
and of all together, with the maximum. If a worker is killed, there is no "saved": the remaining workers continue from
the last checkpoint.

usage: bench/elastic_mpi.py [--changes N] [-- OPTIONS OF tutti-launch]      (of each kind; default: 10; needs root)

TUTTI_BUILD_DIR is the build folder (default: build). Exits with 1 if the job does not survive.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import elastic

HOSTS = 3
PARTS = ("saved", "ended", "started", "read", "step")


class Watched:
    """A job over MPI, observed by its processes and files."""

    def __init__(self, job):
        self.job = job

    def events(self):
        log = self.job.run / "log.jsonl"
        text = log.read_text() if log.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def checkpoints(self):
        return {p.name for p in (self.job.run / "checkpoints").glob("step-*")}

    def wait(self, condition):
        end = time.monotonic() + 90
        while not condition():
            if self.job.process.poll() is not None or time.monotonic() > end:
                said = (self.job.folder / "output").read_text()[-3000:]
                sys.exit("bench/elastic_mpi.py: the job does not go on:\n" + said)
            time.sleep(0.005)
        return time.monotonic()

    def steps_done(self, count):
        """Waits until the job has done this number of further steps."""
        seen = len(self.events())
        self.wait(lambda: sum(e["event"] == "step" for e in self.events()[seen:]) >= count)

    def change(self, act, ranks, killed=False):
        """Makes one change and returns the seconds of each part."""
        seen, old, saved = len(self.events()), set(self.job.pids()), self.checkpoints()
        times = [time.monotonic()]
        act()
        times.append(times[0] if killed else self.wait(lambda: self.checkpoints() - saved))
        times.append(self.wait(lambda: not any(Path(f"/proc/{p}").exists() for p in old)))
        times.append(self.wait(lambda: len(self.job.pids()) == ranks))
        times.append(self.wait(lambda: any(e["event"] == "resume" for e in self.events()[seen:])))
        resumed = next(i for i, e in enumerate(self.events()) if i >= seen and e["event"] == "resume")
        times.append(self.wait(lambda: any(e["event"] == "step" for e in self.events()[resumed:])))
        return [b - a for a, b in zip(times, times[1:])]


def measure(args, options, cluster):
    kinds = {"leaves in order": [], "joins": [], "killed": []}
    with tempfile.TemporaryDirectory() as folder:
        job = elastic.Job(Path(folder), args, options, cluster, 1, ("--save-steps", 1000000))
        watched = Watched(job)
        try:
            watched.wait(lambda: any(e["event"] == "step" for e in watched.events()))
            for i in range(args.changes):
                host = i % HOSTS
                left = [h for h in range(HOSTS) if h != host]
                watched.steps_done(2)
                kinds["leaves in order"].append(watched.change(lambda: job.list(left), HOSTS - 1))
                watched.steps_done(2)
                kinds["joins"].append(watched.change(lambda: job.list(range(HOSTS)), HOSTS))
                watched.steps_done(2)
                pid = job.pids()[-1]
                lost = job.host_of(pid)
                job.at = 0
                kinds["killed"].append(watched.change(lambda: os.kill(pid, signal.SIGKILL), HOSTS - 1, killed=True))
                job.list([h for h in range(HOSTS) if h != lost])
                time.sleep(0.5)
                job.list(range(HOSTS))
                watched.wait(lambda: len(job.pids()) == HOSTS)
                watched.steps_done(2)
        finally:
            job.end()
    return kinds


def show(kinds):
    print(f"{'median, ms':18}{'changes':>8}" + "".join(f"{p:>10}" for p in PARTS) + f"{'together':>10}{'most':>8}")
    for kind, times in kinds.items():
        together = [1000 * sum(t) for t in times]
        print(f"{kind:18}{len(times):8}" + "".join(f"{1000 * statistics.median(part):10.0f}" for part in zip(*times))
              + f"{statistics.median(together):10.0f}{max(together):8.0f}")


def main():
    words = sys.argv[1:]
    options = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--changes", type=int, default=10)
    args = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    args.workers, args.threads, args.strategy = HOSTS, 1, "mpi"
    try:
        with elastic.netns_cluster.NetnsCluster(HOSTS) as cluster:
            with contextlib.suppress(KeyboardInterrupt):
                show(measure(args, options, cluster))
    except elastic.netns_cluster.Unavailable as e:
        sys.exit(f"bench/elastic_mpi.py: {e}")


if __name__ == "__main__":
    main()
