#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles CUDA C++ or PTX to a shared object that the emulator (backends/cuda_emulator.hpp) loads.

  ptx.py --arch 90 --kernels NAMES --objects FOLDER --to FILE.so SOURCE

NVRTC compiles SOURCE to PTX, which becomes C++, a file for each kernel. SOURCE that begins with ".version" is PTX itself. NAMES
is a file with a name expression, or a symbol, in each line. FOLDER keeps the object of each kernel under a hash of its C++, so that
only changed kernels are compiled again. --check: only translates, for architectures that no test runs. TUTTI_CXX: the compiler.
"""
import argparse
import hashlib
import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ptx_nvrtc
from ptx_emit import Function
from ptx_parse import PtxError, read_module

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c++17", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno", "-frounding-math"]

MODULE = """#include "ptx_runtime.hpp"
#define EXPORT extern "C" __attribute__((visibility("default")))
Machine* tutti_machine = nullptr;
float (*tutti_from_f16)(unsigned short) = nullptr;
unsigned short (*tutti_to_f16)(float) = nullptr;
alignas(256) u8 tutti_shared[%(bytes)d];
EXPORT void tutti_bind(Machine* m, float (*from)(unsigned short), unsigned short (*to)(float), u8** shared) {
  tutti_machine = m;
  tutti_from_f16 = from;
  tutti_to_f16 = to;
  shared[0] = tutti_shared;
  shared[1] = tutti_shared + sizeof tutti_shared;
}
"""
# sizes: of the parameters; layout: begin and bytes of each shared variable.
KERNEL = """void %(name)s(void** a) TUTTI_HIDDEN;
EXPORT void tutti_run_%(number)d(void** a) { %(name)s(a); }
EXPORT const u64* tutti_sizes_%(number)d() {
  static const u64 sizes[] = {%(sizes)s0};
  return sizes;
}
EXPORT const u32* tutti_layout_%(number)d() {
  static const u32 layout[] = {%(layout)s0, 0};
  return layout;
}
"""


def compiler():
    """Returns the compiler's command. With FMA instructions, a fused product and sum costs no call."""
    command = [os.environ.get("TUTTI_CXX") or "c++", *FLAGS, "-I", str(HERE)]
    if platform.machine() == "x86_64" and re.search(r"^flags.*\bfma\b", Path("/proc/cpuinfo").read_text(), re.M):
        command.append("-mfma")
    return command


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")


def kept_object(text, folder, command, of):
    """Returns the object of a C++ text, compiled if `folder` has none."""
    file = folder / (hashlib.sha256("\0".join([*command, of, text]).encode()).hexdigest()[:24] + ".o")
    if not file.exists():
        aside = file.with_suffix(f".{os.getpid()}.cpp")
        aside.write_text(text)
        run([*command, "-c", aside, "-o", aside.with_suffix(".o")])
        aside.with_suffix(".o").replace(file)
        aside.unlink()
    return file


def translated(ptx, symbols):
    """Returns the C++ of the module, and of each kernel in the order of the symbols."""
    entries = {e.symbol: e for e in read_module(ptx)}
    missing = [s for s in symbols if s not in entries]
    if missing:
        raise PtxError(0, missing[0], "the PTX has no such entry")
    functions = [Function(entries[s]) for s in symbols]
    module = MODULE % {"bytes": max([16, *(f.shared_bytes for f in functions)])}
    texts = []
    for number, f in enumerate(functions):
        name = "kernel_" + hashlib.sha256(symbols[number].encode()).hexdigest()[:16]
        texts.append('#include "ptx_runtime.hpp"\n' +
                     f.text(name).replace("static void", "TUTTI_HIDDEN void", 1))
        module += KERNEL % {"name": name, "number": number, "sizes": "".join(f"{p.bytes}, " for p in f.entry.parameters),
                            "layout": "".join(f"{begin}, {size}, " for begin, size in f.layout)}
    return module, texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--objects", type=Path)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("source", type=Path)
    options = parser.parse_args()
    source, names = options.source.read_text(), options.kernels.read_text().splitlines()
    try:
        if source.lstrip().startswith(".version"):
            ptx, symbols = source, names
        else:
            ptx, symbols = ptx_nvrtc.compile_to_ptx(source, names, options.arch)
        module, texts = translated(ptx, symbols)
    except (PtxError, ptx_nvrtc.CompileError) as e:
        if isinstance(e, PtxError) and options.to:
            options.to.with_suffix(".ptx").write_text(ptx)
        sys.exit(f"ptx.py: {e}")
    if options.check:
        print(f"sm_{options.arch}: {len(texts)} kernels, {ptx.count(chr(10))} lines of PTX")
        return
    options.objects.mkdir(parents=True, exist_ok=True)
    command = compiler()
    of = "".join((HERE / h).read_text() for h in ("ptx_runtime.hpp", "ptx_approximate.hpp", "ptx_integers.hpp"))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(lambda text: kept_object(text, options.objects, command, of), [module, *texts]))
    run([*command, "-shared", "-o", options.to, *dict.fromkeys(objects)])


if __name__ == "__main__":
    main()
