# SPDX-License-Identifier: MIT
"""Traces of the step of one rank, for model.py: read from a file that bench/scaling --trace wrote, or computed from the
convolutions of ResNet-50 for a GPU. Used by simulate.py, validate.py and tutti-plan.

The trace of a GPU takes only shares from the graph: the time of each layer's passes by FLOPs and bytes, as bench/scaling/gpu_step.py
counts them, and the bytes of its gradients. The seconds of the whole step are given, and all layers are scaled to them."""
import functools
import json
import math
from dataclasses import dataclass

import gpu_step

MIB = 2**20
# The trainer's rule (include/tutti/tensor/arena.hpp, make_buckets): the first bucket is small, so that its sum starts early.
FIRST_BUCKET, BUCKET = 1 * MIB, 16 * MIB
MOST_BYTES, MOST_BUCKETS = 16 * MIB, 1024  # of a file with a trace
LATE = 1.1  # bench/scaling measures the ends of buckets and of the pass in different rounds, which differ by this at most
# bytes/s, dense f16 FLOP/s, MiB of L2 cache: Tesla V100 GPU Architecture (NVIDIA, 2017), table 1, SXM2
V100 = (0.9e12, 125e12, 6)
# Bytes of activations that the passes of all batch norms move for an image (bench/RESULTS.md, CUDA, "masks, as in bf16").
NORM_FORWARD, NORM_BACKWARD = 78.4e6, 133.7e6
CLASSES = 1000


class TraceError(ValueError):
    """A trace that cannot be used: [where] expected ..., got ...."""

    def __init__(self, where, expected, got, hint=""):
        super().__init__(f"[{where}] expected {expected}, got {got}.{' hint: ' + hint + '.' if hint else ''}")


def number(where, value, least, most, above=False):
    """Returns a JSON number as float. Raises TraceError for another type, for NaN, and outside of [least, most]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TraceError(where, "a number", repr(value)[:80])
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not (least <= value <= most) or (above and value == least):
        raise TraceError(where, f"a number {'above' if above else 'from'} {least:g} {'and ' if above else ''}to {most:g}", f"{value:g}")
    return value


@dataclass(frozen=True)
class Trace:
    images: float  # images in a step of a rank
    backward_end: float  # seconds from the start of the step
    update: float  # seconds
    buckets: tuple  # (bytes, seconds from the start of the step until the gradients are final), in the order of the sums

    @staticmethod
    def read(path):
        """Returns the trace in a file. Raises TraceError."""
        try:
            with open(path, "rb") as f:
                text = f.read(MOST_BYTES + 1)
        except (OSError, ValueError) as why:
            raise TraceError(path, "a trace that bench/scaling --trace wrote", why) from None
        if len(text) > MOST_BYTES:
            raise TraceError(path, f"a trace of at most {MOST_BYTES // MIB} MiB", "more")
        try:
            return Trace.of(path, json.loads(text.decode("utf-8")))
        except (ValueError, RecursionError) as why:
            if isinstance(why, TraceError):
                raise
            raise TraceError(path, "a trace that bench/scaling --trace wrote", f"{type(why).__name__}: {why}"[:200],
                             "mpirun -np 2 bench/scaling --trace FILE") from None

    @staticmethod
    def of(where, d):
        """Returns the trace that an object of JSON describes. Raises TraceError."""
        if not isinstance(d, dict):
            raise TraceError(where, "an object with images, backward_end, update and buckets", type(d).__name__)
        for name in ("images", "backward_end", "update", "buckets"):
            if name not in d:
                raise TraceError(where, "images, backward_end, update and buckets", f"no {name}")
        end = number(f"{where} backward_end", d["backward_end"], 0, 1e6, above=True)
        rows = d["buckets"]
        if not isinstance(rows, list) or len(rows) > MOST_BUCKETS:
            raise TraceError(f"{where} buckets", f"a list of at most {MOST_BUCKETS} buckets",
                             f"{len(rows)} buckets" if isinstance(rows, list) else type(rows).__name__)
        buckets = []
        for k, b in enumerate(rows):
            place = f"{where} bucket {k}"
            if not isinstance(b, dict) or not {"bytes", "ready"} <= set(b):
                raise TraceError(place, "an object with bytes and ready", repr(b)[:80])
            ready = number(f"{place} ready", b["ready"], 0, LATE * end)
            # Gradients are final at the end of the pass at the latest.
            buckets.append((number(f"{place} bytes", b["bytes"], 0, 1e15), min(ready, end)))
        return Trace(number(f"{where} images", d["images"], 0, 1e9, above=True), end, number(f"{where} update", d["update"], 0, 1e6),
                     tuple(buckets))


def make_buckets(slices, bucket=BUCKET, first=FIRST_BUCKET):
    """Cuts [(bytes, seconds when final)] of parameters into buckets by the trainer's rule: a bucket takes whole slices until it has its
    size. Returns [(bytes, seconds when the last slice is final)]."""
    buckets = []
    for size, ready in slices:
        if not buckets or buckets[-1][0] >= (first if len(buckets) == 1 else bucket):
            buckets.append([0, 0.0])
        buckets[-1][0] += size
        buckets[-1][1] = max(buckets[-1][1], ready)
    return [tuple(b) for b in buckets]


def gpus():
    return {"V100": V100, **gpu_step.GPUS}


@functools.lru_cache(maxsize=None)
def resnet50(gpu="V100", images=256):
    """Returns the layers of ResNet-50 in the order of the forward pass: [(forward seconds, backward seconds, [parameters of each
    slice, in the order in which they become final])]. The last layer is fully connected. Seconds are right up to a common factor."""
    bandwidth, flops, _ = gpus()[gpu]
    memory, products = gpu_step.EFFICIENCIES[0]
    copy, rate = bandwidth * gpu_step.COPY * memory, flops * gpu_step.PRODUCTS * products
    convolutions = gpu_step.convolutions()
    outputs = sum(b * out * out for _, b, _, _, out in convolutions)
    layers = []
    for k, (a, b, kernel, size, out) in enumerate(convolutions):
        stem = gpu_step.STEM if k == 0 else 1
        one = gpu_step.convolution(images, a, b, kernel, size, out, copy, rate * stem)
        weights = gpu_step.convolution(images, a, b, kernel, size, out, copy, rate * stem * gpu_step.WEIGHT_GRADIENTS)
        share = b * out * out / outputs * images / copy  # of the batch norm after it
        # The images have 3 channels. The kernels of the first layer see 8, of which five are zero and have no gradient.
        layers.append((one + share * NORM_FORWARD, (0 if k == 0 else one) + weights + share * NORM_BACKWARD,
                       [b, b, (3 if k == 0 else a) * b * kernel * kernel]))
    features = convolutions[-1][1]
    one = gpu_step.convolution(images, features, CLASSES, 1, 1, 1, copy, rate)
    return layers + [(one, 2 * one, [CLASSES, CLASSES * features])]


def resnet50_parameters():
    return sum(sum(slices) for _, _, slices in resnet50())


def gpu_trace(images, seconds, update, gradient_bytes=None, gpu="V100", bucket=BUCKET):
    """Returns the trace of a step of `images` images on a GPU of which only the seconds are known: `seconds` of forward and backward
    pass, `update` of the optimizer. gradient_bytes: of all gradients, by default those of ResNet-50 in f32. Another net has the
    profile of ResNet-50: the same share of its bytes is final after the same share of its time."""
    if gpu not in gpus():
        raise TraceError("gpu", "one of " + ", ".join(gpus()), gpu)
    layers = resnet50(gpu)
    scale = seconds / sum(forward + backward for forward, backward, _ in layers)
    each = (gradient_bytes if gradient_bytes is not None else 4 * resnet50_parameters()) / resnet50_parameters()
    at = scale * sum(forward for forward, _, _ in layers)
    slices = []
    for _, backward, parameters in reversed(layers):
        at = min(at + scale * backward, seconds)
        slices += [(each * n, at) for n in parameters]
    return Trace(images, seconds, update, tuple(make_buckets(slices, bucket)))
