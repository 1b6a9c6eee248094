#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that each test that SECURITY.md names for a promise exists, as a test of ctest or as a method of a script."""
import re
import subprocess
import sys

from sources import BUILD, ROOT, skip

ROW = re.compile(r"^\| (?P<promise>.*?) \| (?P<tests>.*) \|$")
NAME = re.compile(r"[a-z0-9]+/[a-z0-9_]+(: .*)?")


def tables(text):
    """Yields (header, row) for each row of each table."""
    header = None
    for line in text.splitlines():
        match = ROW.match(line)
        if re.fullmatch(r"[|-]+", line):
            continue
        if not match:
            header = None
        elif header is None:
            header = match["tests"]
        else:
            yield header, match


def promises(text):
    """Yields (promise, names of tests) for each row of the tables with the last column "shown by"."""
    return [(row["promise"], re.findall(r"`([^`]+)`", row["tests"])) for header, row in tables(text) if header == "shown by"]


def method_complaint(name, known):
    """Returns whether the name is a method of a test script, "area/topic: method"."""
    script, method = name.split(": ", 1)
    path = ROOT / "tests" / (script.replace("/", "/test_") + ".py")
    if script not in known or not path.is_file():
        return f"{name}: no test of ctest"
    # A class may inherit the method from a module in the same folder.
    sources = [path, *path.parent.glob("*.py")]
    return None if any(re.search(rf"^    def {re.escape(method)}\(", p.read_text(), re.M) for p in sources) else f"{name}: no such method"


def complaint(name, known):
    if not NAME.fullmatch(name):
        return f"{name}: expected area/topic, area/topic: case or area/topic: method"
    if name in known:
        return None
    if re.fullmatch(r"[^:]+: test_\w+", name):
        return method_complaint(name, known)
    # If a library is missing, all its tests are one skipped test.
    return None if ": " in name and name.split(":")[0] in known else f"{name}: no test of ctest"


def complaints(text, known):
    found = []
    for promise, names in promises(text):
        if not names:
            found.append(f"no test shows: {promise}")
        found += [why for name in names if (why := complaint(name, known))]
    return found


def check_the_checker():
    known = {"a/one", "a/two: it holds", "hosts/launch_ssh"}
    page = "| promise | shown by |\n|---|---|\n| p | {} |\n"
    for good in ("`a/one`", "`a/two: it holds`, `a/one`", "`hosts/launch_ssh: test_wrong_key`", "`a/one: of a library that is missing`"):
        assert not complaints(page.format(good), known), good
    for bad in ("a/one", "`a/three`", "`a/two`", "`a/two: it does not`", "`hosts/launch_ssh: test_no_key`", "`nothing`"):
        assert complaints(page.format(bad), known), bad
    assert not complaints("| other | table |\n|---|---|\n| p | q |\n", known)


def main():
    check_the_checker()
    listed = subprocess.run(["ctest", "-N"], cwd=BUILD, capture_output=True, text=True, timeout=120)
    known = set(re.findall(r"^ *Test +#\d+: (.*)$", listed.stdout, re.M))
    if not known:
        skip(f"no tests in {BUILD}")
    # The cases of a program that was not built are unknown.
    known |= {name.removesuffix(": not built") for name in known if name.endswith(": not built")}
    text = (ROOT / "SECURITY.md").read_text()
    found = complaints(text, known)
    print(*found, sep="\n")
    print(f"{len(promises(text))} promises, {sum(len(n) for _, n in promises(text))} tests")
    return 1 if found or len(promises(text)) < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
