# SPDX-License-Identifier: MIT
"""Finds possible changes in a header, and writes the header that holds all changes at once.

Clang's tree gives the positions of operators, constants, conditions and statements. The written code asks for each
mutant whether it is on (mutant.hpp). Only one is on at a time, so the changed form of an expression consists of original
text.
"""
import dataclasses
import re
import subprocess

from clang.cindex import CursorKind as Kind, Index, TokenKind, TypeKind

OPERATORS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
    "&&": ("||",), "||": ("&&",), "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("*",),
    "&": ("|",), "|": ("&",), "<<": (">>",), ">>": ("<<",),
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
STATEMENTS = (Kind.CALL_EXPR, Kind.BINARY_OPERATOR, Kind.COMPOUND_ASSIGNMENT_OPERATOR, Kind.UNARY_OPERATOR,
              Kind.UNEXPOSED_EXPR, Kind.BREAK_STMT, Kind.CONTINUE_STMT, Kind.CONDITIONAL_OPERATOR)
BODIES = (Kind.IF_STMT, Kind.FOR_STMT, Kind.CXX_FOR_RANGE_STMT, Kind.WHILE_STMT)
CONSTANT = (Kind.ENUM_CONSTANT_DECL, Kind.STATIC_ASSERT, Kind.TEMPLATE_TYPE_PARAMETER,
            Kind.TEMPLATE_NON_TYPE_PARAMETER)


@dataclasses.dataclass
class Mutant:
    number: int
    header: str
    line: int
    source: str      # the line
    change: str      # "at 4: a < b -> a <= b": the column, counted in letters
    constant: bool   # the compiler computes the expression, so the mutant needs a separate program

    def key(self):
        return self.header, self.source, self.change


@dataclasses.dataclass
class Site:
    begin: int
    end: int
    numbers: list                                  # the numbers of its mutants
    write: object                                  # f(source text of the range, with the mutants in it) -> text
    wide: bool = False                             # a statement, which may enclose an expression of the same range


def short(text):
    text = " ".join(text.split())
    return text if len(text) <= 90 else text[:60] + " ... " + text[-25:]


class Header:
    """The mutants of one header. `first` is the number of the first one."""

    def __init__(self, root, name, first, without=()):
        self.path = root / "include" / "tutti" / name
        self.name, self.first, self.without = name, first, set(without)
        self.bytes = self.path.read_bytes()
        self.text = self.bytes.decode("ascii")  # offsets are counted in bytes
        self.lines = self.text.split("\n")
        self.mutants, self.sites, self.seen = [], [], []
        unit = Index.create().parse(str(self.path), args=["-x", "c++", "-std=c++20", "-I", str(root / "include"), *system_folders()])
        bad = [d for d in unit.diagnostics if d.severity >= 3]
        if bad:
            raise SystemExit(f"mutants: {self.path}: clang does not read it: {bad[0]}")
        self.visit(unit.cursor, False, None)

    # ---- possible changes ----
    def add(self, begin, end, changes, write, constant, wide=False):
        """changes: (shown before, shown after) of each mutant; write(numbers, render) returns the text."""
        # Clang visits some declarations twice.
        if any(known == (begin, end, changes) for known in self.seen):
            return
        self.seen.append((begin, end, changes))
        line = self.text.count("\n", 0, begin) + 1
        indent = self.text.rindex("\n", 0, begin) + 1
        indent += len(self.lines[line - 1]) - len(self.lines[line - 1].lstrip())
        numbers = []
        for before, after in changes:
            number = self.first + len(self.mutants)
            self.mutants.append(Mutant(number, self.name, line, self.lines[line - 1].strip(),
                                       f"at {begin - indent}: {short(before)} -> {short(after)}", constant))
            numbers.append(number)
        kept = [n for n in numbers if n not in self.without]
        if kept:
            self.sites.append(Site(begin, end, numbers, write, wide))

    def range_of(self, cursor):
        return cursor.extent.start.offset, cursor.extent.end.offset

    def piece(self, cursor):
        begin, end = self.range_of(cursor)
        return self.text[begin:end]

    def here(self, cursor):
        file = cursor.extent.start.file
        return file is not None and file.name == str(self.path) and cursor.extent.start.offset < cursor.extent.end.offset

    def visit(self, cursor, constant, parent):
        children = list(cursor.get_children())
        if cursor.kind != Kind.TRANSLATION_UNIT and not self.here(cursor):
            return
        if cursor.kind == Kind.VAR_DECL:
            declared = self.text[cursor.extent.start.offset:cursor.location.offset]
            constant = constant or "constexpr" in declared
        elif cursor.kind == Kind.PARM_DECL:
            constant = True  # GCC computes a default argument when it compiles
        constant = constant or cursor.kind in CONSTANT
        if cursor.kind != Kind.TRANSLATION_UNIT:
            self.look(cursor, children, constant, parent)
        for child in children:
            self.visit(child, constant, cursor)

    def look(self, cursor, children, constant, parent):
        kind = cursor.kind
        if kind in (Kind.BINARY_OPERATOR, Kind.CALL_EXPR):
            self.binary(cursor, children, constant)
        elif kind == Kind.UNARY_OPERATOR and self.piece(cursor).startswith("!"):
            self.replace(cursor, children[0], "!", constant)
        elif kind == Kind.INTEGER_LITERAL:
            self.literal(cursor, constant, parent)
        elif kind == Kind.CXX_BOOL_LITERAL_EXPR:
            text = self.piece(cursor)
            other = "false" if text == "true" else "true"
            self.simple(cursor, [(text, other)], constant)
        if kind in (Kind.IF_STMT, Kind.CONDITIONAL_OPERATOR):
            self.condition(cursor, children, constant)
        if kind == Kind.COMPOUND_STMT:
            for child in children:
                self.statement(child)
        elif kind in BODIES and children:
            for child in children[1:] if kind == Kind.IF_STMT else [children[-1]]:
                self.statement(child)

    def simple(self, cursor, changes, constant):
        begin, end = self.range_of(cursor)

        def write(numbers, _):
            text = self.text[begin:end]
            for number, (_, after) in zip(numbers, changes):
                text = self.unless(number, after, text)
            return text
        self.add(begin, end, changes, write, constant)

    def unless(self, number, after, text):
        return text if number in self.without else f"(::tutti_mutants::on({number}) ? ({after}) : ({text}))"

    def binary(self, cursor, children, constant):
        if cursor.kind == Kind.CALL_EXPR:
            if not cursor.spelling.startswith("operator") or len(children) != 3:
                return
            children = [children[0], children[2]]
        if len(children) != 2 or not all(map(self.here, children)):
            return
        (begin, middle), (after, end) = map(self.range_of, children)
        between = self.text[middle:after].strip()
        if between not in OPERATORS or (begin, end) != self.range_of(cursor):
            return
        if between in ("<<", ">>") and cursor.kind == Kind.CALL_EXPR:
            return
        left, right = self.text[begin:middle], self.text[after:end]
        if between in "+-" and ('"' in left + right or "string" in left + right or is_text(cursor)):
            return
        changes = [(f"{left} {between} {right}", f"{left} {other} {right}") for other in OPERATORS[between]]

        def write(numbers, render):
            text = f"{render(begin, middle)} {between} {render(after, end)}"
            for number, other in zip(numbers, OPERATORS[between]):
                text = self.unless(number, f"{left} {other} {right}", text)
            return text
        self.add(begin, end, changes, write, constant)

    def replace(self, cursor, inner, what, constant):
        begin, end = self.range_of(cursor)
        b, e = self.range_of(inner)
        changes = [(self.text[begin:end], self.text[b:e])]

        def write(numbers, render):
            return self.unless(numbers[0], f"static_cast<bool>({self.text[b:e]})", what + render(b, e))
        self.add(begin, end, changes, write, constant)

    def literal(self, cursor, constant, parent):
        text = self.piece(cursor)
        digits = text.rstrip("uUlL")
        if not re.fullmatch(r"0x[0-9a-fA-F']+|[0-9']+", digits):
            return  # a literal with a suffix, such as a time
        bare, suffix = digits.replace("'", ""), text[len(digits):]
        octal, hexadecimal = re.fullmatch("0[0-7]+", bare), bare.startswith("0x")
        value = int(bare, 8 if octal else 0)
        show = lambda n: (f"0{n:o}" if octal else f"{n:#x}" if hexadecimal else f"{n}") + suffix
        most = (1 << 64) - 1 if value >= 1 << 32 else (1 << 32) - 1 if value > (1 << 31) - 1 else (1 << 31) - 1
        changes = [(text, show(value + 1))] if value < most else []
        if value > 0:
            changes.append((text, show(value - 1)))
        if value not in (0, 1) and hexadecimal:
            changes = changes[:1]
        if changes:
            self.simple(cursor, changes, constant)

    def condition(self, cursor, children, constant):
        if cursor.kind == Kind.IF_STMT:
            if "constexpr" in self.text[cursor.extent.start.offset:cursor.extent.start.offset + 14]:
                return
            begins = [c for c in children if c.kind not in (Kind.DECL_STMT,)]
            if not begins or begins[0].kind == Kind.VAR_DECL or any(c.kind == Kind.VAR_DECL for c in children):
                return
            test = begins[0]
        else:
            test = children[0]
        begin, end = self.range_of(test)
        text = self.text[begin:end]
        # If the comparison in the condition has a mutant that inverts it, this mutant would be the same.
        if any(s.begin == begin and s.end == end for s in self.sites) or compares(test, self) or text.startswith("!"):
            return

        def write(numbers, render):
            return f"(::tutti_mutants::on({numbers[0]}) != static_cast<bool>({render(begin, end, True)}))"
        self.add(begin, end, [(f"if {text}", f"if not ({text})")], write, constant, True)

    def statement(self, cursor):
        begin, end = self.range_of(cursor)
        if not self.here(cursor) or self.text[end:end + 1] != ";":
            return
        void_return = cursor.kind == Kind.RETURN_STMT and self.returns_nothing(cursor)
        if cursor.kind not in STATEMENTS and not void_return:
            return

        def write(numbers, render):
            return f"{{ if (!::tutti_mutants::on({numbers[0]})) {{ {render(begin, end)}; }} }}"
        self.add(begin, end + 1, [(f"{self.text[begin:end]};", "nothing")], write, False)

    def returns_nothing(self, cursor):
        children = list(cursor.get_children())
        return not children or children[0].type.kind == TypeKind.VOID

    # ---- the header that holds all changes ----
    def mutated(self):
        sites = sorted(self.sites, key=lambda s: (s.begin, -s.end, not s.wide))

        def render(begin, end, inside_wide=False):
            out, at = [], begin
            for site in sites:
                if site.begin < at or site.end > end or site.begin < begin:
                    continue
                if inside_wide and site.wide and (site.begin, site.end) == (begin, end):
                    continue
                if (site.begin, site.end) == (begin, end) and site.write in active:
                    continue
                out.append(self.text[at:site.begin])
                active.append(site.write)
                out.append(site.write(site.numbers, render))
                active.pop()
                at = site.end
            out.append(self.text[at:end])
            return "".join(out)

        active = []
        text = render(0, len(self.text))
        return text.replace("#pragma once", '#pragma once\n#include "mutant.hpp"', 1)


def compares(cursor, header):
    """Returns whether the outermost operator of a condition is a comparison, or an operator with a mutant of the same
    effect."""
    children = list(cursor.get_children())
    while cursor.kind in (Kind.UNEXPOSED_EXPR, Kind.PAREN_EXPR) and len(children) == 1:
        cursor, children = children[0], list(children[0].get_children())
    if cursor.kind == Kind.CALL_EXPR and cursor.spelling.startswith("operator"):
        return cursor.spelling[8:] in COMPARISONS
    if cursor.kind == Kind.BINARY_OPERATOR and len(children) == 2:
        between = header.text[children[0].extent.end.offset:children[1].extent.start.offset].strip()
        return between in COMPARISONS
    return False


def is_text(cursor):
    return "string" in cursor.type.spelling


def system_folders():
    """Returns the folders of GCC's headers, which the pinned library does not know."""
    said = subprocess.run(["g++", "-x", "c++", "-E", "-v", "/dev/null"], capture_output=True, text=True, check=True).stderr
    listed = said.split("#include <...> search starts here:")[1].split("End of search list.")[0]
    return [word for folder in listed.split() for word in ("-isystem", folder)]
