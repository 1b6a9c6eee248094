#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how much accuracy changes of members cost: ResNet-20 on CIFAR-10 in f32. Each seed runs once with two
workers that stay, and once with one to three workers that join and leave, with ten changes in all. Prints the training
loss of the last epoch and the test accuracy of each run, and compares the distance between the runs of a seed with the
distance between seeds without changes.

usage: bench/experiments/elastic_loss.py [--epochs N] [--changes N] [--seeds "1 2 3"] [-- OPTIONS OF train_cifar10]

  --epochs   default: 5. --changes: default: 10
  OPTIONS    e.g. --data-dir DIR, or --num-examples 10000

TUTTI_BUILD_DIR is the build folder (default: build). Exits with 1 if a run with changes is further from the run of the
same seed without changes than the runs without changes are from each other.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
SIZES = [3, 1, 2, 3, 2, 1, 3, 2, 1, 2]  # number of workers after each change


def events(run):
    log = run / "log.jsonl"
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def train(folder, seed, changes, args, options):
    """Runs a job. Returns the loss of the last epoch, the test accuracy in percent, and the numbers of workers in
    order."""
    run = folder / "run"
    command = [BUILD / "tools" / "tutti-launch", "--elastic", "--elastic-at", "step", "--elastic-dir", folder, "-n", 2,
               BUILD / "examples" / "train_cifar10", "--depth", 20, "--batch-size", 32, "--threads", 1, "--epochs",
               args.epochs, "--seed", seed, "--disp-batches", 10, "--run-dir", run, *options]
    with open(folder / "output", "w", encoding="utf-8") as out:
        job = subprocess.Popen([str(w) for w in command], stdout=out, stderr=subprocess.STDOUT)
    total = None
    made = 0
    while job.poll() is None:
        time.sleep(0.05)
        # Counts the reported steps, of which each epoch has the same number.
        seen = [e for e in events(run) if e["event"] in ("step", "epoch")]
        if total is None:
            total = next((e["step"] * args.epochs for e in seen if e["event"] == "epoch"), None)
        if not seen or made == changes:
            continue
        if total is None:
            # The number of reports in an epoch is not known yet. The first two reports trigger two changes.
            due = min(2, len(seen) // 5)
        else:
            due = int(changes * (seen[-1]["step"] / total) * 1.1) + 1
        if made < due:
            new = folder / "new"
            new.write_text(f"localhost slots={SIZES[made % len(SIZES)]}\n")
            new.rename(folder / "host_worker")
            made += 1
            time.sleep(1.5)
    if job.returncode != 0:
        sys.exit(f"bench/experiments/elastic_loss.py: status {job.returncode}:\n" + (folder / "output").read_text()[-3000:])
    last = [e for e in events(run) if e["event"] == "epoch"][-1]
    return last["train_loss"], 100 * last["test_top1"], [e["ranks"] for e in events(run) if e["event"] == "members"]


def main():
    words = sys.argv[1:]
    options = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--seeds", default="1 2 3")
    args = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    seeds = [int(word) for word in args.seeds.split()]
    if len(seeds) < 2 or args.epochs < 1:
        parser.error("two seeds at least, and epochs from 1")
    quiet, changed = [], []
    for seed in seeds:
        for runs, changes in ((quiet, 0), (changed, args.changes)):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(train(Path(folder), seed, changes, args, options))
            loss, top1, sizes = runs[-1]
            print(f"seed {seed}, {len(sizes):2} changes: loss {loss:.4f}, test top-1 {top1:.2f} %  {sizes}", flush=True)
    between = max(q[0] for q in quiet) - min(q[0] for q in quiet)
    most = max(abs(c[0] - q[0]) for c, q in zip(changed, quiet))
    print(f"a run with changes is at most {most:.4f} from the quiet one of its seed; quiet seeds are up to {between:.4f} apart")
    sys.exit(0 if most <= between else 1)


if __name__ == "__main__":
    main()
