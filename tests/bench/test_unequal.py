#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs bench/unequal.py with a small net and few steps: 10 seconds of processor time. It checks that all runs have the same bits.
Whether the shares change depends on the load of the machine, and is not checked here."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])


def main():
    if not (BUILD / "tools/tutti-launch").exists() or not (BUILD / "examples/train_cifar10").exists() or not shutil.which("taskset"):
        print("SKIP: no tutti-launch, train_cifar10 or taskset")
        return 77
    with tempfile.TemporaryDirectory() as work:
        words = [sys.executable, ROOT / "bench/unequal.py", "out", "--build", BUILD, "--steps", "20", "--repeats", "1", "--batch", "1", "--depth", "8"]
        for turn in range(2):  # the second call continues after the runs of the first one
            done = subprocess.run(words, cwd=work, text=True, capture_output=True, timeout=600)
            if done.returncode == 4:
                print("SKIP: one core")
                return 77
            assert done.returncode == 0, done.stdout + done.stderr
            # Without quotas of processor time, the second case is skipped and says so.
            quotas = "| four | skipped: " not in done.stdout
            for case in ("two", "four") if quotas else ("two",):
                both = r"[\d.]+ \| \d+ %" if case == "two" else r" \| "
                assert re.search(rf"^\| {case} \| [\d.]+ \| [\d.]+ \| .* \| {both} \| equal \|$", done.stdout, re.M), done.stdout
        assert len(list(Path(work).glob("out/*/done"))) == (4 + 3 if quotas else 4)
        assert not list(Path("/sys/fs/cgroup").glob("**/tutti-unequal-*"))
        wrong = subprocess.run([*words, "--cases", "x"], cwd=work, text=True, capture_output=True)
        assert wrong.returncode == 2 and "invalid choice: 'x'" in wrong.stderr, wrong.stderr
    print("all good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
