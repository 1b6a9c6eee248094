#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Replays a trace of Spot capacity, faster than time, through tutti-launch on four hosts of network namespaces, and measures the
share of useful time (goodput), lost and repeated samples, and the money of an epoch. Needs root.

usage: bench/baselines/goodput.py [--trace FILE|zone:NAME] [--scale S] [--minutes M] [--without-notice P] [--seed N] [--price P]
                                  [--results FILE]

  --trace    as in tutti-plan; default: zone:us-west-2c-4, p3.2xlarge in August 2023. A trace with more than four instances counts as four
  --scale    seconds of the trace that pass in a second; default: 300. --minutes: of training; default: 3
  --without-notice  share of the preemptions that kill all processes of a host; the other hosts leave in order. Default: 0.5
  --price    of an instance per hour; default: 0.918, that of p3.2xlarge. --results: also appends a line of JSON to this file

A step of k hosts has the value of the median step of k hosts, without the three steps after each event and change of members. The measured
share is the value of all steps that are kept, relative to the time. The pauses do not shrink with the scale, so the share at the
rate of the trace is computed from the seconds that an event costs. Times in which the trace has no instance are left out.
TUTTI_BUILD_DIR is the build folder of tutti (default: build). Exits with 77 if something is missing.
"""
import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "tests" / "hosts"), str(ROOT / "bench" / "scaling")]
import environment  # noqa: E402
import netns_cluster  # noqa: E402
import recovery_systems  # noqa: E402
import spot_traces  # noqa: E402

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
HOSTS, AFTER = 4, 3


def changes(trace, scale):
    """Returns [(seconds, number of hosts)] of the job, faster than time, without the times that have no host."""
    found, at = [], 0.0
    for seconds, there in trace.segments(HOSTS):
        if there:
            if not found or found[-1][1] != there:
                found.append((at / scale, there))
            at += seconds
    return found


def epochs(steps, hosts):
    """Returns the epochs of these steps. The job's first hosts determine the batch, which stays the same with more or fewer hosts."""
    return (steps[-1][1] - steps[0][1]) * (HOSTS * recovery_systems.BATCH // hosts * hosts) / recovery_systems.IMAGES


def measured(steps, minutes):
    """Returns the steps without the first two, in which the job warms up."""
    if len(steps) < 4:
        raise TooShort(f"goodput.py: [--minutes] expected time for at least 4 steps, got {minutes:g} with {len(steps)}")
    return steps[2:]


class TooShort(Exception):
    """The time of --minutes has too few steps."""


def evaluate(steps, members, events):
    """Computes the shares. steps: [(time, step)] as they were seen. members: [(step, ranks)], ranks of the steps after this step.
    events: times. Returns a dict."""
    rows = []
    for (before, first), (at, step) in zip(steps, steps[1:]):
        ranks = [r for s, r in members if s < step][-1]
        fresh = any(0 < step - s <= AFTER for s, _ in members[1:])
        disturbed = fresh or any(e <= at and sum(e < t <= at for t, _ in steps) <= AFTER for e in events)
        rows.append((at - before, step - first, ranks, disturbed))
    quiet = {}
    for ranks in {r for _, _, r, _ in rows}:
        here = [s / n for s, n, r, d in rows if r == ranks and not d] or [s / n for s, n, r, _ in rows if r == ranks]
        quiet[ranks] = statistics.median(here)
    wall = sum(row[0] for row in rows)
    cost = sum(s - n * quiet[r] for s, n, r, d in rows if d)
    return {"wall": wall, "share": sum(n * quiet[r] for _, n, r, _ in rows) / wall, "share_of_events": 1 - cost / wall,
            "seconds_per_event": cost / len(events) if events else 0.0, "quiet": {str(r): q for r, q in sorted(quiet.items())}}


class Replay:
    def __init__(self, system, cluster, args):
        self.system, self.cluster, self.draw, self.without = system, cluster, random.Random(args.seed), args.without_notice
        self.steps, self.events, self.host_seconds, self.at = [], [], 0.0, None

    def look(self):
        now, step = time.monotonic(), self.system.progress()
        if self.at is not None:
            self.host_seconds += (now - self.at) * len(self.system.hosts)
        self.at = now
        if step and (not self.steps or step > self.steps[-1][1]):
            self.steps.append((now, step))

    def until(self, end):
        while time.monotonic() < end and not self.system.ended():
            self.look()
            time.sleep(0.005)

    def change(self, wanted):
        """Brings the job to this number of hosts; each host that comes or goes is an event."""
        while len(self.system.hosts) != wanted:
            kind = "join"
            if len(self.system.hosts) < wanted:
                self.system.join(self.draw.choice([h for h in range(HOSTS) if h not in self.system.hosts]))
            else:
                host, kind = self.draw.choice(self.system.hosts), "leave"
                if self.draw.random() < self.without:
                    kind = "kill"
                    for pid in self.cluster.pids(host):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                self.system.leave(host)
            self.events.append((time.monotonic(), kind))


def run(args, trace):
    plan = changes(trace, args.scale)
    with tempfile.TemporaryDirectory(prefix="goodput-") as folder, netns_cluster.NetnsCluster(HOSTS) as cluster:
        system = recovery_systems.Tutti(cluster, Path(folder), 100000, 10, BUILD)
        replay = Replay(system, cluster, args)
        try:
            system.start(range(plan[0][1]))
            limit = time.monotonic() + 120
            while not replay.steps or replay.steps[-1][1] < 3:
                replay.until(min(limit, time.monotonic() + 0.1))
                if system.ended() or time.monotonic() >= limit:
                    raise RuntimeError("no 3 steps: " + system.said()[-2000:])
            replay.host_seconds, begin = 0.0, time.monotonic()
            for at, wanted in plan[1:]:
                replay.until(min(begin + at, begin + 60 * args.minutes))
                if at >= 60 * args.minutes or system.ended():
                    break
                replay.change(wanted)
            replay.until(begin + 60 * args.minutes)
            if system.ended():
                raise RuntimeError("the job has ended: " + system.said()[-2000:])
            lines = [json.loads(x) for x in (system.run / "log.jsonl").read_text().splitlines(keepends=True) if x.endswith("\n")]
            members = [(0, plan[0][1])] + [(x["step"], x["ranks"]) for x in lines if x["event"] == "members"]
            kinds = [kind for _, kind in replay.events]
            steps = measured(replay.steps, args.minutes)
            found = evaluate(steps, members, [t for t, _ in replay.events])
            rate = sum(abs(b[1] - a[1]) for a, b in zip(plan, plan[1:])) / (sum(s for s, n in trace.segments(HOSTS) if n) / 3600)
            audit = system.audit()
            return {**found, "steps": steps[-1][1] - steps[0][1], "events": {k: kinds.count(k) for k in sorted(set(kinds))},
                    "events_per_hour": len(kinds) / (found["wall"] / 3600), "rate": rate, "share_at_rate": 1 - rate * found["seconds_per_event"] / 3600,
                    "lost": audit["lost"], "twice": audit["twice"], "money_per_epoch": replay.host_seconds / 3600 * args.price / epochs(steps, plan[0][1])}
        finally:
            system.stop()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--trace", default="zone:us-west-2c-4")
    for name, value in (("scale", 300.0), ("minutes", 3.0), ("without-notice", 0.5), ("price", 0.918)):
        parser.add_argument("--" + name, type=float, default=value)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    finite = all(math.isfinite(x) for x in (args.scale, args.minutes, args.without_notice, args.price))
    if not finite or min(args.scale, args.minutes) <= 0 or not 0 <= args.without_notice <= 1 or args.price < 0:
        parser.error("--scale, --minutes: expected numbers above 0; --without-notice: from 0 to 1; --price: from 0")
    try:
        trace = spot_traces.named(args.trace, "--trace", seed=args.seed)
    except spot_traces.TraceError as why:
        sys.exit(f"goodput.py: {why}")
    load = environment.load()
    try:
        got = run(args, trace)
    except TooShort as why:
        sys.exit(str(why))
    except netns_cluster.Unavailable as e:
        netns_cluster.skip(str(e))
    got.update(load=load, scale=args.scale, trace=args.trace)
    if args.results:
        with open(args.results, "a", encoding="utf-8") as out:
            out.write(json.dumps(got) + "\n")
    events = ", ".join(f"{n} {kind}" for kind, n in got["events"].items()) or "none"
    print(f"{trace.name or args.trace}: {args.scale:g} times faster; {got['wall']:.0f} s, {got['steps']} steps; events: {events}; "
          f"{got['events_per_hour']:.0f} an hour")
    print(f"share of useful time, measured: {100 * got['share']:.2f} %; without the steps that no event disturbs: {100 * got['share_of_events']:.2f} %")
    print(f"an event costs {got['seconds_per_event']:.2f} s; at the rate of the trace, {got['rate']:.2f} events an hour: {100 * got['share_at_rate']:.3f} %")
    print(f"samples lost: {got['lost']}, seen twice: {got['twice']}; money of an epoch: {got['money_per_epoch']:.5f}; load {load:.1f}")


if __name__ == "__main__":
    main()
