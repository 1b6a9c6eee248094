#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# fast
"""Every source file is formatted by clang-format. To fix a file: clang-format-14 -i FILE."""
import shutil
import subprocess
import sys

from sources import ROOT, skip, sources


def main():
    program = shutil.which("clang-format-14") or skip("no clang-format-14 (Debian: apt-get install clang-format-14)")
    files = [str(p.relative_to(ROOT)) for p in sources(".hpp", ".cpp")]
    return subprocess.run([program, "--dry-run", "-Werror", *files], cwd=ROOT).returncode if files else 1


if __name__ == "__main__":
    sys.exit(main())
