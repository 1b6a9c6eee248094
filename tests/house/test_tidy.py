#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: 2
"""clang-tidy has nothing to say about the headers: one translation unit per folder that includes all of its headers."""
import concurrent.futures
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
    "backends/mpi": ("mpi.h", "/usr/lib/x86_64-linux-gnu/openmpi/include"),
    "backends/nccl": ("nccl.h", "/usr/local/cuda/include"),
    "backends/onednn": ("oneapi/dnnl/dnnl.hpp", "/usr/include"),
    "backends/stb": ("stb/stb_image.h", "/usr/include"),
    "backends/turbojpeg": ("jpeglib.h", "/usr/include"),
}


def units():
    """{folder: its headers as they stand in an #include}"""
    found = {}
    for path in sources(".hpp", folders=("include", "backends", "datasets")):
        parts = path.relative_to(ROOT).parts
        if parts[0] == "include":
            folder = "/".join(parts[:3]) if len(parts) > 3 else "include/tutti"
            header = "/".join(parts[1:])
        else:
            folder, header = "/".join(parts[:2]), "/".join(("tutti",) + parts)
        found.setdefault(folder, []).append(header)
    return found


def check(program, folder, headers, work):
    source = Path(work) / (folder.replace("/", "_") + ".cpp")
    source.write_text("".join(f"#include <{h}>\n" for h in headers))
    # Its own findings only: what it includes from other folders is found there.
    filters = f"({'|'.join(headers)})$".replace(".", "\\.").replace("tutti/backends", "backends").replace(
        "tutti/datasets", "datasets")
    command = [program, "--quiet", f"--config-file={ROOT}/.clang-tidy", f"--header-filter={filters}", str(source), "--",
               "-std=c++20", "-pthread", f"-I{ROOT}/include", f"-I{BUILD}/include"]
    if folder in LIBRARIES and LIBRARIES[folder][1] != "/usr/include":
        command += ["-isystem", LIBRARIES[folder][1]]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return folder, done.returncode, done.stdout


def main():
    program = shutil.which("clang-tidy-14") or skip("no clang-tidy-14 (Debian: apt-get install clang-tidy-14)")
    work_units = units()
    for folder, (header, where) in LIBRARIES.items():
        if not (Path(where) / header).exists() and work_units.pop(folder, None):
            print(f"{folder}: not checked, no {header}")
    failed = 0
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(2) as pool:
        # One known fault first, so that a configuration that finds nothing does not pass.
        bad = Path(work) / "bad.hpp"
        bad.write_text("#pragma once\n#include <string>\ninline int BadName(std::string s) { return s == \"\" ? NULL : 1; }\n")
        done = subprocess.run([program, "--quiet", f"--config-file={ROOT}/.clang-tidy", "--header-filter=.*", str(bad), "--",
                               "-std=c++20"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode != 0 and "identifier-naming" in done.stdout and "performance-" in done.stdout, done.stdout
        jobs = [pool.submit(check, program, folder, headers, work) for folder, headers in work_units.items()]
        for job in jobs:
            folder, status, output = job.result()
            if status != 0:
                failed += 1
                print(f"== {folder}\n{output}")
    print(f"{len(work_units)} folders, {failed} with findings")
    return 1 if failed or not work_units else 0


if __name__ == "__main__":
    sys.exit(main())
