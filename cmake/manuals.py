#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a manual page and the completions of bash and zsh for each program, from what its --help says.

    manuals.py --out DIR --version 0.1.0 PROGRAM...

DIR/man1/NAME.1, DIR/bash/NAME, DIR/zsh/_NAME. The installation runs it; a program that is added to the installation needs
nothing further. --help has the form that tutti's programs share, or argparse's:

    title, description      paragraphs before the line "Usage: NAME ..." or behind it
    Heading                 at the left margin, with options below it
      -s,--long ARG  text   an option, whose text goes on in the lines that are indented further
    NAME COMMAND ...        the options of a command follow
"""
import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

NAME = re.compile(r"--?[A-Za-z][\w-]*")
# A word after an option's name is its value's name unless it is plain English, as in "--threads as above".
VALUE = re.compile(r"[A-Z\[{<|(]|\.\.\.")
FILES = re.compile(r"FILE|PATH|DIR|IN|OUT|RAW|SCRATCH|TYPES|PROGRAM.*")
NUMBERS = re.compile(r"INT|NUMBER|[NS]|EPOCHS|NODES|[A-Z_]*(MINUTES|HOURS)")


@dataclass
class Option:
    names: list  # of (name, value's name or "")
    text: str = ""

    def head(self):
        return ", ".join(f"{name} {value}".strip() for name, value in self.names)


@dataclass
class Section:
    title: str = ""
    items: list = field(default_factory=list)  # Option; a paragraph; a list of lines that stay as they are


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
    """What stands on the left, and after two blanks or more on the right."""
    head, _, rest = re.split(r"(\s{2,}|$)", line.strip(), maxsplit=1)
    return head, rest.strip()


def names_of(head):
    """The options that a line such as "-s, --split WORD" names. Those that commas join share the value."""
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
        self.option, self.column = None, 0  # whose text goes on, and where it stands
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
        # Several may stand on one line, three blanks apart.
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


def roff(text):
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("~", r"\(ti").replace("^", r"\(ha")
    return "\n".join(r"\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def page(manual, version):
    out = [f'.TH "{roff(manual.name.upper())}" 1 "" "tutti {version}" "tutti"', ".nh", ".ad l", ".SH NAME",
           f"{roff(manual.name)} \\- {roff(manual.title())}", ".SH SYNOPSIS"]
    for usage in manual.usage:
        bold, _, rest = usage.partition(" ")
        out += [".PP", f"\\fB{roff(bold)}\\fR {roff(rest)}"]
    in_options = False
    for i, section in enumerate(manual.sections):
        own = section.title in ("EXIT STATUS", "NOTES")
        if i == 0 or own:
            out.append(f".SH {section.title or 'DESCRIPTION'}")
        elif not in_options:
            out.append(".SH OPTIONS")
            in_options = True
        if i > 0 and not own and section.title.lower() != "options":
            out.append(f'.SS "{roff(section.title)}"')
        for item in section.items:
            if isinstance(item, str):
                out += [".PP", roff(item.strip())]
            elif isinstance(item, list):
                out += [".PP", ".nf", *map(roff, item), ".fi"]
            elif section.title.startswith(manual.name + " ") and item is section.items[0]:
                out += [".PP", roff(item.text)] if item.text else []  # its options stand in the heading
            else:
                out += [".TP", f"\\fB{roff(item.head())}\\fR", roff(item.text.strip()) or r"\&"]
    out += [".SH SEE ALSO", "The documents in share/doc/tutti of the installation.", ""]
    return "\n".join(out)


def choices(value, text):
    """The words that an option takes, where its text lists them: "a, b or c"."""
    if value == "[0|1]":
        return ["0", "1"]
    braces = re.fullmatch(r"\{([\w,]+)\}", value)
    if braces:
        return braces[1].split(",")
    if value not in ("TEXT", "WORD"):
        return []
    default = re.search(r"\[([a-z0-9_]+)\]\s*$", text)
    plain = re.sub(r"\([^()]*\)", "", re.sub(r"\s*\[[^\]]*\]\s*$", "", text))
    plain = re.sub(r"\s+", " ", plain).replace(" ,", ",")
    word = r"[a-z0-9][a-z0-9_]*"
    listed = re.search(rf"(?:^|: )({word}(?:(?:, or |, | or ){word})*(?: or |, or ){word})(?= ?(?:[;:.]|, where|$))", plain)
    found = re.split(r", or | or |, ", listed[1]) if listed else []
    if listed and re.search(r"; [\w, ]+: ", plain[listed.end():]):
        found = []  # there are others
    explained = re.findall(rf"(?:^|; )({word}): ", plain)
    if not found and len(explained) > 1:
        found = explained
    if found and default and default[1] not in found:
        found.append(default[1])
    return found


@dataclass
class Words:
    options: list
    values: dict  # name: words
    files: list  # options that take files
    free: list  # options that take anything else
    commands: list


def words_of(manual):
    words = Words([], {}, [], [], [])
    for option in manual.options():
        for name, value in option.names:
            if name not in words.options:
                words.options.append(name)
            if not value:
                continue
            if value.startswith("[="):
                words.options += [f"{name}={w}" for w in re.findall(r"[a-z]+", value)]
            elif choices(value, option.text):
                words.values.setdefault(name, choices(value, option.text))
            elif value == "[0|1]" or NUMBERS.fullmatch(value):
                words.free.append(name)
            elif FILES.fullmatch(value) or re.search(r"\b(folder|file|files|images|list)\b", option.text):
                words.files.append(name)
            else:
                words.free.append(name)
    for section in manual.sections[1:]:
        command = re.match(rf"{re.escape(manual.name)} ([a-z]+)\b", section.title)
        if command:
            words.commands.append(command[1])
    return words


def runs_command(manual):
    return any("COMMAND [ARGUMENTS]" in usage for usage in manual.usage)


def identifier(name):
    return re.sub(r"\W", "_", name)


BASH = r"""# Completion of @NAME@ in bash; made from what @NAME@ --help says.
_tutti_@ID@() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} option
  local options=(@OPTIONS@)
  COMPREPLY=()
  # readline takes "=" for a word of its own.
  if [[ $word == = ]]; then
    word=
  elif [[ $before == = ]] && ((COMP_CWORD >= 2)); then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
@COMMAND@
  case ${before//_/-} in
@CASES@
  esac
  if [[ $word == -* ]]; then
    # A name may be written with - or _.
    for option in "${options[@]}"; do
      [[ ${option//_/-} != "${word//_/-}"* ]] || COMPREPLY+=("$option")
    done
    return
  fi
@PLAIN@
}
complete -F _tutti_@ID@ @NAME@
"""
BASH_FILES = """compopt -o filenames 2>/dev/null
{0}mapfile -t COMPREPLY < <(compgen -f -- "$word")"""
BASH_COMMAND = r"""  local i takes=" @TAKES@ "
  for ((i = 1; i < COMP_CWORD; ++i)); do
    option=${COMP_WORDS[i]}
    if [[ $takes == *" ${option//_/-} "* ]]; then
      [[ ${COMP_WORDS[i + 1]-} != = ]] || ((++i))
      ((++i))
    elif [[ $option != -* ]]; then
      # Behind the command stand its own words.
      if declare -F _command_offset >/dev/null; then
        _command_offset "$i"
      else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
      fi
      return
    fi
  done"""


def bash(manual):
    words = words_of(manual)
    dashed = [o.replace("_", "-") for o in words.options]

    def case(names, action):
        names = sorted({n.replace("_", "-") for n in names})
        return f"    {' | '.join(names)})\n      {action}\n      return\n      ;;" if names else ""

    lists = {}
    for name, values in words.values.items():
        lists.setdefault(" ".join(values), []).append(name)
    cases = [case(n, f'mapfile -t COMPREPLY < <(compgen -W "{v}" -- "$word")') for v, n in lists.items()]
    cases += [case(words.files, BASH_FILES.format("      ")), case(words.free, ":")]
    plain = "  " + BASH_FILES.format("  ")
    if words.commands:
        plain = f'  if ((COMP_CWORD == 1)); then\n    mapfile -t COMPREPLY < <(compgen -W "{" ".join(words.commands)}" -- "$word")\n' \
                f"    return\n  fi\n{plain}"
    if runs_command(manual):
        plain = '  compopt -o filenames 2>/dev/null\n  mapfile -t COMPREPLY < <(compgen -c -f -- "$word" | sort -u)'
    takes = " ".join(sorted({n.replace("_", "-") for n in [*words.values, *words.files, *words.free]}))
    listed = " ".join(o for i, o in enumerate(words.options) if dashed[i] not in dashed[:i])
    text = BASH.replace("@COMMAND@\n", BASH_COMMAND.replace("@TAKES@", takes) + "\n" if runs_command(manual) else "")
    cases = "\n".join(filter(None, cases)) or "    -) ;;"
    for key, value in (("NAME", manual.name), ("ID", identifier(manual.name)), ("OPTIONS", listed), ("CASES", cases),
                       ("PLAIN", plain)):
        text = text.replace(f"@{key}@", value)
    return text


def zsh(manual):
    words = words_of(manual)

    def quoted(text):
        return "'" + text.replace("'", "'\\''") + "'"

    specs, seen = [], set()
    for option in manual.options():
        text = re.sub(r"\s+", " ", option.text).strip()[:90]
        text = re.sub(r"([\[\]\\:])", r"\\\1", text)
        for name, value in option.names:
            value = value or next((v for o in manual.options() for n, v in o.names if n == name and v), "")
            if name in seen:
                continue
            seen.add(name)
            spec = f"*{name}"
            if value and not value.startswith("[="):
                action = f"({' '.join(words.values[name])})" if name in words.values else \
                    "_files" if name in words.files else " "
                label = re.sub(r"([\[\]\\:{}])", "", value) or "value"
                spec += f"{'=' if name.startswith('--') else ''}[{text}]:{label}:{action}"
            else:
                spec += f"[{text}]"
            specs.append(quoted(spec))
    if runs_command(manual):
        specs += ["'(-)1:command:_command_names -e'", "'*::argument:_normal'"]
    elif words.commands:
        specs += [quoted(f"1:command:({' '.join(words.commands)})"), "'*:file:_files'"]
    else:
        specs.append("'*:file:_files'")
    return f"#compdef {manual.name}\n# Completion in zsh; made from what {manual.name} --help says.\n_arguments \\\n  " + \
        " \\\n  ".join(specs) + "\n"


def help_of(program):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
    environment["COLUMNS"] = "100"
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, env=environment,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0 or not done.stdout.strip():
        sys.exit(f"manuals.py: [{program}] expected a text from --help, got status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def main():
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--version", required=True)
    command.add_argument("programs", nargs="+", metavar="PROGRAM")
    given = command.parse_args()
    for program in given.programs:
        name = os.path.basename(program)
        manual = parse(name, help_of(os.path.abspath(program)))
        if not manual.options():
            sys.exit(f"manuals.py: [{program}] expected options in what --help says, got none")
        for folder, file, text in (("man1", f"{name}.1", page(manual, given.version)), ("bash", name, bash(manual)),
                                   ("zsh", f"_{name}", zsh(manual))):
            (given.out / folder).mkdir(parents=True, exist_ok=True)
            (given.out / folder / file).write_text(text)


if __name__ == "__main__":
    main()
