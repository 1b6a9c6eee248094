#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads traces of Spot capacity, prints their statistics, and generates traces from published statistics. Used by tutti-plan
and bench/baselines/goodput.py.

  spot_traces.py FILE...                             statistics of traces
  spot_traces.py --generate ZONE [--days D] [--seed S]   writes a trace with the statistics of a published zone to stdout

A trace is a JSON file as in https://github.com/skypilot-org/spot-traces, which belongs to "Can't Be Late: Optimizing Spot
Instance Savings under Deadlines" (Wu et al., NSDI 2024):

  {"metadata": {"gap_seconds": 300}, "data": [4, 4, 2, ...], "prices": [0.918, ...]}

data: the number of instances that were available at each sample, gap_seconds apart. prices: the price of an instance per
hour at each sample; most traces have none.
"""
import argparse
import itertools
import json
import math
import random
import re
import sys
from dataclasses import dataclass, field

MOST_BYTES, MOST_SAMPLES, MOST_INSTANCES, SHORTEST_GAP, LONGEST_GAP = 64 << 20, 1000000, 100000, 0.001, 86400
SPACE = re.compile(r"[ \t\r\n]*")


class TraceError(Exception):
    """A trace that cannot be used. `where`: the file, with the line if a line is wrong."""

    def __init__(self, where, expected, got, hint=""):
        super().__init__(f"[{where}] expected {expected}, got {got}.{f' hint: {hint}.' if hint else ''}")
        self.where, self.expected, self.got, self.hint = where, expected, got, hint


@dataclass
class Zone:
    """The statistics of a zone. An instance is available for 1/losses hours on average."""
    instances: int  # number of instances that were asked for
    available: float  # mean share of them that was available
    losses: float  # preemptions of an instance per hour for which it was available
    together: float  # mean number of instances that were lost in one sample


# Computed by this program from the files of skypilot-org/spot-traces at commit 221da1a: availability/16-node/aws-08-27-2023
# (16 instances, 11 and 16 days) and preemption/4-node/aws-08-03-2023 (4 instances, 13 and 18 days), p3.2xlarge with one V100.
ZONES = {
    "us-east-2b-16": Zone(16, 0.5474, 0.3840, 6.69), "us-west-2a-16": Zone(16, 0.4312, 0.5410, 10.16),
    "us-west-2c-16": Zone(16, 0.4270, 0.5066, 11.11), "us-east-1f-4": Zone(4, 0.3439, 0.4643, 1.43),
    "us-east-2a-4": Zone(4, 0.7309, 0.0600, 1.25), "us-west-2c-4": Zone(4, 0.8161, 0.2364, 1.82),
}


@dataclass
class SpotTrace:
    gap: float  # seconds between two samples
    counts: list  # available instances at each sample
    prices: list = field(default_factory=list)  # price of an instance per hour at each sample, or empty
    name: str = ""

    @property
    def most(self):
        return max(self.counts)

    @property
    def hours(self):
        return len(self.counts) * self.gap / 3600

    def price(self):
        """Returns the mean price of an available instance per hour, or None."""
        return sum(p * n for p, n in zip(self.prices, self.counts)) / sum(self.counts) if self.prices else None

    def of_fleet(self, instances):
        """Returns the available instances of a fleet of this size at each sample. If the fleet is larger than the trace, it has the
        same share of its instances as the trace, rounded down."""
        most = self.most
        return [min(count, instances) if instances <= most else count * instances // most for count in self.counts]

    def bill(self, instances):
        """Returns a function: (begin, seconds) to the money of a fleet of this size from this time of the trace, which repeats."""
        sums = [0.0, *itertools.accumulate(p * n * self.gap / 3600 for p, n in zip(self.prices, self.of_fleet(instances)))]
        whole = self.gap * len(self.counts)

        def until(at):
            passes, rest = divmod(at, whole)
            place = min(int(rest / self.gap), len(self.counts) - 1)
            return passes * sums[-1] + sums[place] + (rest / self.gap - place) * (sums[place + 1] - sums[place])
        return lambda begin, seconds: until(begin + seconds) - until(begin)

    def statistics(self):
        pairs = list(zip(self.counts, self.counts[1:]))
        drops = [a - b for a, b in pairs if a > b]
        return Zone(self.most, sum(self.counts) / len(self.counts) / self.most, sum(drops) / (sum(self.counts) * self.gap / 3600),
                    sum(drops) / len(drops) if drops else 0.0)

    def segments(self, instances):
        """Returns [(seconds, instances of a fleet of this size that are available)], joined where the number stays the same."""
        found = []
        for there in self.of_fleet(instances):
            if found and found[-1][1] == there:
                found[-1][0] += self.gap
            else:
                found.append([self.gap, there])
        return [(seconds, there) for seconds, there in found]


class _Reader:
    """Reads the JSON text of a trace, and knows the line of each value."""

    def __init__(self, path, text):
        self.path, self.text, self.at = path, text, 0
        self.decoder = json.JSONDecoder(parse_constant=self._constant)

    @staticmethod
    def _constant(name):
        raise ValueError(name)

    def fail(self, expected, got, at=None, hint=""):
        line = self.text.count("\n", 0, self.at if at is None else at) + 1
        raise TraceError(f"{self.path} line {line}", expected, got, hint)

    def peek(self):
        self.at = SPACE.match(self.text, self.at).end()
        return self.text[self.at:self.at + 1]

    def take(self, characters, expected):
        found = self.peek()
        if not found or found not in characters:
            self.fail(expected, f"{found!r}" if found else "the end of the file", hint="" if found else "the file is incomplete")
        self.at += 1
        return found

    def value(self, expected):
        """Returns a JSON value and the place where it begins."""
        begin = self.at if self.peek() else self.take("?", expected)
        begin = self.at
        try:
            value, self.at = self.decoder.raw_decode(self.text, begin)
        except json.JSONDecodeError as why:
            end = why.pos >= len(self.text.rstrip())
            self.fail(expected, "the end of the file" if end else why.msg, why.pos, "the file is incomplete" if end else "")
        except (ValueError, RecursionError) as why:  # NaN, a number with thousands of digits, brackets in brackets
            self.fail(expected, str(why)[:80] or "lists in lists")
        return value, begin

    def numbers(self, what, check):
        """Returns a list of numbers. check: returns whether a number is good."""
        self.take("[", f"[ of a list: {what}")
        values = []
        if self.peek() == "]":
            self.at += 1
            return values
        while True:
            value, begin = self.value(what)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not check(value):
                self.fail(f"{what} at sample {len(values)}", json.dumps(value)[:60], begin)
            values.append(value)
            if len(values) > MOST_SAMPLES:
                self.fail(f"at most {MOST_SAMPLES} samples", "more")
            if self.take(",]", "a comma or ] after a sample") == "]":
                return values

    def trace(self):
        found = {}
        self.take("{", "{ of a trace: {\"metadata\": {\"gap_seconds\": ...}, \"data\": [...]}")
        while True:
            key, begin = self.value("a name such as \"data\"")
            if not isinstance(key, str) or key in found:
                self.fail("a name, each once", json.dumps(key)[:60], begin)
            self.take(":", "a colon after a name")
            if key == "data":
                found[key] = self.numbers(f"a whole number of instances from 0 to {MOST_INSTANCES}",
                                          lambda n: 0 <= n <= MOST_INSTANCES and n == int(n))
            elif key == "prices":
                found[key] = self.numbers("a price from 0 upwards", lambda p: 0 <= p < 1e9)
            else:
                found[key], place = self.value(f"the value of {key}")
                if key == "metadata":
                    self.gap_of(found[key], place)
            if self.take(",}", "a comma or } after a value") == "}":
                break
        if self.peek():
            self.fail("the end of the file", f"{self.text[self.at:self.at + 20]!r}")
        for key in ("metadata", "data"):
            if key not in found:
                self.fail(f"\"{key}\"", ", ".join(f'"{k}"' for k in found))
        if not any(found["data"]):
            self.fail("a sample with an instance", f"{len(found['data'])} samples without one" if found["data"] else "no samples")
        prices = found.get("prices", [])
        if prices and len(prices) != len(found["data"]):
            self.fail(f"as many prices as samples, {len(found['data'])}", len(prices))
        return SpotTrace(float(found["metadata"]["gap_seconds"]), [int(n) for n in found["data"]], prices, str(self.path))

    def gap_of(self, metadata, place):
        gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
        if isinstance(gap, bool) or not isinstance(gap, (int, float)) or not SHORTEST_GAP <= gap <= LONGEST_GAP:
            self.fail(f"gap_seconds from {SHORTEST_GAP} to {LONGEST_GAP}", json.dumps(gap if isinstance(metadata, dict) else metadata)[:60], place)


def read(path):
    """Reads a trace. Raises TraceError with the line of what is wrong."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as why:
        raise TraceError(path, "a trace of Spot capacity", why.strerror) from None
    if len(data) > MOST_BYTES:
        raise TraceError(path, f"at most {MOST_BYTES >> 20} MiB", "more")
    try:
        text = data.decode()
    except UnicodeDecodeError as why:
        line = data.count(b"\n", 0, why.start) + 1
        raise TraceError(f"{path} line {line}", "text in UTF-8", f"byte 0x{data[why.start]:02x}") from None
    return _Reader(path, text).trace()


def add(traces):
    """Returns the trace of a fleet that buys in several zones: the sum of their instances, as long as the shortest trace, with
    the shortest gap. It has prices if all traces have some: the mean over the instances."""
    if len(traces) == 1:
        return traces[0]
    gap, seconds = min(t.gap for t in traces), min(t.hours for t in traces) * 3600
    counts, prices, priced = [], [], all(t.prices for t in traces)
    for k in range(min(math.ceil(seconds / gap), MOST_SAMPLES)):
        places = [min(int(k * gap / t.gap), len(t.counts) - 1) for t in traces]
        here = [t.counts[p] for t, p in zip(traces, places)]
        counts.append(sum(here))
        if priced:
            weights = here if sum(here) else [1] * len(here)
            prices.append(sum(w * t.prices[p] for w, t, p in zip(weights, traces, places)) / sum(weights))
    name = ", ".join(t.name for t in traces)
    if not any(counts):
        raise TraceError(name, "a sample with an instance", f"{len(counts)} samples without one")
    return SpotTrace(gap, counts, prices, name)


def generate(zone, days, seed=0, gap=300, name=""):
    """Returns a trace with the statistics of a zone. Instances come and go in groups of `together`; each group is available
    and missing for exponentially distributed times, independently of the other groups. In a real zone the times have a longer
    tail, and the groups have different sizes."""
    draw, samples = random.Random(seed), min(int(days * 86400 / gap), MOST_SAMPLES)
    up = 3600 / zone.losses
    down = up * (1 - zone.available) / zone.available
    groups = max(1, round(zone.instances / max(1.0, zone.together)))
    counts = [0] * samples
    for group in range(groups):
        size = zone.instances * (group + 1) // groups - zone.instances * group // groups
        there, until = draw.random() < zone.available, 0.0
        until = draw.expovariate(1 / (up if there else down))
        for k in range(samples):
            while k * gap >= until:
                there = not there
                until += draw.expovariate(1 / (up if there else down))
            counts[k] += size if there else 0
    if not any(counts):
        raise TraceError(name or "generate", "a sample with an instance", f"{samples} samples without one", "generate more days")
    return SpotTrace(gap, counts, [], name)


def zone_trace(name, days=14, seed=0):
    """Generates a trace of a published zone. Raises TraceError if there is no such zone."""
    if name not in ZONES:
        raise TraceError("zone", "one of " + ", ".join(ZONES), name)
    return generate(ZONES[name], days, seed, name=f"generated from the statistics of {name}")


def named(text, option, seed=0):
    """Reads a file, or generates the trace of zone:NAME. Raises TraceError; its `where` is the option if there is no such zone."""
    if not text.startswith("zone:"):
        return read(text)
    if text[5:] not in ZONES:
        raise TraceError(option, "zone: and one of " + ", ".join(ZONES), repr(text))
    return zone_trace(text[5:], seed=seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", metavar="FILE")
    parser.add_argument("--generate", metavar="ZONE", help="one of " + ", ".join(ZONES))
    parser.add_argument("--days", type=float, default=14)
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    if bool(o.generate) == bool(o.traces) or not 0 < o.days <= 3000:
        parser.error("expected traces or --generate, and --days above 0, up to 3000")
    try:
        if o.generate:
            made = zone_trace(o.generate, o.days, o.seed)
            print(json.dumps({"metadata": {"gap_seconds": made.gap}, "data": made.counts}))
            return
        print("| trace | days | instances | available | lost per instance and hour | lost together | changes an hour |\n|---|---|---|---|---|---|---|")
        for path in o.traces:
            t = read(path)
            s, changes = t.statistics(), sum(a != b for a, b in zip(t.counts, t.counts[1:]))
            print(f"| {path} | {t.hours / 24:.1f} | {s.instances} | {100 * s.available:.1f} % | {s.losses:.4f} | {s.together:.2f} | {changes / t.hours:.2f} |")
    except TraceError as why:
        sys.exit(f"spot_traces.py: {why}")


if __name__ == "__main__":
    main()
