#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
# processors: 2
"""Every header compiles alone. A header is checked again if it, or a header that it includes, has changed since it
passed in this build folder. TUTTI_CHECK_ALL=1 checks all.

Most of the time is spent on headers that other headers include. So that clang++ parses them once, a check begins with
a precompiled header: one of tutti's that the checked header always includes, directly or indirectly. The checked header
sees the same declarations as without it. Such a check could miss only an error of order: a header needs what another
header of the same #include list includes. That other header is checked too, and fails.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headers import RECORDS, Includes, Passed, headers, include_options
from sources import skip

MOST_PRECOMPILED = 24
# Relative compile time of a header of the standard library (4 if it is not listed), and of a header of another library.
STANDARD = {"regex": 40, "filesystem": 20, "future": 15, "functional": 15, "chrono": 15, "random": 15, "algorithm": 12,
            "iostream": 10, "fstream": 10, "sstream": 10, "thread": 12, "condition_variable": 12, "memory": 12, "ranges": 15}


def weight(name, files):
    if name in files:
        return 1 + files[name].stat().st_size / 4000
    return STANDARD.get(name, 4) if re.fullmatch(r"\w+", name) else 20


def choose(names, files, includes):
    """Returns {header to check: precompiled header to begin with}, if one saves time."""
    closures = {n: includes.closure(n, includes.always) for n in files}
    cost = {n: weight(n, files) + sum(weight(c, files) for c in closures[n]) for n in files}
    users = {}
    for name in names:
        for other in closures[name] & files.keys():
            users.setdefault(other, []).append(name)
    saved, begin = dict.fromkeys(names, 0), {}
    for _ in range(MOST_PRECOMPILED):
        def gain(candidate):
            return sum(max(0, 0.8 * cost[candidate] - saved[n]) for n in users[candidate]) - 1.5 * cost[candidate]
        best = max(users, key=gain, default=None)
        if best is None or gain(best) <= 0:
            break
        for name in users.pop(best):
            if 0.8 * cost[best] > saved[name]:
                saved[name], begin[name] = 0.8 * cost[best], best
    return begin


class Compiler:
    def __init__(self, program, work):
        self.program, self.work = program, Path(work)
        self.options = include_options()

    def _run(self, *arguments):
        done = subprocess.run([self.program, *self.options, *map(str, arguments)], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        return done.returncode == 0, done.stdout

    def precompile(self, name):
        source = self.work / (re.sub(r"\W", "_", name) + "_all.hpp")
        source.write_text(f"#include <{name}>\n")
        done, _ = self._run("-x", "c++-header", source, "-o", source.with_suffix(".pch"))
        return source.with_suffix(".pch") if done else None

    def check(self, name, precompiled=None):
        source = self.work / (re.sub(r"\W", "_", name) + ".cpp")
        source.write_text(f"#include <{name}>\n")
        if precompiled and self._run("-fsyntax-only", "-include-pch", precompiled, source)[0]:
            return True, ""
        # A precompiled header is out of date if one of its files was edited after it was made.
        return self._run("-fsyntax-only", source)


def main():
    program = next(filter(None, map(shutil.which, ("clang++-14", "clang++-16", "clang++"))), None)
    if program is None:
        skip("no clang++ (Debian: apt-get install clang-14)")
    files = headers()
    includes = Includes(files)
    version = subprocess.run([program, "--version"], text=True, stdout=subprocess.PIPE).stdout
    passed = Passed("headers_alone", version)
    digests = {n: passed.digest([p, *(files[c] for c in includes.closure(n, includes.possible) & files.keys())])
               for n, p in files.items()}
    names = [n for n in files if not passed.has(n, digests[n])]
    RECORDS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RECORDS) as work, ThreadPoolExecutor(2) as pool:
        compiler = Compiler(program, work)
        # Checks a known error first, to show that the check finds errors.
        bad = Path(work) / "bad.hpp"
        bad.write_text("#pragma once\ninline std::vector<int> numbers() { return {}; }\n")
        assert not compiler.check(str(bad))[0], "a header without its #include passes"
        begin = choose(names, files, includes)
        precompiled = dict(zip(sorted(set(begin.values())), pool.map(compiler.precompile, sorted(set(begin.values())))))
        good, bad = {}, 0
        for name, (done, said) in zip(names, pool.map(lambda n: compiler.check(n, precompiled.get(begin.get(n))), names)):
            if done:
                good[name] = digests[name]
            else:
                bad += 1
                print(f"{name} does not compile alone:\n{said}")
        passed.add(good)
    print(f"{len(files)} headers, {len(names)} checked with {len(precompiled)} precompiled headers, {bad} do not compile alone")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
