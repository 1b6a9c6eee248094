#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how long a job stops training when its members change: ResNet-18 on generated images of 32x32, on this host
or on hosts made of network namespaces. Repeatedly, workers join, leave in order, and are killed (the first one too).
With several hosts, workers are also stopped or cut off from the network. Prints for each kind the median, the 95th
percentile and the maximum of
  still    from the end of the last step to the begin of the next, as the new first rank reports it
  noticed  from the edit of the hosts file, or the kill, until the job reports its new members (includes starting and loading)

usage: bench/elastic.py [--changes N] [--kinds WORDS] [--samples FILE] [--workers N] [--threads N] [--strategy WORD] [--hosts]
                        [-- OPTIONS OF tutti-launch]

  --changes   of each kind (a tenth of it for kinds that wait for --rank-timeout); default: 50. --workers: of the job;
              default: 4. --threads: of each worker; default: 1. --strategy: of the program; default: the program's
  --kinds     the kinds of order,killed,stopped to measure; default: all, stopped only with --hosts
  --samples   appends each change to this file, one line of JSON each, and shows the percentiles of all changes in it: a
              long measurement can be made in several turns
  --hosts     each worker on a host of its own; needs root

TUTTI_BUILD_DIR is the build folder (default: build). Exits with 1 if the job does not survive.
"""
import argparse
import contextlib
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
PROGRAM = BUILD / "examples" / "train_imagenet"
TIMEOUT = 1.5  # --rank-timeout
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
import netns_cluster  # noqa: E402


class Job:
    """A job in a folder, with its workers, membership events and hosts file."""

    def __init__(self, folder, args, options, cluster, display_every=1000000, more=()):
        self.folder, self.run, self.cluster, self.workers = folder, folder / "run", cluster, args.workers
        self.out = open(folder / "output", "w", encoding="utf-8")
        where = ["-H", self.write(range(args.workers)), "--ssh-config", cluster.ssh_config] if cluster else []
        strategy = ["--strategy", args.strategy] if args.strategy else []
        command = [BUILD / "tools" / "tutti-launch", "--elastic", "--elastic-at", "step", "--elastic-dir", folder,
                   "--restart-budget", 1000, "--rank-timeout", TIMEOUT, *where, *options, "-n", args.workers, PROGRAM,
                   "--synthetic", "--model", "resnet18", "--image-size", 32, "--num-classes", 10, "--num-examples",
                   1000000, "--batch-size", 64 // args.workers, "--threads", args.threads, "--num-epochs", 1,
                   "--display-every", display_every, "--tensorboard", 0, "--run-dir", self.run, *strategy, *more]
        self.process = subprocess.Popen([str(w) for w in command], stdout=self.out, stderr=subprocess.STDOUT,
                                        env={**os.environ, "TUTTI_STATE_DIR": str(folder / "state")})
        self.at = 0

    def write(self, hosts):
        new = self.folder / "new"
        new.write_text("".join(f"{self.cluster.address(h)} slots=1\n" for h in hosts) if self.cluster
                       else f"localhost slots={len(hosts)}\n")
        return new

    def list(self, hosts):
        """Writes the hosts of the job to the hosts file, or on a single host the number of workers."""
        self.write(hosts).rename(self.folder / "host_worker")

    def changes(self):
        """Returns the "members" events since the last call."""
        if self.process.poll() is not None:
            sys.exit("bench/elastic.py: the job has ended:\n" + (self.folder / "output").read_text()[-3000:])
        log = self.run / "log.jsonl"
        text = log.read_text() if log.exists() else ""
        lines = text[self.at:text.rfind("\n") + 1]
        self.at += len(lines)
        return [e for e in map(json.loads, lines.splitlines()) if e["event"] == "members"]

    def pids(self):
        """Returns (host, process id) of each worker, the oldest one first."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "exe") == os.path.realpath(PROGRAM) and \
                        str(self.run).encode() in (folder / "cmdline").read_bytes():
                    words = (folder / "environ").read_bytes().split(b"\0")
                    if b"TUTTI_ROLE=worker" not in words:
                        continue
                    found.update({int(w[11:]): int(folder.name) for w in words if w.startswith(b"TUTTI_RANK=")})
        return [found[n] for n in sorted(found)]

    def host_of(self, pid):
        return next(h for h in range(self.cluster.count) if pid in self.cluster.pids(h)) if self.cluster else 0

    def wait_for(self, ranks, begin, timeout=120):
        """Waits for the change. Returns the seconds for which the job did not train, and the seconds since `begin`."""
        while time.monotonic() < begin + timeout:
            for e in self.changes():
                if e["ranks"] == ranks:
                    # A first rank that has just joined does not know when the previous step ended.
                    return e.get("seconds"), time.monotonic() - begin
            time.sleep(0.005)
        sys.exit(f"bench/elastic.py: no {ranks} workers within {timeout} s:\n"
                 + (self.folder / "output").read_text()[-3000:])

    def ready(self):
        while not (self.run / "log.jsonl").exists() or len(self.pids()) < self.workers:
            self.changes()
            time.sleep(0.1)
        time.sleep(2)

    def end(self):
        self.process.terminate()
        self.process.wait(120)


class Measured:
    def __init__(self, job, args):
        self.job, self.n, self.kinds, self.samples = job, args.workers, {}, args.samples

    def change(self, kind, ranks, act):
        begin = time.monotonic()
        act()
        still, noticed = self.job.wait_for(ranks, begin)
        self.kinds.setdefault(kind, []).append((still, noticed))
        if self.samples:
            with open(self.samples, "a", encoding="utf-8") as out:
                out.write(json.dumps({"kind": kind, "still": still, "noticed": noticed}) + "\n")
        time.sleep(0.5)

    def in_order(self, count):
        for i in range(count):
            self.change("leaves in order", self.n - 1, lambda: self.job.list([h for h in range(self.n) if h != i % self.n]))
            self.change("joins", self.n, lambda: self.job.list(range(self.n)))

    def back(self, host, begin):
        """Adds a lost worker's host to the hosts file again if it can. Otherwise the launcher starts another worker,
        after growing pauses."""
        if self.job.cluster:
            self.job.list([h for h in range(self.n) if h != host])
            time.sleep(0.5)
            self.job.list(range(self.n))
        self.job.wait_for(self.n, begin)
        time.sleep(0.5)

    def killed(self, i):
        pid = self.job.pids()[0 if i % 2 else -1]
        host, begin = self.job.host_of(pid), time.monotonic()
        self.change("the first one killed" if i % 2 else "killed", self.n - 1, lambda: os.kill(pid, signal.SIGKILL))
        self.back(host, begin)

    def stopped(self):
        pid = self.job.pids()[-1]
        host, begin = self.job.host_of(pid), time.monotonic()
        self.change(f"stopped, {TIMEOUT} s time-out", self.n - 1, lambda: os.kill(pid, signal.SIGSTOP))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self.back(host, begin)

    def cut(self):
        host, begin = self.job.host_of(self.job.pids()[-1]), time.monotonic()
        self.change(f"cut off, {TIMEOUT} s time-out", self.n - 1, lambda: self.job.cluster.cut(host))
        self.job.cluster.heal(host)
        time.sleep(1)
        self.back(host, begin)


def measure(args, options, cluster):
    kinds = {}

    @contextlib.contextmanager
    def job():
        with tempfile.TemporaryDirectory() as folder:
            it = Job(Path(folder), args, options, cluster)
            try:
                it.ready()
                m = Measured(it, args)
                yield m
            finally:
                it.end()
        for kind, times in m.kinds.items():
            kinds.setdefault(kind, []).extend(times)

    if "order" in args.kinds:
        with job() as m:
            m.in_order(args.changes)
    # On a single host, the launcher waits longer after each kill in the job before it starts another worker.
    together = 2 * args.changes if cluster else 4
    for done in range(0, 2 * args.changes, together) if "killed" in args.kinds else []:
        with job() as m:
            for i in range(done, min(done + together, 2 * args.changes)):
                m.killed(i)
    if cluster and "stopped" in args.kinds:
        with job() as m:
            for _ in range((args.changes + 9) // 10):
                m.stopped()
                m.cut()
    return kinds


def in_file(samples):
    """Returns {kind: changes of this kind in the file}."""
    kinds = {}
    for line in samples.read_text().splitlines():
        change = json.loads(line)
        kinds.setdefault(change["kind"], []).append((change["still"], change["noticed"]))
    return kinds


def show(kinds):
    print(f"{'':28}{'changes':>8}{'still, ms: p50':>16}{'p95':>8}{'most':>8}{'noticed: p50':>16}{'p95':>8}{'most':>8}")
    for kind, times in kinds.items():
        line = f"{kind:28}{len(times):8}"
        for i in (0, 1):
            ms = sorted(1000 * t[i] for t in times if t[i] is not None)
            if not ms:
                line += f"{'-':>16}{'-':>8}{'-':>8}"
                continue
            line += f"{statistics.median(ms):16.0f}{ms[int(0.95 * (len(ms) - 1) + 0.5)]:8.0f}{ms[-1]:8.0f}"
        print(line)


def main():
    words = sys.argv[1:]
    options = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--strategy", default="")
    parser.add_argument("--kinds", type=lambda words: words.split(","), default=["order", "killed", "stopped"])
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--hosts", action="store_true")
    args = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    if set(args.kinds) - {"order", "killed", "stopped"}:
        parser.error("--kinds: expected some of order,killed,stopped")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/elastic.py: stopped"))  # also stops the job
    try:
        with netns_cluster.NetnsCluster(args.workers) if args.hosts else contextlib.nullcontext() as cluster:
            kinds = measure(args, options, cluster)
        show(in_file(args.samples) if args.samples else kinds)
    except netns_cluster.Unavailable as e:
        sys.exit(f"bench/elastic.py: --hosts: {e}")


if __name__ == "__main__":
    main()
