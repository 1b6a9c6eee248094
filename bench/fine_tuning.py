#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares fine-tuning with training from nothing on 4 classes of 250 photographs of CIFAR-10.

  bench/fine_tuning.py JPEGS OUT [--build build] [--epochs-before 8] [--from-nothing 40] [--seeds 1] [--validation 500]

JPEGS: a folder with train/<class>/*.jpg and test/<class>/*.jpg. OUT: a new folder for the images and the runs, or one of an
earlier call, of which the net of the other six classes is used again. Prints a Markdown table: the best validation accuracy
of each run and its seconds, with those of the evaluations. The first net is trained on all images of the other six classes;
its time is printed apart. A short form with few images is run by tests/bench.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent / "common"))
from logged_call import logged_call  # noqa: E402

OWN = ["cat", "dog", "ship", "truck"]
OTHERS = ["airplane", "automobile", "bird", "deer", "frog", "horse"]
NET = ["-m", "resnet18", "--image-size", "32", "--stem", "imagenet", "--augmentation", "torchvision", "--no-tensorboard"]


def make_folder(jpegs, out, classes, training, validation):
    for name in classes:
        for split, source, count in (("train", "train", training), ("validation", "test", validation)):
            folder = out / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for file in sorted((jpegs / source / name).iterdir())[:count]:
                if not (folder / file.name).exists():
                    os.symlink(file.resolve(), folder / file.name)


def accuracies(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["test_top1"] for line in lines if line["event"] == "epoch" and line["test_top1"] is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jpegs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parents[1] / "build")
    parser.add_argument("--epochs-before", type=int, default=8)
    parser.add_argument("--from-nothing", type=int, default=40, help="epochs of the run from nothing")
    parser.add_argument("--epochs", type=int, default=0, help="epochs of the fine-tuning; 0: those of the recipe")
    parser.add_argument("--before", type=int, default=5000, help="training images of each of the other classes")
    parser.add_argument("--training", type=int, default=250)
    parser.add_argument("--validation", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    o = parser.parse_args()
    out = o.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    imagenet, train = (o.build.resolve() / p for p in ("examples/train_imagenet", "tools/tutti-train"))
    make_folder(o.jpegs, out / "others", OTHERS, o.before, min(o.validation, 200))
    make_folder(o.jpegs, out / "photos", OWN, o.training, o.validation)
    if not (out / "runs/others/log.jsonl").exists():
        seconds = logged_call([imagenet, "--data-dir", "others", *NET, "-b", min(128, o.before), "--num-epochs", o.epochs_before, "--lr", "0.1",
                        "--lr-decay-mode", "cosine", "--warmup-epochs", "1", "--keep", "1", "--log-dir", "runs/others"],
                              out / "others.txt", out)
        print(f"the net of {len(OTHERS)} other classes: {100 * max(accuracies(out / 'runs/others')):.1f} % of them, {seconds:.0f} s\n")
    longer = ["--num-epochs", o.epochs] if o.epochs else []
    kinds = {
        "from nothing": [imagenet, "--data-dir", "photos", *NET, "-b", "32", "--lr-decay-mode", "cosine", "--warmup-epochs", "2",
                         "--label-smoothing", "0.1", "--crop-area", "0.35", "--keep", "1", "--num-epochs", o.from_nothing],
        "--recipe finetune": [imagenet, "--data-dir", "photos", *NET, "--recipe", "finetune", "--pretrained", "runs/others", *longer],
        "tutti-train --pretrained": [train, "photos", "--pretrained", "runs/others", "--no-tensorboard", *longer],
    }
    print("| | best validation accuracy | last | seconds |\n|---|---|---|---|")
    for name, words in kinds.items():
        best, last, took = [], [], []
        for seed in range(1, o.seeds + 1):
            run = f"runs/{name.split()[-1].strip('-')}-{seed}-{time.time_ns()}"
            took.append(logged_call([*words, "--seed", seed, "--log-dir", run], out / f"{name.split()[-1].strip('-')}.txt", out))
            found = accuracies(out / run)
            best.append(max(found))
            last.append(found[-1])
        show = lambda values, form: ", ".join(form.format(v) for v in values)  # noqa: E731
        print(f"| {name} | {show([100 * b for b in best], '{:.1f} %')} | {show([100 * v for v in last], '{:.1f} %')} | "
              f"{show(took, '{:.0f}')} |", flush=True)


if __name__ == "__main__":
    main()
