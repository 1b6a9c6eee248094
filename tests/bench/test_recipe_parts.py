#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs bench/recipe_parts.py on a few random images: 8 seconds of processor time."""
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])


def main():
    if not (BUILD / "examples/train_cifar10").exists():
        print("SKIP: no train_cifar10")
        return 77
    with tempfile.TemporaryDirectory() as work:
        draw = random.Random(1)
        for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
            rows = b"".join(bytes([i % 10]) + draw.randbytes(3072) for i in range(20)) * 500
            (Path(work) / f"{name}.bin").write_bytes(rows)

        def parts(*words):
            return subprocess.run([sys.executable, ROOT / "bench/recipe_parts.py", work, "out", "--build", BUILD, "--epochs", "1",
                                   "--seeds", "1", "--threads", "1", *words, "--", "--width", "0.25", "--num-examples", "2000", "--tta", "1"], cwd=work, text=True, capture_output=True, timeout=600)
        done = parts("--only", "nothing,Muon")
        assert done.returncode == 0, done.stdout + done.stderr
        row = r"^\| {} \| \d+\.\d\d \| \d+\.\d\d \| \d+\.\d\d \| {} \| \d+ \|$"
        for text in (row.format("nothing", ""), row.format(r"Muon \(SGD .*\)", r"[+-]\d+\.\d\d"), r"^\| six views .*[+-]\d+\.\d\d \| \|$"):
            assert re.search(text, done.stdout, re.M), done.stdout
        assert len(done.stdout.splitlines()) == 5, done.stdout
        # Runs that are complete are not repeated, and the table needs no program.
        before = {f: f.stat().st_mtime_ns for f in Path(work).glob("out/*/log.jsonl")}
        assert len(before) == 2
        again = parts("--table", "--build", "absent")
        assert again.stdout == done.stdout, again.stdout + again.stderr
        assert before == {f: f.stat().st_mtime_ns for f in Path(work).glob("out/*/log.jsonl")}
        assert "expected the begin of one of" in parts("--only", "unknown").stderr
    print("all good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
