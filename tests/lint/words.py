#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts words that make comments, pages, messages and test titles hard to read, such as `who`, `where` for `if`, and `nobody`.

words.py                 prints a table of this project, by folder and kind
words.py DIR...          prints the same table of other projects, one row for each folder and kind
words.py --list WORDS FOLDER   prints each line of a folder that has a word of a group (`who`, `where`, `if`, `none`, `place`, `verbless`)
words.py --lower         lowers the limits of word_limits.txt to what is counted now; it never raises one
"""
import math
import re
import sys
from pathlib import Path

from comments import blocks, kind_of, split
from sources import ROOT

GROUPS = {
    "who": re.compile(r"\b(?:who|whom|whose|whoever|whomever)\b", re.I),
    "where": re.compile(r"(?<![.\w])(?:where|wherever)\b(?!\()", re.I),
    "if": re.compile(r"\bif\b", re.I),
    "none": re.compile(r"\b(?:nobody|none|nothing|somebody|everybody)\b", re.I),
    "place": re.compile(r"\b(?:behind|beside|stands|told)\b", re.I),
}
LIMITED = ("who", "where", "none")
FIELD = {"who": 0.5, "where": 1.5, "none": 1.0}
LIMITS = Path(__file__).with_name("word_limits.txt")
KINDS = ("comments", "pages", "messages", "titles")
SKIPPED = re.compile(r"(?:^|/)(?:build[^/]*|third_party|external|node_modules|\.\w+)(?:/|$)")

CODE = re.compile(r"`[^`\n]*`|https?://\S+|<[^>\n]*>|[\\@]\w+(?:\{[^}]*\})?")
FENCE = re.compile(r"^(```|~~~).*?^\1|<!--.*?-->", re.M | re.S)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
TITLE = re.compile(r'\b(?:TEST_CASE|SUBCASE|TEST_CASE_TEMPLATE)\(\s*((?:"(?:\\.|[^"\\])*"\s*)+)')
FUNCTION_TITLE = re.compile(r"^\s*def test_(\w+)", re.M)

VERBS = set("""am is are was were be been being has have had does do did can cannot could may might must shall should will would
let lets see use get set make take give keep hold read write run call return say know need show lie stand begin end go come mean
find leave put send lose cut split throw fit cost sum add copy wait start stop note lay""".split())
VERB_FORM = re.compile(r"\w{3,}(?:ed|es|s|n't)$")


def is_verbless(sentence):
    """Returns whether a sentence of eight words or more has no word that may be a verb. Counts plurals as verbs."""
    words = [w.lower() for w in WORD.findall(sentence)]
    return len(words) >= 8 and not any(w in VERBS or VERB_FORM.match(w) for w in words)


def sentences(text):
    return [s for s in re.split(r"(?<=[.:;?!])\s+|\n\s*\n", text) if s.strip()]


def folder_of(path):
    """Returns the folder under which a path, relative to the root of this project, is counted."""
    parts = path.parts[:-1]
    if parts[:2] == ("include", "tutti"):
        return "/".join(parts[:3])
    return "/".join(parts[:2 if parts and parts[0] in ("backends", "tools", "tests") else 1]) or "."


def texts(path, kind, tests):
    """Yields (kind of text, line, text) of a file."""
    text = path.read_text(errors="replace")
    if kind == "page":
        yield "pages", 1, CODE.sub(" ", FENCE.sub(lambda m: "\n" * m.group().count("\n"), text))
        return
    try:
        comments, strings, _ = split(kind, text)
    except (SyntaxError, ValueError):  # another project's Python 2, for example
        return
    for line, comment in blocks(comments):
        if not comment.startswith("SPDX"):
            yield "comments", line, CODE.sub(" ", comment)
    if tests:
        for match in [*TITLE.finditer(text), *(FUNCTION_TITLE.finditer(text) if kind == "python" else ())]:
            yield "titles", text.count("\n", 0, match.start()) + 1, match.group(1).replace("_", " ").strip('"')
    else:
        for line, literal in strings:
            literal = literal.replace("\\n", " ")
            if len(re.findall(r"[A-Za-z]+ (?=[A-Za-z]+\b)", literal)) >= 2:
                yield "messages", line, CODE.sub(" ", literal.strip('furRFLU8"\''))


def files(root):
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if kind_of(path) and path.is_file() and not path.is_symlink() and not SKIPPED.search(str(relative)):
            yield path, relative


def count(root, folder=folder_of):
    """Returns {(folder, kind of text): {"words": n, "sentences": n, "verbless": n, group: n, ...}}."""
    table = {}
    for path, relative in files(root):
        for what, _, text in texts(path, kind_of(path), relative.parts[0] in ("tests", "test")):
            row = table.setdefault((folder(relative), what), dict.fromkeys(("words", "sentences", "verbless", *GROUPS), 0))
            row["words"] += len(WORD.findall(text))
            for group, pattern in GROUPS.items():
                row[group] += len(pattern.findall(text))
            for sentence in sentences(text):
                row["sentences"] += 1
                row["verbless"] += is_verbless(sentence)
    return table


def rate(row, group):
    return 1000 * row[group] / max(1, row["words"])


def lines_of_table(table):
    total = {}
    for (_, kind), row in table.items():
        sums = total.setdefault(("all", kind), dict.fromkeys(row, 0))
        for key, value in row.items():
            sums[key] += value
    yield f"{'folder':28} {'text':9} {'words':>7} " + " ".join(f"{g:>6}" for g in GROUPS) + "  verbless %"
    for (folder, kind), row in [*sorted(table.items(), key=lambda i: (KINDS.index(i[0][1]), i[0][0])), *total.items()]:
        yield (f"{folder:28} {kind:9} {row['words']:7} " + " ".join(f"{rate(row, g):6.1f}" for g in GROUPS) +
               f"  {100 * row['verbless'] / max(1, row['sentences']):9.1f}")


def read_limits(text):
    """Returns {(folder, kind): {group: rate}}."""
    limits = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            folder, kind, *rates = line.split()
            limits[folder, kind] = dict(zip(LIMITED, map(float, rates)))
    return limits


def over_limits(table, limits):
    """Yields a sentence for each folder that has more words of a group than its limit. Two words are allowed in any folder."""
    for (folder, kind), row in sorted(table.items()):
        for group in LIMITED:
            limit = limits.get((folder, kind), FIELD)[group]
            allowed = max(2, math.ceil(limit * row["words"] / 1000 - 1e-6))
            if row[group] > allowed:
                yield (f"{folder}, {kind}: {row[group]} of the words like \"{group}\" in {row['words']} words "
                       f"({rate(row, group):.2f} per 1,000), {allowed} are allowed; see: tests/lint/words.py --list {group} {folder}")


def lowered(table, limits):
    """Returns the limits lowered to what is counted, without rows that equal the default."""
    result = {}
    for key, rates in limits.items():
        if key in table:
            now = {g: max(FIELD[g], -(-100 * rate(table[key], g) // 1) / 100) for g in LIMITED}
            result[key] = {g: min(rates[g], now[g]) for g in LIMITED}
    return {key: rates for key, rates in result.items() if rates != FIELD}


def written(limits):
    head = ("# Limits of words per 1,000 (who, where, none; words.py says which words) of folders that are not rewritten yet.\n"
            "# A folder without a line has the rates of other projects: 0.5, 1.5, 1.0. Limits only go down: words.py --lower.\n")
    return head + "".join(f"{folder:28} {kind:9} " + " ".join(f"{rates[g]:6.2f}" for g in LIMITED) + "\n"
                          for (folder, kind), rates in sorted(limits.items()))


def print_lines(group, folder):
    for path, relative in files(ROOT / folder):
        for what, line, text in texts(path, kind_of(path), folder.startswith("tests")):
            for number, part in enumerate(text.split("\n") if group != "verbless" else [text]):
                hits = [s for s in sentences(part) if is_verbless(s)] if group == "verbless" else GROUPS[group].findall(part)
                if hits:
                    print(f"{folder}/{relative}:{line + number}: {what}: {hits if group == 'verbless' else part.strip()}")


def main(arguments):
    if arguments[:1] == ["--list"]:
        print_lines(arguments[1], arguments[2])
    elif arguments == ["--lower"]:
        LIMITS.write_text(written(lowered(count(ROOT), read_limits(LIMITS.read_text()))))
    else:
        table = count(ROOT) if not arguments else {}
        for project in map(Path, arguments):
            table.update(count(project, lambda _, name=project.resolve().name: name))
        print("\n".join(lines_of_table(table)))


if __name__ == "__main__":
    main(sys.argv[1:])
