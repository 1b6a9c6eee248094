#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Tests the part of the compile cost that does not depend on the machine: how much memory GCC allocates for the
umbrella header and for a trainer that links tutti::compiled, and how much of it is in use at once. TUTTI_CHECK_ALL=1: also for
the trainer header-only.

The total of allocations grows with every token, instantiation and optimised function, and is the same in every run. So
the limits are a few percent above it, even on a busy machine. bench/compile_time.py measures seconds and checks their
targets. For another version of GCC than VERSION the limits are scaled by its memory for the yardsticks.
"""
import os
import re
import subprocess
import sys
import tempfile

from compile_cost import COMPILER, PROGRAMS, commands, measure
from sources import skip

# For each of PROGRAMS: the MB allocated in total, the peak in MB, and the target for the peak in MB.
REACHED = [(583, 434, 500), (1854, 1055, 500), (298, 302, 300)]
HEADER_ONLY = PROGRAMS[1][0]
VERSION = "12.2.0"
YARDSTICKS = [264, 207]  # MB allocated in total by GCC 12.2
SLACK_TAKEN, SLACK_PEAK = 1.03, 1.25


def taken(command):
    """Returns the MB that GCC allocated in total, and the peak."""
    with tempfile.TemporaryFile("w+") as report:
        _, peak = measure([*command, "-ftime-report"], report)
        report.seek(0)
        total = re.search(r"^ *TOTAL .* (\d+)([kMG])\s*$", report.read(), re.MULTILINE)
    if not total:
        skip("the compiler has no -ftime-report with memory, as GCC's is")
    return int(total[1]) * {"k": 1 / 1024, "M": 1, "G": 1024}[total[2]], peak


def version():
    return subprocess.run([COMPILER, "-dumpfullversion"], text=True, stdout=subprocess.PIPE).stdout.strip()


def main():
    if os.environ.get("TUTTI_SANITIZE"):
        skip("the budget is that of a normal build")
    failed = False
    with commands() as (yardsticks, programs):
        more = 1.0
        if version() != VERSION:
            more = max(more, *(taken(c)[0] / reached for c, reached in zip(yardsticks, YARDSTICKS)))
            print(f"this compiler takes {more:.3f} times what GCC 12.2 takes")
        for (name, *_), (reached, reached_peak, target), command in zip(PROGRAMS, REACHED, programs):
            if name == HEADER_ONLY and os.environ.get("TUTTI_CHECK_ALL", "") in ("", "0"):
                continue
            total, peak = taken(command)
            over = total / more > reached * SLACK_TAKEN or peak / more > reached_peak * SLACK_PEAK
            failed = failed or over
            print(f"{name}: {total:.0f} MB taken, of {reached}; {peak:.0f} MB at most, of {reached_peak}, target {target}"
                  f"{' missed' if peak > target else ''}{'  OVER BUDGET' if over else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
