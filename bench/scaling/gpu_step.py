#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Predicts the time of a training step of ResNet-50 (224x224, 256 images, bf16) on GPUs, kind of kernel by kind, and the
time of train_cifar10 --recipe fast from its start to its end, part by part. Prints the tables of docs/reference/gpu.md. No GPU
is used, and nothing is fitted to a measurement of tutti on one.

usage: gpu_step.py PROGRAM, the test program tests/backends/test_fuse_norms_traffic of a build, which prints the bytes of
activations that each kind of op moves for one image, and the convolutions, counted from the graphs.

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
# From compute capability 9.0 on, 230 of the 339 kernels that a captured step launches on the emulated GPU are launched before the
# kernel before them has ended (programmatic dependent launch), counted when the norms of shortcuts had kernels of their own:
# 12 launches more than now. The share of a gap that this hides is not measured: it is taken as 0 in the slow case and 1 in the
# fast one.
EARLY_LAUNCHES, EARLY = 230, ("H100", "H200")
PARAMETERS = 25.6e6
UPDATE = PARAMETERS * (20 + 6 + 6)  # bytes: SGD with momentum; packing to bf16; gradients from bf16


# --- train_cifar10 --recipe fast
CIFAR = ("A100", "H100")
CIFAR_BATCH, STEPS = 1000, 500
EVALUATED = 60_000  # images of the evaluation: 6 views of 10,000 (--tta 2)
# Bytes of a parameter: SGD with momentum, gradients from bf16, packing to bf16, the average of the weights.
CIFAR_UPDATE = 20 + 6 + 6 + 8
END_OF_STEP = 8  # launches: norms, the decision, update, average, packing of weights and of gradients
FILES = 60_000 * 3073  # bytes of CIFAR-10's files
BUS = {"A100": 31.5e9, "H100": 63e9}  # bytes/s each way: 16 lanes of PCI Express 4.0 and 5.0, data sheets
# Seconds that no data sheet has: at best, at worst. Where a time was measured, it is the processor's time of one core of the
# test machine (EPYC, 2.25 GHz, virtual), which is the worst; a core of a host with a GPU takes at least half of it.
MEASURED = {"start of the process, options": 0.02, "reading the files": 0.36, "whitening of the first layer": 0.14}
NVRTC, PLANS_OF_23 = 5.5, 1.0  # compiles the ops of a compute type; chooses the plans of 23 convolutions at the same time
ASSUMED = {
    # cuInit takes about 0.5 s on servers (NVIDIA/nvtrust #113); with a context 0.13 to 0.15 s on an RTX 4070 (openqmc #109).
    "driver, context": (0.15, 0.65),
    "libraries, stored kernels and plans": (0.20, 0.40),  # the part that does not overlap with reading the files
    "first step, capture of the graph": (0.05, 0.15),
    "checkpoint, end of the process": (0.10, 0.25),
}


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
    """Returns the bytes of one image by kind of op, for a step as in bf16: batch norm's outputs kept, masks of relus, the norms of
    shortcuts applied by the norms that add them. And
    for each size of the L2 cache what it does for the batch norms of a step."""
    out = subprocess.run([program, "--test-case=the memory traffic*,the share of batch norms*"], capture_output=True, text=True,
                         check=True).stdout
    parts = [dict((k, 1e6 * float(v)) for k, v in re.findall(r"(?:MESSAGE: )?(\w+): ([0-9.e+-]+)\n", part))
             for part in re.split(r"(?=\ball: )", out)[1:]]
    caches = {int(m[0]): dict(zip(("forward", "backward", "once", "norms"), map(int, m[1:])))
              for m in re.findall(r"cache: (\d+) forward: (\d+) backward: (\d+) once: (\d+) norms: (\d+)", out)}
    return parts[3], caches


def convolution(batch, a, b, kernel, size, out, copy, rate):
    """Returns the seconds of one pass: that of its bytes, or that of its products if it is longer."""
    moved = 2 * (batch * (a * size * size + b * out * out) + a * b * kernel * kernel)
    return max(moved / copy, 2 * batch * out * out * a * b * kernel * kernel / rate)


def predict(bytes_of, kept, bandwidth, flops, early, memory, products):
    copy, rate = bandwidth * COPY * memory, flops * PRODUCTS * products
    rows = {}
    passes = (("convolutions forward", 1), ("data gradients", 1), ("weight gradients", WEIGHT_GRADIENTS))
    for name, share in passes:
        total = 0
        for i, (a, b, kernel, size, out) in enumerate(convolutions()):
            if i == 0 and name == "data gradients":
                continue
            total += convolution(BATCH, a, b, kernel, size, out, copy, rate * share * (STEM if i == 0 else 1))
        rows[name] = total
    forward = ("batch_norm", "batch_norm_with_mask", "batch_norm_of_shortcut", "batch_norm_add_shortcut")
    backward = ("batch_norm_backward", "batch_norm_backward_from_mask", "batch_norm_backward_add_shortcut",
                "batch_norm_backward_of_shortcut")
    rows["batch norm forward"] = (BATCH * sum(bytes_of[k] for k in forward) - kept["forward"]) / copy
    rows["batch norm backward"] = (BATCH * sum(bytes_of[k] for k in backward) - kept["backward"]) / copy
    known = ("all", "conv2d", "conv2d_backward_data", "conv2d_backward_weights", *forward, *backward)
    rows["pooling, sums, loss, images"] = BATCH * sum(v for k, v in bytes_of.items() if k not in known) / copy
    rows["update, packing"] = UPDATE / copy
    rows["small kernels, gaps"] = kept["norms"] * (FINISH + 3 * GAP) + OTHER_LAUNCHES * GAP
    rows["gaps hidden by early launches"] = -early * GAP
    return rows


def counted_cifar(program):
    """Returns what the program counts for --recipe fast: how often a step has each op and the bytes of one image, the convolutions
    as (pass, input channels, output channels, kernel, input size, output size), parameters, the bytes of an evaluation, caches."""
    out = subprocess.run([program, "--test-case=the work of a step of --recipe fast*"], capture_output=True, text=True, check=True).stdout
    ops = {m[0]: (int(m[1]), int(m[2])) for m in re.findall(r"op: (\w+) times: (\d+) bytes: (\d+)", out)}
    convs = [(m[0], *map(int, m[1:])) for m in re.findall(r"convolution: (\w+) channels: (\d+) (\d+) kernel: (\d+) sizes: (\d+) (\d+)", out)]
    caches = {int(m[0]): dict(zip(("forward", "backward", "norms"), map(int, m[1:])))
              for m in re.findall(r"cache: (\d+) forward: (\d+) backward: (\d+) once: \d+ norms: (\d+)", out)}
    return ops, convs, int(re.search(r"parameters: (\d+)", out)[1]), int(re.search(r"forward bytes: (\d+)", out)[1]), caches


def cifar_parts(counts, gpu, end):
    """Returns the seconds of each part of a run, and those of a first process in addition. end: 0 for the best, 1 for the worst."""
    ops, convs, parameters, evaluated, caches = counts
    (bandwidth, flops, cache), (memory, products) = GPUS[gpu], EFFICIENCIES[end]
    copy, rate, kept = bandwidth * COPY * memory, flops * PRODUCTS * products, caches[cache]
    shares = {"forward": 1, "data": 1, "weights": WEIGHT_GRADIENTS}
    times = [(c[0], convolution(CIFAR_BATCH, *c[1:], copy, rate * shares[c[0]] * (STEM if c[1] == 8 else 1))) for c in convs]
    norms = ("batch_norm", "batch_norm_backward")
    kept_bytes = 0 if end else kept["forward"] + kept["backward"]
    known = ("conv2d", "conv2d_backward_data", "conv2d_backward_weights", *norms)
    others = {k: v for k, v in ops.items() if k not in norms}
    launches = sum(n for n, _ in others.values()) + END_OF_STEP
    forward = sum(t for which, t in times if which == "forward")
    values = {which: 1 + end for which in MEASURED}
    parts = {which: seconds * values[which] / 2 for which, seconds in MEASURED.items()}
    parts |= {which: seconds[end] for which, seconds in ASSUMED.items()}
    # From memory that is not pinned, at worst a tenth of the rate.
    parts["copying the images to the GPU"] = FILES / BUS[gpu] * (10 if end else 1)
    epochs = {
        "convolutions": sum(t for _, t in times),
        "batch norm": (CIFAR_BATCH * sum(ops[k][1] for k in norms) - kept_bytes) / copy,
        "GELU, pooling, loss, images": CIFAR_BATCH * sum(b for k, (_, b) in ops.items() if k not in known) / copy,
        "update": parameters * CIFAR_UPDATE / copy,
        "small kernels, gaps": kept["norms"] * (FINISH + 3 * GAP) + launches * GAP,
    }
    parts |= {f"500 steps: {which}": STEPS * seconds for which, seconds in epochs.items()}
    convolution_bytes = sum(2 * (c[1] * c[4] ** 2 + c[2] * c[5] ** 2) for c in convs if c[0] == "forward")
    parts["evaluation of 6 views"] = EVALUATED * (forward / CIFAR_BATCH + (evaluated - convolution_bytes) / copy)
    order = ["start of the process, options", "driver, context", "reading the files", "whitening of the first layer",
             "copying the images to the GPU", "libraries, stored kernels and plans", "first step, capture of the graph",
             *(f"500 steps: {which}" for which in epochs), "evaluation of 6 views", "checkpoint, end of the process"]
    plans = PLANS_OF_23 * sum(c[0] == "forward" for c in convs) / 23
    return {which: parts[which] for which in order}, max(NVRTC, plans) * (1 + end) / 2


def print_cifar(program):
    counts = counted_cifar(program)
    table = {gpu: [cifar_parts(counts, gpu, end) for end in (0, 1)] for gpu in CIFAR}
    print("\n| seconds of train_cifar10 --recipe fast | " + " | ".join(table) + " |")
    print("|---" * (len(table) + 1) + "|")

    def row(name, seconds):
        cells = [tuple(f"{s:.2f}" for s in ends) for ends in seconds]
        print(f"| {name} | " + " | ".join(a if a == b else f"{a} to {b}" for a, b in cells) + " |")

    for name in table[CIFAR[0]][0][0]:
        row(name, [[parts[name] for parts, _ in ends] for ends in table.values()])
    sums = [[sum(parts.values()) for parts, _ in ends] for ends in table.values()]
    timed = [[sum(s for n, s in parts.items() if n.startswith(("500 steps", "evaluation"))) for parts, _ in ends] for ends in table.values()]
    row("all, if kernels and plans are stored", sums)
    row("the first process: NVRTC, choice of plans", [[first for _, first in ends] for ends in table.values()])
    row("all, first process", [[a + first for a, (_, first) in zip(s, ends)] for s, ends in zip(sums, table.values())])
    row("what others time: steps and evaluation", timed)


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    bytes_of, caches = counted(sys.argv[1])
    table = {}
    for gpu, (bandwidth, flops, cache) in GPUS.items():
        found = caches[cache]
        ends = (found, {**found, "forward": 0, "backward": 0})
        early = (EARLY_LAUNCHES if gpu in EARLY else 0, 0)
        table[gpu] = [predict(bytes_of, kept, bandwidth, flops, n, *e) for kept, n, e in zip(ends, early, EFFICIENCIES)]
    print("| milliseconds of a step | " + " | ".join(table) + " |")
    print("|---" * (len(table) + 1) + "|")
    for name in next(iter(table.values()))[0]:
        cells = []
        for low, high in table.values():
            a, b = f"{1e3 * low[name] + 0.0:.1f}", f"{1e3 * high[name] + 0.0:.1f}"  # + 0.0: no "-0.0"
            cells.append(a if a == b else f"{a} to {b}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    sums = [[sum(r.values()) for r in rows] for rows in table.values()]
    print("| all | " + " | ".join(f"{1e3 * a:.1f} to {1e3 * b:.1f}" for a, b in sums) + " |")
    print("| images/s | " + " | ".join(f"{BATCH / b:,.0f} to {BATCH / a:,.0f}" for a, b in sums) + " |")
    print_cifar(sys.argv[1])


if __name__ == "__main__":
    main()
