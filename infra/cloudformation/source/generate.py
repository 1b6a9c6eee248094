#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes cluster.yaml and elastic.yaml from template.yaml and the files that it names.

    python3 infra/cloudformation/source/generate.py            writes both beside this folder
    python3 infra/cloudformation/source/generate.py --check    says which one is not what it would write, and ends with 1

Directives stand on lines of their own in template.yaml:

    #: if elastic | cluster ... #: end      lines of one template only; not nested
    #: include FILE [without first line]    the file, a path from this folder, indented like the directive; without the
                                            lines that are nothing but a comment, for a template that is sent with the
                                            request has at most 51,200 bytes
    #: allowed-instance-types               AllowedValues of instance_types.txt
    #: instance-kinds                       lines of a mapping, instance type to gpu or cpu
"""
import argparse
import sys
import textwrap
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
TEMPLATES = ("cluster", "elastic")
LARGEST = 51200  # bytes of a template that is sent with the request


def instance_types():
    """Pairs (instance type, "gpu" or "cpu")."""
    found = []
    for line in (SOURCE / "instance_types.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            kind, family, *sizes = line.split()
            found += [(f"{family}.{size}", kind) for size in sizes]
    return found


def included(arguments):
    name, *rest = arguments.split(maxsplit=1)
    lines = (SOURCE / name).read_text().splitlines()
    if rest == ["without first line"]:
        lines = lines[1:]
    elif rest:
        raise SystemExit(f"[generate] expected 'without first line' after {name}, got '{rest[0]}'")
    return [line for line in lines if not line.lstrip().startswith("#") or "SPDX" in line]


def expanded(directive, arguments):
    if directive == "include":
        return included(arguments)
    if directive == "allowed-instance-types":
        names = textwrap.wrap(", ".join(name for name, _ in instance_types()), 110)
        return ["AllowedValues: [", *("  " + line for line in names), "]"]
    if directive == "instance-kinds":
        return [f"{name}: {{Kind: {kind}}}" for name, kind in instance_types()]
    raise SystemExit(f"[generate] expected a directive, got '#: {directive}'")


def generate(which):
    """The text of a template."""
    lines, only = [], None
    for line in (SOURCE / "template.yaml").read_text().splitlines():
        stripped = line.strip()
        if not stripped.startswith("#:"):
            if only in (None, which):
                lines.append(line)
            continue
        directive, _, arguments = stripped[2:].strip().partition(" ")
        if directive == "if" and only is None and arguments in TEMPLATES:
            only = arguments
        elif directive == "end" and only is not None:
            only = None
        elif directive in ("if", "end"):
            raise SystemExit(f"[generate] expected blocks '#: if cluster|elastic' ... '#: end' in turns, got '{stripped}'")
        elif only in (None, which):
            indent = line[:line.index("#")]
            lines += [indent + text if text else "" for text in expanded(directive, arguments)]
    text = "\n".join(lines) + "\n"
    if len(text.encode()) > LARGEST:
        raise SystemExit(f"[generate] expected at most {LARGEST} bytes in {which}.yaml, got {len(text.encode())}")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    differ = []
    for which in TEMPLATES:
        path, text = SOURCE.parent / f"{which}.yaml", generate(which)
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            differ.append(path.name)
    if differ:
        sys.exit(f"[generate] expected {' and '.join(differ)} as generated, got something else. "
                 f"hint: change infra/cloudformation/source/ and run {Path(__file__).name}")


if __name__ == "__main__":
    main()
