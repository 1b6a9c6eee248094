#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What it costs a user to compile, as far as it does not depend on the machine: the memory that GCC takes for the umbrella
header and for a whole trainer, and how much of it is live at once.

What is taken in all grows with every token, instantiation and optimised function, and is the same in every run, so a
budget is kept to a few percent however busy the machine is. Seconds, and the targets in seconds, are
bench/compile_time.py's. Another version of GCC is compared by what it takes for the yardsticks.
"""
import os
import re
import sys
import tempfile

from compile_cost import PROGRAMS, commands, measure
from sources import skip

# MB taken in all and MB at most that are reached, of each of PROGRAMS; MB at most that are the target.
REACHED = [(491, 380, 500), (1297, 675, 500), (269, 274, 300)]
YARDSTICKS = [264, 207]  # MB taken in all by GCC 12.2
SLACK_TAKEN, SLACK_PEAK = 1.03, 1.25


def taken(command):
    """MB that GCC took in all, and at most."""
    with tempfile.TemporaryFile("w+") as report:
        _, peak = measure([*command, "-ftime-report"], report)
        report.seek(0)
        total = re.search(r"^ *TOTAL .* (\d+)([kMG])\s*$", report.read(), re.MULTILINE)
    if not total:
        skip("the compiler has no -ftime-report with memory, as GCC's is")
    return int(total[1]) * {"k": 1 / 1024, "M": 1, "G": 1024}[total[2]], peak


def main():
    if os.environ.get("TUTTI_SANITIZE"):
        skip("the budget is that of a normal build")
    failed = False
    with commands() as (yardsticks, programs):
        more = max(1.0, *(taken(c)[0] / reached for c, reached in zip(yardsticks, YARDSTICKS)))
        print(f"this compiler takes {more:.3f} times what GCC 12.2 takes")
        for (name, *_), (reached, reached_peak, target), command in zip(PROGRAMS, REACHED, programs):
            total, peak = taken(command)
            over = total / more > reached * SLACK_TAKEN or peak / more > reached_peak * SLACK_PEAK
            failed = failed or over
            print(f"{name}: {total:.0f} MB taken, of {reached}; {peak:.0f} MB at most, of {reached_peak}, target {target}"
                  f"{' missed' if peak > target else ''}{'  OVER BUDGET' if over else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
