#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the machine code of tutti's CUDA kernels, without a GPU. A kernel that waits for memory must start several
loads before it uses the first, keep everything in registers, and leave room for enough blocks on a
multiprocessor. Numbers of channels are loaded as vectors. Kernels of every type and architecture use no stack and no
local memory. Kernels for sm_90 access no global memory before they wait for earlier kernels, and do not load through
the cache for data that is constant during a kernel."""
import ctypes
import ctypes.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import machine_code_tools

sys.path.insert(0, str(Path(__file__).resolve().parent / "emulator"))
import ptx_nvrtc  # noqa: E402

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
CUDA = ROOT / "backends" / "cuda"
ARCHITECTURES = (90, 80)
# Architectures whose kernels are only checked for stack and local memory: here batch norm's kernels for odd numbers of
# channels in f32, and with TUTTI_CHECK_ALL, which the tests at night set, every kernel in every type.
FURTHER = (70, 75, 86, 89, 100, 120)
ODD = ["norm_statistics<float, 1>", "norm_apply<float, 1, -1>", "norm_backward_sums<float, 1, -1>",
       "norm_backward_apply<float, 1, -1>"]
OPS = ("common.hpp", "elementwise.hpp", "norm.hpp", "norm_kernels.hpp", "norm_shortcut.hpp", "fused.hpp", "pool.hpp", "loss.hpp")
UPDATES = ("common.hpp", "update.hpp", "integers.hpp", "step.hpp", "muon.hpp")

# Kernels with loops over rows, by the beginning of their names: the least number of loads of 16 bytes in flight, and
# the largest number of registers (65,536 / 256 threads / blocks). The last number of a name is its form.
ROWS = {
    "norm_statistics<T, V>": (4, 64),
    "norm_apply<T, V, 0>": (4, 64),
    "norm_apply<T, V, 1>": (4, 64),
    "norm_apply<T, V, 3>": (4, 80),
    "norm_apply<T, 8, 7>": (4, 80),
    "norm_backward_sums<T, V, 0>": (4, 80),
    "norm_backward_sums<T, V, 1>": (4, 80),
    "norm_backward_sums<T, V, 5>": (6, 128),
    "norm_backward_sums<T, 8, 11>": (4, 80),
    "norm_backward_sums<T, 8, 15>": (6, 80),
    "norm_backward_apply<T, V, 0>": (4, 80),
    "norm_backward_apply<T, V, 1>": (4, 80),
    "norm_backward_apply<T, V, 5>": (6, 128),
    "norm_apply_shortcut<T, 8>": (4, 128),
    "norm_backward_sums_shortcut<T, 8, 3>": (6, 128),
    "norm_backward_sums_shortcut<T, 8, 15>": (8, 128),
    "norm_backward_apply_shortcut<T, 8, 3>": (6, 128),
    "norm_backward_apply_shortcut<T, 8, 0>": (6, 128),
    "norm_backward_affine<T, V>": (6, 128),
    "column_sums<T, V>": (4, 64),
}
# The same two numbers for kernels with loads of 2 bytes.
VALUES = {"unpack_gradients<T>": (4, 32)}


def skip(why):
    print("SKIP:", why)
    sys.exit(77)


def text(header):
    """Returns the source of the kernels in a header."""
    return re.search(r'R"cuda\((.*?)\)cuda"', (CUDA / "kernels" / header).read_text(), re.S).group(1)


def listed(part):
    """Returns the kernels of a list of programs.hpp, OP or UPDATE, with their second forms."""
    source = (CUDA / "programs.hpp").read_text().split(f"#define TUTTI_CUDA_{part}_KERNELS", 1)[1].split("\n\n", 1)[0]
    vector = "T, V" if part == "OP" else "4"
    single = "T, 1" if part == "OP" else "1"
    return re.findall(r'ONE\(\w+, "([^"]*)"\)', source) + [
        f"{name}<{form}>" for name in re.findall(r"TWO\((\w+)\)", source) for form in (vector, single)]


def names():
    """Returns the kernels that programs.hpp lists with a form that is a constant for the compiler."""
    source = (CUDA / "programs.hpp").read_text()
    listed = re.findall(r'ONE\(\w+, "([^"]*)"\)', source)
    listed += [f"{name}<T, V>" for name in re.findall(r"TWO\((\w+)\)", source)]
    return [n for n in listed if n in VALUES or
            (n.startswith(("norm_", "column_sums")) and "<" in n and "-1" not in n and "<T>" not in n)]


def open_nvrtc():
    places = ["libnvrtc.so"] + [f"libnvrtc.so.{v}" for v in (13, 12)]
    for place in places + [f"/usr/local/cuda/lib64/{p}" for p in places]:
        try:
            return ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    skip("no NVRTC")
    return None


def compile_kernels(nvrtc, source, kernels, architecture):
    """Returns the machine code and symbols of the kernels, compiled with the options in nvrtc.hpp."""
    options = re.search(r"static std::vector<std::string> options.*?return \{(.*?)\};", (CUDA / "nvrtc.hpp").read_text(),
                        re.S).group(1)
    flags = [f"--gpu-architecture=sm_{architecture}"] + [o for o in re.findall(r'"(--[^"]*)"', options)
                                                         if not o.endswith("sm_")]
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    for k in kernels:
        assert nvrtc.nvrtcAddNameExpression(program, k.encode()) == 0
    arguments = (ctypes.c_char_p * len(flags))(*[f.encode() for f in flags])
    size = ctypes.c_size_t()
    if nvrtc.nvrtcCompileProgram(program, len(flags), arguments) != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    symbols = {}
    for k in kernels:
        lowered = ctypes.c_char_p()
        assert nvrtc.nvrtcGetLoweredName(program, k.encode(), ctypes.byref(lowered)) == 0
        symbols[lowered.value.decode()] = k
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    return code.raw, symbols


def loads_under_way(instructions, size="128"):
    """Returns the largest number of loads of `size` bits that are started before one of their values is used or a
    branch may be taken."""
    best = 0
    for i, first in enumerate(instructions):
        if f"LDG.E.{size}" not in first:
            continue
        waiting, count = set(), 0
        for instruction in instructions[i:]:
            if re.search(r"\b(BRA|EXIT|BAR)\b", instruction):
                break
            load = re.search(rf"LDG\.E\.{size}\S* R(\d+)", instruction)
            used = {int(r) for r in re.findall(r"\bR(\d+)\b", instruction.partition(",")[2])}
            if used & waiting:
                break
            if load:
                waiting |= {int(load.group(1)) + k for k in range(4 if size == "128" else 1)}
                count += 1
        best = max(best, count)
    return best


def loops(part):
    """Returns the instructions of each loop in the listing of a kernel."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", part)]
    ranges = [(int(to, 16), at) for at, text in code for to in re.findall(r"\bBRA\b.*?0x([0-9a-f]+)", text)
              if int(to, 16) < at]
    return [[text for at, text in code if first <= at <= last] for first, last in ranges]


def listing_of(tools, code):
    """Returns cuobjdump's listing of the kernels, and the registers, stack and local memory of each."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(code)
        f.flush()
        out = subprocess.run([tools / "cuobjdump", "-sass", "-res-usage", f.name], capture_output=True, text=True, check=True)
    listing = out.stdout + out.stderr
    usage = {m[0]: [int(n) for n in m[1:]]
             for m in re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", listing)}
    return listing, usage


def spills(nvrtc, tools, headers, kernels, architecture):
    """Compiles kernels and returns a fault for each that uses the stack or local memory."""
    code, symbols = compile_kernels(nvrtc, "".join(text(h) for h in headers), kernels, architecture)
    usage = listing_of(tools, code)[1]
    print(f"{len(kernels)} kernels for sm_{architecture}")
    missing = [k for s, k in symbols.items() if s not in usage]
    return [f"{k} for sm_{architecture} has no code" for k in missing] + [
        f"{symbols[s]} for sm_{architecture}: {stack} bytes of stack, {local} of local memory"
        for s, (_, stack, local) in usage.items() if s in symbols and (stack or local)]


def early_accesses(where, part):
    """Returns the faults of a kernel for sm_90, which may start before the kernel before it has ended."""
    code = [text for _, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", part)]
    waits = [i for i, text in enumerate(code) if "ACQBULK" in text]
    accesses = [i for i, text in enumerate(code) if re.search(r"\b(LDG|LD|STG|ST|ATOM|ATOMG|RED|REDG|LDGSTS)\.E\b", text)]
    if not waits:
        return [f"{where} does not wait for earlier kernels"]
    faults = [f"{where}: {code[i]} comes before the wait for earlier kernels" for i in accesses if i < waits[0]]
    return faults + [f"{where}: {text}" for text in code if "LDG" in text and ".CONSTANT" in text]


def main():
    nvrtc = open_nvrtc()
    supported = ptx_nvrtc.supported(nvrtc)
    try:
        tools = machine_code_tools.folder()
    except LookupError as e:
        skip(str(e))
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"  # cuobjdump starts nvdisasm
    checked = names()
    bounds = {**ROWS, **VALUES}
    faults = [f"{k} is no kernel of programs.hpp" for k in bounds if k not in checked]
    source = "".join(text(h) for h in OPS[:-2])
    instance = {k: k.replace("T", "bf16").replace("V", "8") for k in checked}
    patterns = {v: k for k, v in instance.items()}
    for architecture in ARCHITECTURES:
        code, symbols = compile_kernels(nvrtc, source, list(instance.values()), architecture)
        listing, usage = listing_of(tools, code)
        for part in re.split(r"\n\t\tFunction : ", listing)[1:]:
            symbol = part.split("\n", 1)[0].strip()
            if symbol not in symbols:
                continue
            kernel = patterns[symbols[symbol]]
            where = f"{kernel} for sm_{architecture}"
            registers, stack, local = usage[symbol]
            if stack or local:
                faults.append(f"{where}: {stack} bytes of stack, {local} of local memory")
            if architecture >= 90:
                faults += early_accesses(where, part)
            least, most = bounds.get(kernel, (0, 128))
            # Numbers of channels are loaded before the loop, and must not count as rows.
            loads = max((loads_under_way(loop, "U16" if kernel in VALUES else "128") for loop in loops(part)), default=0)
            single = len(re.findall(r"LDG\.E(?:\.CONSTANT|\.STRONG\.\w+)* R", part))
            if kernel in bounds:
                print(f"{where}: {loads} loads under way, {registers} registers")
            if single and kernel in ROWS:
                faults.append(f"{where}: {single} loads of single numbers")
            if loads < least:
                faults.append(f"{where}: {loads} loads under way, expected at least {least}")
            if registers > most:
                faults.append(f"{where}: {registers} registers, expected at most {most}")
    for architecture in FURTHER:
        compiler = nvrtc
        if architecture not in supported:
            # For a V100, ./test.sh installs the NVRTC of CUDA 12.
            try:
                compiler = ptx_nvrtc.library(architecture) if os.environ.get("TUTTI_CHECK_ALL") else None
            except ptx_nvrtc.CompileError:
                compiler = None
            if compiler is None:
                print(f"sm_{architecture}: not supported by this NVRTC")
                continue
        if not os.environ.get("TUTTI_CHECK_ALL"):
            faults += spills(compiler, tools, OPS, ODD, architecture) if architecture >= 100 else []
            continue
        faults += spills(compiler, tools, UPDATES, listed("UPDATE"), architecture)
        for t, v in (("float", 4), ("bf16", 8), ("f16", 8)):
            # No op launches these in f32 (norm_ops.hpp, norm_shortcut.hpp). The first one uses 16 bytes of stack on sm_70.
            launched = [k for k in listed("OP") if v == 8 or not (k == "norm_once<T, 8, 7>" or re.match("norm_backward_.*_shortcut<", k))]
            kernels = [k.replace("T", t).replace("V", str(v)) for k in launched]
            faults += spills(compiler, tools, OPS, kernels, architecture)
    for fault in faults:
        print("FAIL:", fault)
    sys.exit(1 if faults else 0)


main()
