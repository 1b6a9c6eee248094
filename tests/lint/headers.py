# SPDX-License-Identifier: MIT
"""Lists the headers that the tests of this folder check, and the headers that they include. Stores which headers have
passed."""
import hashlib
import json
import os
import re
from pathlib import Path

from sources import BUILD, ROOT, sources

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]')
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|endif)")
RECORDS = BUILD / "lint"
# CMake writes the include folders of each component with an installed library to this folder.
COMPONENTS = BUILD / "tests" / "components"
# Folders of backends/ that need no library.
PLAIN = ("make",)


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

    def add(self, digests):
        """Records that these headers passed: name -> digest."""
        self._digests.update(digests)
        RECORDS.mkdir(exist_ok=True)
        aside = self._file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(self._digests, indent=0, sort_keys=True))
        aside.rename(self._file)
