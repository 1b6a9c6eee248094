#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares tutti-predict with PyTorch's inference loop: ResNet-50 on JPEG files, in turns, in one run. With --net it
compares the net alone, on images in memory, with ONNX Runtime, OpenVINO and frozen PyTorch (predict_net.py).

    bench/baselines/predict.py [--images 1000] [--repeats 3]
    bench/baselines/predict.py --net --batch 1 4 32

Both read, decode, scale and cut the same files and run the same weights (torchvision's initial ones) on the same cores.
PyTorch gets the settings that a short run finds best: torchvision's or Pillow's decoder, the number of worker
processes, autocast or a net in bf16. It runs eagerly, compiled, and compiled with frozen weights
(TORCHINDUCTOR_FREEZING), each with the settings that were best for eager; the best of the three counts. Images per
second are measured from the request of the first batch to the last answer, without starting the programs and compiling;
PyTorch's net has run before, tutti's has not. Needs build/tools/tutti-predict and imagenet-sample.tar, in $TUTTI_DATA
or ../shared/data.
"""
import argparse
import itertools
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parent)]

import environment  # noqa: E402
import predict_net  # noqa: E402
from environment import HERE, ROOT  # noqa: E402
from loaders import find_images  # noqa: E402
from table import Samples, better, markdown, ratio  # noqa: E402
from turns import Failed, locked, run, say  # noqa: E402

WAYS = {"eager": "PyTorch eager", "compile": "compiled", "freeze": "frozen"}
WEIGHTS = """import sys, torch, torchvision
sys.path[:0] = [sys.argv[1]]
import pytorch_weights
torch.manual_seed(0)
pytorch_weights.write_safetensors(torch, sys.argv[2], torchvision.models.resnet50().state_dict())"""


def lists(folder, tar, images, batch):
    """Writes two lists: one with this number of paths, which repeat if there are fewer images, and a short one of
    complete batches."""
    with tarfile.open(tar) as file:
        file.extractall(folder / "images", filter="data")
    paths = sorted(str(p) for p in (folder / "images").rglob("*") if p.suffix.lower() in (".jpeg", ".jpg"))
    some = list(itertools.islice(itertools.cycle(paths), images))
    for name, part in (("list", some), ("short", some[:max(2, images // 8 // batch) * batch])):
        (folder / name).write_text("".join(p + "\n" for p in part))
    return len(paths)


class Torch:
    def __init__(self, args, python, folder):
        self.args, self.python, self.folder = args, python, folder
        self.best, self.tried = {}, {}

    def one(self, precision, way, options, which):
        return run([self.python, HERE / "torch_predict.py", self.folder / "weights.safetensors", self.folder / which, "--precision", precision,
                    "--way", way, "--batch", self.args.batch, "--threads", self.args.threads, *options], environment.KEEP, self.args.timeout)

    def find_best(self, precision):
        """Finds the best settings for PyTorch with a short run of each."""
        ways = [["--decoder", decoder, "--workers", workers, *bf16] for decoder in ("torchvision", "pil") for workers in (0, 1, self.args.threads)
                for bf16 in ([[]] if precision == "f32" else [["--bf16", "pure"], ["--bf16", "autocast"]])]
        rates = []
        for way in ways:
            with locked(self.args.lock):
                rates.append(self.one(precision, self.args.ways[0], way, "short")["images_per_second"])
            say(f"{precision} {' '.join(map(str, way))}: {rates[-1]} images/s")
        self.best[precision] = ways[rates.index(max(rates))]

    def turn(self, precision, way):
        return self.one(precision, way, self.best[precision], "list")


def tutti(args, folder, precision):
    with open(folder / "list", "rb") as given:
        done = subprocess.run([ROOT / "build/tools/tutti-predict", "--verbose", "--json", "--model", "resnet50", "--precision", precision, "--threads",
                               str(args.threads), "--batch-size", str(args.batch), folder / "weights.safetensors", "-"], stdin=given,
                              capture_output=True, text=True, timeout=args.timeout, check=True)
    first = [json.loads(line)["classes"][0]["index"] for line in done.stdout.splitlines()]
    return {"images_per_second": float(re.search(r"([\d.]+) images/s", done.stderr)[1]), "first": first}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, nargs="+", default=[32], help="images of a batch; several with --net")
    parser.add_argument("--net", action="store_true", help="measure the net alone, on images in memory (needs build/bench/inference)")
    parser.add_argument("--peers", default=" ".join(predict_net.PEERS), help="with --net: the systems to compare with")
    parser.add_argument("--seconds", type=float, default=3, help="with --net: of one turn")
    parser.add_argument("--threads", type=int, default=environment.cores())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precisions", default="bf16 f32")
    parser.add_argument("--timeout", type=float, default=900, help="seconds of one run")
    parser.add_argument("--ways", default=" ".join(WAYS), metavar=f"'{' '.join(WAYS)}'", help="ways of PyTorch")
    parser.add_argument("--torch-ways", default="best", help="options of torch_predict.py, in one argument (default: the fastest ones)")
    parser.add_argument("--lock", metavar="FILE", help="a file to lock during each run or turn, for shared machines")
    args = parser.parse_args()
    args.ways = args.ways.split()
    if not args.ways or not set(args.ways) <= set(WAYS):
        parser.error(f"--ways: expected some of {' '.join(WAYS)}, got '{' '.join(args.ways)}'")
    if args.net:
        try:
            return predict_net.measure(args, WEIGHTS)
        except Failed as e:
            sys.exit(str(e))
    if len(args.batch) != 1:
        parser.error("--batch: several sizes only with --net")
    args.batch = args.batch[0]
    began, tar = environment.load(), find_images().get("imagenet")
    if tar is None:
        sys.exit("predict.py: no imagenet-sample.tar in $TUTTI_DATA or ../shared/data")
    python = environment.python_of("torch", say)
    precisions = args.precisions.split()
    rates = {(who, p): Samples() for who in ("tutti", *args.ways) for p in precisions}
    alike, system = {}, ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        different = lists(folder, tar, args.images, args.batch)
        subprocess.run([python, "-c", WEIGHTS, ROOT / "tools", folder / "weights.safetensors"], check=True)
        torch = Torch(args, python, folder)
        for p in precisions:
            if args.torch_ways == "best":
                torch.find_best(p)
            else:
                torch.best[p] = args.torch_ways.split()
        for number in range(args.repeats):
            for p in precisions:
                start = time.monotonic()
                with locked(args.lock):
                    theirs, ours = {way: torch.turn(p, way) for way in args.ways}, tutti(args, folder, p)
                for way in args.ways:
                    rates[way, p].add(theirs[way]["images_per_second"])
                rates["tutti", p].add(ours["images_per_second"])
                alike[p] = min(sum(a == b for a, b in zip(ours["first"], t["first"], strict=True)) for t in theirs.values()) / args.images
                system = theirs[args.ways[0]]["system"]
                say(f"turn {number + 1} of {args.repeats}, {p}: tutti-predict {ours['images_per_second']}, PyTorch "
                    + ", ".join(f"{way} {t['images_per_second']}" for way, t in theirs.items())
                    + f" images/s, in {time.monotonic() - start:.0f} s")
    best = {p: better([rates[way, p] for way in args.ways]) for p in precisions}
    rows = [[p, rates["tutti", p].text(), *(rates[way, p].text() for way in args.ways), ratio(rates["tutti", p], best[p]), f"{100 * alike[p]:.1f} %"]
            for p in precisions]
    print(f"**ResNet-50, {args.images} JPEG files ({different} different ones), {args.threads} threads, batches of {args.batch}**, images per second, "
          f"median of {args.repeats} (least to largest):\n")
    print(markdown(["precision", "tutti-predict", *(WAYS[way] for way in args.ways), "tutti / the best of PyTorch", "same first class"], rows))
    if {"bf16", "f32"} <= set(precisions):
        print(f"\ntutti-predict in bf16 over PyTorch in f32: {ratio(rates['tutti', 'bf16'], best['f32'])}")
    print("\n" + environment.conditions(began) + f"\n- {system}; " +
          "; ".join(f"{p}: {' '.join(map(str, torch.best[p]))}" for p in precisions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
