# SPDX-License-Identifier: MIT
"""Compiles CUDA C++ to PTX with NVRTC, with the options of backends/cuda/nvrtc.hpp."""
import ctypes
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OLDEST = {13: 75, 12: 50}  # the oldest architecture of each version of NVRTC


class CompileError(Exception):
    """The compiler's log, or the reason why there is no compiler."""


def _places(version):
    name = f"libnvrtc.so.{version}"
    yield from (name, f"/usr/local/cuda/lib64/{name}", f"/usr/local/cuda-{version}/lib64/{name}")
    build = Path(os.environ.get("TUTTI_BUILD_DIR") or ROOT / "build")
    # ./test.sh installs NVIDIA's wheels there (tests/backends/requirements.txt).
    yield from map(str, build.glob(f"venv/backends/lib/*/site-packages/nvidia/*/lib/{name}"))


def supported(nvrtc):
    """Returns the architectures for which an NVRTC compiles."""
    count = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    all_of_them = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(all_of_them)
    return list(all_of_them)


def library(architecture=90):
    """Returns NVRTC: the newest version that compiles for the architecture. Raises a CompileError without one."""
    tried = []
    for version in (v for v, oldest in OLDEST.items() if architecture >= oldest):
        for place in _places(version):
            try:
                nvrtc = ctypes.CDLL(place)
            except OSError:
                tried.append(place)
                continue
            if architecture in supported(nvrtc):
                return nvrtc
            tried.append(f"{place}, which does not support it")
    raise CompileError(f"no NVRTC for sm_{architecture}, looked for {', '.join(tried)}")


def options(architecture):
    text = (ROOT / "backends" / "cuda" / "nvrtc.hpp").read_text()
    listed = re.search(r"static std::vector<std::string> options.*?return \{(.*?)\};", text, re.S)[1]
    return [f"--gpu-architecture=compute_{architecture}"] + [o for o in re.findall(r'"(--[^"]*)"', listed) if not o.endswith("sm_")]


def identity(architecture):
    """Returns what the PTX of a source depends on: NVRTC's version and the options."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library(architecture).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value} {' '.join(options(architecture))}"


def compile_to_ptx(source, names, architecture):
    """Returns the PTX, and the symbol of each name expression."""
    nvrtc = library(architecture)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def text_of(what):
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, text)
        return text.value.decode()

    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) != 0:
        raise CompileError("nvrtcCreateProgram failed")
    try:
        for name in names:
            if nvrtc.nvrtcAddNameExpression(program, name.encode()) != 0:
                raise CompileError(f"the name {name} was refused")
        flags = [o.encode() for o in options(architecture)]
        if nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags)) != 0:
            raise CompileError(text_of("ProgramLog"))
        symbols = []
        for name in names:
            symbol = ctypes.c_char_p()
            if nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(symbol)) != 0:
                raise CompileError(f"no symbol for {name}")
            symbols.append(symbol.value.decode())
        return text_of("PTX"), symbols
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


if __name__ == "__main__":
    # ptx_nvrtc.py [ARCHITECTURE]: NVRTC's version and its options; status 77 and the reason if there is no NVRTC for it.
    try:
        print(identity(int(sys.argv[1]) if len(sys.argv) > 1 else 90), flush=True)
    except CompileError as error:
        print(f"SKIP: {error}")
        sys.exit(77)
