#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""clang-tidy reports no problem in the headers: one translation unit includes all headers that have changed since they passed in
this build folder. In a new build folder some of the headers are checked, see headers.to_check. TUTTI_CHECK_ALL=1 checks all."""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headers import Passed, headers, include_options, to_check
from sources import BUILD, ROOT, skip


def check(program, source, header_filter):
    command = [program, "--quiet", f"--config-file={ROOT}/.clang-tidy", f"--header-filter={header_filter}", str(source), "--",
               *include_options()]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def main():
    program = shutil.which("clang-tidy-14") or skip("no clang-tidy-14 (Debian: apt-get install clang-tidy-14)")
    with tempfile.TemporaryDirectory() as work:
        # Checks known errors first, to show that the configuration finds errors.
        bad = Path(work) / "bad.hpp"
        bad.write_text("#pragma once\n#include <string>\ninline int BadName(std::string s) { return s == \"\" ? NULL : 1; }\n"
                       "#define _Reserved 1\ninline int reserved__() { return 1; }\n")
        source = Path(work) / "bad.cpp"
        source.write_text(f"#include \"{bad}\"\n")
        status, output = check(program, source, r".*/bad\.hpp$")
        for name in ("identifier-naming", "performance-", "reserved-identifier", "reserved-macro-identifier"):
            assert status != 0 and name in output, output
        files = headers()
        version = subprocess.run([program, "--version"], text=True, stdout=subprocess.PIPE).stdout
        passed = Passed("tidy", version)
        digests = {n: passed.digest([p, ROOT / ".clang-tidy"]) for n, p in files.items()}
        changed, left_out = to_check(passed, digests, files)
        source = Path(work) / "all.cpp"
        source.write_text("".join(f"#include <{n}>\n" for n in changed))
        # The paths under which the compiler finds the headers.
        paths = sorted(str(ROOT / "include" / n if files[n].is_relative_to(ROOT / "include") else BUILD / "include" / n) for n in changed)
        some = "|".join(re.sub(r"([^\w/ -])", r"\\\1", path) for path in paths)
        everything = "|".join(re.sub(r"([^\w/ -])", r"\\\1", str(folder)) + "/.*" for folder in (ROOT, BUILD))
        status, output = check(program, source, f"^({everything if len(changed) == len(files) else some})$") if changed else (0, "")
        if status == 0:
            passed.add({n: digests[n] for n in changed})
    print(output if status else "", f"{len(files)} headers, {left_out} left out, {len(changed)} checked", sep="\n")
    return 1 if status or not files else 0


if __name__ == "__main__":
    sys.exit(main())
