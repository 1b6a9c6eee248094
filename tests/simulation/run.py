#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs schedules of the simulation, on all cores.

  tests/simulation/run.py [--scenario NAME] [--first-seed S] (--seeds N | --hours H | --minutes M) [--jobs J]
                          [--build FOLDER] [--exhaustive]
  tests/simulation/run.py [--scenario NAME] --shrink SEED
  tests/simulation/run.py --night HOURS [--piece MINUTES] [--again]
  tests/simulation/run.py [--scenario NAME] --same N [--first-seed S] [--histories FILE]
  tests/simulation/run.py --table
  tests/simulation/run.py --score [--scenario NAME] [--seeds N] [--minutes M]

--hours, --minutes: repeats the seeds that failed, continues after the last seed of the run before, and stops after this
time. --exhaustive: runs all lists of one or two faults within a change of three members (fault_plan.hpp). The program says
how many there are; the run after a complete one begins again. FOLDER/simulation/NAME.json stores both, so a run that
was stopped continues when it is started again. --shrink: leaves out faults of a seed that fails, as long as it fails, and
prints the history of the shortest list. --night: runs all scenarios in pieces of an hour, or of --piece minutes, a
part of each piece for each scenario. FOLDER/simulation-night.json stores the counts of each part, so a night that was
stopped continues with the part that was running; --again: begins another night. --same: runs N seeds, divided among all
scenarios, or of one, in two processes each, and compares the histories byte for byte. --histories: also compares them
with the hashes in FILE, for example those of another machine, and adds the seeds that FILE lacks. FILE has the hashes of
one git revision. --table: prints the stored counts of all scenarios as a table. --score: plants faults (planted.py), and
prints how many of each scenario were found within --seeds 1000 seeds. It continues after a stop, and stops after --minutes.
Exits with 1 if a seed fails, a history differs or a planted fault is not found.
"""
import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from planted import ROOT, write

PIECE = 100  # seeds of one call of the program
SCENARIOS = ["members", "training", "tables", "hosts", "shares"]


def program(options):
    path = options.build / "tests" / "simulation" / options.scenario
    if not path.exists():
        sys.exit(f"run.py: {path} is not built: ninja -C {options.build} tests_simulation_{options.scenario}")
    return str(path)


def lists_of(options):
    """Returns the number of lists of faults that --exhaustive runs."""
    return int(subprocess.run([program(options), "--lists"], stdout=subprocess.PIPE, text=True, check=True).stdout)


def call(options, first, seeds, *more):
    """Runs seeds. Returns the exit code and the output."""
    more = [*more, "--exhaustive"] if options.exhaustive else more
    done = subprocess.run([program(options), "--first-seed", str(first), "--seeds", str(seeds), *more],
                          stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


class Totals:
    """The counts of a run, and of all earlier runs if it has a file."""

    def __init__(self, path):
        self.path = path
        self.next, self.seeds, self.seconds, self.switches, self.failed = 1, 0, 0.0, 0, []
        if path is not None and path.exists():
            self.__dict__.update(json.loads(path.read_text()))
            self.path = path

    def add(self, first, output):
        last = output.strip().splitlines()[-1] if output.strip() else ""
        counts = re.fullmatch(r"(\d+) seeds from \d+: (\d+) failed, (\d+) s simulated, (\d+) switches", last)
        if counts is None:
            sys.exit(f"run.py: the program ended with: {last}")
        self.seeds += int(counts[1])
        self.seconds += int(counts[3])
        self.switches += int(counts[4])
        for line in output.splitlines()[:-1]:
            print(line, flush=True)
            if seed := re.match(r"seed (\d+): ", line):
                self.failed = sorted({*self.failed, int(seed[1])})

    def save(self):
        if self.path is not None:
            write(self.path, json.dumps({k: v for k, v in self.__dict__.items() if k != "path"}))


def run(options):
    name = options.scenario + ("-exhaustive" if options.exhaustive else "")
    totals = Totals(options.build / "simulation" / f"{name}.json" if options.hours else None)
    # An error may have been mended since.
    totals.failed = [seed for seed in totals.failed if call(options, seed, 1)[0] != 0]
    totals.save()
    first = options.first_seed if options.first_seed is not None else totals.next
    end = first + options.seeds if options.seeds is not None else float("inf")
    if options.exhaustive:
        lists = lists_of(options)
        if options.first_seed is None and first > lists:
            first = 1  # all have been run, perhaps before a change of the code
        if not 1 <= first <= lists:
            sys.exit(f"run.py: expected a list from 1 to {lists}, got {first}")
        end = min(end, lists + 1)
    began, before = time.monotonic(), totals.seeds
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        at, running = first, {}
        while True:
            # A part of a night runs seeds even if its time is over before the first one.
            goes_on = options.hours is None or time.monotonic() - began < 3600 * options.hours
            wanted = options.jobs if goes_on or (options.night is not None and at == first) else 0
            while len(running) < wanted and at < end:
                count = min(PIECE, end - at)
                running[pool.submit(call, options, at, count)] = at
                at += count
            if not running:
                break
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                totals.add(running.pop(future), future.result()[1])
            totals.next = min([at, *running.values()])
            totals.save()
    took = time.monotonic() - began
    print(f"{name}: {totals.seeds - before} seeds from {first} in {took:.0f} s, "
          f"{(totals.seeds - before) / max(took, 1e-9):.1f} a second; in all {totals.seeds} seeds, "
          f"{totals.seconds / 3600:.1f} h simulated, {totals.switches} switches, {len(totals.failed)} failed")
    if options.exhaustive and at > lists:
        print(f"{name}: complete, the last of {lists} lists was run")
    return 1 if totals.failed else 0


def table(options):
    """Prints the counts of all runs with a stored file."""
    print("| scenario | schedules | simulated hours | changes of threads | seeds that fail |\n|---|---|---|---|---|")
    for path in sorted((options.build / "simulation").glob("*.json")):
        t = Totals(path)
        failed = ", ".join(map(str, t.failed)) or "none"
        print(f"| {path.stem} | {t.seeds:,} | {t.seconds / 3600:,.1f} | {t.switches:,} | {failed} |")
    return 0


def counts_of(path):
    """Returns the counts of a run with a stored file."""
    totals = Totals(path)
    return {"seeds": totals.seeds, "hours": totals.seconds / 3600, "switches": totals.switches}


def night(options):
    """Runs all scenarios in turn, and stores the counts of each part of a piece."""
    store = options.build / "simulation-night.json"
    parts = []
    if store.exists() and not options.again:
        parts = json.loads(store.read_text())
    for scenario in [*SCENARIOS, *(part["scenario"] for part in parts if not part["done"])]:
        options.scenario = scenario
        program(options)  # ends this script if it is not built
    pieces = math.ceil(60 * options.night / options.piece)
    options.exhaustive, options.seeds, options.first_seed = False, None, None
    options.hours = options.piece / 60 / len(SCENARIOS)

    for number in range(pieces * len(SCENARIOS)):
        if number == len(parts):
            parts.append({"piece": number // len(SCENARIOS) + 1, "scenario": SCENARIOS[number % len(SCENARIOS)],
                          "done": False})
        part = parts[number]
        if part["done"]:
            continue
        options.scenario = part["scenario"]
        totals = options.build / "simulation" / f"{options.scenario}.json"
        now = counts_of(totals)
        # The seeds of a part that was stopped count, unless another file is in the place of its file.
        if any(part.get(name, -math.inf) + count < 0 for name, count in now.items()):
            part.update({name: -count for name, count in now.items()})
        write(store, json.dumps(parts, indent=1))
        run(options)
        for name, count in counts_of(totals).items():
            part[name] += count
        part.update(done=True, failed=Totals(totals).failed)
        write(store, json.dumps(parts, indent=1))
    return night_table(parts)


def night_table(parts):
    print("| piece | scenario | schedules | simulated hours | changes of threads | seeds that fail |")
    print("|---|---|---|---|---|---|")
    for p in parts:
        print(f"| {p['piece']} | {p['scenario']} | {p['seeds']:,} | {p['hours']:,.1f} | {p['switches']:,} | "
              f"{', '.join(map(str, p['failed'])) or 'none'} |")
    print(f"| all | all | {sum(p['seeds'] for p in parts):,} | {sum(p['hours'] for p in parts):,.1f} | "
          f"{sum(p['switches'] for p in parts):,} | |")
    return 1 if any(p["failed"] for p in parts) else 0


def history(options, scenario, seed):
    """Runs a seed. Returns a hash of what the program prints: the history and the result, without the command that
    repeats a failure, which has the path of the program."""
    options = argparse.Namespace(**{**vars(options), "scenario": scenario})
    done = subprocess.run([program(options), "--first-seed", str(seed), "--story"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    if done.returncode not in (0, 1) or not done.stdout:
        sys.exit(f"run.py: {scenario}: seed {seed} ended with {done.returncode}" + (" and no output" if not done.stdout else ""))
    lines = [line for line in done.stdout.splitlines(keepends=True) if not line.startswith(b"  repeat: ")]
    return hashlib.sha256(b"".join(lines)).hexdigest()[:16]


def revision():
    """Returns the git revision of the sources, or `unknown`."""
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def stored_histories(path):
    """Returns the hashes of a file, which must be those of this revision."""
    stored = json.loads(path.read_text()) if path.exists() else {"revision": revision()}
    if stored.get("revision") != revision():
        sys.exit(f"run.py: {path} has the histories of revision {stored.get('revision', 'unknown')}, and this is revision {revision()}: "
                 "name another file")
    return stored


def same(options):
    """Compares the histories of two processes for each seed, and those of a file."""
    names = [options.scenario] if options.scenario else SCENARIOS
    first = options.first_seed or 1
    stored = stored_histories(options.histories) if options.histories is not None else {}
    seeds = [(names[i % len(names)], first + i // len(names)) for i in range(options.same)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        hashes = list(pool.map(lambda s: [history(options, *s) for _ in range(2)], seeds))
    differ = [seed for seed, (a, b) in zip(seeds, hashes) if a != b]
    print(f"{len(seeds) - len(differ)} of {len(seeds)} seeds have the same history in two processes")
    if options.histories is not None:
        known = [(s, n, h) for (s, n), (h, _) in zip(seeds, hashes) if str(n) in stored.get(s, {})]
        others = [(s, n) for s, n, h in known if stored[s][str(n)] != h]
        print(f"{len(known) - len(others)} of {len(known)} seeds have the history of {options.histories}")
        differ += others
        for (s, n), (h, _) in zip(seeds, hashes):
            stored.setdefault(s, {}).setdefault(str(n), h)
        options.histories.write_text(json.dumps(stored, indent=0) + "\n")
    for scenario, seed in differ:
        print(f"  {scenario}: seed {seed} differs")
    return 1 if differ else 0


def shrink(options):
    """Leaves out faults as long as the seed still fails."""
    code, output = call(options, options.shrink, 1)
    if code == 0:
        sys.exit(f"run.py: seed {options.shrink} does not fail")
    numbers = {int(n) for n in re.findall(r" fault (\d+): ", call(options, options.shrink, 1, "--story")[1])}
    without = set()
    for number in sorted(numbers):
        attempt = ",".join(map(str, sorted(without | {number})))
        if call(options, options.shrink, 1, "--without", attempt)[0] != 0:
            without.add(number)
    more = ["--without", ",".join(map(str, sorted(without)))] if without else []
    print(call(options, options.shrink, 1, "--story", *more)[1], end="")
    return 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario")
    parser.add_argument("--first-seed", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--hours", type=float)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--shrink", type=int, metavar="SEED")
    parser.add_argument("--night", type=float, metavar="HOURS")
    parser.add_argument("--piece", type=float, default=60, metavar="MINUTES")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--same", type=int, metavar="N")
    parser.add_argument("--histories", type=Path, metavar="FILE")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build")))
    options = parser.parse_args()
    if options.table:
        return table(options)
    if options.score:
        given = [("--scenario", options.scenario), ("--seeds", options.seeds), ("--minutes", options.minutes)]
        return subprocess.call([sys.executable, Path(__file__).with_name("planted.py"), "--build", options.build, "--jobs",
                                str(options.jobs), *(str(x) for o in given if o[1] is not None for x in o)])
    if options.night is not None:
        return night(options)
    if options.same is not None:
        return same(options)
    options.scenario = options.scenario or "members"
    if options.shrink is not None:
        return shrink(options)
    if options.minutes is not None:
        options.hours = options.minutes / 60
    if (options.seeds is None) == (options.hours is None):
        parser.error("expected one of --seeds, --hours, --minutes, --night and --same")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
