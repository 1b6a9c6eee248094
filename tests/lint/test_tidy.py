#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""clang-tidy has nothing to say about the headers: one translation unit that includes all of them."""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sources import BUILD, ROOT, skip, sources

# What the folders of backends/ need, and the folder to look for it in, where that is not the compiler's own.
LIBRARIES = {
    "backends/cuda": ("cudnn.h", "/usr/local/cuda/include"),
    "backends/eigen": ("Eigen/Core", "/usr/include/eigen3"),
    "backends/gloo": ("gloo/context.h", "/usr/include"),
    "backends/mpi": ("mpi.h", "/usr/lib/x86_64-linux-gnu/openmpi/include"),
    "backends/nccl": ("nccl.h", "/usr/local/cuda/include"),
    "backends/onednn": ("oneapi/dnnl/dnnl.hpp", "/usr/include"),
    "backends/stb": ("stb/stb_image.h", "/usr/include"),
    "backends/turbojpeg": ("jpeglib.h", "/usr/include"),
    "backends/zeromq": ("zmq.h", "/usr/include"),
}


def headers():
    """The headers as they stand in an #include, but for those of folders of backends/ whose library is not there."""
    found, missing = [], set()
    for path in sources(".hpp", folders=("include", "backends", "datasets")):
        parts = path.relative_to(ROOT).parts
        header, where = LIBRARIES.get("/".join(parts[:2]), ("", ""))
        if not (Path(where) / header).exists():
            missing.add(f"{'/'.join(parts[:2])}: not checked, no {header}")
            continue
        found.append("/".join(parts[1:] if parts[0] == "include" else ("tutti",) + parts))
    print("\n".join(sorted(missing)))
    return found


def check(program, source, header_filter):
    command = [program, "--quiet", f"--config-file={ROOT}/.clang-tidy", f"--header-filter={header_filter}", str(source), "--",
               "-std=c++20", "-pthread", f"-I{ROOT}/include", f"-I{BUILD}/include"]
    for folder in {where for _, where in LIBRARIES.values()} - {"/usr/include"}:
        command += ["-isystem", folder]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def main():
    program = shutil.which("clang-tidy-14") or skip("no clang-tidy-14 (Debian: apt-get install clang-tidy-14)")
    with tempfile.TemporaryDirectory() as work:
        # Known faults first, so that a configuration that finds nothing does not pass.
        bad = Path(work) / "bad.hpp"
        bad.write_text("#pragma once\n#include <string>\ninline int BadName(std::string s) { return s == \"\" ? NULL : 1; }\n")
        source = Path(work) / "bad.cpp"
        source.write_text(f"#include \"{bad}\"\n")
        status, output = check(program, source, r".*/bad\.hpp$")
        assert status != 0 and "identifier-naming" in output and "performance-" in output, output
        found = headers()
        source = Path(work) / "all.cpp"
        source.write_text("".join(f"#include <{h}>\n" for h in found))
        folders = "|".join(re.sub(r"([^\w/ -])", r"\\\1", str(folder)) for folder in (ROOT, BUILD))
        status, output = check(program, source, f"({folders})/.*")
    print(output if status else "", f"{len(found)} headers", sep="\n")
    return 1 if status or not found else 0


if __name__ == "__main__":
    sys.exit(main())
