# SPDX-License-Identifier: MIT
"""Writes completion of the options, for bash and zsh."""
import re
from dataclasses import dataclass

FILES = re.compile(r"FILE|PATH|DIR|IN|OUT|RAW|SCRATCH|TYPES|PROGRAM.*")
NUMBERS = re.compile(r"INT|NUMBER|[NS]|EPOCHS|NODES|[A-Z_]*(MINUTES|HOURS)")


def choices(value, text):
    """Returns the words that an option takes, if its text lists them: "a, b or c"."""
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
        found = []  # the text names other values too
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
    free: list  # options that take any other value
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
      # The words after the command are its arguments.
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
