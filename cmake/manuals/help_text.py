# SPDX-License-Identifier: MIT
"""Parses the --help of a program into sections of options and paragraphs."""
import re
from dataclasses import dataclass, field

NAME = re.compile(r"--?[A-Za-z][\w-]*")
# A word after an option's name is the name of its value, unless it is plain English, as in "--threads as above".
VALUE = re.compile(r"[A-Z\[{<|(]|\.\.\.")


@dataclass
class Option:
    names: list  # of (name, value's name or "")
    text: str = ""

    def head(self):
        return ", ".join(f"{name} {value}".strip() for name, value in self.names)


@dataclass
class Section:
    title: str = ""
    items: list = field(default_factory=list)  # Option; a paragraph; a list of lines that are kept as they are


@dataclass
class Manual:
    name: str
    usage: list = field(default_factory=list)
    sections: list = field(default_factory=list)  # the first one is the description

    def options(self):
        return [o for s in self.sections for o in s.items if isinstance(o, Option)]

    def title(self):
        paragraphs = (i for s in self.sections for i in s.items if isinstance(i, str))
        first = re.split(r"(?<=[.;:])\s", next(paragraphs, self.name))[0].rstrip(".;:")
        return first[0].lower() + first[1:] if first[1:2].islower() else first


def columns(line):
    """Splits a line at two or more blanks into its left and its right column."""
    head, _, rest = re.split(r"(\s{2,}|$)", line.strip(), maxsplit=1)
    return head, rest.strip()


def names_of(head):
    """Returns the options in a line such as "-s, --split WORD". Options joined by commas share the value."""
    found, group = [], []
    for word in head.split():
        if NAME.match(word):
            if group and not group[-1][2]:
                group = []  # no comma before it
            for name in filter(None, re.split(r",(?=-)|,$", word)):
                group.append([name.rstrip(":"), "", word.endswith(",")])
                found.append(group[-1])
        elif VALUE.match(word):
            for one in group:
                if not one[1] or not one[2]:
                    one[1] = (one[1] + " " + word.rstrip(",")).strip()
            if word.endswith(","):
                group = []
    return [(name, value) for name, value, _ in found]


class Parser:
    def __init__(self, name):
        self.manual = Manual(name, [], [Section()])
        self.option, self.column = None, 0  # the option of the current text, and its column
        self.after_blank, self.in_usage = True, False

    def add_text(self, line, indented):
        items = self.manual.sections[-1].items
        if indented:
            if self.after_blank or not items or not isinstance(items[-1], list):
                items.append([])
            items[-1].append(line)
        elif self.after_blank or not items or not isinstance(items[-1], str):
            items.append(line.strip())
        else:
            items[-1] += " " + line.strip()

    def add_options(self, line):
        # One line may hold several, three blanks apart.
        for piece in re.split(r"\s{3,}(?=-)", line.strip()):
            head, rest = columns(piece)
            self.option = Option(names_of(head), rest)
            said = re.search(r"(?:: | (?=as above))([a-z ,]+)$", head)
            if said and not rest:
                self.option.text = said[1]
            self.manual.sections[-1].items.append(self.option)
            self.column = line.index(rest) if rest else max(self.column, 12)

    def add_heading(self, line):
        name = self.manual.name
        head, rest = columns(line)
        section = Section(head.rstrip(":"))
        self.manual.sections.append(section)
        if head.startswith(name + " "):  # the options of a command
            self.option = Option(names_of(head[head.index(" -"):]) if " -" in head else [], rest)
            section.items.append(self.option)
            self.column = 28

    def is_heading(self, line, following):
        name = self.manual.name
        if line.startswith(name + " "):
            return True
        starts = self.after_blank or isinstance((self.manual.sections[-1].items or [""])[-1], Option)
        if not starts or line.startswith(" ") or re.match(r"[A-Z]+: ", line):
            return False
        return re.match(r"\s+-", following) is not None or line.endswith(":") and len(line) < 80

    def add(self, line, following):
        name, body, depth = self.manual.name, line.strip(), len(line) - len(line.lstrip())
        if not body:
            self.option, self.after_blank, self.in_usage = None, True, False
            return
        if line.lower().startswith("usage:"):
            self.manual.usage.append(body[len("usage:"):].strip())
            self.in_usage, self.option = True, None
        elif self.in_usage and depth and body.startswith(name):
            self.manual.usage.append(body)
        elif self.in_usage and depth and not body.startswith("-"):
            self.manual.usage[-1] += " " + body
        elif depth and NAME.match(body) and (self.option is None or depth < self.column):
            self.add_options(line)
        elif self.option is not None and depth > 4:
            self.option.text = (self.option.text + " " + body).strip()
        elif self.is_heading(line, following):
            self.option = None
            self.add_heading(line)
        else:
            self.option = None
            if line.startswith("Exit codes:"):
                self.manual.sections.append(Section("EXIT STATUS"))
                line = body[len("Exit codes:"):]
                depth = 0
            elif depth == 0 and any(isinstance(i, Option) for i in self.manual.sections[-1].items):
                self.manual.sections.append(Section("NOTES"))
            self.add_text(line, depth > 0)
        self.in_usage = self.in_usage and depth > 0 or line.lower().startswith("usage:")
        self.after_blank = False


def parse(name, text):
    parser = Parser(name)
    lines = text.rstrip().split("\n")
    for at, line in enumerate(lines):
        parser.add(line, lines[at + 1] if at + 1 < len(lines) else "")
    return parser.manual
