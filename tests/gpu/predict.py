#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Predicts the time of a training step of ResNet-50 (224x224, 256 images, bf16) on GPUs, kind of kernel by kind, and
prints the table of docs/reference/gpu.md. No GPU is used, and nothing is fitted to a measurement of tutti.

usage: predict.py PROGRAM, the test program tests/backends/test_fuse_norms_traffic of a build, which prints the bytes of
activations that each kind of op moves for one image, counted from the graph.

A kernel takes the longer of two times: that of its bytes and that of its products. The two ends of each interval are two
fixed pairs of efficiencies: 92 % of a copy's rate and 66 % of the products' rate, and 85 % and 55 %. A copy reaches 90 %
of the data sheet's bandwidth, and large products 80 % of its dense bf16 rate. The first end also counts what the second
pass of a batch norm finds in the L2 cache, which drops what was used least recently; the second end does not.
"""
import re
import subprocess
import sys

BATCH = 256
# bandwidth in bytes/s, dense bf16 in FLOP/s, MiB of L2 cache: NVIDIA's data sheets of A100 SXM4 80 GB, H100 SXM5, H200
# SXM, L4
GPUS = {"A100": (2.039e12, 312e12, 40), "H100": (3.35e12, 989e12, 50), "H200": (4.8e12, 989e12, 50), "L4": (0.3e12, 121e12, 48)}
COPY, PRODUCTS = 0.90, 0.80
EFFICIENCIES = ((0.92, 0.66), (0.85, 0.55))
# Weight gradients reach 68 % of the other passes' rate, and the stem, for which cuDNN has no Hopper kernel, 30 % of the
# products' rate (bench/RESULTS.md).
WEIGHT_GRADIENTS, STEM = 0.68, 0.30 / 0.66
# seconds: a kernel that finishes sums; the gap between two kernels (bench/RESULTS.md). A kernel with all passes of a batch
# norm has two waits of its blocks for each other instead of two gaps; assumed: they take as long.
FINISH, GAP = 4e-6, 1.2e-6
OTHER_LAUNCHES = 540 - 3 * 106  # all launches of a step except those of the 106 passes through batch norms
PARAMETERS = 25.6e6
UPDATE = PARAMETERS * (20 + 6 + 6)  # bytes: SGD with momentum; packing to bf16; gradients from bf16


def convolutions():
    """Returns (input channels, output channels, kernel, input size, output size) of each convolution."""
    list_ = [(8, 64, 7, 224, 112)]  # the images are padded to 8 channels
    size, channels = 56, 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            out = size // (stride if block == 0 else 1)
            list_ += [(channels, width, 1, size, size), (width, width, 3, size, out), (width, 4 * width, 1, out, out)]
            if block == 0:
                list_.append((channels, 4 * width, 1, size, out))
            size, channels = out, 4 * width
    return list_


def counted(program):
    """Returns the bytes of one image by kind of op, for a step as in bf16: batch norm's outputs kept, masks of relus. And
    for each size of the L2 cache what it does for the batch norms of a step."""
    out = subprocess.run([program, "--test-case=the memory traffic*,the share of batch norms*"], capture_output=True, text=True,
                         check=True).stdout
    parts = [dict((k, 1e6 * float(v)) for k, v in re.findall(r"(?:MESSAGE: )?(\w+): ([0-9.e+-]+)\n", part))
             for part in re.split(r"(?=\ball: )", out)[1:]]
    caches = {int(m[0]): dict(zip(("forward", "backward", "once", "norms"), map(int, m[1:])))
              for m in re.findall(r"cache: (\d+) forward: (\d+) backward: (\d+) once: (\d+) norms: (\d+)", out)}
    return parts[2], caches


def predict(bytes_of, kept, bandwidth, flops, memory, products):
    copy, rate = bandwidth * COPY * memory, flops * PRODUCTS * products
    rows = {}
    passes = (("convolutions forward", 1), ("data gradients", 1), ("weight gradients", WEIGHT_GRADIENTS))
    for name, share in passes:
        total = 0
        for i, (a, b, kernel, size, out) in enumerate(convolutions()):
            if i == 0 and name == "data gradients":
                continue
            moved = 2 * (BATCH * (a * size * size + b * out * out) + a * b * kernel * kernel)
            work = 2 * BATCH * out * out * a * b * kernel * kernel
            total += max(moved / copy, work / (rate * share * (STEM if i == 0 else 1)))
        rows[name] = total
    forward = ("batch_norm", "batch_norm_with_mask")
    backward = ("batch_norm_backward", "batch_norm_backward_from_mask")
    rows["batch norm forward"] = (BATCH * sum(bytes_of[k] for k in forward) - kept["forward"]) / copy
    rows["batch norm backward"] = (BATCH * sum(bytes_of[k] for k in backward) - kept["backward"]) / copy
    known = ("all", "conv2d", "conv2d_backward_data", "conv2d_backward_weights", *forward, *backward)
    rows["pooling, sums, loss, images"] = BATCH * sum(v for k, v in bytes_of.items() if k not in known) / copy
    rows["update, packing"] = UPDATE / copy
    rows["small kernels, gaps"] = kept["norms"] * (FINISH + 3 * GAP) + OTHER_LAUNCHES * GAP
    return rows


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    bytes_of, caches = counted(sys.argv[1])
    table = {}
    for gpu, (bandwidth, flops, cache) in GPUS.items():
        found = caches[cache]
        ends = (found, {**found, "forward": 0, "backward": 0})
        table[gpu] = [predict(bytes_of, kept, bandwidth, flops, *e) for kept, e in zip(ends, EFFICIENCIES)]
    print("| milliseconds of a step | " + " | ".join(table) + " |")
    print("|---" * (len(table) + 1) + "|")
    for name in next(iter(table.values()))[0]:
        cells = []
        for low, high in table.values():
            a, b = f"{1e3 * low[name]:.1f}", f"{1e3 * high[name]:.1f}"
            cells.append(a if a == b else f"{a} to {b}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    sums = [[sum(r.values()) for r in rows] for rows in table.values()]
    print("| all | " + " | ".join(f"{1e3 * a:.1f} to {1e3 * b:.1f}" for a, b in sums) + " |")
    print("| images/s | " + " | ".join(f"{BATCH / b:,.0f} to {BATCH / a:,.0f}" for a, b in sums) + " |")


if __name__ == "__main__":
    main()
