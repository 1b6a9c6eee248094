#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a manual page and the completions of bash and zsh for each program, from its --help.

    manuals.py --out DIR --version 0.1.0 [--emulator "COMMAND"] PROGRAM...

Writes DIR/man1/NAME.1, DIR/bash/NAME and DIR/zsh/_NAME. The installation runs it; a program that is added to the
installation needs no further change. --emulator: runs programs for another processor; scripts run without it. --help has the form of tutti's programs, or argparse's:

    title, description      paragraphs before or after the line "Usage: NAME ..."
    Heading                 at the left margin, with options below it
      -s,--long ARG  text   an option; its text continues in the lines that are indented further
    NAME COMMAND ...        the options of a command follow
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parent)]

from completion import bash, zsh  # noqa: E402
from help_text import parse  # noqa: E402
from man_page import page  # noqa: E402


def is_script(program):
    with open(program, "rb") as file:
        return file.read(2) == b"#!"


def help_of(program, emulator):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
    environment["COLUMNS"] = "100"
    text = ""
    for option in ("--help", "--help-all"):
        if text and "--help-all" not in text:
            break
        done = subprocess.run([*([] if is_script(program) else emulator), program, option], capture_output=True, text=True, timeout=60, env=environment,
                              stdin=subprocess.DEVNULL)
        text = done.stdout
        if done.returncode != 0 or not text.strip():
            sys.exit(f"manuals.py: [{program}] expected a text from {option}, got status {done.returncode}: {done.stderr.strip()}")
    return text


def main():
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--version", required=True)
    command.add_argument("--emulator", type=str.split, default=[], metavar="COMMAND")
    command.add_argument("programs", nargs="+", metavar="PROGRAM")
    given = command.parse_args()
    for program in given.programs:
        name = os.path.basename(program)
        manual = parse(name, help_of(os.path.abspath(program), given.emulator))
        if not manual.options():
            sys.exit(f"manuals.py: [{program}] expected options in the text of --help, got no option")
        for folder, file, text in (("man1", f"{name}.1", page(manual, given.version)), ("bash", name, bash(manual)),
                                   ("zsh", f"_{name}", zsh(manual))):
            (given.out / folder).mkdir(parents=True, exist_ok=True)
            (given.out / folder / file).write_text(text)


if __name__ == "__main__":
    main()
