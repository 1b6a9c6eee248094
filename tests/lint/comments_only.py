#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that a commit changes comments only: without comments, each changed file is the same as before.

comments_only.py           the last commit
comments_only.py A..B      from commit A to commit B
comments_only.py --cached  the staged changes

Pages (.md) count as comments. Comments that tools read (NOLINT, noqa, "# waits", ...) count as code. Exit code 1: something
else changed, or a file was added, removed or cannot be read.
"""
import difflib
import subprocess
import sys
from pathlib import Path

from comments import kind_of, split
from sources import ROOT


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def versions(argument):
    """Yields (path, text before, text after) of the changed files. A text that does not exist is `None`."""
    if argument == "--cached":
        before, after, selection = "HEAD:", ":", ["--cached"]
    else:
        first, _, last = argument.partition("..")
        first, last = (first, last or "HEAD") if ".." in argument else (f"{argument}~", argument)
        before, after, selection = f"{first}:", f"{last}:", [first, last]
    for line in git("diff", "--name-status", "--no-renames", *selection).splitlines():
        state, path = line.split("\t")
        yield (path, None if state == "A" else git("show", before + path), None if state == "D" else git("show", after + path))


def complaint(path, before, after):
    """Returns what is wrong with a changed file, or `None` if only its comments changed."""
    kind = kind_of(Path(path))
    if before is None or after is None:
        return "added" if before is None else "removed"
    if kind == "page":
        return None
    if kind is None:
        return "not a file whose comments are known"
    try:
        first, last = split(kind, before)[2], split(kind, after)[2]
    except SyntaxError as error:
        return f"cannot be read: {error}"
    if first == last:
        return None
    if kind == "python" and first[:-1] == last[:-1]:
        return "a docstring that the program prints changed"
    changes = [line for line in difflib.unified_diff(first, last, n=0, lineterm="") if line[:3] not in ("---", "+++")]
    return "code changed: " + " ".join(line[:80] for line in changes if line[0] in "+-")[:300]


def main(arguments):
    bad = files = 0
    for path, before, after in versions(arguments[0] if arguments else "HEAD"):
        files += 1
        reason = complaint(path, before, after)
        if reason:
            bad += 1
            print(f"{path}: {reason}")
    print(f"{files} files changed, {bad} in more than comments")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
