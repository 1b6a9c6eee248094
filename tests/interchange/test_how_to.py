#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the Python code of docs/how-to/own-images-own-net.md: ONNX Runtime classifies an image as tutti-predict does.
"""
import contextlib
import io
import os
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "tools")]
from predict_case import BUILD, EXPORT, PredictCase, pixels_of, png, run  # noqa: E402


class HowTo(PredictCase):
    def test_own_images(self):
        block, = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "how-to" / "own-images-own-net.md").read_text(), re.M | re.S)
        for split in ("train", "validation"):
            for label, name in enumerate(("cat", "dog")):
                (self.folder / "images" / split / name).mkdir(parents=True)
                for k in range(12):
                    (self.folder / "images" / split / name / f"{k}.png").write_bytes(png(90, 80, pixels_of(label, k, 90, 80)))
        run(BUILD / "examples" / "03_images", "images", "runs/own-net", "3", cwd=self.folder)
        run(EXPORT, "runs/own-net", "own-net.onnx", cwd=self.folder)
        os.chdir(self.folder)
        for name in ("cat", "dog"):
            file = f"images/validation/{name}/2.png"
            said, _ = self.predict("runs/own-net", file)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block.replace("images/validation/circle/0.png", file), "own-images-own-net.md", "exec"), {})
            self.assertEqual(out.getvalue().strip(), said[file]["classes"][0]["class"])


if __name__ == "__main__":
    unittest.main()
