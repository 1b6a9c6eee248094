#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lists, file by file, the numbers, units, identifiers and citations that the comments of a changed file no longer contain.

facts_kept.py [COMMIT | A..B | --cached]   as comments_only.py; pages (.md) count as a whole

A line of the list is a question to the author, not an error: the fact may be in the code or in other words.
"""
import re
import sys
from pathlib import Path

from comments import blocks, kind_of, split
from comments_only import versions

UNITS = (r"ns|us|µs|ms|s|min|h|seconds?|minutes?|hours?|milliseconds?|microseconds?|nanoseconds?|bytes?|bits?|[KMGT]i?B|[KMG]bit/s|"
         r"GB/s|MB/s|[GTM]FLOPS?|cycles?|instructions?|%|percent|pixels?|lanes?|lines?|cores?|threads?|x|times|[kMG]?Hz")
NAMED_NUMBERS = "two three four five six seven eight nine ten eleven twelve half twice thrice quarter third hundred thousand million"
FACTS = {
    "citation": re.compile(r"https?://[^\s)>]+|arXiv:?\s?\d{4}\.\d{4,5}|RFC \d+|\b(?:[Ss]ections?|[Cc]hapter|[Aa]ppendix|[Tt]able|"
                           r"[Ee]quation|[Aa]lgorithm|[Ff]igure) [A-Z]?\d[\d.]*|\b[A-Z]\w+ et al\.?(?:,? \d{4})?|\b(?:19|20)\d\d\b"),
    "number": re.compile(rf"[-+]?(?:0[xb][\da-fA-F]+|\d+(?:[.,^/*]\d+)*(?:[eE][-+]?\d+)?)(?: ?(?:{UNITS})\b| ?%)?"),
    "number word": re.compile(rf"\b(?:{NAMED_NUMBERS.replace(' ', '|')})\b", re.I),
    "identifier": re.compile(r"`[^`\n]+`|\b\w+(?:::\w+)+|\b[A-Za-z]\w*\(\)|\b[a-z]\w*_\w+|\b[a-z_]+_\b|\b[A-Z][a-z]\w*[A-Z]\w*|"
                             r"\b[A-Z]{2,}[\w-]*|(?<!\w)--[a-z][\w-]+|\b\w+\.(?:hpp|cpp|py|md|json|toml)\b"),
}


def prose_of(path, text):
    kind = kind_of(Path(path))
    if kind in (None, "page"):
        return text
    return "\n".join(comment for _, comment in blocks(split(kind, text)[0]))


def facts(text):
    """Returns {kind of fact: the set of facts in a text}."""
    text = re.sub(r"\s+", " ", text)
    found = {kind: {match.strip("`") for match in pattern.findall(text)} for kind, pattern in FACTS.items()}
    found["number word"] = {word.lower() for word in found["number word"]}
    return found


def lost(path, before, after):
    """Yields (kind, facts that only the earlier text has)."""
    old, text = facts(prose_of(path, before)), re.sub(r"\s+", " ", prose_of(path, after)) if after is not None else ""
    new = facts(text)
    for kind, found in old.items():
        gone = sorted(fact for fact in found - new[kind] if not (kind == "identifier" and re.search(rf"\b{re.escape(fact)}(?!\w)", text)))
        if gone:
            yield kind, gone


def main(arguments):
    for path, before, after in versions(arguments[0] if arguments else "HEAD"):
        if before is not None:
            for kind, gone in lost(path, before, after):
                print(f"{path}: {kind}: {', '.join(gone)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
