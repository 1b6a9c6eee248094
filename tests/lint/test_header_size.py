#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# fast
"""A header of more than 400 lines is reported, one of more than 700 fails."""
import sys

from sources import ROOT, sources

NAMED, FAILS = 400, 700


def main():
    sizes = {p: p.read_text().count("\n") for p in sources(".hpp")}
    for path, lines in sizes.items():
        if lines > NAMED:
            print(f"{path.relative_to(ROOT)}: {lines} lines{': split it' if lines > FAILS else ''}")
    print(f"{len(sizes)} headers")
    return 1 if not sizes or max(sizes.values()) > FAILS else 0


if __name__ == "__main__":
    sys.exit(main())
