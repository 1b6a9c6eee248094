# SPDX-License-Identifier: MIT
"""Base class for tests of tutti-predict and tutti-export: image files, and runs that were trained on them."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
PREDICT = str(BUILD / "tools" / "tutti-predict")
EXPORT = str(BUILD / "tools" / "tutti-export")
CIFAR = str(BUILD / "examples" / "train_cifar10")
IMAGENET = str(BUILD / "examples" / "train_imagenet")


def png(width, height, pixels):
    """Returns the bytes of a PNG file with these RGB pixels."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + pixels[y * width * 3:(y + 1) * width * 3] for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def pixels_of(label, number, width, height):
    """Returns a picture of a class: a colour that is brighter on one side, and noise."""
    draw = random.Random(1000 * label + number)
    base = [(200, 60, 60), (60, 200, 60), (60, 60, 200), (190, 190, 60)][label % 4]
    out = bytearray()
    for y in range(height):
        for x in range(width):
            for c in base:
                out.append(max(0, min(255, c + (40 * x // width if label % 2 else 40 * y // height) - 20 + draw.randrange(-60, 60))))
    return bytes(out)


def write_recordio(path, images):
    """Writes (label, image) pairs as MXNet's im2rec does."""
    with open(path, "wb") as out:
        for number, (label, image) in enumerate(images):
            body = struct.pack("<IfQQ", 0, float(label), number, 0) + image
            out.write(struct.pack("<II", 0xCED7230A, len(body)) + body + b"\0" * (-len(body) % 4))


def write_safetensors(path, tensors, metadata=None):
    """Writes a safetensors file. tensors: {name: (dtype, shape, bytes)}."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.writelines(data for _, _, data in tensors.values())


def read_safetensors(path):
    """Reads a safetensors file. Returns (tensors, metadata) in the same form."""
    data = Path(path).read_bytes()
    length, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", None)
    return {name: (e["dtype"], e["shape"], data[8 + length + e["data_offsets"][0]:8 + length + e["data_offsets"][1]])
            for name, e in header.items()}, metadata


def run(program, *words, code=0, stdin=b"", timeout=300, **more):
    done = subprocess.run([program, *map(str, words)], input=stdin, capture_output=True, timeout=timeout, **more)
    done.out, done.err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, f"{words}: {done.returncode} instead of {code}\n{done.out}\n{done.err}"
    return done


class PredictCase(unittest.TestCase):
    """Gives the test class a folder, and removes it at the end."""

    @classmethod
    def setUpClass(cls):
        for program in (PREDICT, EXPORT, CIFAR, IMAGENET):
            if not os.access(program, os.X_OK):
                print("SKIP: no", program)
                sys.exit(77)
        temp = tempfile.TemporaryDirectory(prefix="tutti-predict-")
        cls.addClassCleanup(temp.cleanup)
        cls.folder = Path(temp.name)

    @classmethod
    def train(cls, program, run_dir, *options):
        run(program, *options, "--run-dir", run_dir, cwd=cls.folder, timeout=600)
        return cls.folder / run_dir

    def predict(self, *words, code=0, **more):
        """Runs tutti-predict. Returns {name of an image: answer}, and the messages."""
        done = run(PREDICT, "--json", *words, code=code, cwd=self.folder, **more)
        lines = [json.loads(line) for line in done.out.splitlines()]
        return {line["image"]: line for line in lines}, done.err
