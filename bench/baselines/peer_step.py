# SPDX-License-Identifier: MIT
"""Code that the programs for MXNet, PyTorch and TensorFlow share: options, shapes of the nets, timing, and the line of
JSON."""
import argparse
import json
import time
from pathlib import Path

RATE, MOMENTUM, DECAY = 0.01, 0.9, 1e-4
# name: (side of the images, classes, blocks of each stage, first width, bottlenecks, stem for CIFAR)
NETS = {"resnet20": (32, 10, (3, 3, 3), 16, False, True), "resnet56": (32, 10, (9, 9, 9), 16, False, True),
        "resnet110": (32, 10, (18, 18, 18), 16, False, True), "resnet18": (32, 10, (2, 2, 2, 2), 64, False, True),
        "resnet50": (224, 1000, (3, 4, 6, 3), 64, True, False)}
PARAMETERS = {"resnet20": 272474, "resnet56": 855770, "resnet110": 1730714, "resnet18": 11173962, "resnet50": 25557032}
# Nets for images of 224x224 by torchvision's or timm's name, and the Wide ResNet for small images. Only PyTorch has them.
TORCH_NETS = {"wrn28_10": (32, 10), **{name: (224, 1000) for name in (
    "resnext50_32x4d", "wide_resnet50_2", "resnet50d", "seresnet50", "mobilenet_v2", "convnext_tiny")}}
PARAMETERS.update(wrn28_10=36479194, resnext50_32x4d=25028904, wide_resnet50_2=68883240, resnet50d=25576264, seresnet50=28088024,
                  mobilenet_v2=3504872, convnext_tiny=28589128)


def blocks_of(model):
    """Returns (width, channels out, stride, projected) of each block, and whether the blocks are bottlenecks."""
    _, _, counts, width, bottleneck, _ = NETS[model]
    channels, blocks = width, []
    for stage, count in enumerate(counts):
        for i in range(count):
            stride, out = 2 if stage > 0 and i == 0 else 1, (4 if bottleneck else 1) * width << stage
            blocks.append((width << stage, out, stride, stride != 1 or channels != out))
            channels = out
    return blocks, bottleneck


def parser(description, precisions, nets=tuple(NETS)):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=nets, default="resnet20")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--precision", choices=precisions, default="f32")
    p.add_argument("--threads", type=int, default=0, help="0: the default of the framework")
    p.add_argument("--seconds", type=float, default=5)
    return p


def parse(p):
    args = p.parse_args()
    if args.batch < 1 or args.threads < 0 or not 0 < args.seconds < 1e6:
        p.error("numbers from 1, seconds over 0")
    return args


def peak_mib():
    """Returns the peak of resident memory since reset_peak(), or since the process began."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def reset_peak():
    """Resets the peak, so that memory for compiling does not count. It counts if the kernel does not allow the reset.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def measure(args, system, parameters, step, finite, **more):
    """Measures steps and prints the line of JSON. step: runs one training step to its end. Compiling is not timed."""
    if parameters != PARAMETERS[args.model]:
        raise SystemExit(f"{system}: expected {PARAMETERS[args.model]} parameters of {args.model}, got {parameters}")
    began = time.monotonic()
    for _ in range(3):
        step()
    ready = time.monotonic() - began
    reset_peak()
    windows, count = [], 0
    cpu, start = time.process_time(), time.monotonic()
    while time.monotonic() - start < args.seconds or not windows:
        begin, n = time.monotonic(), 0
        while n == 0 or time.monotonic() - begin < min(0.5, args.seconds / 5):
            step()
            n += 1
        windows.append(n * args.batch / (time.monotonic() - begin))
        count += n
    cpu = time.process_time() - cpu
    if not finite():
        raise SystemExit(f"{system}: the loss is not finite")
    print(json.dumps({"system": system, "model": args.model, "precision": args.precision, "batch": args.batch, "threads": args.threads,
                      "parameters": parameters, **more, "images_per_second": round(sorted(windows)[len(windows) // 2], 2),
                      "images_per_cpu_second": round(count * args.batch / cpu, 2), "peak_rss_mib": round(peak_mib(), 1),
                      "warm_up_seconds": round(ready, 1)}), flush=True)
