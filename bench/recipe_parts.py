#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a recipe for CIFAR-10 with and without each of its parts, and prints what each part buys.

  bench/recipe_parts.py DATA OUT [--build build] [--seeds 3] [--epochs 8] [--threads 2] [--only PART[,PART...]] [--table]
                        [-- OPTION...]

DATA: the folder of CIFAR-10, as for train_cifar10. OUT: a folder for the runs. A run that is complete in OUT is not
repeated, so a call that was stopped goes on where it ended. --table prints the table of the runs that OUT has. The order is
by seed, so after each seed all parts have the same number of runs. Each OPTION is passed to train_cifar10. The recipe is
airbench94-muon; a run of it takes about five minutes on two cores. A short form is run by tests/bench.
"""
import argparse
import json
import statistics
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent / "common"))
from logged_call import logged_call  # noqa: E402

RECIPE = ["--recipe", "airbench94-muon"]
# What is taken away, and the options that take it away.
PARTS = {
    "nothing": [],
    "Muon (SGD of airbench94 in its place)": ["--recipe", "airbench94", "--network", "airbench94_muon", "--last-epoch", "1"],
    "the normalised weights of Muon": ["--muon-normalize", "0"],
    "the whitening layer's weights from images": ["--whitening-images", "0"],
    "label smoothing": ["--label-smoothing", "0"],
    "random translations": ["--random-crop", "0"],
    "mirrored images": ["--random-mirror", "0"],
    "bf16 (f32 in its place)": ["--precision", "f32"],
}


def result(run):
    """Returns test accuracy in percent by one view, by all views, and seconds. Returns None for a run without an end."""
    log = run / "log.jsonl"
    if not (run / "seconds").exists() or not log.exists():
        return None
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    one = [line["test_top1"] for line in lines if line["event"] == "epoch" and line.get("test_top1") is not None]
    views = [line["test_top1"] for line in lines if line["event"] == "views"]
    return 100 * one[-1], 100 * views[-1], float((run / "seconds").read_text())


def train(program, part, options, run):
    recipe = [] if "--recipe" in PARTS[part] else RECIPE
    words = [program, *recipe, *PARTS[part], "--data", options.data, "--threads", options.threads, "--no-tensorboard", "--epochs",
             options.epochs, *options.more, "--seed", run.name.split("-")[1], "--run-dir", run]
    run.parent.mkdir(parents=True, exist_ok=True)
    seconds = logged_call(words, run.parent / f"{run.name}.txt")
    (run / "seconds").write_text(f"{seconds:.1f}\n")


def table(out, seeds):
    def found(part):
        return [r for s in range(1, seeds + 1) if (r := result(out / f"{list(PARTS).index(part)}-{s}"))]

    whole = found("nothing")
    lines = ["| without | test accuracy, six views, % | mean | one view | against the recipe | seconds |", "|---|---|---|---|---|---|"]
    for part in PARTS:
        if not (runs := found(part)):
            continue
        one, views, seconds = zip(*runs)
        against = statistics.mean(views) - statistics.mean([w[1] for w in whole[:len(runs)]]) if whole else 0
        lines.append(f"| {part} | {', '.join(f'{v:.2f}' for v in views)} | {statistics.mean(views):.2f} | {statistics.mean(one):.2f} | "
                     f"{'' if part == 'nothing' else f'{against:+.2f}'} | {statistics.median(seconds):.0f} |")
    if whole:
        one, views, _ = zip(*whole)
        lines.append(f"| six views (one in their place) | | | {statistics.mean(one):.2f} | {statistics.mean(one) - statistics.mean(views):+.2f} | |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parents[1] / "build")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="parts by their first words, separated by commas")
    parser.add_argument("--table", action="store_true", help="train nothing")
    words = [*sys.argv[1:], "--"]
    options = parser.parse_args(words[:words.index("--")])
    options.more = words[words.index("--") + 1:-1]
    chosen = [p for p in PARTS if options.only is None or any(p.startswith(o) for o in options.only.split(","))]
    if not chosen:
        parser.error(f"--only: expected the begin of one of {', '.join(PARTS)}, got {options.only!r}")
    for seed in range(1, options.seeds + 1):
        for part in chosen if not options.table else []:
            run = options.out.resolve() / f"{list(PARTS).index(part)}-{seed}"
            if result(run) is None:
                train(options.build.resolve() / "examples" / "train_cifar10", part, options, run)
    print(table(options.out.resolve(), options.seeds))


if __name__ == "__main__":
    main()
