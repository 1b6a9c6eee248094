#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants faults in the CUDA kernels, one at a time, and lists what finds each when the kernels run as PTX on the processor.

  tests/backends/planted_kernels.py [--only NAME[,NAME...]] [--list] [--again] [--build build] [--minutes N]

The faults are in planted_kernel_faults.py. The test programs of FOLDER are not compiled again: the emulator changes the kernel's
source before NVRTC compiles it (TUTTI_EMULATOR_REPLACE in emulator/ptx.hpp). FOLDER/planted_kernels.json keeps the results, so a
run that was stopped continues when it is started again; --again: forgets them. --minutes: begins no fault after this time. Exit code
1: a fault was not found, or its text is not in its file. 77: there is no NVRTC, or a test program is missing.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import planted_kernel_faults as faults
from ptx_all import knows_ptx

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "backends" / "cuda" / "kernels"


def occurrences(file, text):
    return (KERNELS / file).read_text().count(text)


def first_sign(output):
    """Returns the line that says what found the fault: the emulator's, or the first check that failed."""
    for pattern in (r"^emulator: (.*)$", r"^ptx\.py: (.*)$", r"(?:ERROR|FATAL ERROR): (.*(?:\n.*)?)", r"^.*(?:FAILED|timed out).*$"):
        if found := re.search(pattern, output, re.M):
            return " ".join((found[1] if found.groups() else found[0]).split())[:160]
    return "the program failed"


def find(fault, build):
    """Returns what found the fault and the seconds; None instead of the text if all tests passed."""
    _, _, text, wrong, tests = fault
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".fault") as file:
        file.write(f"{text}\1{wrong}")
        file.flush()
        for program, case in tests:
            command = [build / "tests" / "backends" / program, f"--test-case={case.replace(',', chr(92) + ',')}*", "--no-colors"]
            environment = {**os.environ, "TUTTI_EMULATOR": "ptx", "TUTTI_EMULATOR_REPLACE": file.name}
            try:
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
            except subprocess.TimeoutExpired:
                return f"{program} timed out", time.monotonic() - began
            if done.returncode != 0:
                return f"{first_sign(done.stdout)} ({program})", time.monotonic() - began
            if re.search(r"test cases: +0 ", done.stdout):
                sys.exit(f"planted_kernels.py: {program} has no case {case}")
    return None, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--build", type=Path, default=Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build")))
    options = parser.parse_args()
    only = set(options.only.split(",")) if options.only else None
    chosen = [f for f in faults.FAULTS if only is None or f[0] in only]
    missing = [f[0] for f in chosen if occurrences(f[1], f[2]) != 1]
    if options.list:
        for name, file, *_ in chosen:
            print(f"{file:17} {name}{'  (its text is not once in the file)' if name in missing else ''}")
        return 1 if missing else 0
    code = subprocess.run([sys.executable, ROOT / "tests" / "backends" / "emulator" / "ptx_nvrtc.py"]).returncode
    programs = {p for f in chosen for p, _ in f[4] if not (options.build / "tests" / "backends" / p).exists()}
    if code != 0 or programs:
        print(*(f"SKIP: {p} is not built" for p in sorted(programs)), sep="\n")
        return code or 77
    for program in sorted({p for f in chosen for p, _ in f[4]}):
        if not knows_ptx(options.build / "tests" / "backends" / program):
            sys.exit(f"planted_kernels.py: {program} was linked with an emulator without PTX: build it again")
    kept = options.build / "planted_kernels.json"
    results = json.loads(kept.read_text()) if kept.exists() and not options.again else {}
    end = time.monotonic() + 60 * options.minutes
    for fault in chosen:
        # A result belongs to one text of the fault.
        key = f"{fault[0]} {hash_of(fault)}"
        if key not in results and fault[0] not in missing and time.monotonic() < end:
            results[key] = find(fault, options.build)
            aside = kept.with_suffix(".new")
            aside.write_text(json.dumps(results, indent=1))
            aside.replace(kept)
            print(f"{fault[0]}: {results[key][0] or 'NOT FOUND'} ({results[key][1]:.0f} s)", flush=True)
    print("\n| fault | found by | seconds |\n|---|---|---|")
    found = 0
    for fault in chosen:
        result = results.get(f"{fault[0]} {hash_of(fault)}")
        text = "its text is not once in the file" if fault[0] in missing else "not run" if result is None else result[0] or "**not found**"
        found += bool(result and result[0])
        print(f"| {fault[0]} | {text.replace('|', '/')} | {'' if result is None else round(result[1])} |")
    print(f"\n{found} of {len(chosen)} faults found")
    return 0 if found == len(chosen) else 1


def hash_of(fault):
    return hashlib.sha256(repr(fault).encode()).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
