#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants faults in the distributed code, one at a time, and counts the seeds after which the simulation finds them.

  tests/simulation/planted.py [--only NAME[,NAME...]] [--list] [--seeds 1000] [--jobs J] [--build FOLDER] [--again]

Compiles each scenario once, with all of its faults (planted_faults.py) in copies of the files; TUTTI_PLANTED, the name
of a fault, plants it in a process. `hosts` needs the targets tutti_tools_launch, tutti_tools_command_line and
tutti_compiled_core in FOLDER. Then runs seeds until one fails, and prints a table. A seed that also fails without a
fault does not count. FOLDER/planted/found.json stores the results, so a run that was stopped continues when it is
started again; --again: forgets them. Exits with 1 if a fault of a scenario that exists was not found, or if a text to
change is not in its file.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import planted_faults as faults

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-w", "-O1", "-UNDEBUG", "-pthread"]
PIECE = 20  # seeds of one call
PLANTED = ([("members", *f) for f in faults.OLD + faults.OTHER] + [("training", *f) for f in faults.TRAINING] +
           [("shares", *f) for f in faults.SHARES] + [("tables", *f) for f in faults.TABLES] +
           [("hosts", *f) for f in faults.HOSTS_FAULTS])
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
        write(overlay, file, re.sub(r"\A(// SPDX[^\n]*\n)(#pragma once\n)?", r'\1\2#include "planted_switch.hpp"\n', text))
    (overlay / "planted_switch.hpp").write_text(SWITCH)
    return missing


def write(overlay, file, text):
    to = overlay / (file if file.startswith("tools/") else f"tutti/{file}")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)


def compile_program(scenario, folder, build):
    """Compiles a scenario with the changed files below folder/include, which are found first."""
    overlay = folder / "include"
    verdict = Path("tools/launch/job/job_verdict.cpp")
    sources = [ROOT / "tests" / "simulation" / f"{scenario}.cpp", *sorted(overlay.glob("tools/**/*.cpp"))]
    libraries = []
    if scenario == "hosts":  # the linker takes a changed file in place of the library's
        libraries = [*(build / "tools" / f"libtutti_tools_{name}.a" for name in ("launch", "command_line")),
                     build / "libtutti_compiled_core.a"]
    elif not (overlay / verdict).exists():
        sources.append(ROOT / verdict)
    subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, "-I", overlay, "-I", ROOT / "include", "-I", ROOT, "-I",
                    build / "include", "-I", ROOT / "tests" / "simulation", *sources, *libraries, "-o",
                    folder / scenario], check=True)


def run_seeds(program, name, first, seeds, options):
    """Runs seeds. Returns [(seed that fails, its line)]. name: that of the fault to plant, or empty."""
    done = subprocess.run([program, "--first-seed", str(first), "--seeds", str(seeds), *options], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "TUTTI_PLANTED": name})
    if done.returncode not in (0, 1):
        sys.exit(f"planted.py: {program.name}, {name or 'no fault'}: seeds from {first} ended with {done.returncode}")
    return [(int(seed), line) for seed, line in re.findall(r"^seed (\d+): (.*)$", done.stdout, re.M)]


def failing_seeds(program, seeds, options):
    """Returns the seeds that fail without a fault: errors of the code, which find no fault."""
    failing = {seed for seed, _ in run_seeds(program, "", 1, seeds, options)}
    if failing:
        print(f"{program.name}: seeds that fail without a fault, and do not count: {sorted(failing)}", flush=True)
    return failing


def compiled(scenario, build):
    """Compiles a scenario with all faults. Returns the names of the faults without a place in the sources."""
    folder = build / "planted" / scenario
    missing = write_sources(scenario, folder / "include")
    compile_program(scenario, folder, build)
    return missing


def find(program, name, seeds, failing):
    """Returns the first seed that fails, its line and the seconds; only the seconds if all seeds are good."""
    began = time.monotonic()
    for first in range(1, seeds + 1, PIECE):
        for seed, line in run_seeds(program, name, first, min(PIECE, seeds + 1 - first), OPTIONS.get(name, ())):
            if seed not in failing:
                return {"seed": seed, "line": line, "seconds": time.monotonic() - began}
    return {"seed": None, "line": f"not found in {seeds} seeds", "seconds": time.monotonic() - began}


def score(options, chosen):
    results_file = options.build / "planted" / "found.json"
    results = {}
    if results_file.exists() and not options.again:
        results = json.loads(results_file.read_text())
    there = {s for s, *_ in chosen if (ROOT / "tests" / "simulation" / f"{s}.cpp").exists()}
    todo = [(s, name) for s, name, *_ in chosen if s in there and name not in results]
    missing, failing = [], {}
    for scenario in {s for s, _ in todo}:
        missing += compiled(scenario, options.build)
    todo = [(options.build / "planted" / s / s, name, OPTIONS.get(name, ())) for s, name in todo if name not in missing]
    for program, more in sorted({(program, more) for program, _, more in todo}):
        failing[program, more] = failing_seeds(program, options.seeds, more)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(find, program, name, options.seeds, failing[program, more]): name for program, name, more in todo}
        for future in concurrent.futures.as_completed(running):
            try:
                found = future.result()
            except SystemExit:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            results[running[future]] = found
            print(f"{running[future]}: seed {found['seed']}, {found['seconds']:.1f} s: {found['line']}", flush=True)
            aside = results_file.with_suffix(".new")
            aside.write_text(json.dumps(results, indent=1))
            aside.replace(results_file)
    return table(chosen, there, results, missing)


def table(chosen, there, results, missing):
    print("\n| scenario | fault | seed | seconds | found by |\n|---|---|---|---|---|")
    bad = False
    for scenario, name, *_ in chosen:
        found = results.get(name)
        if scenario not in there:
            print(f"| {scenario} | {name} | | | there is no such scenario |")
        elif name in missing or found is None:
            bad = True
            print(f"| {scenario} | {name} | | | its text is not in the file |")
        else:
            bad = bad or found["seed"] is None
            line = re.sub(r"; simulated .*|FAILED: |\|", "", found["line"])[:90]
            print(f"| {scenario} | {name} | {found['seed'] or '-'} | {found['seconds']:.1f} | {line} |")
    hits = [results[name] for _, name, *_ in chosen if name in results and results[name]["seed"] is not None]
    print(f"\n{len(hits)} of {len(chosen)} faults found; of {sum(s in there for s, *_ in chosen)} with a scenario")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build")))
    options = parser.parse_args()
    options.build = options.build.resolve()
    only = set(options.only.split(",")) if options.only else None
    chosen = [p for p in PLANTED if only is None or p[1] in only]
    if options.list:
        for scenario, name, file, *_ in chosen:
            print(f"{scenario:9} {file:45} {name}")
        return 0
    return score(options, chosen)


if __name__ == "__main__":
    sys.exit(main())
