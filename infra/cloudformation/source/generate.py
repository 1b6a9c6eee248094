#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes cluster.yaml and elastic.yaml from template.yaml and the files that it names.

    python3 infra/cloudformation/source/generate.py            writes both to the parent folder
    python3 infra/cloudformation/source/generate.py --check    names a file that differs from what it would write, and ends with 1

Directives are lines of their own in template.yaml:

    #: if elastic | cluster ... #: end      lines of one template only; not nested
    #: include FILE [without first line]    the file, a path from this folder, indented like the directive; without comments and
                                            docstrings
    #: allowed-instance-types               AllowedPattern of the types of instance_types.txt
    #: is-no-p-type                         an assertion that refuses the types that begin with p
    #: efa-cards GROUP [of SUBNET]          a network interface for each further network card, if the type has it

A template that is sent with the request has at most 51,200 bytes, so comments and empty lines are left out, and the indentation
is as narrow as YAML allows.
"""
import argparse
import ast
import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
TEMPLATES = ("cluster", "elastic")
LARGEST = 51200  # bytes of a template that is sent with the request


def instance_types():
    """Returns pairs (instance type, "gpu", "cpu" or "arm")."""
    return [(f"{family}.{size}", kind) for kind, family, sizes in families() for size in sizes]


def families():
    """Returns triples ("gpu", "cpu" or "arm", family, its sizes)."""
    found = []
    for line in (SOURCE / "instance_types.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            kind, family, *sizes = line.split()
            found.append((kind, family, sizes))
    return found


def alternatives(words):
    return words[0] if len(words) == 1 else f"({'|'.join(words)})"


def pattern_of_types():
    """Returns a regular expression that matches only the types: families with the same sizes share an alternative."""
    by_sizes = {}
    for _, family, sizes in families():
        by_sizes.setdefault(tuple(sizes), []).append(family)
    found = []
    for sizes, names in by_sizes.items():
        factors = [size[:-len("xlarge")] for size in sizes if size.endswith("xlarge")]
        others = [size for size in sizes if not size.endswith("xlarge")]
        found.append(alternatives(names) + r"\." + alternatives(others + ([f"{alternatives(factors)}xlarge"] if factors else [])))
    return f"^{alternatives(found)}$"


def without_docstrings(lines):
    """Returns the lines of a Python program without docstrings and with narrow indentation. The program must not
    contain strings of several lines."""
    tree, gone = ast.parse("\n".join(lines)), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            gone.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    # One column for each level: continued lines may have any indentation.
    return [re.sub("^ +", lambda blank: " " * -(-len(blank[0]) // 4), line) for number, line in enumerate(lines, 1) if number not in gone]


def included(arguments):
    name, *rest = arguments.split(maxsplit=1)
    lines = (SOURCE / name).read_text().splitlines()
    if rest == ["without first line"]:
        lines = lines[1:]
    elif rest:
        raise SystemExit(f"[generate] expected 'without first line' after {name}, got '{rest[0]}'")
    if name.endswith(".py"):
        lines = without_docstrings(lines)
    return [line for line in lines if not line.lstrip().startswith("#") or "SPDX" in line]


# The network cards of an instance type after the first one, and the template's condition for a type that has them.
CARDS = [(range(1, 4), "Cards4"), (range(4, 8), "Cards8"), (range(8, 16), "Cards16"), (range(16, 17), "Cards17"), (range(17, 32), "Cards32")]


# How many cards fit into a template: elastic.yaml has three launch templates.
MOST_CARDS = {"cluster": 32, "elastic": 8}


def efa_cards(which, arguments):
    """AWS's layout: the first card has an interface with an address (device 0) and EFA next to it (device 1); the
    others only EFA."""
    group, _, subnet = arguments.partition(" of ")
    place = f"SubnetId: !Ref {subnet}, " if subnet else ""
    cards = [(0, 1, "EfaOnFirstCard")] + [(card, 0, name) for cards, name in CARDS for card in cards if card < MOST_CARDS[which]]
    return [f"- !If [{name}, {{NetworkCardIndex: {card}, DeviceIndex: {device}, InterfaceType: efa-only, {place}Groups: [!Ref {group}]}}, "
            "!Ref AWS::NoValue]" for card, device, name in cards]


def expanded(which, directive, arguments):
    if directive == "include":
        return included(arguments)
    if directive == "allowed-instance-types":
        return [f"AllowedPattern: {pattern_of_types()}"]
    if directive == "is-no-p-type":
        types = [name for name, _ in instance_types() if name.startswith("p")]
        return [f"!Not [!Contains [[{', '.join(types)}], !Ref InstanceType]]"]
    if directive == "efa-cards":
        return efa_cards(which, arguments)
    raise SystemExit(f"[generate] expected a directive, got '#: {directive}'")


def narrowed(lines):
    """Returns the same YAML with one column for each level, and no column for a list below its key, without comments and empty lines after
    the head. Text keeps its own indentation."""
    found, levels, text = [], [(-1, -1)], None  # levels: the columns of the levels around a line, as (before, now)
    for line in lines:
        column, rest = len(line) - len(line.lstrip()), line.lstrip()
        if text and (not rest or column > text[0]):
            text[1] = text[1] or column
            found.append(" " * (text[2] + 1) + line[text[1]:] if rest else "")
            continue
        text = None
        if not rest or (rest.startswith("#") and len(found) >= 2):
            continue
        while levels[-1][0] > column:
            levels.pop()
        if levels[-1][0] < column:
            below_key = rest.startswith("- ") and found[-1].endswith(":")
            levels.append((column, levels[-1][1] + (0 if below_key else 1)))
        now = levels[-1][1]
        found.append(" " * now + rest)
        if re.search(r"(: |- )\|$", rest):
            text = [column, None, now]
        while rest.startswith("- "):
            rest, column, now = rest[2:], column + 2, now + 2
            levels.append((column, now))
    return found


def generate(which):
    """Returns the text of a template."""
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
            lines += [indent + text if text else "" for text in expanded(which, directive, arguments)]
    text = "\n".join(narrowed(lines)) + "\n"
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
