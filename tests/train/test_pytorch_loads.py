#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that PyTorch loads a checkpoint into the same net with load_state_dict(strict=True) and gives the same results.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
SYSTEM_PYTHON = "/usr/bin/python3"

try:
    import numpy as np
    import torch
except ImportError as missing:
    # Debian's packages belong to Debian's Python, and PATH may name another Python first.
    if os.path.exists(SYSTEM_PYTHON) and "TUTTI_SYSTEM_PYTHON" not in os.environ:
        os.execve(SYSTEM_PYTHON, [SYSTEM_PYTHON, __file__], {**os.environ, "TUTTI_SYSTEM_PYTHON": "1"})
    print(f"SKIP: {missing} (Debian: apt-get install python3-torch python3-numpy)")
    sys.exit(77)

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/golden"))
from make_golden import ResNet8  # noqa: E402

TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "U8": "u1"}


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(body[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
        tensors[name] = torch.from_numpy(array)
    return tensors


def check(state, images, logits, batches):
    model = ResNet8()
    # load_state_dict(strict=True) itself accepts a dictionary without versions that has no count, but stricter loaders
    # refuse it. The test therefore compares the names first.
    different = set(state) ^ set(model.state_dict())
    assert not different, f"names that only one of the two has: {sorted(different)}"
    model.load_state_dict(state, strict=True)
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert value.dtype == torch.int64 and value.shape == () and value == batches, (name, value)
    with torch.no_grad():
        error = (model.eval()(images) - logits).abs().max() / logits.abs().max()
    assert error < 1e-5, f"logits are off by {error} of the largest"
    # PyTorch continues to count from the checkpoint's count.
    model.train()(images)
    assert model.state_dict()["bn1.num_batches_tracked"] == batches + 1


def main():
    with tempfile.TemporaryDirectory(prefix="tutti-strict-") as folder:
        program = BUILD / "tests/train/strict_state_dict"
        made = subprocess.run([program, folder], capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        checkpoint, seen = Path(made.stdout.strip()), read(Path(folder) / "evaluation.safetensors")
        images = (seen["images"].permute(0, 3, 1, 2).float() - torch.tensor([120.0, 124, 128]).view(3, 1, 1)) / 64
        check(read(checkpoint / "model.safetensors"), images, seen["logits"], seen["batches"])
        averaged = {name[4:]: value for name, value in read(checkpoint / "optimizer.safetensors").items()
                    if name.startswith("ema.")}
        check(averaged, images, seen["ema.logits"], seen["batches"])
    print("both state dictionaries load strictly and evaluate to the same")


if __name__ == "__main__":
    main()
