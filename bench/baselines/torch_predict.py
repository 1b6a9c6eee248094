#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Classifies images that a list names with torchvision's ResNet-50 in PyTorch, the peer of tutti-predict: prints a line
of JSON.

Worker processes of a DataLoader read the files, decode them with torchvision or PIL, scale them to 256 on the short
side, cut them to 224x224 and normalise them. The net runs channels last under inference_mode(): as it is, compiled, or
compiled with its weights as constants and batch norm folded into them. The clock runs from the request of the first
batch to the last answer; the net has run on batches of the same sizes before.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torchvision
from PIL import Image
from torch._inductor import config as inductor
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools")]
import pytorch_weights  # noqa: E402


class Images(Dataset):
    def __init__(self, paths, decoder):
        self.paths, self.by_torchvision = paths, decoder == "torchvision"
        cut = [v2.Resize(256, antialias=True), v2.CenterCrop(224)]
        normalise = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        self.prepare = v2.Compose([*cut, *normalise] if self.by_torchvision else [*cut, v2.PILToTensor(), *normalise])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        if self.by_torchvision:
            return self.prepare(decode_jpeg(read_file(self.paths[i]), mode=ImageReadMode.RGB))
        with Image.open(self.paths[i]) as image:
            return self.prepare(image.convert("RGB"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="a safetensors file of torchvision's resnet50")
    parser.add_argument("images", help="a file with one path per line")
    parser.add_argument("--precision", choices=("f32", "bf16"), required=True)
    parser.add_argument("--way", choices=("eager", "compile", "freeze"), default="eager")
    parser.add_argument("--bf16", choices=("pure", "autocast"), default="pure")
    parser.add_argument("--decoder", choices=("torchvision", "pil"), default="torchvision")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    state = pytorch_weights.read_safetensors(torch, args.weights)
    model = torchvision.models.resnet50(num_classes=state["fc.bias"].numel())
    model.load_state_dict(state)
    pure = args.precision == "bf16" and args.bf16 == "pure"
    model = model.eval().to(dtype=torch.bfloat16 if pure else torch.float32, memory_format=torch.channels_last)
    if args.way != "eager":
        inductor.freezing = args.way == "freeze"
        model = torch.compile(model, dynamic=False)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16" and not pure)

    def answer(x):
        x = x.to(dtype=torch.bfloat16 if pure else torch.float32, memory_format=torch.channels_last)
        with autocast:
            return model(x).float().softmax(1).topk(5)

    paths = Path(args.images).read_text().splitlines()
    batches = DataLoader(Images(paths, args.decoder), args.batch, num_workers=args.workers, prefetch_factor=4 if args.workers else None)
    first = []
    with torch.inference_mode():
        for rows in {min(args.batch, len(paths)), len(paths) % args.batch or args.batch}:
            for _ in range(2):
                answer(torch.zeros(rows, 3, 224, 224))
        began, cpu = time.monotonic(), time.process_time()
        for x in batches:
            first += answer(x).indices[:, 0].tolist()
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    peak = next(int(line.split()[1]) / 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    print(json.dumps({"system": f"PyTorch {torch.__version__}", "precision": args.precision, "way": args.way, "images": len(first), "first": first,
                      "images_per_second": round(len(first) / seconds, 1), "images_per_cpu_second": round(len(first) / cpu, 1),
                      "peak_rss_mib": round(peak, 1)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
