#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What it costs a user to compile: processor seconds and peak memory of the umbrella header and of a whole trainer.

    bench/compile_time.py [RUNS]

The least of RUNS (5) counts, because other programs on the machine can only add. What is left of their influence, and of a
slower processor, is taken out by yardsticks compiled in turn with them. Ends with 1 where the seconds are 25 % over what has
been reached. tests/lint/test_compile_budget.py holds what does not depend on the machine.
"""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "lint"))

from compile_cost import PROGRAMS, commands, measure  # noqa: E402

# Of each of PROGRAMS: the target's seconds and MB, and the seconds reached on the machine of bench/RESULTS.md.
TARGETS = [(2.0, 500), (9.0, 500), (2.5, 300)]
REACHED = [3.1, 17.2, 2.0]
# Seconds of the yardsticks when those were reached; the second by the ratio of tutti.hpp to it.
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
