#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that weights of torchvision's and timm's ResNets give the same logits in tutti: with stored names, shapes and
logits, and with the libraries if they are installed."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(ROOT / "tests/tools"), str(ROOT / "tests/models")]
from make_pretrained import libraries, logits_of, state_of  # noqa: E402
from predict_case import IMAGENET, PREDICT, png, run, write_safetensors  # noqa: E402
from pretrained_case import CLASSES, DEPTHS, SIDE, pixels, read_stored, tensors_of  # noqa: E402

try:
    import torch
except ImportError:
    torch = None


class Pretrained(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="tutti-pretrained-")
        self.addCleanup(temp.cleanup)
        self.folder = Path(temp.name)
        (self.folder / "image.png").write_bytes(png(SIDE, SIDE, pixels()))

    def logits(self, depth, file):
        """Runs tutti-predict on the image and returns its answer."""
        done = run(PREDICT, "--json", "--top", CLASSES, "--model", f"resnet{depth}", "--image-size", SIDE, "--short-side", SIDE, file,
                   self.folder / "image.png", timeout=120)
        answer = json.loads(done.out)
        return [c["logit"] for c in sorted(answer["classes"], key=lambda c: c["index"])]

    def check(self, ours, theirs):
        most = max(map(abs, theirs))
        for a, b in zip(ours, theirs, strict=True):
            self.assertAlmostEqual(a, b, delta=2e-5 * most)

    def test_stored_names_and_logits(self):
        nets = read_stored()
        self.assertEqual(tuple(nets), DEPTHS)
        for depth, net in nets.items():
            with self.subTest(depth=depth):
                file = self.folder / "weights.safetensors"
                write_safetensors(file, tensors_of(net), {"format": "pt"})
                ours = self.logits(depth, file)
                for library in ("torchvision", "timm"):
                    self.check(ours, net["logits"][library])

    def test_training_takes_them(self):
        net = read_stored()[18]
        write_safetensors(self.folder / "weights.safetensors", tensors_of(net))
        for label in range(CLASSES):
            folder = self.folder / "set" / "validation" / f"class {label}"
            folder.mkdir(parents=True)
            (folder / "image.png").write_bytes(png(SIDE, SIDE, pixels()))
        options = ["--data-dir", self.folder / "set", "-m", "resnet18", "--image-size", SIDE, "--nofp16", "-b", "7", "--preset", "torchvision"]
        said = run(IMAGENET, *options, "--eval", "--pretrained", self.folder / "weights.safetensors", cwd=self.folder, timeout=120).out
        self.assertIn("14.", said)  # one of seven classes is right

    def convert(self, file, **more):
        return subprocess.run([sys.executable, ROOT / "tools/pytorch_weights.py", file, self.folder / "weights.safetensors"], capture_output=True,
                              text=True, timeout=120, **more)

    def test_a_converter_that_would_run_code_does_nothing(self):
        # PyTorch before 1.13 could not load a file without running code from it.
        (self.folder / "torch.py").write_text("__version__ = '1.12.1'\ndef load(*a, **k): raise SystemExit(0)\n")
        (self.folder / "weights.pth").write_bytes(b"PK")
        done = self.convert(self.folder / "weights.pth", env={**os.environ, "PYTHONPATH": str(self.folder)})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("expected PyTorch 1.13 or later", done.stderr)

    def test_a_file_that_would_run_code(self):
        if torch is None:
            self.skipTest("no PyTorch")

        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(outer / "evil"),)

        outer = self.folder
        torch.save({"a": torch.ones(3), "b": Evil()}, self.folder / "evil.pth")
        self.assertNotEqual(self.convert(self.folder / "evil.pth").returncode, 0)
        self.assertEqual([(self.folder / n).exists() for n in ("evil", "weights.safetensors")], [False, False])

    def test_the_libraries_themselves(self):
        found = libraries() if torch is not None else []
        if not found:
            self.skipTest("no torchvision and no timm")
        for library, make in found:
            for depth in (18, 50):
                with self.subTest(library=library, depth=depth):
                    torch.manual_seed(depth)
                    model = make(depth)
                    state = model.state_dict() if depth == 18 else state_of(torch, model)
                    torch.save(state, self.folder / "weights.pth")
                    done = self.convert(self.folder / "weights.pth")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.check(self.logits(depth, self.folder / "weights.safetensors"), logits_of(torch, model))


if __name__ == "__main__":
    for program in (PREDICT, IMAGENET):
        if not os.access(program, os.X_OK):
            print("SKIP: no", program)
            sys.exit(77)
    unittest.main()
