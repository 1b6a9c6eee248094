#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests conanfile.py: `conan create` makes the package of this tree, and a program builds with it and runs. Needs the
packages of tests/packaging/requirements.txt, which ./test.sh installs into build/venv/packaging."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])


def find_conan():
    for place in (BUILD / "venv" / "packaging" / "bin" / "conan", shutil.which("conan")):
        if place and Path(place).is_file():
            return str(place)
    print("SKIP: no conan (./test.sh gets it)")
    sys.exit(77)


def main():
    conan = find_conan()
    with tempfile.TemporaryDirectory() as folder:
        # Does not use the profile and cache of the user, and downloads no file.
        environment = dict(os.environ, CONAN_HOME=folder + "/home", CXX=os.environ.get("TUTTI_CXX", "c++"), HOME=folder)

        def run(*argv, cwd=ROOT):
            done = subprocess.run([conan, *map(str, argv)], cwd=cwd, env=environment, text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
            if done.returncode != 0:
                print(done.stdout)
                sys.exit(f"conan {argv[0]} ends with {done.returncode}")
            return done.stdout

        # Conan builds the program in the program's folder.
        program = Path(folder) / "uses_tutti"
        shutil.copytree(ROOT / "tests" / "packaging" / "conan", program)
        run("profile", "detect")
        run("remote", "disable", "*")
        told = run("create", ROOT, "-s", "compiler.cppstd=20", "-s", "build_type=Debug", "--test-folder", program,
                   "--build", "missing")
        header = (ROOT / "include" / "tutti" / "version.hpp").read_text()
        version = re.search(r'version = "([^"]+)"', header)[1]
        for wanted in (f"tutti/{version}", f"tutti {version}\n", "conv"):
            if wanted not in told:
                print(told)
                sys.exit(f"conan create does not say {wanted!r}")
        package = Path(run("cache", "path", f"tutti/{version}:" + re.search(r"tutti/[^\s:]+:([0-9a-f]{40})", told)[1]).strip().splitlines()[-1])
        for file in ("include/tutti/tutti.hpp", "include/tutti/backends/make.hpp", "share/cmake/tutti/tuttiConfig.cmake"):
            if not (package / file).is_file():
                sys.exit(f"the package has no {file}")
        if (ROOT / "CMakeUserPresets.json").exists():
            sys.exit("conan create leaves CMakeUserPresets.json in the tree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
