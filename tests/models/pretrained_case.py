# SPDX-License-Identifier: MIT
"""Weights for other libraries' ResNets, for test_pretrained.py and make_pretrained.py. The values depend on a
tensor's name and shape, so that a misplaced tensor is noticed. Needs no package."""
import array
import math
import random
import zlib
from pathlib import Path

STORED = Path(__file__).resolve().parent / "pretrained.txt"
DEPTHS, SIDE, CLASSES = (18, 34, 50, 101, 152), 64, 7
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def values(name, shape):
    """Returns the bytes of an f32 tensor that repeats a sequence of numbers."""
    draw = random.Random(zlib.crc32(name.encode()))
    count = math.prod(shape)
    if name.endswith("running_var"):
        some = [0.5 + draw.random() for _ in range(1021)]
    elif len(shape) == 1 and name.endswith("weight"):
        # The last batch norm of a block has smaller values, so that the values of deep nets stay within range.
        some = [(0.2 if name.endswith(("bn2.weight", "bn3.weight")) else 0.8) + 0.4 * draw.random() for _ in range(1021)]
    else:
        scale = 0.1 if len(shape) == 1 else math.sqrt(2 / math.prod(shape[1:])) if len(shape) == 4 else 0.05
        some = [draw.gauss(0, scale) for _ in range(1021)]
    return (array.array("f", some).tobytes() * (count // 1021 + 1))[:4 * count]


def pixels():
    """Returns the bytes of an image of SIDE x SIDE pixels."""
    draw = random.Random(7)
    return bytes(min(255, max(0, int(128 + 60 * math.sin(0.3 * x + c) + 50 * math.cos(0.2 * y) + draw.uniform(-40, 40))))
                 for y in range(SIDE) for x in range(SIDE) for c in range(3))


def read_stored():
    """Returns {depth: {"tensors": {name: (dtype, shape)}, "logits": {library: [...]}}}."""
    nets = {}
    for line in STORED.read_text().splitlines():
        word, *rest = line.split()
        if word == "#":
            continue
        if word == "net":
            net = nets[int(rest[0])] = {"tensors": {}, "logits": {}}
        elif word == "logits":
            net["logits"][rest[0]] = [float(v) for v in rest[1:]]
        else:
            net["tensors"][word] = (rest[0], [int(d) for d in rest[1].split(",")] if len(rest) > 1 else [])
    return nets


def tensors_of(net):
    """Returns {name: (dtype, shape, bytes)} of a stored net."""
    return {name: (dtype, shape, values(name, shape) if dtype == "F32" else (5).to_bytes(8, "little"))
            for name, (dtype, shape) in net["tensors"].items()}
