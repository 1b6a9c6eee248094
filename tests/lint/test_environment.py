#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# fast
"""docs/reference/environment.md names every variable that the programs read, and no other one."""
import re
import sys

from sources import ROOT, sources

# Patterns for C++ and scripts. A name may also be in a list, or be an argument of `get`.
READ = (r'getenv\("([A-Z][A-Z0-9_]+)"\)', r'\bget\("([A-Z][A-Z0-9_]+)"\)', r'environ(?:\.get\(|\[)"([A-Z][A-Z0-9_]+)"',
        r"\$\{([A-Z][A-Z0-9_]{3,})[:?-]")
FOLDERS = ("include", "backends", "tools", "examples", "datasets")
# Variables of the terminal, of MPI and of CMake, and variables that tests pass to their helpers.
OTHERS = {"TUTTI_STAND_IN", "TUTTI_TEST_MARK", "TUTTI_CXX", "TUTTI_SANITIZE", "TUTTI_SYSTEM_PYTHON", "TUTTI_GPU_BUILD"}
OPTIONS_OF_CMAKE = {"TUTTI_EIGEN_NATIVE", "TUTTI_INSTALL", "TUTTI_FUZZ_SECONDS", "TUTTI_SOURCE", "TUTTI_WERROR"}


def main():
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b|\bCXX\b|\bHOME\b|\bTERM\b|\bPATH\b", page))
    families = tuple(re.findall(r"`([A-Z]+_)(?:\*|\.\.\.)`", page))
    read = {}
    for file in sources(".hpp", ".cpp", ".py", ".sh", folders=FOLDERS) + [ROOT / "tools" / "tutti-plan"]:
        text = file.read_text()
        for pattern in READ:
            for name in re.findall(pattern, text):
                read.setdefault(name, file.relative_to(ROOT))
    own = (ROOT / "tools" / "trainer" / "environment.hpp").read_text()
    own = re.search(r"own_variables\[\] = \{(.*?)\}", own, re.S)[1]
    for name in re.findall(r'"(TUTTI_[A-Z_]+)"', own):
        read.setdefault(name, "tools/trainer/environment.hpp")
    wrong = [f"{file} reads {name}, which docs/reference/environment.md does not name" for name, file in sorted(read.items())
             if name not in named | OTHERS | OPTIONS_OF_CMAKE and not name.startswith(families)]
    # Each name in the page must occur in the sources.
    everything = "\n".join(f.read_text() for f in sources(".hpp", ".cpp", ".py", ".sh", folders=(*FOLDERS, "tests", "infra", "bench")))
    everything += "".join(p.read_text() for p in (ROOT / "datasets").rglob("prepare"))
    for name in sorted(re.findall(r"^\| (`[^|]*)\|", page, re.M)):
        for one in re.findall(r"`([A-Z][A-Z0-9_]+)(?:=\d)?`", name):
            if one not in everything and not one.startswith(families):
                wrong.append(f"docs/reference/environment.md has {one}, which nobody reads")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
