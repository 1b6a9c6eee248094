#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how much accuracy asynchronous training loses. Trains ResNet-20 with 2 workers and a server, synchronously
(ps) and asynchronously (ps_async), with the same seeds and epochs and therefore the same number of samples. Prints each
test accuracy, the mean of each strategy, and the difference of the means.

usage: bench/asynchronous_accuracy.py [--epochs N] [--seeds "1 2 3"] [--folder DIR] [-- OPTIONS OF train_cifar10]

  --epochs   default: 10. --folder: keeps the runs here; default: a temporary folder
  OPTIONS    e.g. --data-dir DIR, or --dataset fashion_mnist

TUTTI_BUILD_DIR is the build folder (default: build). Exits with 1 if the asynchronous mean is lower by more than 1.5
points.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 1.5  # percentage points


def accuracy(folder, strategy, seed, args, options):
    """Returns the top-1 accuracy on the test images after the last epoch, in percent."""
    build = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
    run = Path(folder) / f"{strategy}-{seed}"
    command = [build / "tools" / "tutti-launch", "-n", "2", "-s", "1", build / "examples" / "train_cifar10", "--strategy",
               strategy, "--depth", "20", "--batch-size", "64", "--epochs", str(args.epochs), "--seed", str(seed),
               "--run-dir", run, *options]
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"asynchronous_accuracy.py: {strategy}, seed {seed}: status {done.returncode}:\n{done.stdout[-2000:]}")
    found = None
    for line in (run / "log.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event.get("event") == "epoch" and "test_top1" in event:
            found = event["test_top1"]
    if found is None:
        sys.exit(f"asynchronous_accuracy.py: no test accuracy in {run}/log.jsonl")
    return 100 * found


def main():
    words = sys.argv[1:]
    options = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", default="1 2 3")
    parser.add_argument("--folder")
    args = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    seeds = [int(word) for word in args.seeds.split()]
    if not seeds or args.epochs < 1:
        parser.error("seeds, and epochs from 1")
    means = {}
    with tempfile.TemporaryDirectory() as own:
        for strategy in ("ps", "ps_async"):
            found = []
            for seed in seeds:
                found.append(accuracy(args.folder or own, strategy, seed, args, options))
                print(f"{strategy:<9} seed {seed}: {found[-1]:6.2f} %", flush=True)
            means[strategy] = statistics.mean(found)
            print(f"{strategy:<9} mean {means[strategy]:6.2f} % of {len(found)}")
    lower = means["ps"] - means["ps_async"]
    print(f"asynchronous training is {abs(lower):.2f} points {'lower' if lower > 0 else 'higher'}; at most {MOST} lower "
          f"is expected")
    return 1 if lower > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
