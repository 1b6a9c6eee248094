# SPDX-License-Identifier: MIT
"""Reads PTX: the entries of a module with their parameters, registers, shared variables and instructions."""
import re
from dataclasses import dataclass, field

# Bytes of the fundamental types (PTX ISA, section 5.2). A predicate has no size in memory.
BYTES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4,
         "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8}


class PtxError(Exception):
    """PTX that the translator does not know, with the number and text of the line."""

    def __init__(self, number, text, why):
        super().__init__(f"line {number}: {text.strip()}: {why}")


@dataclass
class Instruction:
    number: int      # of the line
    text: str
    guard: str       # "", "%p1" or "!%p1"
    name: str        # "ld"
    parts: list      # ["global", "v4", "f32"]: the modifiers and types after the name
    operands: list   # texts

    @property
    def type(self):
        return self.parts[-1] if self.parts else ""

    def error(self, why):
        return PtxError(self.number, self.text, why)


@dataclass
class Variable:
    name: str
    bytes: int
    align: int


@dataclass
class Entry:
    symbol: str
    parameters: list                                  # Variables
    registers: dict = field(default_factory=dict)     # name -> type
    shared: list = field(default_factory=list)        # Variables
    local: list = field(default_factory=list)         # Variables
    body: list = field(default_factory=list)          # Instructions, and the names of labels as str


def split_operands(text):
    """Splits "{%f1, %f2}, [%rd1+4], 0" at the commas outside brackets."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += c
    return parts + [part.strip()] if part.strip() else parts


def _variable(text, number):
    """Reads the rest of a declaration: ".align 4 .b8 name[16]"."""
    m = re.fullmatch(r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)(?:\[(\d+)\])?", text.strip())
    if m is None or m[2] not in BYTES:
        raise PtxError(number, text, "a declaration that the translator does not know")
    size = BYTES[m[2]]
    return Variable(m[3], size * int(m[4] or 1), int(m[1] or size))


def _parameters(text, number):
    for part in split_operands(text):
        words = re.sub(r"\.ptr\b(\s+\.(global|shared|const|local))?(\s+\.align\s+\d+)?", "", part.replace(".param", "", 1))
        yield _variable(words, number)


def read_instruction(text, number):
    m = re.fullmatch(r"(?:@(!?%?[\w$]+)\s+)?([a-z]\w*)((?:\.[\w:]+)*)(?:\s+(.*))?", text, re.S)
    if m is None:
        raise PtxError(number, text, "a statement that the translator does not know")
    # "shared::cta" is one part.
    parts = m[3][1:].split(".") if m[3] else []
    return Instruction(number, text, m[1] or "", m[2], parts, split_operands(m[4] or ""))


class _Reader:
    """Reads a module line by line."""

    # Directives that change nothing here: limits for ptxas, and positions for a debugger.
    HEAD = re.compile(r"\.(version|target|address_size|file|maxntid|minnctapersm|maxnreg|reqntid|maxnctapersm|noreturn)\b")
    SKIPPED = re.compile(r"\.(loc|file|pragma)\b")

    def __init__(self, text):
        self.lines = list(enumerate(re.sub(r"//[^\n]*", "", text).split("\n"), 1))
        self.at = 0
        self.shared = []   # of the module
        self.entries = []

    def next(self):
        while self.at < len(self.lines):
            number, line = self.lines[self.at]
            self.at += 1
            if line.strip():
                return number, line.strip()
        return None

    def read(self):
        while (item := self.next()) is not None:
            number, line = item
            if re.match(r"(\.(visible|weak)\s+)?\.entry\b", line):
                self.read_entry(number, line)
            elif line.startswith(".shared"):
                self.shared.append(_variable(line.removeprefix(".shared").rstrip(";"), number))
            elif not self.HEAD.match(line):
                raise PtxError(number, line, "a directive that the translator does not know")
        for entry in self.entries:
            named = {o for i in entry.body if isinstance(i, Instruction) for o in re.findall(r"[\w$]+", " ".join(i.operands))}
            entry.shared += [v for v in self.shared if v.name in named]
        return self.entries

    def read_entry(self, number, line):
        while "{" not in line:
            item = self.next()
            if item is None:
                raise PtxError(number, line, "an entry without a body")
            line += " " + item[1]
        head = re.fullmatch(r".*?\.entry\s+([\w$]+)\s*(?:\((.*?)\))?\s*((?:\.\w+[\s\d,]*)*)\{(.*)", line)
        if head is None or head[4].strip():
            raise PtxError(number, line, "an entry that the translator cannot read")
        entry = Entry(head[1], list(_parameters(head[2] or "", number)))
        depth = 1
        while depth:
            item = self.next()
            if item is None:
                raise PtxError(number, head[1], "an entry without an end")
            depth += self.read_statements(entry, *item)
        self.entries.append(entry)

    def read_statements(self, entry, number, line):
        """Reads one line of a body. Returns how the depth of the braces changes."""
        if line in "{}":
            return 1 if line == "{" else -1
        if self.SKIPPED.match(line):
            return 0
        label = re.match(r"([\w$]+):\s*", line)
        if label:
            entry.body.append(label[1])
            line = line[label.end():]
        # Vector operands contain braces, so a block's brace is one at the beginning or the end.
        change = 0
        if line.startswith("{"):
            change, line = 1, line[1:]
        if line.rstrip().endswith("}"):
            change, line = change - 1, line.rstrip()[:-1]
        for statement in filter(None, (s.strip() for s in line.split(";"))):
            self.read_statement(entry, number, statement)
        return change

    @staticmethod
    def read_statement(entry, number, text):
        for kind in ("shared", "local"):
            if text.startswith("." + kind):
                getattr(entry, kind).append(_variable(text.removeprefix("." + kind), number))
                return
        m = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if m:
            for name in split_operands(m[2]):
                many = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name)
                for r in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                    entry.registers[r] = m[1]
            return
        entry.body.append(read_instruction(text, number))


def read_module(text):
    """Returns the entries of a module. Raises a PtxError if it has a statement that is not known."""
    return _Reader(text).read()
