#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs bench/fine_tuning.py with a few drawn images and one epoch of each run: 10 seconds of processor time."""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SHAPES = ["circle", "cross", "square", "triangle"]


def main():
    if not (BUILD / "tools/tutti-train").exists() or not (BUILD / "examples/save_images").exists():
        print("SKIP: no tutti-train, or no save_images")
        return 77
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        subprocess.run([BUILD / "examples/save_images", "drawn", "8"], cwd=work, check=True, stdout=subprocess.DEVNULL)
        for split, source in (("train", "train"), ("test", "validation")):
            (work / "jpegs" / split).mkdir(parents=True)
            for k, name in enumerate(CLASSES):
                (work / "jpegs" / split / name).symlink_to(work / "drawn" / source / SHAPES[k % 4])
        done = subprocess.run([sys.executable, ROOT / "bench/fine_tuning.py", "jpegs", "out", "--build", BUILD, "--epochs-before", "1",
                               "--from-nothing", "1", "--epochs", "1", "--before", "8", "--training", "8", "--validation", "2"],
                              cwd=work, text=True, capture_output=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        for name in ("from nothing", "--recipe finetune", "tutti-train --pretrained"):
            assert re.search(rf"^\| {name} \| \d+\.\d % \| \d+\.\d % \| \d+ \|$", done.stdout, re.M), done.stdout
        for file in ("report.html", "net.onnx", "worst.txt"):
            assert list(work.glob(f"out/runs/pretrained-1-*/{file}")), file
    print("all good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
