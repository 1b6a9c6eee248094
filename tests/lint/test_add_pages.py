#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Follows docs/how-to/add-a*.md literally, in a copy of the tree.

A block under <!-- file: PATH --> is a new file. One under <!-- add to: PATH before: TEXT --> is inserted before the only line
of the file that begins with TEXT, spaces ignored. A shell block under <!-- run in the tree --> runs in the copy, with the
objects that were built so far in build/, and compiles with -O0, which takes half the time. Under <!-- run in the tree: NAME --> it
runs only if that command or header exists.
test_docs.py checks all other blocks.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sources import BUILD, ROOT, skip
from test_docs import BLOCK

COPIED = ("include", "backends", "datasets", "src", "examples", "tests")
FILE = re.compile(r"file: *(\S+)")
ADD = re.compile(r"add to: *(\S+) +before: *(.*\S)")
RUN = re.compile(r"run in the tree(?:: *(\S+))?")


class Complaint(Exception):
    pass


def add_before(text, marker, block):
    """Returns the text with the block inserted before its only line that begins with the marker."""
    lines = text.splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if line.strip().startswith(marker)]
    if len(found) != 1:
        raise Complaint(f"{len(found)} lines begin with: {marker}")
    return "".join(lines[:found[0]]) + block + "".join(lines[found[0]:])


def make_tree(tree):
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tree / folder)
    includes = tree / "build/include/tutti"
    includes.mkdir(parents=True)
    for folder in ("backends", "datasets"):
        (includes / folder).symlink_to(tree / folder)
    for library in (*BUILD.glob("*.a"), *BUILD.glob("tests/*.a")):
        link = tree / "build" / library.relative_to(BUILD)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(library)
    # The last -O counts.
    compiler = tree / "build/c++"
    compiler.write_text(f'#!/bin/sh\nexec {shlex.quote(os.environ.get("TUTTI_CXX") or "c++")} "$@" -O0\n')
    compiler.chmod(0o755)


def run(tree, commands):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    environment["OMPI_CXX"] = environment["CXX"] = str(tree / "build/c++")
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=tree, env=environment, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    print(done.stdout)
    if done.returncode != 0:
        raise Complaint(f"ends with status {done.returncode}:\n{commands}")


def there_is(name):
    if not name.endswith(".h"):
        return shutil.which(name)
    return subprocess.run([os.environ.get("TUTTI_CXX", "c++"), "-E", "-x", "c++", "-"], input=f"#include <{name}>\n", text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def follow(page, tree):
    """Returns the number of steps that ran, and the steps that were skipped."""
    taken, left_out = 0, []
    for block in BLOCK.finditer(page.read_text()):
        note, text = block["note"] or "", block["text"]
        if match := FILE.fullmatch(note):
            path = tree / match[1]
            if path.exists():
                raise Complaint(f"{match[1]} is there already")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif match := ADD.fullmatch(note):
            path = tree / match[1]
            path.write_text(add_before(path.read_text(), match[2], text))
        elif match := RUN.fullmatch(note):
            if match[1] and not there_is(match[1]):
                left_out.append(f"no {match[1]}")
                continue
            run(tree, text)
        else:
            continue
        taken += 1
    return taken, left_out


def check_the_checker():
    assert add_before("a\n  bc\nd\n", "b", "x\n") == "a\nx\n  bc\nd\n"
    assert there_is("sh") and there_is("stdio.h") and not there_is("no-such-command") and not there_is("no/such.h")
    for text in ("a\n", "b\nb\n"):
        try:
            add_before(text, "b", "x\n")
        except Complaint:
            continue
        raise AssertionError(text)


def main():
    check_the_checker()
    if os.environ.get("TUTTI_SANITIZE"):
        skip("the pages compile without sanitizers, and the libraries here have them")
    if not (BUILD / "libtutti_compiled_core.a").is_file():
        skip("no libtutti_compiled_core.a in the build")
    failed, steps, left_out = 0, 0, []
    for page in sorted((ROOT / "docs" / "how-to").glob("add-a*.md")):
        if sys.argv[1:] and page.name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            make_tree(tree)
            try:
                taken, without = follow(page, tree)
            except Complaint as complaint:
                print(f"{page.relative_to(ROOT)}: {complaint}")
                failed += 1
                continue
            steps += taken
            left_out += without
            print(f"{page.relative_to(ROOT)}: {taken} steps")
    if failed or not steps:
        return 1
    if left_out:
        skip("; ".join(left_out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
