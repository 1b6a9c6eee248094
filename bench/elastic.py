#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How long a job stands still when its members change: ResNet-18 on made-up images of 32x32, on this host, over Gloo.
Workers join, leave in order, and are killed, the first one too, again and again. For each kind the median, the 95th
percentile and the longest of
  still    from the end of the last step to the begin of the next, as the new first rank tells it
  noticed  from the edit of the hosts file, or the kill, until the job says that others train (with who starts and loads)

usage: bench/elastic.py [--changes N] [--workers N] [--threads N]

  --changes   of each kind, but 6 kills at most; default: 20. --workers: of the job; default: 4. --threads: of each; default: 1

TUTTI_BUILD_DIR is the build folder (default: build). Status 1 where the job does not live through it.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))


class Job:
    def __init__(self, folder, args):
        self.folder, self.run = folder, folder / "run"
        self.out = open(folder / "output", "w", encoding="utf-8")
        command = [BUILD / "tools" / "tutti-launch", "--elastic", "--elastic-at", "step", "--elastic-dir", folder,
                   "--restart-budget", "100", "-n", args.workers, BUILD / "examples" / "train_imagenet", "--synthetic",
                   "--model", "resnet18", "--image-size", "32", "--num-classes", "10", "--num-examples", "1000000",
                   "--batch-size", 64 // args.workers, "--threads", args.threads, "--num-epochs", "1", "--display-every",
                   "1000000", "--tensorboard", "0", "--run-dir", self.run]
        self.state = folder / "state"
        environment = {**os.environ, "TUTTI_STATE_DIR": str(self.state)}
        self.process = subprocess.Popen([str(w) for w in command], env=environment, stdout=self.out,
                                        stderr=subprocess.STDOUT)
        self.workers = args.workers
        self.at = 0

    def changes(self):
        """The "members" events that have come since it was asked last."""
        if self.process.poll() is not None:
            sys.exit("bench/elastic.py: the job has ended:\n" + (self.folder / "output").read_text()[-3000:])
        log = self.run / "log.jsonl"
        text = log.read_text() if log.exists() else ""
        lines = text[self.at:text.rfind("\n") + 1]
        self.at += len(lines)
        return [e for e in map(json.loads, lines.splitlines()) if e["event"] == "members"]

    def ranks(self, count):
        new = self.folder / "new"
        new.write_text(f"localhost slots={count}\n")
        new.rename(self.folder / "host_worker")

    def pids(self):
        """Of its workers, by their numbers."""
        found = {}
        for file in self.state.glob("jobs/*/worker-*.process"):
            try:
                pid = int(file.read_text().split()[0])
                os.kill(pid, 0)
            except (OSError, IndexError):
                continue
            found[int(file.stem.split("-")[1])] = pid
        return dict(sorted(found.items()))

    def wait_for(self, ranks, begin, timeout=120):
        """The seconds that the job stood still, and those since `begin`."""
        while time.monotonic() < begin + timeout:
            for e in self.changes():
                if e["ranks"] == ranks:
                    return e["seconds"], time.monotonic() - begin
            time.sleep(0.005)
        sys.exit(f"bench/elastic.py: no {ranks} workers within {timeout} s")


def measure(job, args):
    kinds = {"leaves in order": [], "joins": [], "killed": [], "the first one killed": []}

    def change(kind, ranks, act):
        begin = time.monotonic()
        act()
        kinds[kind].append(job.wait_for(ranks, begin))
        time.sleep(1)

    n = args.workers
    for _ in range(args.changes):
        change("leaves in order", n - 1, lambda: job.ranks(n - 1))
        change("joins", n, lambda: job.ranks(n))
    # The launcher starts another one in its place, later and later.
    for i in range(min(args.changes, 6)):
        first, *_, last = job.pids().values()
        victim = last if i % 2 else first
        begin = time.monotonic()
        change("killed" if i % 2 else "the first one killed", n - 1, lambda: os.kill(victim, signal.SIGKILL))
        job.wait_for(n, begin)
        time.sleep(1)
    return kinds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), args)
        try:
            while "epoch" not in (Path(folder) / "output").read_text() and not (job.run / "log.jsonl").exists():
                job.changes()
                time.sleep(0.1)
            time.sleep(2)
            kinds = measure(job, args)
        finally:
            job.process.terminate()
            job.process.wait(120)
    print(f"{'':24}{'changes':>8}{'still, ms: p50':>16}{'p95':>8}{'most':>8}{'noticed: p50':>16}{'p95':>8}{'most':>8}")
    for kind, times in kinds.items():
        line = f"{kind:24}{len(times):8}"
        for i in (0, 1):
            ms = sorted(1000 * t[i] for t in times)
            line += f"{statistics.median(ms):16.0f}{ms[int(0.95 * (len(ms) - 1) + 0.5)]:8.0f}{ms[-1]:8.0f}"
        print(line)


if __name__ == "__main__":
    main()
