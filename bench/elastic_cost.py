#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the cost of --elastic while the members do not change: ResNet-18 on made-up images of 32x32, two workers on
this host over the same strategy, in turns with --elastic and without it. Prints the processor time and the wall time
of a step, as medians, and their quotients. A run of fewer steps is subtracted, so starting, loading and ending do not
count.

usage: bench/elastic_cost.py [--turns N] [--steps N] [--strategy WORD]

  --turns  default: 7. --steps: default: 100. --strategy: default: gloo

TUTTI_BUILD_DIR is the build folder (default: build).
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))


def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(elastic, steps, strategy):
    """Runs a job with this number of steps. Returns its CPU seconds and wall-clock seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [BUILD / "tools" / "tutti-launch", *(["--elastic", "--elastic-dir", folder] if elastic else []), "-n", 2,
                   *(["-s", 1] if strategy.startswith("ps") else []), BUILD / "examples" / "train_imagenet", "--synthetic",
                   "--model", "resnet18", "--image-size", 32, "--num-classes", 10, "--num-examples", 64 * steps,
                   "--batch-size", 32, "--threads", 1, "--num-epochs", 1, "--display-every", 1000000, "--tensorboard", 0,
                   "--run-dir", f"{folder}/run", "--strategy", strategy]
        processor, wall = spent(), time.monotonic()
        done = subprocess.run([str(w) for w in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, env={**os.environ, "TUTTI_STATE_DIR": f"{folder}/state"})
        if done.returncode != 0:
            sys.exit(f"bench/elastic_cost.py: status {done.returncode}:\n{done.stdout[-2000:]}")
        return spent() - processor, time.monotonic() - wall


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--strategy", default="gloo")
    args = parser.parse_args()
    few = max(1, args.steps // 10)
    times = {False: [], True: []}
    for _ in range(args.turns):
        for elastic, found in times.items():
            a, b = run(elastic, few, args.strategy), run(elastic, args.steps, args.strategy)
            found.append([1000 * (y - x) / (args.steps - few) for x, y in zip(a, b)])
    for i, what in enumerate(("processor time", "wall time")):
        quiet, changing = (statistics.median(t[i] for t in times[e]) for e in (False, True))
        pairs = [c[i] / q[i] for q, c in zip(times[False], times[True])]
        print(f"{what} of a step: {quiet:.1f} ms without --elastic, {changing:.1f} ms with it: {changing / quiet:.3f} "
              f"(of the turns: {min(pairs):.3f} to {max(pairs):.3f}, median {statistics.median(pairs):.3f})")


if __name__ == "__main__":
    main()
