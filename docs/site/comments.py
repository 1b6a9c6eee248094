#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Doxygen's input filter: the plain comments before and behind declarations are what it documents them with.

A comment that stands directly above a declaration becomes "///", one behind a declaration "///<", one behind the opening brace of a class or function stands before it. Everything else stays as it
is, and so does the number of lines.
"""
import re
import sys

COMMENT = re.compile(r"^(\s*)//(?!/|!)( ?)(.*)$")
# A member or value with a comment behind it. A line that only closes or opens something has no comment of its own.
BEHIND = re.compile(r"^(\s*(?!//|#|\}|return\b|if\b|for\b|else\b|case\b|namespace\b).*?[;,)\w\"'}])\s+// (.*)$")
# An enumeration on one line: what stands behind it is not about its last value.
WHOLE = re.compile(r"^(\s*enum class [^;]*\};)\s+// (.*)$")
# What opens a class or a function says who it is behind its brace.
OPENING = re.compile(r"^(\s*(?:class|struct|enum|enum class|union) \w[^;]*\{|(?:\[\[nodiscard\]\] )?\w[\w:<>,&* ]* \w+\(.*\) ?(?:noexcept )?\{)\s+// (.*)$")
# Between a comment and these nothing is said.
NO_DECLARATION = re.compile(r"^\s*($|#|//|\}|namespace\b|public:|private:|protected:|extern \"C\")")
# Doxygen's commands and HTML must not be read into plain text. Its Markdown is off, so that * _ [ | are plain already.
# Doxygen does not know numeric entities: it would print them.
SPECIAL = re.compile(r"([\\@<>#&$%]|::)")


def escape(text):
    return SPECIAL.sub(r"\\\1", text)


def filtered(lines):
    out, i = list(lines), 0
    while i < len(lines):
        match = COMMENT.match(lines[i])
        if match:
            end = i
            while end < len(lines) and COMMENT.match(lines[end]):
                end += 1
            if end < len(lines) and not NO_DECLARATION.match(lines[end]):
                for j in range(i, end):
                    indent, _, text = COMMENT.match(lines[j]).groups()
                    out[j] = f"{indent}/// {escape(text)}".rstrip()
            i = end
            continue
        opening = OPENING.match(lines[i]) or WHOLE.match(lines[i])
        if opening:
            out[i] = f"/** {escape(opening[2])} */ {opening[1]}"
            i += 1
            continue
        behind = BEHIND.match(lines[i])
        if behind:
            # Lines of comment that go on at the same column belong to it.
            column = lines[i].rindex("// " + behind[2])
            out[i] = f"{behind[1]}  ///< {escape(behind[2])}"
            while i + 1 < len(lines) and lines[i + 1].startswith(" " * column + "// "):
                i += 1
                out[i] = " " * column + "///< " + escape(lines[i][column + 3:])
        i += 1
    return out


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write("\n".join(filtered(file.read().split("\n"))))


if __name__ == "__main__":
    main()
