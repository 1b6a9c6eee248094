#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: 2
"""Tests that torchvision's ResNets give the same logits in tutti, and that tutti exports the same weights."""
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
    import numpy as np  # noqa: F401
    import torch
except ImportError as missing:
    # Debian's packages belong to Debian's Python, which may not be the first one in PATH.
    if os.path.exists(SYSTEM_PYTHON) and "TUTTI_SYSTEM_PYTHON" not in os.environ:
        os.execve(SYSTEM_PYTHON, [SYSTEM_PYTHON, __file__], {**os.environ, "TUTTI_SYSTEM_PYTHON": "1"})
    print(f"SKIP: {missing} (Debian: apt-get install python3-torch python3-numpy)")
    sys.exit(77)

sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tests/golden"), str(ROOT / "tools")]
import pytorch_weights  # noqa: E402
from torchvision_resnet import ResNet, images, normalized  # noqa: E402

ROWS, SIZE, BATCHES = 2, 96, 5


def convert(source, target, expect=0):
    done = subprocess.run([sys.executable, ROOT / "tools/pytorch_weights.py", source, target], capture_output=True,
                          text=True)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stderr


def refused(name, read, path):
    try:
        read(torch, str(path))
    except SystemExit as said:
        assert len(str(said).splitlines()) == 1 and name in str(said) and "expected" in str(said), said
    else:
        raise AssertionError(f"{path} was read: {path.read_bytes()[:100]}")


def same(a, b, what):
    assert list(a) == list(a) and set(a) == set(b), f"{what}: names {sorted(set(a) ^ set(b))}"
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, (what, name)
        assert torch.equal(a[name], b[name]), (what, name)


def trained(depth, classes):
    """Returns a net whose statistics and scales differ from those of a new net."""
    torch.manual_seed(depth)
    model = ResNet(depth, classes)
    x = torch.randn(4, 3, 64, 64)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(BATCHES):
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(model(x), torch.arange(4) % classes).backward()
        sgd.step()
    return model.eval()


def check(depth, classes, folder):
    model = trained(depth, classes)
    torch.save(model.state_dict(), folder / "from.pth")
    convert(folder / "from.pth", folder / "from.safetensors")
    made = subprocess.run([BUILD / "tests/models/torchvision_weights", folder / "from.safetensors", folder, str(depth),
                           str(classes)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    with torch.no_grad():
        expected = model(normalized(images(ROWS, SIZE)).float())
    got = pytorch_weights.read_safetensors(torch, folder / "logits.safetensors")["logits"]
    error = ((got - expected).abs().max() / expected.abs().max()).item()
    assert got.shape == (ROWS, classes) and error < 1e-4, f"ResNet-{depth}: logits are off by {error} of the largest"

    convert(Path(made.stdout.strip()) / "model.safetensors", folder / "back.pth")
    back = torch.load(folder / "back.pth")
    same(model.state_dict(), back, f"ResNet-{depth} after the round trip")  # including the counts of batches
    assert back["bn1.num_batches_tracked"] == BATCHES
    again = ResNet(depth, classes)
    again.load_state_dict(back, strict=True)
    with torch.no_grad():
        assert torch.equal(again.eval()(normalized(images(ROWS, SIZE)).float()), expected)
    print(f"ResNet-{depth}, {classes} classes: logits within {error:.1e}, and the weights come back")


def check_converter(folder):
    """Tests all types, scalars, empty tensors, wrapped dictionaries, and files that are not weights."""
    torch.manual_seed(1)
    state = {"scalar": torch.tensor(7), "none": torch.empty(0, 3), "turned": torch.randn(3, 5).t()}
    for kind in ("float64", "float32", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"):
        state[kind] = (torch.randn(3, 2, 1) * 5).to(getattr(torch, kind))
    torch.save(state, folder / "all.pth")
    convert(folder / "all.pth", folder / "all.safetensors")
    convert(folder / "all.safetensors", folder / "all.pt")
    same(state, torch.load(folder / "all.pt"), "every type")

    half = torch.randn(4).half()
    torch.save({"state_dict": {"module.a": half, "module.b.c": half}, "epoch": 3}, folder / "wrapped.pth")
    convert(folder / "wrapped.pth", folder / "wrapped.safetensors")
    same({"a": half.float(), "b.c": half.float()},
         pytorch_weights.read_safetensors(torch, folder / "wrapped.safetensors"), "a wrapped dictionary")

    whole = (folder / "all.safetensors").read_bytes()
    (folder / "short.safetensors").write_bytes(whole[:-1])
    assert "truncated" in convert(folder / "short.safetensors", folder / "short.pth", 1)
    (folder / "tiny.safetensors").write_bytes(whole[:5])
    assert "safetensors" in convert(folder / "tiny.safetensors", folder / "tiny.pth", 1)
    torch.save([1, 2], folder / "list.pth")
    assert "state dictionary" in convert(folder / "list.pth", folder / "list.safetensors", 1)
    assert "expected a file" in convert(folder / "absent.pth", folder / "absent.safetensors", 1)
    # An untrusted or incomplete file gives an error of one line.
    pth = (folder / "all.pth").read_bytes()
    for name, data in (("cut.pth", pth[:len(pth) // 2]), ("text.pth", b"<html>not found</html>"), ("void.pth", b"")):
        (folder / name).write_bytes(data)
        refused(name, pytorch_weights.read_pth, folder / name)
    for entry in ('[]', '{"a":1}', '{"a":{"dtype":"F32","shape":[1]}}', '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}',
                  '{"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}}', '{"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}}',
                  '{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}', '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0.0,4.0]}}'):
        (folder / "tiny.safetensors").write_bytes(struct.pack("<Q", len(entry)) + entry.encode() + b"1234")
        refused("tiny.safetensors", pytorch_weights.read_safetensors, folder / "tiny.safetensors")
    for source, target in (("all.pth", "nowhere/all.safetensors"), ("all.safetensors", "nowhere/all.pth")):
        said = convert(folder / source, folder / target, 1)
        assert len(said.splitlines()) == 1 and f"[{folder / target}] expected" in said, said
    convert(folder / "all.pth", folder / "other.pth", 2)
    left = [p.name for p in folder.iterdir() if p.suffix == ".part" or p.stem in ("short", "tiny", "list", "absent", "void")]
    assert sorted(left) == ["list.pth", "short.safetensors", "tiny.safetensors", "void.pth"], left
    print("the converter's files come back, and bad ones are refused")


def main():
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="tutti-torchvision-") as folder:
        check_converter(Path(folder))
    for depth, classes in [(18, 11), (50, 1000)]:
        with tempfile.TemporaryDirectory(prefix="tutti-torchvision-") as folder:
            check(depth, classes, Path(folder))


if __name__ == "__main__":
    main()
