# SPDX-License-Identifier: MIT
"""Finds source files for the tests of this folder."""
import os
import sys
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
FOLDERS = ("include", "backends", "datasets", "examples", "tools", "tests", "bench")


def sources(*suffixes, folders=FOLDERS):
    """Returns every source file with one of the suffixes, sorted."""
    return sorted(p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in suffixes and p.is_file())


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(77)
