#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# fast
"""Checks every #include by the allowed dependencies, which docs/architecture.md lists."""
import re
import sys

from sources import ROOT, sources

# For each folder of include/tutti: the other folders that it may include.
BELOW = {
    "core": set(),
    "io": {"core"},
    "tensor": {"core"},
    "graph": {"tensor", "core"},
    "nn": {"graph", "tensor", "core"},
    "optim": {"core"},
    "models": {"nn", "graph", "tensor", "data", "io", "core"},
    "engine": {"optim", "graph", "tensor", "core"},
    "data": {"io", "core"},
    "comm": {"io", "core"},
    "cluster": {"comm", "io", "core"},
    "strategy": {"cluster", "comm", "tensor", "core"},
    "interchange": {"strategy", "data", "models", "nn", "graph", "tensor", "io", "core"},
    "train": {"interchange", "engine", "optim", "data", "strategy", "cluster", "comm", "graph", "tensor", "io", "core"},
}
EVERYTHING = set(BELOW) | {"backends", "datasets"}

# For each library of backends/: the folder of include/tutti that it builds on, and the headers of the library.
BACKENDS = {
    "eigen": ("engine", r"(unsupported/)?Eigen/.*"),
    "onednn": ("engine", r"oneapi/dnnl/.*|dnnl.*\.hp?p?|omp\.h"),
    "cuda": ("engine", r"cuda.*\.h|cudnn.*\.h|cublas.*\.h|nvrtc\.h|nvtx3/.*\.h"),
    "mpi": ("strategy", r"mpi\.h"),
    "nccl": ("strategy", r"nccl\.h|cuda_runtime.*\.h"),
    "gloo": ("strategy", r"gloo/.*"),
    "zeromq": ("strategy", r"zmq\.h(pp)?"),
    "openssl": ("comm", r"openssl/.*"),
    "stb": ("data", r"stb/.*"),
    "turbojpeg": ("data", r"turbojpeg\.h|jpeglib\.h|jerror\.h"),
}

# For each application of tools/: the other applications that it may include. Its files include
# "tools/<application>/...".
ROOMS = {"command_line": set(), "trainer": {"command_line"}, "launch": {"command_line"}, "data": {"command_line"},
         "report": {"command_line"}, "predict": {"command_line", "data"}, "export": {"command_line", "predict"},
         "generate_trainer": {"command_line", "launch"},
         "train": {"command_line", "trainer", "report", "predict", "export"}}
# The folders of tools/launch, from the lowest one. Each folder may include itself and the folders before it.
LAUNCH = ("host", "agent", "cli", "job", "elastic", "mpi", "")

STANDARD = set("""
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
    clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint
    cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream
    functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
    strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
    valarray variant vector version""".split())
SYSTEM = re.compile(r"(sys|arpa|netinet|net|linux)/[a-z0-9_]+\.h|"
                    r"(dirent|dlfcn|errno|execinfo|fcntl|ifaddrs|malloc|netdb|poll|pthread|pwd|sched|signal|spawn|stdio|stdlib|string|strings|"
                    r"termios|time|unistd|ucontext|immintrin|cpuid)\.h")
INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"])([^>\"]+)[>\"]")
OWN_PROJECTS = ("bench/roofline/",)


def third_party_allowed(path, header):
    parts = path.split("/")
    if parts[0] == "backends":  # the list of libraries is separate from their headers
        return parts[1] in BACKENDS and re.fullmatch(BACKENDS[parts[1]][1], header)
    # Tests and benchmarks may include everything, except these headers, which only one test or benchmark may include.
    if header.startswith("CLI/"):
        return parts[0] in ("examples", "tools")
    if header.startswith("doctest/"):
        return parts[0] == "tests"
    if header.startswith("benchmark/"):
        return parts[0] == "bench"
    if parts[0] in ("tests", "bench"):
        return any(re.fullmatch(pattern, header) for _, pattern in BACKENDS.values())
    return False


def tutti_allowed(path, header):
    """Returns whether the file may include <tutti/...>."""
    parts = path.split("/")
    target = header.split("/")[1]
    if target == "version.hpp":
        return True
    if parts[0] in ("examples", "tools", "tests", "bench", "src"):
        return target in EVERYTHING or target in ("tutti.hpp", "program.hpp")
    if parts[0] == "include":
        if len(parts) == 3:  # headers in include/tutti itself, such as tutti.hpp
            return target in BELOW or (parts[2], target) == ("program.hpp", "tutti.hpp")
        return target == parts[2] or target in BELOW.get(parts[2], ())
    if parts[0] == "datasets":
        return target in {"data"} | BELOW["data"] or header.startswith(f"tutti/datasets/{parts[1]}/")
    if parts[0] == "backends":
        if parts[1] == "decoders.hpp":  # selects headers by the linked backends
            return target in {"backends", "data"} | BELOW["data"]
        if parts[1] in ("make.hpp", "make"):  # make backends and strategies by name
            return target in {"backends", "engine", "strategy", "io"} | BELOW["engine"] | BELOW["strategy"]
        if parts[1] not in BACKENDS:
            return False
        base = BACKENDS[parts[1]][0]
        if header.startswith(f"tutti/backends/{parts[1]}/"):
            return True
        if parts[1] == "nccl" and header.startswith("tutti/backends/cuda/"):
            return True
        return target == base or target in BELOW[base] | {"io"}
    return False


def room_allowed(path, header):
    """Returns whether the file may include "tools/..."."""
    parts, target = path.split("/"), header.split("/")
    room = target[1] if len(target) > 2 else ""
    if room not in ROOMS:
        return False
    if parts[0] == "examples":
        return room == "trainer"
    if parts[0] != "tools" or len(parts) == 2:  # tests, benchmarks and main functions
        return parts[0] in ("tools", "tests", "bench")
    if room != parts[1]:
        return room in ROOMS.get(parts[1], ())
    if room == "launch":
        of, to = ("/".join(p[2:-1]) for p in (parts, target))
        return of in LAUNCH and to in LAUNCH and LAUNCH.index(to) <= LAUNCH.index(of)
    return True


def complaint(path, bracket, header):
    """Returns why the file may not include the header, or `None` if it may."""
    library = path.split("/")[0] in ("include", "backends", "datasets")
    if "cudnn_frontend" in header:
        return "cudnn_frontend.h costs every user half a minute of compile time"
    if bracket == '"' and library:
        return "library headers use <tutti/...>"
    if bracket == '"' and header.startswith("tools/"):
        return None if room_allowed(path, header) else "this application may not include that one"
    if bracket == '"':
        inside = path.startswith("tools/") and path.count("/") > 1
        return 'files of an application include "tools/<application>/..."' if inside else None
    if header.startswith("tutti/"):
        return None if tutti_allowed(path, header) else "this folder may not include that one"
    if header in STANDARD or SYSTEM.fullmatch(header):
        return None
    return None if third_party_allowed(path, header) else "third-party library outside its folder"


def complaints(path, text):
    found = []
    if path.endswith(".hpp") and not re.search(r"^#pragma once$", text, re.M):
        found.append(f"{path}: no #pragma once")
    if not re.match(r"// SPDX-License-Identifier: MIT\n", text):
        found.append(f"{path}:1: the first line is not '// SPDX-License-Identifier: MIT'")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        why = match and complaint(path, *match.groups())
        if why:
            found.append(f"{path}:{number}: {line.strip()}: {why}")
    return found


def check_the_checker():
    good = [("include/tutti/graph/a.hpp", "<tutti/core/x.hpp>"), ("include/tutti/core/a.hpp", "<sys/mman.h>"),
            ("backends/eigen/a.hpp", "<Eigen/Core>"), ("backends/nccl/a.hpp", "<tutti/backends/cuda/x.hpp>"),
            ("datasets/cifar10/a.hpp", "<tutti/data/x.hpp>"), ("examples/a.cpp", "<CLI/CLI.hpp>"),
            ("tests/core/a.cpp", "<doctest/doctest.h>"), ("tests/core/a.cpp", '"b.hpp"'),
            ("tools/predict/a.cpp", '"tools/data/progress.hpp"'), ("tools/tutti_data.cpp", '"tools/data/commands.hpp"'),
            ("tools/launch/job/a.hpp", '"tools/launch/host/process.hpp"'), ("tools/launch/launcher.cpp", '"tools/launch/mpi/a.hpp"'),
            ("examples/a.cpp", '"tools/trainer/task.hpp"'), ("tests/tools/a.cpp", '"tools/launch/job/plan.hpp"'),
            ("include/tutti/train/a.hpp", "<tutti/strategy/x.hpp>"), ("include/tutti/tutti.hpp", "<tutti/train/x.hpp>"),
            ("backends/turbojpeg/a.hpp", "<jpeglib.h>"),
            ("backends/stb/a.hpp", "<stb/stb_image.h>"), ("backends/stb/a.hpp", "<tutti/data/x.hpp>"), ("src/a.cpp", "<tutti/backends/eigen/x.hpp>"),
            ("backends/make.hpp", "<tutti/backends/eigen/x.hpp>"), ("backends/make.hpp", "<tutti/strategy/x.hpp>"),
            ("backends/make/a.hpp", "<tutti/backends/eigen/x.hpp>"), ("backends/make/a.hpp", "<tutti/backends/make/x.hpp>")]
    bad = [("include/tutti/core/a.hpp", "<tutti/io/x.hpp>"), ("include/tutti/core/a.hpp", "<Eigen/Core>"),
           ("include/tutti/nn/a.hpp", "<tutti/engine/x.hpp>"), ("include/tutti/strategy/a.hpp", "<tutti/graph/x.hpp>"),
           ("tools/data/a.cpp", '"tools/predict/answer.hpp"'), ("tools/command_line/a.cpp", '"tools/data/options.hpp"'), ("tools/data/a.cpp", '"images.hpp"'),
           ("tools/launch/host/a.hpp", '"tools/launch/job/plan.hpp"'), ("tools/launch/job/a.hpp", '"tools/launch/launcher.hpp"'),
           ("examples/a.cpp", '"tools/launch/job/plan.hpp"'), ("tools/trainer/a.cpp", '"tools/nothing/a.hpp"'),
           ("include/tutti/core/a.hpp", '"x.hpp"'), ("include/tutti/core/a.hpp", "<tutti/tutti.hpp>"),
           ("backends/eigen/a.hpp", "<oneapi/dnnl/dnnl.hpp>"), ("backends/eigen/a.hpp", "<tutti/train/x.hpp>"),
           ("backends/stb/a.hpp", "<tutti/engine/executor.hpp>"), ("src/a.cpp", "<Eigen/Core>"),
           ("backends/onednn/a.hpp", "<tutti/backends/eigen/x.hpp>"), ("backends/stb/a.hpp", "<tutti/graph/x.hpp>"),
           ("backends/stb/a.hpp", "<jpeglib.h>"), ("backends/turbojpeg/a.hpp", "<tutti/backends/stb/x.hpp>"),
           ("include/tutti/data/a.hpp", "<jpeglib.h>"), ("include/tutti/data/a.hpp", "<tutti/backends/stb/x.hpp>"),
           ("backends/eigen/a.hpp", "<tutti/train/trainer.hpp>"), ("include/tutti/tensor/a.hpp", "<tutti/io/x.hpp>"),
           ("backends/make.hpp", "<Eigen/Core>"), ("backends/make.hpp", "<tutti/train/x.hpp>"),
           ("backends/make/a.hpp", "<Eigen/Core>"), ("backends/make/a.hpp", "<tutti/train/x.hpp>"), ("backends/eigen/a.hpp", "<tutti/backends/make/x.hpp>"),
           ("backends/eigen/a.hpp", "<tutti/backends/make.hpp>"), ("datasets/cifar10/a.hpp", "<tutti/datasets/synthetic/x.hpp>"), ("tests/core/a.cpp", "<CLI/CLI.hpp>"),
           ("examples/a.cpp", "<doctest/doctest.h>"), ("bench/a.cpp", "<doctest/doctest.h>"),
           ("tests/core/a.cpp", "<benchmark/benchmark.h>"), ("include/tutti/core/a.hpp", "<boost/any.hpp>"),
           ("examples/a.cpp", "<Eigen/Core>"), ("tests/core/a.cpp", "<tutti/nowhere/x.hpp>")]
    start = "// SPDX-License-Identifier: MIT\n#pragma once\n  #  include "
    for path, header in good:
        assert not complaints(path, start + header), (path, header)
    for path, header in bad:
        assert complaints(path, start + header), (path, header)
    assert complaints("include/tutti/core/a.hpp", "#pragma once\n")
    assert complaints("include/tutti/core/a.hpp", "// SPDX-License-Identifier: MIT\n")


def main():
    check_the_checker()
    files = [p for p in sources(".hpp", ".cpp") if not str(p.relative_to(ROOT)).startswith(OWN_PROJECTS)]
    found = [c for p in files for c in complaints(str(p.relative_to(ROOT)), p.read_text())]
    print("\n".join(found))
    print(f"{len(files)} files, {len(found)} complaints")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
