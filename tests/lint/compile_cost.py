# SPDX-License-Identifier: MIT
"""Compiles programs like those of a user, for the test of the compiler's memory and for bench/compile_time.py."""
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from sources import BUILD, ROOT

COMPILER = os.environ.get("TUTTI_CXX", "c++")
TRAINER = ROOT / "examples/downstream/main.cpp"
# (name, source, flags). The trainer is compiled header-only, and as a file of a project that links tutti::compiled.
PROGRAMS = [
    ("#include <tutti/tutti.hpp>", "#include <tutti/tutti.hpp>\nint main() {}\n", []),
    ("a ResNet trainer on one backend, header-only", TRAINER, []),
    ("a ResNet trainer on one backend, with tutti::compiled", TRAINER, ["-DTUTTI_SEPARATE_COMPILATION"]),
]


def headers(names):
    return "".join(f"#include <{n}>\n" for n in names.split())


# Programs that measure the speed of the compiler on this processor: one for the work of the optimiser, and one for
# reading headers, which a busy memory slows down more.
YARDSTICKS = [
    headers("algorithm functional map memory regex string vector") +
    "bool matches(const std::string& text, const std::string& pattern) {\n"
    "  return std::regex_match(text, std::regex(pattern));\n}\n",
    headers("algorithm any atomic barrier bit chrono cmath condition_variable deque filesystem fstream functional future "
            "iomanip iostream list map memory_resource mutex numeric optional random ranges regex semaphore set span "
            "sstream string thread unordered_map unordered_set variant vector"),
]


def backend():
    """Returns the flags for the trainer's backend: oneDNN if it is installed, otherwise Eigen, otherwise the reference backend."""
    onednn, eigen = Path("/usr/include/oneapi/dnnl/dnnl.hpp"), Path("/usr/include/eigen3")
    if onednn.is_file():
        return ["-DTUTTI_HAS_ONEDNN"]
    return ["-DTUTTI_HAS_EIGEN", "-march=native", f"-I{eigen}"] if eigen.is_dir() else []


@contextmanager
def commands(*extra):
    """Yields the compiler's command line for each yardstick and each program. Removes its folder at the end of the
    context."""
    with tempfile.TemporaryDirectory() as folder:
        def command(name, source, flags):
            if isinstance(source, str):
                path = Path(folder) / f"{name}.cpp"
                path.write_text(source)
                source = path
            return [COMPILER, "-std=c++20", "-O2", "-pthread", f"-I{ROOT}/include", f"-I{BUILD}/include", *backend(), *flags,
                    *extra, "-c", str(source), "-o", f"{folder}/main.o"]

        yield ([command(f"yardstick{i}", s, []) for i, s in enumerate(YARDSTICKS)],
               [command(f"main{i}", s, f) for i, (_, s, f) in enumerate(PROGRAMS)])


def measure(command, stderr=None):
    """Returns the CPU seconds and the peak MB of the compiler's driver and its subprocesses. stderr: a file for their
    output."""
    process = subprocess.Popen(command, stderr=stderr, env={**os.environ, "LC_ALL": "C"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
