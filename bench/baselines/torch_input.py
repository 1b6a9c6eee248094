#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Images per second from PyTorch's DataLoader, the peer of bench/loader: prints a line of JSON.

cifar10: images in memory, each one padded by 4, cropped and mirrored. imagenet: the JPEGs of imagenet-sample.tar in
memory, decoded by torchvision or PIL, a random crop resized to 224x224 and mirrored. rsb_a1: the same JPEGs, decoded by
PIL, with timm's transform of the recipe rsb-a1. The results are batches of bytes.
"""
import argparse
import io
import json
import os
import random
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

ENDLESS = 1 << 30  # the clock ends a run before the number of images does


class Cifar10(Dataset):
    def __init__(self, folder):
        inside = Path(folder) / "cifar-10-batches-bin"
        folder = inside if inside.is_dir() else Path(folder)
        raw = np.concatenate([np.fromfile(folder / f"data_batch_{i}.bin", np.uint8).reshape(-1, 3073) for i in range(1, 6)])
        self.images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).copy())
        self.labels = raw[:, 0].astype(np.int64).tolist()
        self.augment = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        i %= len(self.labels)
        return self.augment(self.images[i]), self.labels[i]


class ImageNet(Dataset):
    def __init__(self, tar, decoder):
        with tarfile.open(tar) as file:
            self.images = [file.extractfile(m).read() for m in file if m.isfile()]
        if decoder == "torchvision":
            self.images = [torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in self.images]
        self.decode = self.by_torchvision if decoder == "torchvision" else self.by_pil
        if decoder == "timm":
            from timm.data import create_transform

            # use_prefetcher: bytes, which timm's prefetcher normalises later.
            self.augment = create_transform(224, is_training=True, use_prefetcher=True, auto_augment="rand-m7-mstd0.5-inc1",
                                            interpolation="bicubic")
            return
        crop = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
        self.augment = v2.Compose(crop if decoder == "torchvision" else [*crop, v2.PILToTensor()])

    @staticmethod
    def by_torchvision(data):
        return decode_jpeg(data, mode=ImageReadMode.RGB)

    @staticmethod
    def by_pil(data):
        return Image.open(io.BytesIO(data)).convert("RGB")

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        i %= len(self.images)
        return self.augment(self.decode(self.images[i])), i


class Mixed(torch.utils.data.Sampler):
    """An endless sequence of random indices, which makes no list of them."""

    def __iter__(self):
        while True:
            yield random.getrandbits(30)

    def __len__(self):
        return ENDLESS


def cpu_seconds(processes):
    """Returns the CPU seconds of this process and of `processes`."""
    used = time.process_time()
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("cifar10", "imagenet", "rsb_a1"), required=True)
    parser.add_argument("--data", required=True, help="the folder of CIFAR-10's binary version, or imagenet-sample.tar")
    parser.add_argument("--decoder", choices=("torchvision", "pil", "timm"), default="torchvision")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    if args.workers < 0 or args.batch < 1 or not 0 < args.seconds < 1e6:
        parser.error("0 workers or more, a batch from 1, seconds over 0")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    images = Cifar10(args.data) if args.set == "cifar10" else ImageNet(args.data, args.decoder)
    batches = iter(DataLoader(images, args.batch, sampler=Mixed(), num_workers=args.workers, prefetch_factor=2 if args.workers else None))
    # Takes the batches that were read before the clock started.
    for _ in range(2 + 2 * args.workers):
        x, y = next(batches)
    side = 32 if args.set == "cifar10" else 224
    if x.shape != (args.batch, 3, side, side) or x.dtype != torch.uint8 or len(y) != args.batch:
        sys.exit(f"torch_input.py: not the expected batch: {tuple(x.shape)} {x.dtype}")
    workers = [w.pid for w in batches._workers] if args.workers else []
    cpu, start, count = cpu_seconds(workers), time.monotonic(), 0
    while time.monotonic() - start < args.seconds:
        next(batches)
        count += args.batch
    wall, cpu = time.monotonic() - start, cpu_seconds(workers) - cpu
    peak = next(int(line.split()[1]) / 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    print(json.dumps({"system": f"PyTorch {torch.__version__}", "set": args.set, "decoder": args.decoder, "workers": args.workers,
                      "batch": args.batch, "images_per_second": round(count / wall, 1), "images_per_cpu_second": round(count / cpu, 1),
                      "peak_rss_mib": round(peak, 1)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
