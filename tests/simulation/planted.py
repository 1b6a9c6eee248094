#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants faults in the distributed code, one at a time, and counts the seeds after which the simulation finds them.

  tests/simulation/planted.py [--scenario NAME[,NAME...]] [--only NAME[,NAME...]] [--seeds 1000] [--minutes M] [--jobs J]
                              [--build FOLDER] [--details] [--list]

Compiles each scenario once, with all of its faults (planted_faults.py) in copies of the files;
TUTTI_PLANTED, the name of a fault, plants it in a process. `hosts` needs the targets tutti_tools_launch,
tutti_tools_command_line and tutti_compiled_core in FOLDER. Then runs seeds until one fails, first few seeds of each
fault. A seed that also fails without a fault does not count. FOLDER/planted/found.json stores what was run, with a hash
of the fault and of all sources of the scenario. So a run that was stopped, or that --minutes ended, continues when it
is started again, and a change of the sources runs the scenario again. Prints a table of all scenarios and the faults
that were not found; --details: a line for each fault. Exits with 1 if a fault was not found or not run to the end, or
if a text to change is not in its file.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from planted_faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
# Most of a schedule's time is changes of threads, so a fast compilation is worth more than a fast program.
FLAGS = ["-std=c++20", "-w", "-O1", "-UNDEBUG", "-pthread"]
PIECE = 50  # seeds of one call
ROUNDS = [50, 250]  # seeds of each fault before any fault gets more
PLANTED = [(scenario, *fault) for scenario, faults in FAULTS.items() for fault in faults]
SCENARIOS = list(FAULTS)
# Options of the program that a fault needs.
OPTIONS = {name: ("--rank-timeout", "1") for name in ("short-pause-counts", "servers-keep-the-state")}
SWITCH = """#pragma once
#include <cstdlib>
#include <string_view>
inline const std::string_view tutti_planted_fault = std::getenv("TUTTI_PLANTED") ? std::getenv("TUTTI_PLANTED") : "";
"""


def source_of(file):
    return ROOT / file if file.startswith("tools/") else ROOT / "include" / "tutti" / file


def with_fault(name, text, wrong):
    """Returns code that behaves as `wrong` while the fault is planted, and otherwise as `text`."""
    planted = f'(::tutti_planted_fault == "{name}")'
    if "PLANTED" in wrong:
        return wrong.replace("PLANTED", planted)
    if text.rstrip()[-1] in ";}":
        return f"if {planted} {{ {wrong} }} else {{ {text} }}"
    return f"({planted} ? ({wrong}) : ({text}))"


def write_sources(scenario, overlay):
    """Writes copies of the files, with all faults of a scenario. Returns the names of the faults without a place."""
    texts, missing = {}, []
    for of, name, file, text, wrong in PLANTED:
        if of != scenario:
            continue
        source = texts.setdefault(file, source_of(file).read_text())
        if source.count(text) != 1:
            missing.append(name)
            continue
        texts[file] = source.replace(text, with_fault(name, text, wrong))
    for file, text in texts.items():
        # A macro without arguments keeps the guard of a header first.
        text = re.sub(r"\A(// SPDX[^\n]*\n)(#pragma once\n)?", r'\1\2#include "planted_switch.hpp"\n', text)
        write(overlay / (file if file.startswith("tools/") else f"tutti/{file}"), text)
    write(overlay / "planted_switch.hpp", SWITCH)
    return missing


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_text(text)
    aside.replace(path)


def digest(parts):
    """Returns a hash of texts and of the content of files."""
    sums = [hashlib.sha256(p.read_bytes() if isinstance(p, Path) else p.encode()).hexdigest() for p in parts]
    return hashlib.sha256("".join(sums).encode()).hexdigest()[:16]


class Program:
    """The program of a scenario with all of its faults."""

    def __init__(self, scenario, build):
        self.scenario, self.build = scenario, build
        self.folder = build / "planted" / scenario
        self.path = self.folder / scenario
        self.overlay = self.folder / "include"
        self.libraries = []
        if scenario == "hosts":
            self.libraries = [*(build / "tools" / f"libtutti_tools_{name}.a" for name in ("launch", "command_line")),
                              build / "libtutti_compiled_core.a"]

    def sources(self):
        verdict = Path("tools/launch/job/job_verdict.cpp")
        changed = sorted(self.overlay.glob("tools/**/*.cpp"))
        if self.libraries:
            changed = self.groups(changed)
        elif not (self.overlay / verdict).exists():
            changed.append(ROOT / verdict)
        return [ROOT / "tests" / "simulation" / f"{self.scenario}.cpp", *changed]

    def groups(self, changed):
        """Writes the groups of sources in which the build compiles the library of the launcher, if a changed one is in
        them. The linker then takes none of their objects from the library."""
        names, groups = {f'"{source.relative_to(self.overlay)}"' for source in changed}, []
        for group in sorted((self.build / "tools/CMakeFiles/tutti_tools_launch.dir/Unity").glob("*.cxx")):
            text = group.read_text().replace(f"{ROOT}/", "")
            if has := {name for name in names if name in text}:
                groups.append(self.overlay / "groups" / f"{group.stem}.cpp")
                write(groups[-1], text)
                names -= has
        if names:
            sys.exit(f"planted.py: {self.build} has no library of the launcher with {min(names)}")
        return groups

    def compile(self):
        """Compiles what has changed. Returns the names of the faults without a place in the sources."""
        missing = write_sources(self.scenario, self.overlay)
        objects, used = [], set()
        for source in self.sources():
            to = self.folder / "objects" / source.stem
            to.parent.mkdir(parents=True, exist_ok=True)
            depends, stamp = to.with_suffix(".d"), to.with_suffix(".stamp")
            if not stamp.exists() or stamp.read_text() != self.stamp(depends):
                subprocess.run([*self.compiler(), "-I", self.overlay, "-I", ROOT / "include", "-I", ROOT, "-I",
                                self.build / "include", "-I", ROOT / "tests" / "simulation", "-MMD", "-MF", depends, "-c",
                                source, "-o", to.with_suffix(".o")], check=True)
                stamp.write_text(self.stamp(depends))
            objects.append(to.with_suffix(".o"))
            used |= set(self.dependencies(depends))
        subprocess.run([*self.compiler(), *objects, *self.libraries, "-o", self.path], check=True)
        # Without the faults, so that a new fault changes the key of no other one.
        originals = {str(self.original(p)) for p in used
                     if p.name != "planted_switch.hpp" and p.parent.name != "groups"}
        write(self.folder / "sources.json", json.dumps(sorted(originals)))
        return missing

    @staticmethod
    def compiler():
        return [os.environ.get("CXX", "g++"), *FLAGS]

    def stamp(self, depends):
        """Returns a hash of all that an object was compiled from, or an empty text if that is not known."""
        files = self.dependencies(depends)
        if not files or not all(f.exists() for f in files):
            return ""
        return digest([*map(str, self.compiler()), *files])

    @staticmethod
    def dependencies(depends):
        """Returns the files in the output of -MMD."""
        if not depends.exists():
            return []
        return sorted({Path(p).resolve() for p in depends.read_text().replace("\\\n", " ").split(":", 1)[1].split()})

    def original(self, path):
        """Returns the file of the sources from which a file with faults was made."""
        if self.overlay.resolve() not in path.parents:
            return path
        file = path.relative_to(self.overlay.resolve())
        return ROOT / file if file.parts[0] == "tools" else ROOT / "include" / file

    def key(self):
        """Returns a hash of all sources, or an empty text if the program was not compiled yet."""
        list_file = self.folder / "sources.json"
        if not list_file.exists():
            return ""
        files = [*map(Path, json.loads(list_file.read_text())), *self.libraries]
        return digest([*FLAGS, *files]) if all(f.exists() for f in files) else ""


def run_seeds(program, name, first, seeds, options):
    """Runs seeds until one fails. Returns that seed and its line, if there is one. name: the fault to plant, or empty."""
    done = subprocess.run([program, "--first-seed", str(first), "--seeds", str(seeds), "--until-failure", *options],
                          stdout=subprocess.PIPE, text=True, env={**os.environ, "TUTTI_PLANTED": name})
    if done.returncode not in (0, 1):
        sys.exit(f"planted.py: {Path(program).name}, {name or 'no fault'}: seeds from {first} ended with {done.returncode}")
    found = re.search(r"^seed (\d+): (.*)$", done.stdout, re.M)
    return (int(found[1]), found[2]) if found else None


class Score:
    """What was run of each fault, in a file."""

    def __init__(self, path, ends=float("inf")):
        self.path, self.ends, self.lock, self.stored = path, ends, threading.Lock(), 0.0
        # of a fault: its key, the seeds that were run, the seed that fails or None, its line, seconds
        self.found = {}
        self.without = {}  # whether a seed fails without a fault, by program key, options and seed
        if path.exists():
            self.__dict__.update(json.loads(path.read_text()))

    def save(self, at_once=False):
        if not at_once and time.monotonic() < self.stored + 2:
            return
        self.stored = time.monotonic()
        write(self.path, json.dumps({"found": self.found, "without": self.without}, indent=1))

    def of(self, name, key):
        """Returns what was run of a fault. A fault with another key begins again."""
        with self.lock:
            if self.found.get(name, {}).get("key") != key:
                self.found[name] = {"key": key, "seeds": 0, "seed": None, "line": "", "seconds": 0.0}
            return self.found[name]

    def fails_without(self, program, key, seed, options):
        known = " ".join([key, *options, str(seed)])
        if known not in self.without:
            fails = run_seeds(program, "", seed, 1, options) is not None
            if fails:
                print(f"{Path(program).name}: seed {seed} fails without a fault, and does not count", flush=True)
            with self.lock:
                self.without[known] = fails
        return self.without[known]

    def find(self, program, name, key, of_sources, seeds, options=()):
        """Runs the next seeds of a fault, until one fails or all `seeds` are good."""
        r = self.of(name, key)
        while r["seed"] is None and r["seeds"] < seeds and time.monotonic() < self.ends:
            began = time.monotonic()
            count = min(PIECE, seeds - r["seeds"])
            failed = run_seeds(program, name, r["seeds"] + 1, count, options)
            counts = failed is not None and not self.fails_without(program, of_sources, failed[0], options)
            with self.lock:
                r["seeds"] = failed[0] if failed else r["seeds"] + count
                r["seconds"] += time.monotonic() - began
                if counts:
                    r["seed"], r["line"] = failed
                    print(f"{name}: seed {r['seed']}, {r['seconds']:.1f} s: {r['line']}", flush=True)
                self.save(counts)
        with self.lock:
            self.save(True)
        return r


def fault_key(of_sources, fault):
    return digest([of_sources, *fault, *OPTIONS.get(fault[1], ())])


def score(options, chosen):
    ends = time.monotonic() + 60 * options.minutes if options.minutes is not None else float("inf")
    all_of = Score(options.build / "planted" / "found.json", ends)
    programs = {s: Program(s, options.build) for s in dict.fromkeys(s for s, *_ in chosen)}

    def is_done(fault):
        r = all_of.found.get(fault[1], {})
        same = r.get("key") == fault_key(programs[fault[0]].key(), fault)
        return same and (r["seed"] is not None or r["seeds"] >= options.seeds)

    missing, keys = [], {}
    for scenario, program in programs.items():
        if any(s == scenario and not is_done((s, *f)) for s, *f in chosen) and time.monotonic() < ends:
            began = time.monotonic()
            missing += program.compile()
            print(f"{scenario}: compiled in {time.monotonic() - began:.0f} s", flush=True)
        keys[scenario] = program.key()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for seeds in [*(n for n in ROUNDS if n < options.seeds), options.seeds]:
            todo = [f for f in chosen if f[1] not in missing and keys[f[0]] and not is_done(f)]
            futures = [pool.submit(all_of.find, str(programs[f[0]].path), f[1], fault_key(keys[f[0]], f), keys[f[0]], seeds,
                                   OPTIONS.get(f[1], ())) for f in todo]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except SystemExit:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
            finally:
                all_of.save(True)
    results = {}
    for f in chosen:
        r = all_of.found.get(f[1], {})
        results[f[1]] = r if r.get("key") == fault_key(keys[f[0]], f) and f[1] not in missing else None
    return table(options, chosen, results, missing)


def text_of(result):
    return re.sub(r"; simulated .*|FAILED: |\|", "", result["line"])[:90]


def table(options, chosen, results, missing):
    """Prints the counts of each scenario, and the faults that were not found."""
    def state(name):
        r = results[name]
        if name in missing:
            return "its text is not in the file"
        if r is None or (r["seed"] is None and r["seeds"] < options.seeds):
            return f"not run to the end: {r['seeds'] if r else 0} seeds"
        return "" if r["seed"] is not None else f"not found in {r['seeds']} seeds"

    if options.details:
        print("\n| scenario | fault | seed | seconds | found by |\n|---|---|---|---|---|")
        for scenario, name, *_ in chosen:
            r = results[name]
            if state(name):
                print(f"| {scenario} | {name} | - | {r['seconds'] if r else 0:.1f} | {state(name)} |")
            else:
                print(f"| {scenario} | {name} | {r['seed']} | {r['seconds']:.1f} | {text_of(r)} |")
    print(f"\n| scenario | faults | found within 100 seeds | within {options.seeds:,} | not found | not run to the end |"
          "\n|---|---|---|---|---|---|")
    bad = []
    for scenarios in [*([s] for s in SCENARIOS), *([SCENARIOS] if len(SCENARIOS) > 1 else [])]:
        names = [name for s, name, *_ in chosen if s in scenarios]
        if not names or (len(scenarios) > 1 and len({s for s, *_ in chosen}) < 2):
            continue
        seeds = [results[n]["seed"] for n in names if not state(n)]
        lacking = sum(state(n).startswith("not found") for n in names)
        bad = [n for n in names if state(n)] if len(scenarios) > 1 else bad + [n for n in names if state(n)]
        print(f"| {scenarios[0] if len(scenarios) == 1 else 'all'} | {len(names)} | {sum(s <= 100 for s in seeds)} | {len(seeds)} | {lacking} | "
              f"{len(names) - len(seeds) - lacking} |")
    for scenario, name, *_ in chosen:
        if name in bad:
            print(f"  {scenario}: {name}: {state(name)}")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario")
    parser.add_argument("--only")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build")))
    options = parser.parse_args()
    options.build = options.build.resolve()
    scenarios = options.scenario.split(",") if options.scenario else SCENARIOS
    only = set(options.only.split(",")) if options.only else None
    chosen = [p for p in PLANTED if p[0] in scenarios and (only is None or p[1] in only)]
    if options.list:
        for scenario, name, file, *_ in chosen:
            print(f"{scenario:9} {file:45} {name}")
        return 0
    return score(options, chosen)


if __name__ == "__main__":
    sys.exit(main())
