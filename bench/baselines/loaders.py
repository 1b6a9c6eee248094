# SPDX-License-Identifier: MIT
"""Compares PyTorch's DataLoader and tutti's loader, in turns."""
import json
import os
import time
from pathlib import Path

import environment
from environment import HERE, ROOT
from table import Samples, better, markdown, ratio
from turns import locked, run, say

BATCH = 128  # the batch size of bench/loader
NAMES = {"cifar10": "CIFAR-10: pad, crop, mirror", "imagenet": "ImageNet JPEGs: decode, crop to 224, mirror",
         "rsb_a1": "the same, bicubic, with RandAugment rand-m7-mstd0.5-inc1 (rsb-a1)"}
DECODERS = {"cifar10": ("torchvision",), "imagenet": ("torchvision", "pil"), "rsb_a1": ("timm",)}
COLUMNS = {"torchvision": "DataLoader", "pil": "DataLoader, PIL", "timm": "DataLoader, timm", "loader": "bench/loader",
           "jpeg": "bench/jpeg, no batches"}


def find_images():
    """Returns {name of a set: path of its images}, found in the order in which bench/loader searches."""
    data = Path(os.environ.get("TUTTI_DATA") or ROOT / "data")
    found = {}
    for folder in (data / "cifar-10-batches-bin", data):
        if (folder / "data_batch_1.bin").exists():
            found["cifar10"] = folder
            break
    for tar in (data / "imagenet-sample.tar", ROOT.parent / "shared" / "data" / "imagenet-sample.tar"):
        if tar.exists():
            found["imagenet"] = found["rsb_a1"] = tar
            break
    return found


def counters(name):
    """Reads the counters of the benchmark of this name from a report of Google Benchmark."""

    def read(out):
        for entry in json.loads(out[out.index("{"):])["benchmarks"]:
            if entry["name"].startswith(name + "/") and not entry.get("error_occurred"):
                return {"images_per_second": entry["images/s"], "images_per_cpu_second": entry["images/cpu_s"]}
        raise KeyError(name)

    return read


def google(args, program, name, threads):
    return run([args.programs[program], f"--benchmark_filter=^{name}/", f"--benchmark_min_time={args.seconds:g}", "--benchmark_format=json",
                f"--threads={max(1, threads)}"], {}, args.timeout, args.nice, counters(name))


class Row:
    """A row for one set of images and a number of threads (tutti) or processes (PyTorch), in addition to the one that
    takes the batches."""

    def __init__(self, images, threads):
        self.images, self.threads = images, threads
        self.rates = {c: Samples() for c in COLUMNS}
        self.per_cpu = {c: Samples() for c in COLUMNS}

    def add(self, column, found):
        self.rates[column].add(found["images_per_second"])
        self.per_cpu[column].add(found["images_per_cpu_second"])

    def turn(self, args, python, where):
        for decoder in DECODERS[self.images]:
            found = run([python, HERE / "torch_input.py", "--set", self.images, "--data", where, "--decoder", decoder, "--workers",
                         self.threads, "--batch", BATCH, "--seconds", args.seconds], {}, args.timeout, args.nice)
            self.add(decoder, found)
            args.systems.setdefault("PyTorch", found["system"])
        self.add("loader", google(args, "loader", f"loader/{self.images}/b{BATCH}/threads{self.threads}", self.threads))
        if self.images == "imagenet":
            threads = max(1, self.threads)
            self.add("jpeg", google(args, "jpeg", f"jpeg/full/turbojpeg/torchvision/threads{threads}", threads))


def measure(args, pythons):
    """Measures all rows and returns the tables."""
    began, where = environment.load(), find_images()
    rows = [Row(images, threads) for images in where for threads in (0, environment.cores())]
    for number in range(args.repeats):
        for row in rows:
            start = time.monotonic()
            with locked(args.lock):
                row.turn(args, pythons["torch"], where[row.images])
            say(f"turn {number + 1} of {args.repeats}, {row.images}, {row.threads} threads: "
                + ", ".join(f"{COLUMNS[c]} {s.values[-1]:.0f}" for c, s in row.rates.items() if len(s))
                + f" images/s, in {time.monotonic() - start:.0f} s")
    return tables(args, rows) + "\n" + environment.conditions(began) + f"\n- {args.systems['PyTorch']}; turns of {args.seconds:g} s\n"


def tables(args, rows):
    columns = [c for c in COLUMNS if any(len(row.rates[c]) for row in rows)]
    lines = []
    for title, of in (("Images per second into batches of 128", "rates"), ("The same per second of processor time", "per_cpu")):
        body = []
        for row in rows:
            samples = getattr(row, of)
            body.append([NAMES[row.images], row.threads, *[samples[c].text() for c in columns],
                         ratio(samples["loader"], better([samples[d] for d in DECODERS[row.images]]) or Samples())])
        lines += [f"**{title}**, median of {args.repeats} (least to largest):", "",
                  markdown(["images", "threads or processes of its own", *[COLUMNS[c] for c in columns], "loader / DataLoader"], body), ""]
    return "\n".join(lines)
