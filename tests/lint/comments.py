# SPDX-License-Identifier: MIT
"""Splits a source file into its comments, its strings and its code, for words.py, comments_only.py and facts_kept.py."""
import ast
import io
import re
import subprocess
import tokenize

C_FAMILY = {".hpp", ".cpp", ".h", ".cc", ".hh", ".c", ".cu", ".cuh", ".mm"}
PYTHON, SHELL = {".py"}, {".sh"}
CMAKE = {".cmake"}
PAGES = {".md"}

# Comments that a tool reads: they count as code.
ACTING = re.compile(
    r"^(?://+|#)!?\s*(?:NOLINT\w*|clang-format (?:on|off)|noqa|type: ignore|shellcheck |optimised$|waits$|takes long$|"
    r"processors: |SPDX-|\[/?[\w-]+\]$)|^#!")

C_TOKEN = re.compile(
    r'(?P<line>//(?:\\\n|[^\n])*)|(?P<block>/\*.*?\*/)'
    r'|(?P<raw>(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)")'
    r'|(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")|(?P<char>\'(?:\\.|[^\'\\\n])+\')'
    r"|(?P<directive>^[ \t]*#(?:\\\n|[^\n])*?(?=//|/\*|\n|$))"
    r"|(?P<word>\d(?:[\w.]|'\w|(?<=[eEpP])[+-])*|\w+)|(?P<sign>[^\w\s\"'/]+|/)", re.S | re.M)

CMAKE_TOKEN = re.compile(
    r'(?P<block>#\[(?P<a>=*)\[.*?\](?P=a)\])|(?P<line>#[^\n]*)|(?P<raw>\[(?P<b>=*)\[.*?\](?P=b)\])'
    r'|(?P<string>"(?:\\.|[^"\\])*")|(?P<word>(?:\\.|[^\s#"\\()])+)|(?P<sign>[()])', re.S)


def kind_of(path):
    """Returns "c", "python", "shell", "cmake", "page", or `None` for other files."""
    if path.name == "CMakeLists.txt":
        return "cmake"
    for kind, suffixes in (("c", C_FAMILY), ("python", PYTHON), ("shell", SHELL), ("cmake", CMAKE), ("page", PAGES)):
        if path.suffix in suffixes:
            return kind
    return None


def _by_tokens(pattern, text):
    """Returns (comments, strings, code) of C++ or CMake."""
    comments, strings, code = [], [], []
    for match in pattern.finditer(text):
        group, token = match.lastgroup, match.group()
        if group in ("tag", "a", "b"):
            group = "block" if token.startswith("#[") else "raw"
        line = text.count("\n", 0, match.start()) + 1
        if group in ("line", "block"):
            (code if ACTING.match(token) else comments).append((line, token))
        else:
            if group in ("string", "raw"):
                strings.append((line, token))
            code.append((line, re.sub(r"\s+", " ", token).strip() if group == "directive" else token))
    return comments, strings, [token for _, token in code]


def _docstrings(tree):
    """Yields (owner, its docstring) of a module, its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                yield node, first


def _python(text):
    tree = ast.parse(text)
    documentation = [(owner, first) for owner, first in _docstrings(tree)]
    shown = "__doc__" in text
    comments = [(first.lineno, first.value.value) for _, first in documentation]
    at = {first.value.lineno for _, first in documentation}
    strings, code = [], []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            (code if ACTING.match(token.string) else comments).append((token.start[0], token.string))
        elif token.type == tokenize.STRING and token.start[0] not in at:
            strings.append((token.start[0], token.string))
    code = [token for _, token in code]
    for owner, first in documentation:  # a docstring that the program prints is code
        if not (shown and isinstance(owner, ast.Module)):
            owner.body[0] = ast.Expr(ast.Constant("documented"))
            if len(owner.body) > 1:
                owner.body.pop(0)
    return sorted(comments), strings, [*code, ast.dump(tree)]


SHELL_TOKEN = re.compile(
    r"(?P<here><<-?\s*(['\"]?)(?P<word>\w+)\2(?P<rest>[^\n]*)\n(?:.*?\n)??[ \t]*(?P=word)(?=\n|$))"
    r'|(?P<string>"(?:\\.|[^"\\])*")|(?P<quoted>\'[^\']*\')|\\.|(?P<comment>(?:^|(?<=[\s;(]))#[^\n]*)', re.S | re.M)


def _shell(text):
    """Finds comments and strings by patterns, which quotes in ${a#"b"} can mislead. bash itself extracts the code, which is
    exact."""
    comments, strings = [], []
    for match in SHELL_TOKEN.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["comment"]:
            comments.append((line, match["comment"]))
        elif match["string"]:
            strings.append((line, match["string"]))
    printed = subprocess.run(["bash", "--pretty-print"], input=text, text=True, capture_output=True)
    if printed.returncode:
        raise SyntaxError(printed.stderr.strip())
    code = [comment for _, comment in comments if ACTING.match(comment)]
    code += [line.strip() for line in printed.stdout.split("\n") if line.strip()]
    return [c for c in comments if not ACTING.match(c[1])], strings, code


def split(kind, text):
    """Returns (comments, strings, code): lists of (line, text) and the tokens that a comment cannot change.

    Raises SyntaxError if Python or bash cannot read the file.
    """
    if kind == "c":
        return _by_tokens(C_TOKEN, text)
    if kind == "cmake":
        return _by_tokens(CMAKE_TOKEN, text)
    return _python(text) if kind == "python" else _shell(text)


def prose(comment):
    """Returns a comment's text without its signs (//, ///, #, /*, *)."""
    return re.sub(r"^[ \t]*(?://[/!]?<?|/\*+<?|\*+/|\*(?!/)|#+)[ \t]?|\*/$", "", comment, flags=re.M).strip()


def blocks(comments):
    """Joins line comments on adjacent lines. Returns a list of (first line, prose)."""
    joined, last = [], None
    for line, text in comments:
        if last is not None and line == last and not text.startswith("/*"):
            joined[-1][1] += "\n" + prose(text)
        else:
            joined.append([line, prose(text)])
        last = line + text.count("\n") + 1
    return [(line, text) for line, text in joined]
