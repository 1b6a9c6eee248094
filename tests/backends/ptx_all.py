#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs all tests of the emulated GPU on the kernels as NVRTC compiles them (emulator/ptx.hpp), for each architecture.

  tests/backends/ptx_all.py [--out build/ptx] [--arch 90,80,70,100,120] [--build build]

Tests all programs with PTX for the first architecture, and the golden values and the steps with that of the others. Writes the
output and the result of each program to FOLDER, and skips a program that has passed with the same program and translator: a run
that was stopped continues when it is started again. Exit code 1: a test failed. 77: there is no NVRTC.
"""
import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "tests" / "backends" / "emulator"
PROGRAMS = ["golden/test_golden_emulated", *(f"backends/test_{t}" for t in (
    "cuda_step", "cuda_emulated", "cuda_emulator", "cuda_training", "cuda_fusion", "cuda_weight_gradients", "cuda_not_finite",
    "cuda_evaluation", "cuda_fit", "cuda_input", "cuda_step_of_ranks", "nccl_emulated", "train_nccl_emulated", "shortcut_norms"))]
FOR_EACH_ARCHITECTURE = PROGRAMS[:2]


def identity(program, nvrtc):
    """Returns a hash of what a result depends on; nvrtc: NVRTC's version and options."""
    h = hashlib.sha256(program.read_bytes() + nvrtc)
    for file in sorted(EMULATOR.glob("ptx*")):
        h.update(file.read_bytes())
    return h.hexdigest()[:16]


def knows_ptx(program):
    """Returns whether the program was linked with an emulator that can run PTX. Another one ignores TUTTI_EMULATOR."""
    return b"TUTTI_PTX_ARCH" in program.read_bytes()


def run(program, architecture, log):
    environment = {**os.environ, "TUTTI_EMULATOR": "ptx", "TUTTI_PTX_ARCH": str(architecture)}
    with open(log, "w") as output:
        return subprocess.run([program, "--no-colors"], env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build")))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--arch", default="90,80,70,100,120")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.out = options.out or options.build / "ptx"
    options.out.mkdir(parents=True, exist_ok=True)
    architectures = [int(a) for a in options.arch.split(",")]
    have = subprocess.run([sys.executable, EMULATOR / "ptx_nvrtc.py", str(architectures[0])]).returncode
    if have != 0:
        return have
    worst, lines = 0, []
    for architecture in architectures:
        nvrtc = subprocess.run([sys.executable, EMULATOR / "ptx_nvrtc.py", str(architecture)], stdout=subprocess.PIPE)
        if nvrtc.returncode != 0:
            lines.append(f"sm_{architecture:<4} skipped: no NVRTC for it")
            continue
        for name in PROGRAMS if architecture == architectures[0] else FOR_EACH_ARCHITECTURE:
            program = options.build / "tests" / name
            result = options.out / f"{program.name}-{architecture}.result"
            if not program.exists():
                lines.append(f"sm_{architecture:<4} {program.name:28} skipped: it is not built")
                continue
            if not knows_ptx(program):
                sys.exit(f"ptx_all.py: {program} was linked with an emulator without PTX: build it again")
            key = identity(program, nvrtc.stdout)
            if not (result.exists() and result.read_text().split()[:2] == ["0", key]):
                began = time.monotonic()
                code = run(program, architecture, result.with_suffix(".log"))
                result.write_text(f"{code} {key} {time.monotonic() - began:.0f}\n")
            code, _, seconds = result.read_text().split()
            worst = worst or int(code != "0")
            lines.append(f"sm_{architecture:<4} {program.name:28} {'passed' if code == '0' else 'FAILED'} {seconds:>6} s")
            print(lines[-1], flush=True)
    print("\n" + "\n".join(lines))
    return worst


if __name__ == "__main__":
    sys.exit(main())
