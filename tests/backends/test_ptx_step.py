#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Runs the kernels of training steps on the processor as NVRTC compiles them: an emulated test of a whole step, with
TUTTI_EMULATOR=ptx (emulator/ptx.hpp). The emulator checks each memory access. With TUTTI_CHECK_ALL, which the tests at night set, also
all updates, and a barrier that is taken out of a kernel must be found. ptx_all.py runs all emulated tests, for each type and
architecture."""
import os
import subprocess
import sys
from pathlib import Path

import planted_kernel_faults
import planted_kernels

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
TESTS = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build")) / "tests" / "backends"
# A steady step, which is a captured graph; at night also all updates, norms and averages.
CASES = {"test_cuda_step": "a steady step is one graph launch*"}
if os.environ.get("TUTTI_CHECK_ALL"):
    CASES["test_cuda_emulated"] = "weight updates*"


def main():
    have = subprocess.run([sys.executable, ROOT / "tests" / "backends" / "emulator" / "ptx_nvrtc.py"])
    if have.returncode != 0:
        sys.exit(have.returncode)
    for program, cases in CASES.items():
        if not (TESTS / program).exists():
            print(f"SKIP: {program} is not built")
            sys.exit(77)
        done = subprocess.run([TESTS / program, f"--test-case={cases}", "--no-colors"], env={**os.environ, "TUTTI_EMULATOR": "ptx"})
        if done.returncode != 0:
            sys.exit(1)
    if not os.environ.get("TUTTI_CHECK_ALL"):
        return
    fault = next(f for f in planted_kernel_faults.FAULTS if f[0] == "two-sums-without-barrier")
    found, seconds = planted_kernels.find(fault, TESTS.parents[1])
    print(f"{fault[0]}: {found}, {seconds:.0f} s")
    sys.exit(0 if found and "shared memory" in found else 1)


main()
