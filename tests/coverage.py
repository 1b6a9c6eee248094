#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints which lines of include/ and backends/ the tests run. Not part of ./test.sh.

  tests/coverage.py [--only AREA[,AREA...]] [--all] [--sanitize LIST] [--keep] [--jobs N] [--build FOLDER] [--check]
  tests/coverage.py --read [--build FOLDER] [--jobs N] [--check]
  tests/coverage.py --lines FILE [--build FOLDER]

Builds the C++ tests with GCC's counters in FOLDER (build-coverage), runs them and reads the output of gcov. An area is
a folder of tests/; without --only all of them. --all: builds everything, and ctest runs the scripts of the areas, too;
lint, packaging, infra, bench and fuzz are left out, because they test documents, scripts and other builds. --sanitize
address,undefined: with GCC's sanitizers too; the reports of all processes are printed at the end and make the exit code
1. --keep: adds to the counts of earlier runs in that folder, so that the areas can run one by one. --read builds and
runs no test, and prints the counts so far. --lines lists the lines of a file that no test runs, by its path below the
root, from the last reading. --check: exits with 1 if less than 90 % of all lines, or 75 % of those of a file, are run.

Lines of templates that no test instantiates are in no program, and do not count. Code that runs on a GPU does not
count, nor code for an instruction set that this machine lacks.
"""
import argparse
import collections
import gzip
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The counts of threads may be inaccurate, because only zero matters. Atomic counts would make threads wait for each
# other.
FLAGS = "-O1 -g0 --coverage -fprofile-update=single -DTUTTI_COVERAGE"
# Reports are written to files, because many tests read or drop the output of their programs. Together with the address
# sanitizer, GCC's undefined-behaviour sanitizer cannot write files: it raises SIGILL, which the address sanitizer
# reports with its line. The value 2 does so even if a program has its own handler, as every doctest program has.
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:handle_sigill=2", "UBSAN_OPTIONS": "print_stacktrace=1"}
DEVICE = re.compile(r"backends/cuda/kernels/")  # NVRTC compiles these strings
WHOLE, FILE = 90.0, 75.0


LEFT_OUT = {"lint", "packaging", "infra", "bench", "fuzz"}


def areas(everything):
    pattern = "*/test_*.*" if everything else "*/test_*.cpp"
    return sorted({p.parent.name for p in (ROOT / "tests").glob(pattern)} - LEFT_OUT)


def pythons():
    """Returns the Python environments for which ./test.sh has installed packages."""
    at = {area: ROOT / f"build/venv/{area}/bin/python" for area in ("interchange", "tensorboard")}
    return [f"-DTUTTI_{area.upper()}_PYTHON={python}" for area, python in at.items() if python.exists()]


def configure(build, sanitize):
    trap = " -fsanitize-undefined-trap-on-error" if {"address", "undefined"} <= set(sanitize.split(",")) else ""
    subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS_DEBUG={FLAGS}{trap}",
                    f"-DTUTTI_SANITIZE={sanitize}", *pythons(), "-DTUTTI_BUILD_TESTS=ON", "-DTUTTI_BUILD_BENCH=OFF"],
                   check=True, stdout=subprocess.DEVNULL)


def listen(build, sanitize):
    """Sets the folder into which the sanitizers of all child processes write, and returns it."""
    folder = build / "sanitizer_reports"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if sanitize:
        for name, options in SANITIZERS.items():
            os.environ[name] = ":".join(filter(None, [options, f"log_path={folder}/report", os.environ.get(name)]))
    return folder


def reports(folder):
    """Returns a text with the report for each process that a sanitizer ended."""
    return [f"{path.name}\n{path.read_text(errors='replace')[:4000]}" for path in sorted(folder.iterdir()) if path.stat().st_size]


def build_and_run(build, chosen, everything, sanitize, keep, jobs):
    """Runs the tests, and prints the names of tests that failed. Their lines count too."""
    if not keep:
        for counts in build.rglob("*.gcda"):
            counts.unlink()
    if everything:
        subprocess.run(["cmake", "--build", build, "--parallel", str(jobs), "--", "-k", "0"], check=False)
        done = subprocess.run(["ctest", "--test-dir", build, "--output-on-failure", "--parallel", str(jobs),
                               "-L", f"^({'|'.join(chosen)})$"], check=False)
        return ["ctest"] if done.returncode else []
    sources = [p for area in chosen for p in sorted((ROOT / "tests" / area).glob("test_*.cpp"))]
    targets = {f"tests_{p.parent.name}_{p.stem}": p for p in sources}
    known = subprocess.run(["cmake", "--build", build, "--target", "help"], capture_output=True, text=True, check=True).stdout
    there = [t for t in targets if re.search(rf"^{t}:", known, re.M)]
    subprocess.run(["cmake", "--build", build, "--parallel", str(jobs), "--target", *there, "--", "-k", "0"], check=False)
    failed = []
    environment = dict(os.environ, TUTTI_SOURCE_DIR=str(ROOT), TUTTI_BUILD_DIR=str(build), TUTTI_SANITIZE=sanitize)
    for target in there:
        program = build / "tests" / targets[target].parent.name / targets[target].stem
        if not program.exists():
            failed.append(f"{target} (does not compile)")
            continue
        try:
            done = subprocess.run([program, "--no-colors=true", "--minimal=true"], cwd=build, env=environment, capture_output=True,
                                  text=True, errors="replace", timeout=1800)
        except subprocess.TimeoutExpired:
            failed.append(f"{target} (longer than 1800 s)")
            continue
        if done.returncode:
            failed.append(target)
            print(done.stdout[-2000:])
        print(f"{target}: status {done.returncode}", flush=True)
    return failed


def counts_of(data):
    """Returns {file: {line: count}} of include/ and backends/ for one object file."""
    done = subprocess.run(["gcov", "--json-format", "--stdout", data], capture_output=True, cwd=data.parent, timeout=600)
    raw = gzip.decompress(done.stdout) if done.stdout[:2] == b"\x1f\x8b" else done.stdout
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    for text in raw.splitlines():
        said = json.loads(text)
        for file in said["files"]:
            name = os.path.relpath(os.path.realpath(os.path.join(said["current_working_directory"], file["file"])), ROOT)
            if not name.startswith(("include/", "backends/")) or DEVICE.search(name):
                continue
            for line in file["lines"]:
                counts[name][line["line_number"]] += line["count"]
    return {name: dict(lines) for name, lines in counts.items()}


def read_counts(build, jobs):
    """Returns {file: {line: count}} of include/ and backends/."""
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    with multiprocessing.Pool(jobs) as pool:
        for part in pool.imap_unordered(counts_of, sorted(build.rglob("*.gcda"))):
            for name, lines in part.items():
                for line, count in lines.items():
                    counts[name][line] += count
    return counts


def percent(lines):
    return 100.0 * sum(1 for n in lines.values() if n) / len(lines) if lines else 100.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--sanitize", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build", type=Path, default=ROOT / "build-coverage")
    parser.add_argument("--read", action="store_true")
    parser.add_argument("--lines", default="")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else areas(args.all)
    if unknown := sorted(set(chosen) - set(areas(args.all))):
        parser.error(f"[--only] expected folders of tests/ with {'' if args.all else 'C++ '}tests: {' '.join(areas(args.all))}; "
                     f"got {' '.join(unknown)}")
    build, saved = args.build.resolve(), args.build.resolve() / "coverage.json"
    if args.lines:
        if not saved.exists():
            parser.error(f"[--lines] expected what an earlier run has counted, got no {saved}")
        lines = json.loads(saved.read_text()).get(args.lines)
        if lines is None:
            parser.error(f"[--lines] expected a file of include/ or backends/ that a test compiles, got {args.lines}")
        text = (ROOT / args.lines).read_text().splitlines()
        for number in sorted(int(n) for n, count in lines.items() if not count):
            print(f"{number:5} {text[number - 1]}")
        return 0
    failed = []
    if not args.read:
        os.environ["GCOV_ERROR_FILE"] = "/dev/null"  # for processes that may not write their counts
        configure(build, args.sanitize)
        folder = listen(build, args.sanitize)
        failed = build_and_run(build, chosen, args.all, args.sanitize, args.keep, args.jobs)
        failed += [f"the sanitizers' {text}" for text in reports(folder)]
    counts = read_counts(build, args.jobs)
    if not counts:
        parser.error(f"[--build] expected what a test has counted, got none in {build}")
    saved.write_text(json.dumps(counts))
    for name in sorted(counts, key=lambda n: percent(counts[n])):
        print(f"{percent(counts[name]):6.1f} % of {len(counts[name]):5} lines  {name}")
    whole = {(name, line): n for name, lines in counts.items() for line, n in lines.items()}
    low = [name for name in counts if percent(counts[name]) < FILE]
    print(f"{percent(whole):.1f} % of {len(whole)} lines in {len(counts)} files; {len(low)} files below {FILE:.0f} %")
    print(*(f"FAILED: {name}" for name in failed), sep="\n")
    return 1 if failed or (args.check and (low or percent(whole) < WHOLE)) else 0


if __name__ == "__main__":
    sys.exit(main())
