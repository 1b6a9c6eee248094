#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that docs/explanation/performance.md states the results of bench/RESULTS.md: each measured number of its tables is, perhaps
rounded, in a section of RESULTS.md that the row links to, or, if the row has no link, in the section of the nearest link in the text
around the table. Columns named ratio or target are not compared. Also tests the commands of bench/performance.sh."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
PAGE, RESULTS = ROOT / "docs/explanation/performance.md", ROOT / "bench/RESULTS.md"
LINK = re.compile(r"\(\.\./\.\./bench/RESULTS\.md#([\w-]+)\)")
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?![A-Za-wyz_\d]|[.,]\d)")


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sections(text):
    """Returns {anchor: text of the section, with those below it}."""
    found, opened = {}, []
    for line in text.splitlines():
        head = re.match(r"(#+) (.*)", line)
        if head:
            opened = [(depth, name) for depth, name in opened if depth < len(head[1])] + [(len(head[1]), anchor(head[2]))]
            found[opened[-1][1]] = []
        for _, name in opened:
            found[name].append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def numbers(text):
    return {n.replace(",", "") for n in NUMBER.findall(text)}


def stands_in(number, there):
    """Returns whether the number or one that rounds to it is among `there`."""
    places = len(number.partition(".")[2])
    return any(abs(float(n) - float(number)) <= 0.5001 * 10 ** -places for n in there if len(n.partition(".")[2]) >= places) or number in there


def tables(page):
    """Yields (anchor of the nearest link before or after the table, cells of the head, cells of each row with the row's own anchor)."""
    parts = re.split(r"((?:^\|.*\n)+)", page, flags=re.M)
    for before, table, after in zip(parts[::2], parts[1::2], parts[2::2]):
        links = LINK.findall(before.rsplit("\n## ", 1)[-1])[-1:] or LINK.findall(after.split("\n## ", 1)[0])[:1]
        head, _, *rows = [[c.strip() for c in line.strip("|").split(" | ")] for line in table.splitlines()]
        yield links[0] if links else None, [c.strip("| ") for c in head], [(row, LINK.findall(" ".join(row))) for row in rows]


def faults(page, results):
    """Returns a sentence for each number that the results lack, and how many numbers were compared."""
    of, found, compared = sections(results), [], 0
    for near, head, rows in tables(page):
        for row, own in rows:
            names = own or [near]
            missing = [name for name in names if name not in of]
            if missing:
                found.append(f"{row[0]}: no section {missing[0]} in {RESULTS.name}")
                continue
            there = {n for name in names for n in numbers(of[name])}
            for column, cell in zip(head[1:], row[1:]):
                if LINK.search(cell) or re.match("ratio|target", column):
                    continue
                for n in sorted(numbers(cell)):
                    compared += 1
                    if not stands_in(n, there):
                        found.append(f"{row[0]}, {column}: {n} is not in {' or '.join(names)} of {RESULTS.name}")
    return found, compared


def commands():
    """Returns the faults of the script that makes the tables, as sentences."""
    script = ROOT / "bench/performance.sh"

    def ask(*arguments):
        return subprocess.run(["bash", script, *arguments], text=True, capture_output=True, timeout=300)
    listed = dict(line.split(": ", 1) for line in ask("--list").stdout.splitlines())
    found = [f"{name}: no program {command}" for name, command in listed.items() if not os.access(ROOT / shlex.split(command)[0], os.X_OK)]
    for name in re.findall(r"bench/performance\.sh (\w+)", PAGE.read_text()):
        if name not in listed:
            found.append(f"{PAGE.name} names the table {name}, which bench/performance.sh does not make")
    wrong = ask("everything")
    if wrong.returncode != 2 or "[arguments] expected steps, " not in wrong.stderr or ask("--list", "recipe").stdout.count("\n") != 1:
        found.append("bench/performance.sh does not refuse a wrong name or does not select one")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for command in listed.values():
            program = tree / shlex.split(command)[0]
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text('#!/bin/sh\necho "a table of $*" && test "$*" != recipe -o -e mended\n')
            program.chmod(0o755)
        shutil.copy(script, tree / "bench")
        codes = []
        for _ in range(2):
            codes.append(subprocess.run(["bash", tree / "bench/performance.sh"], capture_output=True, timeout=300).returncode)
            made = sorted(path.name for path in (tree / "build/performance").iterdir())
            codes.append(made == sorted(f"{name}.{'new' if name == 'recipe' and codes[0] == codes[-1] else 'txt'}" for name in listed))
            (tree / "mended").touch()
        inference = (tree / "build/performance/inference.txt").read_text()
        if codes != [1, True, 0, True] or inference != "a table of --net --batch 1 4 32\n":
            found.append(f"bench/performance.sh does not continue after a failure: {codes}, {inference}")
    return found


def main():
    page, results = PAGE.read_text(), RESULTS.read_text()
    found, compared = faults(page, results)
    found += commands()
    # A page with another speed, and results without a section, must be found.
    if not faults(page.replace("| 2,342 |", "| 2,343 |"), results)[0] or not faults(page, results.replace("## One image", "## An image"))[0]:
        found.append("a changed number or a missing section is not found")
    if compared < 90:
        found.append(f"only {compared} numbers are compared")
    print("\n".join(found) or f"{compared} numbers: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
