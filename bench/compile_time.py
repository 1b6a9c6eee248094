#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the cost of compiling: processor seconds and peak memory of the umbrella header and of a whole trainer.

    bench/compile_time.py [RUNS]

The result is the minimum of RUNS (5), because other programs on the machine can only add time. Small
programs are compiled in turn with them as yardsticks, to correct for other programs and for a slower processor. Exits
with 1 if the seconds are more than 25 % over the best result so far. tests/lint/test_compile_budget.py checks the part
that does not depend on the machine.
"""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "lint"))

from compile_cost import PROGRAMS, commands, measure  # noqa: E402

# For each of PROGRAMS: the target (seconds, MB), and the seconds measured on the machine of bench/RESULTS.md.
TARGETS = [(2.0, 500), (9.0, 500), (2.5, 300)]
REACHED = [3.1, 17.2, 1.7]
# The seconds of the yardsticks at that time. The second one follows from the ratio of tutti.hpp to it.
YARDSTICKS = [3.65, 1.15]
SLACK = 1.25


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with commands() as (yardsticks, programs):
        costs = [[measure(c) for c in [*yardsticks, *programs]] for _ in range(runs)]
    least = [tuple(min(run[i][k] for run in costs) for k in range(2)) for i in range(len(costs[0]))]
    slower = max(1.0, *(used / seconds for (used, _), seconds in zip(least, YARDSTICKS)))
    print(f"{runs} runs; this machine now: {slower:.2f} times the yardsticks")
    failed = False
    for (name, *_), (seconds, megabytes), reached, (used, peak) in zip(PROGRAMS, TARGETS, REACHED, least[len(YARDSTICKS):]):
        used /= slower
        failed = failed or used > reached * SLACK
        print(f"{name}: {used:.2f} s of {reached} s, {peak:.0f} MB; target {seconds} s, {megabytes} MB"
              f"{' is missed' if used > seconds or peak > megabytes else ''}{'  OVER' if used > reached * SLACK else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
