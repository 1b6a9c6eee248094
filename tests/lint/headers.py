# SPDX-License-Identifier: MIT
"""Lists the headers that the tests of this folder check, and the headers that they include. Stores which headers have
passed."""
import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

from sources import BUILD, ROOT, sources

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]')
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|endif)")
RECORDS = BUILD / "lint"
# CMake writes the include folders of each component with an installed library to this folder.
COMPONENTS = BUILD / "tests" / "components"
# Folders of backends/ that need no library.
PLAIN = ("make",)
# In a new build folder: checks the headers that changed in the last COMMITS commits, and one of SHARE others.
COMMITS, SHARE = 20, 16


def include_options():
    """Returns the compiler's options for tutti and for the libraries of all installed components."""
    own = [ROOT / "include", BUILD / "include"]
    folders = {line for file in COMPONENTS.glob("*.includes") for line in file.read_text().splitlines() if line}
    others = sorted(f for f in folders if Path(f) not in own and f != "/usr/include")
    return ["-std=c++20", "-pthread", *(f"-I{f}" for f in own), *(word for f in others for word in ("-isystem", f))]


def headers():
    """Returns {name in an #include: path} of all headers, without headers of backends/ that need a missing library."""
    found, missing = {}, set()
    there = {file.stem for file in COMPONENTS.glob("*.includes")}
    for path in sources(".hpp", folders=("include", "backends", "datasets")):
        parts = path.relative_to(ROOT).parts
        if parts[0] == "backends" and len(parts) > 2 and parts[1] not in PLAIN and parts[1] not in there:
            missing.add(f"backends/{parts[1]}: not checked, its library is not installed")
            continue
        found["/".join(parts[1:] if parts[0] == "include" else ("tutti",) + parts)] = path
    print("\n".join(sorted(missing)))
    return found


class Includes:
    """The headers that each header includes, directly or indirectly."""

    def __init__(self, files):
        self.files = files
        self._names = {path: name for name, path in files.items()}
        self.always, self.possible = {}, {}  # for each header: the names in #include lines outside of any #if, and in
                                             # all #include lines
        for name, path in files.items():
            self.always[name], self.possible[name] = self._read(path)

    def _read(self, path):
        always, possible, depth = set(), set(), 0
        for line in path.read_text().splitlines():
            if condition := CONDITION.match(line):
                depth += 1 if condition[1] == "if" else -1
            if include := INCLUDE.match(line):
                name = include[2]
                if include[1] == '"':
                    name = self._names.get((path.parent / name).resolve(), name)
                possible.add(name)
                if depth == 0:
                    always.add(name)
        return always, possible

    def closure(self, name, direct):
        """Returns all headers that `name` includes directly or indirectly. direct: self.always or self.possible."""
        seen, queue = set(), [name]
        while queue:
            for other in direct.get(queue.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return seen - {name}


class Passed:
    """The headers that passed in this build folder, each with a digest of what the check read. TUTTI_CHECK_ALL=1 ignores them,
    as a new build folder does."""

    def __init__(self, check, tool):
        self._file = RECORDS / f"{check}.json"
        self._tool = tool
        self._digests = {}
        self._texts = {}
        try:
            if os.environ.get("TUTTI_CHECK_ALL", "") in ("", "0"):
                self._digests = json.loads(self._file.read_text())
        except (OSError, ValueError):
            pass
        if not isinstance(self._digests, dict):
            self._digests = {}

    def _text(self, path):
        if path not in self._texts:
            self._texts[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._texts[path]

    def digest(self, paths):
        return hashlib.sha256("\n".join([self._tool, *(self._text(p) for p in sorted(paths))]).encode()).hexdigest()

    def has(self, name, digest):
        return self._digests.get(name) == digest

    def knows(self, name):
        """Returns whether any version of the header passed."""
        return name in self._digests

    def add(self, digests):
        """Records that these headers passed: name -> digest."""
        self._digests.update(digests)
        RECORDS.mkdir(exist_ok=True)
        aside = self._file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(self._digests, indent=0, sort_keys=True))
        aside.rename(self._file)


def edited():
    """Returns the paths of the files that differ from those of COMMITS commits ago, or an empty set without git's history."""
    done = subprocess.run(["git", "diff", "--name-only", f"HEAD~{COMMITS}"], cwd=ROOT, text=True, capture_output=True)
    return {ROOT / name for name in done.stdout.splitlines()} if done.returncode == 0 else set()


def chosen(digests, files, changed, known):
    """Returns the headers to check of those that have not passed, which are the keys of `digests`: the `known` ones, those whose
    path is in `changed`, and one of SHARE others. The digests choose which, so that each version of the tree checks others."""
    turn = int(hashlib.sha256("".join(sorted(digests.values())).encode()).hexdigest(), 16) % SHARE
    return [n for i, n in enumerate(sorted(digests)) if n in known or files[n] in changed or i % SHARE == turn]


def check_the_choice():
    files = {f"h{i}": Path(f"/h{i}") for i in range(64)}
    versions = [{n: f"{n}.{version}" for n in files} for version in range(200)]
    turns = [chosen(digests, files, set(), set()) for digests in versions]
    assert all(len(turn) == 64 // SHARE for turn in turns) and {n for turn in turns for n in turn} == files.keys()
    assert turns[0] == chosen(versions[0], files, set(), set())
    assert {"h1", "h2"} <= set(chosen(versions[0], files, {Path("/h1")}, {"h2"}))


def to_check(passed, digests, files):
    """Returns the headers to check, and how many are left out. A header that passed is checked again if its digest has changed.
    Of the headers that have never passed in this build folder, the edited ones are checked and a share of the others, unless
    TUTTI_CHECK_ALL is set. digests: {header: digest}; files: {header: path}."""
    check_the_choice()
    waiting = {n: d for n, d in digests.items() if not passed.has(n, d)}
    if os.environ.get("TUTTI_CHECK_ALL", "") not in ("", "0"):
        return list(waiting), 0
    names = chosen(waiting, files, edited(), {n for n in waiting if passed.knows(n)})
    return names, len(waiting) - len(names)
