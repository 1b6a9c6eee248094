#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: all
"""What it costs a user to compile: processor seconds and memory of the umbrella header and of a whole trainer.

The least of three runs counts, because other programs on the machine can only add; where that is too much, of up to nine.
What is left of their influence, and
of a slower processor, is taken out by a yardstick that is compiled in turn with them: a regular expression of the
standard library, which cost 3.65 s where the budgets were set.
Fails 25 % over what has been reached, so that nothing gets worse unseen; the target is printed beside it. The trainer is
measured with the headers alone, and as a file of a project that links tutti::compiled.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sources import BUILD, ROOT, skip

TRAINER = ROOT / "examples/downstream/main.cpp"
SEPARATE = ["-DTUTTI_SEPARATE_COMPILATION"]
# name, source, flags, seconds and MB that are the target, seconds and MB that are reached
BUDGETS = [
    ("#include <tutti/tutti.hpp>", "#include <tutti/tutti.hpp>\nint main() {}\n", [], (1.5, 500), (1.5, 290)),
    ("a ResNet trainer on one backend, header-only", TRAINER, [], (6.0, 500), (14.1, 650)),
    ("a ResNet trainer on one backend, with tutti::compiled", TRAINER, SEPARATE, (6.0, 500), (4.8, 400)),
]
# What this machine is compared by: the optimiser's work, and reading headers, which a busy memory slows down more. Sources and
# the seconds that they took when the budgets were reached; the second by the ratio of tutti.hpp to it.
YARDSTICKS = [
    ("".join(f"#include <{h}>\n" for h in ("algorithm", "functional", "map", "memory", "regex", "string", "vector")) +
     "bool matches(const std::string& text, const std::string& pattern) {\n"
     "  return std::regex_match(text, std::regex(pattern));\n}\n", 3.65),
    ("".join(f"#include <{h}>\n" for h in (
        "algorithm any atomic barrier bit chrono cmath condition_variable deque filesystem fstream functional future "
        "iomanip iostream list map memory_resource mutex numeric optional random ranges regex semaphore set span "
        "sstream string thread unordered_map unordered_set variant vector "
    ).split()), 1.15),
]
SLACK = 1.25
RUNS, MOST_RUNS = 3, 9


def measure(command):
    """Processor seconds and peak MB of the compiler's driver and what it starts."""
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def judge(runs):
    """Whether the least of all runs is over a budget, and that in words."""
    least = [tuple(min(r[i][k] for r in runs) for k in range(2)) for i in range(len(runs[0]))]
    costs = least[len(YARDSTICKS):]
    slower = max(1.0, *(used / seconds for (used, _), (_, seconds) in zip(least, YARDSTICKS)))
    failed, lines = False, [f"this machine now: {slower:.2f} times the yardstick"]
    for (name, _, _, target, reached), (used, peak) in zip(BUDGETS, costs):
        used /= slower
        over = used > reached[0] * SLACK or peak > reached[1] * SLACK
        missed = used > target[0] or peak > target[1]
        failed = failed or over
        lines.append(f"{name}: {used:.2f} s of {reached[0]} s, {peak:.0f} MB of {reached[1]} MB; target {target[0]} s, "
                     f"{target[1]} MB{' is missed' if missed else ''}{'  OVER BUDGET' if over else ''}")
    return failed, "\n".join(lines)


def main():
    if os.environ.get("TUTTI_SANITIZE"):
        skip("the budget is that of a normal build")
    compiler = os.environ.get("TUTTI_CXX", "c++")
    # The trainer's backend: oneDNN where it is installed, else Eigen, else Reference.
    onednn, eigen = Path("/usr/include/oneapi/dnnl/dnnl.hpp"), Path("/usr/include/eigen3")
    backend = (["-DTUTTI_HAS_ONEDNN"] if onednn.is_file() else
               ["-DTUTTI_HAS_EIGEN", "-march=native", f"-I{eigen}"] if eigen.is_dir() else [])
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        def cost(path, flags=()):
            return measure([compiler, "-std=c++20", "-O2", "-pthread", f"-I{ROOT}/include", f"-I{BUILD}/include",
                            *backend, *flags, "-c", str(path), "-o", f"{folder}/main.o"])

        yardsticks = []
        for i, (source, _) in enumerate(YARDSTICKS):
            yardsticks.append(Path(folder) / f"yardstick{i}.cpp")
            yardsticks[-1].write_text(source)
        paths = []
        for i, (_, source, *_) in enumerate(BUDGETS):
            path = source
            if isinstance(source, str):
                path = Path(folder) / f"main{i}.cpp"
                path.write_text(source)
            paths.append(path)
        runs = []
        while len(runs) < RUNS or (failed and len(runs) < MOST_RUNS):
            runs.append([*(cost(y) for y in yardsticks), *(cost(p, b[2]) for p, b in zip(paths, BUDGETS))])
            failed, report = judge(runs)
    print(f"{len(runs)} runs; {report}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
