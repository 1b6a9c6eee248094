#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
# processors: 2
"""Every header compiles alone. A header is checked again if it, or a header that it includes, has changed since it
passed in this build folder. In a new build folder some of the headers are checked, see headers.to_check. TUTTI_CHECK_ALL=1
checks all.

Most of the time is spent on headers that other headers include. So that clang++ parses them once, the headers form
groups, and the checks of a group begin with a precompiled header: headers of tutti and of the standard library that
each header of the group always includes, directly or indirectly. The checked header sees the same declarations as
without it. Such a check could miss only an error of order: a header needs what another header of the same #include list
includes. That other header is checked too, and fails.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headers import RECORDS, Includes, Passed, headers, include_options, to_check
from sources import skip

# Relative compile time of headers of the standard library and of POSIX (others: 2), and of other libraries (others: OTHER).
KNOWN = {"regex": 40, "filesystem": 20, "future": 15, "functional": 15, "chrono": 15, "random": 15, "algorithm": 12,
         "iostream": 10, "fstream": 10, "sstream": 10, "thread": 12, "condition_variable": 12, "memory": 12, "ranges": 15,
         "Eigen/Core": 60}
OTHER = 12
# A precompiled header takes its parts' time times MAKE, because it adds to another one, plus START. A check with it saves their
# time times SAVED.
MAKE, SAVED, START = 0.7, 0.95, 8


def is_standard(name):
    return re.fullmatch(r"\w+|(sys/|netinet/|arpa/)?\w+\.h", name) is not None


def weight(name, files):
    if name in files:
        return 1 + files[name].stat().st_size / 4000
    return KNOWN.get(name, 2 if is_standard(name) else OTHER)


def groups_of(names, files, includes):
    """Returns [(headers to check, headers to precompile for them)]. Takes the precompiled header that saves most until no further
    one saves time. Each may begin the check of all headers that always include its parts."""
    # Precompiles headers of other libraries only as parts of tutti's, which may define macros for them.
    closures = {n: frozenset(c for c in includes.closure(n, includes.always) if c in files or is_standard(c)) for n in files}

    def cost(candidate):
        others = {o for c in candidate & files.keys() for o in includes.always[c] if o not in files and not is_standard(o)}
        return sum(weight(c, files) for c in candidate | others)

    candidates = {*closures.values(), *(closure | {n} for n, closure in closures.items()),
                  *(frozenset(c for c in closure if c not in files) for closure in closures.values())}
    users = {}
    for candidate in candidates:
        of = [n for n in names if candidate <= closures[n]]
        if len(of) > 1:
            users[candidate] = cost(candidate), of
    saved, begin = dict.fromkeys(names, 0), {}

    def gain(candidate):
        total, of = users[candidate]
        return sum(max(0, SAVED * total - saved[n]) for n in of) - MAKE * total - START

    while (best := max(users, key=gain, default=None)) is not None and gain(best) > 0:
        total, of = users.pop(best)
        for name in of:
            if SAVED * total > saved[name]:
                saved[name], begin[name] = SAVED * total, best
    groups = {}
    for name in names:
        groups.setdefault(begin.get(name, frozenset()), []).append(name)
    alone = groups.pop(frozenset(), [])
    return [(members, sorted(parts)) for parts, members in groups.items()] + [([name], []) for name in alone]


class Compiler:
    def __init__(self, program, work):
        self.program, self.work = program, Path(work)
        self.options = include_options()

    def _run(self, *arguments):
        done = subprocess.run([self.program, *self.options, *map(str, arguments)], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        return done.returncode == 0, done.stdout

    def precompile(self, names, number, base=None):
        """Returns a precompiled header of these names, which adds to another one (base), or `None`."""
        source = self.work / f"group{number}.hpp"
        source.write_text("".join(f"#include <{n}>\n" for n in names))
        # Instantiates the templates once, and not in each check.
        # clang 14 cannot add some large groups to another precompiled header, so it makes these without one.
        for begin in (("-include-pch", base), ()) if base else ((),):
            if self._run("-Xclang", "-fpch-instantiate-templates", *begin, "-x", "c++-header", source, "-o",
                         source.with_suffix(".pch"))[0]:
                return source.with_suffix(".pch")
        return None

    def precompile_all(self, groups, pool):
        """Returns a precompiled header for each group, or `None`. Each adds to the largest other one whose parts it has, too."""
        made = []

        def make(number, parts, base):
            return self.precompile(parts, number, base and base.result())
        for number, (_, parts) in enumerate(groups):
            # The pool begins in this order, so that no task waits for one that has not begun.
            bases = [other for other, (_, fewer) in enumerate(groups[:number]) if fewer and set(fewer) < set(parts)]
            base = made[max(bases, key=lambda other: len(groups[other][1]))] if bases else None
            made.append(pool.submit(make, number, parts, base) if parts else None)
        return [future and future.result() for future in made]

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
    names, left_out = to_check(passed, digests, files)
    RECORDS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RECORDS) as work, ThreadPoolExecutor(2) as pool:
        compiler = Compiler(program, work)
        # Checks a known error first, to show that the check finds errors.
        bad = Path(work) / "bad.hpp"
        bad.write_text("#pragma once\ninline std::vector<int> numbers() { return {}; }\n")
        assert not compiler.check(str(bad))[0], "a header without its #include passes"
        groups = groups_of(names, files, includes)
        groups.sort(key=lambda g: len(g[1]))
        begin = {name: header for (members, _), header in zip(groups, compiler.precompile_all(groups, pool)) for name in members}
        good, bad = {}, 0
        for name, (done, said) in zip(names, pool.map(lambda n: compiler.check(n, begin[n]), names)):
            if done:
                good[name] = digests[name]
            else:
                bad += 1
                print(f"{name} does not compile alone:\n{said}")
        passed.add(good)
    precompiled = sum(1 for _, to_precompile in groups if to_precompile)
    print(f"{len(files)} headers, {left_out} left out, {len(names)} checked with {precompiled} precompiled headers, {bad} do not compile alone")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
