#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Builds and runs the examples of README.md, CONTRIBUTING.md, SECURITY.md, bench/README.md, infra/README.md and the pages below
docs/.

A block of C++ or CMake follows <!-- snippet: path/to/file.cpp#region --> and equals the lines between "// [region]" and "//
[/region]" of that file ("#" in CMake's), without the indentation that they share. A shell block follows <!-- run -->, and
then this test runs it, or <!-- not run: reason -->. Blocks begin at the left margin. A link to a file leads to a file, and
one to a heading leads to a heading. A path of the tree in a code span exists. Every page can be reached by links from
README.md. test_add_pages.py runs the blocks of docs/how-to/add-a*.md that change the tree.
"""
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from sources import BUILD, ROOT

BLOCK = re.compile(r"(?:^<!-- *(?P<note>[^\n]*?) *-->\n+)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)")
INDENTED = re.compile(r"^[ \t]+```\w", re.M)
HEADING = re.compile(r"^#+ +(.+?) *$", re.M)
COMPILED = ("examples/", "tests/", "bench/")


def region(name, text):
    """Returns the lines of a region, or `None`."""
    match = re.search(rf"^[ \t]*(?://|#) \[{re.escape(name)}\]\n(.*?)^[ \t]*(?://|#) \[/{re.escape(name)}\]$", text, re.M | re.S)
    return textwrap.dedent(match.group(1)) if match else None


def snippet_complaint(note, text):
    match = re.fullmatch(r"snippet: *(\S+)#(\S+)", note or "")
    if not match:
        return "a block of C++ or CMake needs <!-- snippet: file.cpp#region -->"
    path, name = match.groups()
    if not path.startswith(COMPILED) or not path.endswith((".cpp", "CMakeLists.txt")) or not (ROOT / path).is_file():
        return f"{path} is no program of examples/, tests/ or bench/"
    want = region(name, (ROOT / path).read_text())
    if want is None:
        return f"{path} has no region [{name}]"
    return None if want == text else f"differs from {path}#{name}, which reads:\n{want}"


def shell_complaint(note, text, folder):
    if re.fullmatch(r"not run: *\S.*", note or ""):
        return None
    if note != "run":
        return "a shell block needs <!-- run --> or <!-- not run: reason -->"
    commands = re.sub(r"^\$ ", "", text, flags=re.M)
    # mpirun runs as root only with two variables.
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=folder, env=environment, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=600)
    return None if done.returncode == 0 else f"ends with status {done.returncode}:\n{done.stdout}"


def block_complaint(match, folder, document):
    if re.match(r"(file|add to|run in the tree)\b", match["note"] or ""):
        return None if document.startswith("docs/how-to/add-a") else "only the pages that test_add_pages.py follows change the tree"
    language = match["language"].strip().lower()
    if language in ("cpp", "c++", "cxx", "cmake"):
        return snippet_complaint(match["note"], match["text"])
    if language in ("sh", "bash", "shell", "console"):
        return shell_complaint(match["note"], match["text"], folder)
    return None if language else "a block names its language (text if none)"


def anchors(text):
    """Returns the fragments of links to the headings of a page, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-") for title in HEADING.findall(BLOCK.sub("", text))}


def link_complaint(document, path, heading):
    if "://" in path or path.startswith("mailto:"):
        return None
    to = document.parent / path if path else document
    if not to.exists():
        return f"a link to {path}, which does not exist"
    if heading and to.suffix == ".md" and heading not in anchors(to.read_text()):
        return f"a link to {path}#{heading}, and no such heading is there"
    return None


PATH = re.compile(r"`((?:include|backends|datasets|src|tools|examples|bench|tests|infra|cmake|docs)/[\w./-]+\.\w+|[a-z_]+/[\w/]+\.hpp)`")


def path_complaints(text, tails):
    """Returns the paths in code spans that are not the end of any path in the tree. tails: the ends of all paths of the tree.
    my_... is a reader's own file, and tutti/... is a path of an #include."""
    return [f"{path} is no file of the tree" for path in PATH.findall(BLOCK.sub("", text))
            if path not in tails and "/my_" not in path and not path.startswith("tutti/")]


def tails_of_the_tree():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True)
    listed = done.stdout.split("\n") if done.returncode == 0 and done.stdout else \
        [str(f.relative_to(ROOT)) for f in ROOT.rglob("*") if not f.relative_to(ROOT).parts[0].startswith("build")]
    return {"/".join(parts[i:]) for parts in (name.split("/") for name in listed) for i in range(len(parts))}


def unreached(documents):
    """Returns the pages that cannot be reached by links from README.md."""
    reached, to_read = set(), [(ROOT / "README.md").resolve()]
    while to_read:
        document = to_read.pop()
        if document in reached or document.suffix != ".md" or not document.is_file():
            continue
        reached.add(document)
        to_read += [(document.parent / path).resolve() for path, _ in LINK.findall(BLOCK.sub("", document.read_text())) if path]
    return [d for d in documents if d.resolve() not in reached]


def checkout(folder):
    """Makes a folder that looks like the source tree with its build, and that keeps the files that commands write."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith(("build", ".git", "runs")):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").symlink_to(BUILD)


def check_the_checker():
    assert region("a", "x\n  // [a]\n  y;\n    z;\n  // [/a]\n") == "y;\n  z;\n"
    assert region("b", "// [a]\n// [/a]\n") is None
    assert snippet_complaint(None, "") and snippet_complaint("snippet: nowhere.cpp#a", "")
    assert shell_complaint(None, "true", ".") and shell_complaint("not run:", "true", ".")
    assert shell_complaint("run", "false\n", ".") and not shell_complaint("run", "$ true\n", ".")
    assert not shell_complaint("not run: it would reboot", "false\n", ".")
    assert region("c", "# [c]\nx\n# [/c]\n") == "x\n"
    assert anchors("# What `it` is, and why\n```sh\n# no\n```\n") == {"what-it-is-and-why"}
    assert link_complaint(ROOT / "README.md", "nowhere.md", None) and link_complaint(ROOT / "README.md", "", "nowhere")
    assert not link_complaint(ROOT / "README.md", "LICENSE", None)
    assert unreached([ROOT / "nowhere.md", ROOT / "README.md"]) == [ROOT / "nowhere.md"]
    assert path_complaints("`comm/gone.hpp` `tests/gone.py` `comm/here.hpp` `10.0/x.txt`", {"comm/here.hpp"}) == [
        "comm/gone.hpp is no file of the tree", "tests/gone.py is no file of the tree"]
    assert INDENTED.search("1. x\n\n   ```sh\n") and not INDENTED.search("```sh\n")
    blocks = list(BLOCK.finditer("<!-- run -->\n```sh\na\n```\n\ntext\n\n```text\nb\n```\n"))
    assert [(b["note"], b["language"], b["text"]) for b in blocks] == [("run", "sh", "a\n"), (None, "text", "b\n")]


def main():
    check_the_checker()
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "bench" / "README.md", ROOT / "bench" / "RESULTS.md",
                 ROOT / "infra" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    tails = tails_of_the_tree()
    found, blocks = [f"{d.relative_to(ROOT)}: no link leads there from README.md" for d in unreached(documents)], 0
    with tempfile.TemporaryDirectory() as folder:
        checkout(Path(folder))
        for document in documents:
            name = document.relative_to(ROOT)
            if not document.is_file():
                found.append(f"{name} is missing")
                continue
            text = document.read_text()
            for match in BLOCK.finditer(text):
                blocks += 1
                why = block_complaint(match, folder, str(name))
                if why:
                    found.append(f"{name}:{text.count(chr(10), 0, match.start('language')) + 1}: {why}")
            found += [f"{name}: {why}" for why in path_complaints(text, tails)]
            for indented in INDENTED.finditer(text):
                found.append(f"{name}:{text.count(chr(10), 0, indented.start()) + 1}: a block that is indented, and so not looked at")
            for path, heading in LINK.findall(BLOCK.sub("", text)):
                why = link_complaint(document, path, heading)
                if why:
                    found.append(f"{name}: {why}")
    print("\n".join(found))
    print(f"{len(documents)} documents, {blocks} blocks, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    os.environ.pop("TUTTI_SANITIZE", None)
    sys.exit(main())
