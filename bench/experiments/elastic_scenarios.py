#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures events of a job with changing workers: runs each scenario of tests/hosts/elastic_scenarios.py once for each
strategy. Prints a table for bench/RESULTS.md: the time until the job noticed the event, the time until the next
step began, the number of steps that were repeated, and the number of samples of an epoch that were lost or seen twice.

usage: bench/experiments/elastic_scenarios.py [STRATEGY...]

  STRATEGY  some of gloo, ps, ps_async, mpi; default: all

TUTTI_BUILD_DIR is the build folder (default: build). Needs root. Exits with 1 if a promise was broken.
"""
import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "hosts"))
import netns_cluster  # noqa: E402
import hosts_case  # noqa: E402
from elastic_scenarios import Scenarios  # noqa: E402

# For each strategy: options of tutti-launch, and of the program.
STRATEGIES = {"gloo": ((), ("--strategy", "gloo")), "ps": (("-s", "2"), ("--strategy", "ps")),
              "ps_async": (("-s", "1"), ("--strategy", "ps_async")), "mpi": ((), ("--strategy", "mpi"))}


def scenarios(strategy):
    options, program = STRATEGIES[strategy]
    case = type(f"Over_{strategy}", (Scenarios,), {"OPTIONS": options, "STRATEGY": program, "NOTES": {}, "TIMEOUT": 1.5})
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    for test, text in result.failures + result.errors:
        print(f"{strategy}: {test.id()}:\n{text[-3000:]}", file=sys.stderr)
    return case.NOTES, result.wasSuccessful()


def seconds(value):
    return "" if value is None else f"{value:.2f} s"


def main():
    words = sys.argv[1:] or list(STRATEGIES)
    if not set(words) <= set(STRATEGIES):
        sys.exit(__doc__.split("\n\n")[1])
    good = True
    with netns_cluster.NetnsCluster(3) as hosts_case.CLUSTER:
        for strategy in words:
            notes, whole = scenarios(strategy)
            good = good and whole
            print(f"`{strategy}`\n\n| | noticed after | next step after | steps done again | samples lost | seen twice |")
            print("|---|---|---|---|---|---|")
            for _, (what, noticed, on, again, lost, twice) in sorted(notes.items()):
                print(f"| {what} | {seconds(noticed)} | {seconds(on)} | {again} | {lost} | {twice} |")
            print(flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    try:
        main()
    except netns_cluster.Unavailable as e:
        sys.exit(f"bench/experiments/elastic_scenarios.py: {e}")
