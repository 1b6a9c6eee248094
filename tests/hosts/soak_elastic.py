#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An elastic job on four hosts, with random changes again and again: hosts join, leave and are replaced; workers are
killed (the first one, two at once, one during a change), stopped, cut off, and asked to leave; connections of the
launcher are killed; the hosts file is damaged. The test checks that the job survives and that each sample was seen once
per epoch. It also checks that the launcher, and a worker that was present in the second half, hold no more descriptors,
threads and memory than before; with fewer than 12 events it does not compare them.

With --logical-ranks among the options of train_cifar10, the weights, the optimizer's state and the lines of the log must
be those of one process that did the same steps, bit by bit.

usage: tests/hosts/soak_elastic.py [--events N] [--seed N] [--only KIND,KIND] [-- OPTIONS OF tutti-launch AND train_cifar10]

  --events  default: 200, some 15 minutes on 2 cores. --seed: default: from the clock, and printed. --only: these kinds

TUTTI_BUILD_DIR is the build folder (default: build). Needs root. Exits with 1 if a promise was broken.
"""
import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

from elastic_training import TRAIN, ElasticTrainingCase, check_audit
from hosts_case import main
from logical_runs import command, differences, execute, hashes, log_lines, newest

EVENTS, SEED, ONLY, OPTIONS = 200, int(time.time()), (), []
HOSTS = 4
TIMEOUT = 2.0  # the value of --rank-timeout
TIMEOUT_WITH_SERVERS = 6.0  # a server that is silent for this time, also because the machine is busy, does not return


class Resources:
    """The resources of a process: its descriptors and threads by name, and resident MiB. They are the minimum of
    several samples, which leave out temporary resources. No sample is taken while the process saves a checkpoint."""
    def __init__(self, pid):
        looks = [self.look(pid) for _ in range(20) if time.sleep(0.05) is None]
        self.descriptors, self.threads, self.mib = (min((look[i] for look in looks), key=key)
                                                    for i, key in enumerate((Counter.total, Counter.total, float)))

    @staticmethod
    def look(pid):
        descriptors, threads = Counter(), Counter()
        for folder, of, name in (("fd", descriptors, os.readlink), ("task", threads, lambda p: (p / "comm").read_text().strip())):
            for entry in Path(f"/proc/{pid}/{folder}").iterdir():
                with contextlib.suppress(OSError):  # the descriptor was closed, or the thread has ended
                    of[re.sub(r"\d+", "N", str(name(entry)))] += 1
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return descriptors, threads, int(status["VmRSS"].split()[0]) / 1024

    def __str__(self):
        return f"{self.descriptors.total()} descriptors, {self.threads.total()} threads, {self.mib:.2f} MiB"

    def more_than(self, then):
        """Returns what has increased since `then` beyond the limit, by name."""
        more = [f"{count} more of {name}" for now, was in ((self.descriptors, then.descriptors), (self.threads, then.threads))
                if now.total() > was.total() for name, count in (now - was).items()]
        return more + ([f"{self.mib:.2f} MiB, which were {then.mib:.2f}"] if self.mib > 1.05 * then.mib else [])


def files(*folders):
    return sum(len(names) for f in folders for _, _, names in os.walk(f))


def shared_files():
    """Returns the number of files in shared memory, except those of MPI, which this job does not use."""
    return sum(not name.startswith("vader_segment") for name in os.listdir("/dev/shm"))


class Soak(ElasticTrainingCase):
    STRATEGY = ()

    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.listed = {0, 1}
        self.done = []  # events in the log so far
        self.read = 0
        self.recovery = {}

    # The state of the job.
    def events(self):
        log = self.run_dir / "log.jsonl"
        if log.exists():
            with log.open("rb") as f:
                f.seek(self.read)
                text = f.read()
            self.read += text.rfind(b"\n") + 1
            self.done += [json.loads(line) for line in text[:text.rfind(b"\n") + 1].splitlines()]
        return self.done

    def step(self):
        return max((e["step"] for e in self.events()[-200:] if "step" in e), default=0)

    def ranks(self):
        return next((e["ranks"] for e in reversed(self.events()) if e["event"] == "members"), 2)

    def workers(self):
        """Returns {host: process id} of the workers that train, the oldest one first."""
        return {host: pid for _, (host, pid) in sorted(self.processes(TRAIN).items())}

    def alive(self):
        if self.job.poll() is not None:
            self.finish(self.job)
            self.fail(f"the job ended with {self.job.returncode} after {self.say[-1]}:\n{self.job.out[-2000:]}\n"
                      f"{self.job.err[-6000:]}")

    def until(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            self.alive()
            if time.monotonic() > end:
                now = (f"{what}: not within {seconds} s, after {self.say[-1]}; {self.listed} listed, {self.workers()} there, "
                       f"{self.ranks()} ranks at step {self.step()}")
                self.job.terminate()
                self.finish(self.job)
                self.fail(f"{now}\n{self.job.err[-8000:]}")
            time.sleep(0.02)

    def goes_on(self, steps=25):
        goal = self.step() + steps
        self.until(lambda: self.step() >= goal, "no further steps")

    def whole(self):
        """Waits until exactly the listed hosts train."""
        self.until(lambda: set(self.workers()) == self.listed and self.ranks() == len(self.listed), "other members")
        self.goes_on()

    def set_hosts(self, hosts):
        self.listed = set(hosts)
        self.edit(sorted(hosts))

    def victim(self, first=False):
        there = self.workers()
        hosts = [h for h in there if h != self.spared]
        return hosts[0] if first else self.random.choice(hosts)

    # The events. Each of them changes the job, and repair() runs afterwards.
    def join_or_leave(self):
        self.set_hosts(self.some_hosts())

    def replace(self):
        away = self.victim()
        other = [h for h in range(HOSTS) if h not in self.listed]
        self.set_hosts(self.listed - {away} | ({self.random.choice(other)} if other else set()) or {away})

    def kill_one(self):
        os.kill(self.workers()[self.victim()], signal.SIGKILL)

    def kill_first(self):
        os.kill(self.workers()[self.victim(first=True)], signal.SIGKILL)

    def kill_two(self):
        there = self.workers()
        hosts = [h for h in there if h != self.spared]
        for host in self.random.sample(hosts, min(2, len(hosts), len(there) - 1)):
            os.kill(there[host], signal.SIGKILL)

    def kill_in_a_change(self):
        there, victim = self.workers(), self.victim()
        self.set_hosts(self.listed - {self.random.choice([h for h in there if h != self.spared])}
                       if self.random.random() < 0.5 and len(there) > 2 else set(range(HOSTS)))
        time.sleep(self.random.random() * 0.6)
        if len(self.workers()) > 1 and Path(f"/proc/{there[victim]}").exists():
            os.kill(there[victim], signal.SIGKILL)

    def told_to_leave(self):
        pid = self.workers()[self.victim()]
        os.kill(pid, signal.SIGTERM)
        self.until(lambda: not Path(f"/proc/{pid}").exists(), "it stays")

    def stopped(self):
        pid = self.workers()[self.victim()]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.choice((0.5, self.timeout + 1)))
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)

    def cut(self):
        host = self.victim()
        self.cluster.cut(host)
        time.sleep(0.5 if host == self.last_server else self.random.choice((0.5, self.timeout + 1.5)))
        self.cluster.heal(host)

    def connection_killed(self):
        """Kills the ssh connection to a worker, which continues until its lease has expired."""
        host, pids = self.victim(), self.workers()
        if host == self.last_server:
            return self.kill_one()
        address = self.cluster.address(host).encode()
        for child in Path(f"/proc/{self.job.pid}/task/{self.job.pid}/children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"ssh" in words and address in words:
                os.kill(int(child), signal.SIGKILL)
        self.until(lambda: not Path(f"/proc/{pids[host]}").exists(), "a worker without its agent lives on")

    def hosts_file_damaged(self):
        file = self.elastic / "host_worker"
        good = file.read_text()
        bad = self.random.choice([good[:-3], "", good + "-oProxyCommand=id\n", good.replace("slots", "sl\0ts"),
                                  "x" * 300 + "\n", None])
        if bad is None:
            file.unlink()
        else:
            file.write_text(bad)
        time.sleep(1.5)
        self.assertEqual(set(self.workers()), self.listed)

    def unreachable(self):
        new = self.elastic / "new"
        new.write_text((self.elastic / "host_worker").read_text() + "192.0.2.1 slots=1\n")
        new.rename(self.elastic / "host_worker")
        time.sleep(1)

    def some_hosts(self):
        hosts = set(self.random.sample(range(HOSTS), self.random.randint(2, HOSTS)))
        return hosts if self.spared is None else hosts | {self.spared}

    def repair(self):
        """Lists other hosts, each of which gets a worker. Hosts that failed or left are listed again."""
        there = set(self.workers())
        target = self.some_hosts()
        keep = (there & target) or {next(iter(self.workers()))}
        self.set_hosts(keep)
        self.until(lambda: set(self.workers()) == keep, "other members")
        time.sleep(0.5)  # the launcher reads the file only at intervals
        self.set_hosts(target)
        self.whole()

    def compare_bits(self):
        """Compares the run with one of a single process that does the same steps."""
        words = [str(w) for w in self.job.args]
        words = words[words.index(TRAIN) + 1:]
        for name in ("--run-dir", "--strategy"):
            if name in words:
                at = words.index(name)
                del words[at:at + 2]
        steps = int(newest(self.run_dir).name.split("-")[1].split(".")[0])
        quiet = self.folder / "quiet"
        code, said = execute(command(options=(*words, "--max-steps", steps), run=quiet), self.folder, timeout=36000)
        self.assertEqual(code, 0, said[-3000:])
        self.assertEqual(differences(self.run_dir, quiet, whole=False), [])
        equal = len(log_lines(self.run_dir).keys() & log_lines(quiet).keys())
        generations = max(e.get("generation", 0) for e in self.events())
        print(f"the bits of one process: {steps} steps in {generations} generations, {equal} equal lines, SHA-256 "
              f"{hashes(quiet)['model.safetensors']}")

    def test_soak(self):
        kinds = [self.join_or_leave, self.replace, self.kill_one, self.kill_first, self.kill_two, self.kill_in_a_change,
                 self.told_to_leave, self.stopped, self.cut, self.connection_killed, self.hosts_file_damaged, self.unreachable]
        kinds = [k for k in kinds if not ONLY or k.__name__ in ONLY]
        self.spared, self.say, before = None, ["the start"], None
        print(f"seed {SEED}, {EVENTS} events", flush=True)
        split = OPTIONS.index("--") if "--" in OPTIONS else len(OPTIONS)
        self.STRATEGY = ["--disp-batches", 20, *OPTIONS[split + 1:]]
        logical = "--logical-ranks" in self.STRATEGY
        launcher = OPTIONS[:split]
        # Without a server the job ends, so that of the first host stays.
        self.last_server = 0 if "-s" in launcher else None
        self.timeout = TIMEOUT if self.last_server is None else TIMEOUT_WITH_SERVERS
        self.begin("--elastic-at", "step", "--rank-timeout", self.timeout, "--restart-budget", 1000, *launcher,
                   epochs=1000000)
        shm = shared_files()
        for i in range(EVENTS):
            if i == EVENTS // 2:
                # The later events spare one worker, so that its resources can be compared at the end.
                self.whole()
                self.spared = next(iter(self.workers()))
            # The launcher and the worker keep memory of the first events that they see, so five events come first.
            if EVENTS >= 12 and i == EVENTS // 2 + 5:
                self.set_hosts(range(HOSTS))
                self.whole()
                witness = self.workers()[self.spared]
                before = Resources(self.job.pid), Resources(witness), files(self.runtime, self.elastic)
            self.whole() if i == 0 else None
            kind = self.random.choice(kinds)
            self.say.append(f"event {i}, {kind.__name__}, with {self.workers()}")
            print(f"{i} {kind.__name__}", end=" ", flush=True)
            begin = time.monotonic()
            kind()
            self.until(lambda: len(self.workers()) >= 1, "nobody left")
            self.goes_on(5)
            took = time.monotonic() - begin
            self.repair()
            print(f"{took:.2f} s, whole after {time.monotonic() - begin:.2f} s, {self.ranks()} ranks, step {self.step()}",
                  flush=True)
            self.recovery.setdefault(kind.__name__, []).append(took)
        self.set_hosts(range(HOSTS))
        self.whole()
        after = before and (Resources(self.job.pid), Resources(witness), files(self.runtime, self.elastic))
        self.job.send_signal(signal.SIGINT)
        self.finish(self.job)
        self.assertEqual(self.job.returncode, 130, self.job.err[-3000:])
        self.assertIn("state saved", self.job.out)
        for what, then, now in zip(("launcher", "a worker", "files of the launcher"), before or (), after or ()):
            print(f"{what}: {then}; then {now}")
        for kind, times in sorted(self.recovery.items()):
            print(f"{kind:20}{len(times):4}  goes on after {statistics.median(times):.2f} s, {max(times):.2f} s at most")
        code, said = check_audit(self.run_dir)
        self.assertEqual(code, 0, said)
        print(said)
        if logical:
            self.compare_bits()
        if before:
            for what, then, now in zip(("launcher", "a worker"), before, after):
                self.assertEqual(now.more_than(then), [], what)
            self.assertLessEqual(after[2], before[2] + 2, "files")
        else:
            print("fewer than 12 events: the resources were not compared")
        self.assertLessEqual(shared_files(), shm, "files in shared memory")


if __name__ == "__main__":
    words = sys.argv[1:]
    if "--" in words:
        OPTIONS = words[words.index("--") + 1:]
        words = words[:words.index("--")]
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="")
    args = parser.parse_args(words)
    EVENTS, SEED, ONLY = args.events, args.seed, tuple(filter(None, args.only.split(",")))
    sys.argv = sys.argv[:1]
    main(HOSTS)
