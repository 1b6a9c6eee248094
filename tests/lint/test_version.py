#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# fast
"""The version is written in include/tutti/version.hpp, and all other places agree with it."""
import re
import sys

from sources import ROOT


def find(pattern, path):
    """Returns the text that the group of the pattern matches, or `None`."""
    file = ROOT / path
    match = re.search(pattern, file.read_text(), re.M) if file.is_file() else None
    return match[1] if match else None


def main():
    header = (ROOT / "include" / "tutti" / "version.hpp").read_text()
    parts = [re.search(rf"^#define TUTTI_VERSION_{part} (\d+)$", header, re.M) for part in ("MAJOR", "MINOR", "PATCH")]
    if None in parts:
        print("include/tutti/version.hpp does not define TUTTI_VERSION_MAJOR, _MINOR and _PATCH")
        return 1
    version = ".".join(p[1] for p in parts)
    said = {
        "include/tutti/version.hpp, as a text": find(r'version = "([^"]+)"', "include/tutti/version.hpp"),
        "CITATION.cff": find(r"^version: (\S+)$", "CITATION.cff"),
        # The first section describes this version.
        "CHANGELOG.md": find(r"^## (\S+)", "CHANGELOG.md"),
    }
    wrong = {place: what for place, what in said.items() if what != version}
    for place, what in wrong.items():
        print(f"{place} says {what}, and TUTTI_VERSION_* say {version}")
    # Other files do not contain the version: CMake, the Debian package and conanfile.py read the header.
    for path in ("CMakeLists.txt", "conanfile.py"):
        if (ROOT / path).is_file() and re.search(rf"\b{re.escape(version)}\b", (ROOT / path).read_text()):
            wrong[path] = version
            print(f"{path} has {version} written in it, but should read version.hpp")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
