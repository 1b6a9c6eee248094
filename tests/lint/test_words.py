#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each folder keeps to its limit of hard words (words.py, word_limits.txt). words.py, comments_only.py and facts_kept.py find
what they should find."""
import sys
import tempfile
from pathlib import Path

import comments_only
import facts_kept
import words
from comments import split
from sources import ROOT

HEADER = """// SPDX-License-Identifier: MIT
#include <a>  // for a
/// Whoever asks where nothing stands. Copies `n` bytes
/// if it fits. See `where`.
inline int f() { return 1'000 / *p; }  ///< "no" string
const char* text = "who waits // where ends"; /* nobody */
auto raw = R"x(// "who")x";  // NOLINT(x)
"""
SCRIPT = '#!/bin/bash\n# Nobody asks\nif true; then # whom\n  echo "a # b"\nfi\ncat <<E\n# who\nE\n'
LISTFILE = '# Where it lies\nset(a "# who" #[[ nobody\nhere ]] b)\n'
MODULE = '"""Who asks."""\n\n\ndef f():\n    """Where."""\n    return "nobody is here now"  # none\n'


def counts(name, text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        table = words.count(Path(folder))
    return {kind: tuple(row[g] for g in ("who", "where", "if", "none", "place")) for (_, kind), row in table.items()}


def test_words_are_counted_by_kind():
    assert counts("a.hpp", HEADER) == {"comments": (1, 1, 1, 2, 1), "messages": (1, 1, 0, 0, 0)}, counts("a.hpp", HEADER)
    assert counts("a.sh", SCRIPT)["comments"] == (1, 0, 0, 1, 0)
    assert counts("CMakeLists.txt", LISTFILE)["comments"] == (0, 1, 0, 1, 0)
    assert counts("a.py", MODULE) == {"comments": (1, 1, 0, 1, 0), "messages": (0, 0, 0, 1, 0)}
    assert counts("a.md", "Who\n```\nwhere\n```\nnone <!-- who -->\n")["pages"] == (1, 0, 0, 1, 0)
    assert counts("tests/a.cpp", 'TEST_CASE("nobody asks") { SUBCASE("who is told"); }')["titles"] == (1, 0, 0, 1, 1)
    assert counts("tests/test_a.py", "def test_who_asks_nobody():\n    pass\n")["titles"] == (1, 0, 0, 1, 0)


def test_verbless_sentences_are_seen():
    assert words.is_verbless("Of each rank, for the whole of the last long step")
    assert not words.is_verbless("Returns the flags of all ranks for the whole step")
    assert not words.is_verbless("The number of rows")


def test_limits():
    table = {("a", "comments"): dict.fromkeys(("words", *words.GROUPS), 0) | {"words": 10000, "who": 6}}
    assert len(list(words.over_limits(table, {}))) == 1
    limits = {("a", "comments"): {"who": 0.6, "where": 9, "none": 9}, ("gone", "pages"): words.FIELD | {"who": 9}}
    assert not list(words.over_limits(table, limits))
    limits["a", "comments"]["who"] = 2.0
    low = words.lowered(table, limits)
    assert low == {("a", "comments"): {"who": 0.6, "where": 1.5, "none": 1.0}}, low
    assert words.read_limits(words.written(low)) == low
    table["a", "comments"]["who"] = 7
    assert list(words.over_limits(table, low)) and words.lowered(table, low) == low, "limits never go up"
    table["a", "comments"] |= {"words": 100, "who": 1}
    assert not list(words.over_limits(table, {})), "two words are no rate"


def same(kind, before, after):
    return split(kind, before)[2] == split(kind, after)[2]


def test_other_comments_are_no_change():
    assert same("c", HEADER, HEADER.replace("Whoever asks where", "A caller\n/// asks if")) and same("c", "a /* x\n */ b", "a b")
    assert same("shell", SCRIPT, SCRIPT.replace("Nobody", "No rank").replace("# whom", "# it"))
    assert same("cmake", LISTFILE, LISTFILE.replace("Where", "If").replace("nobody", ""))
    assert same("python", MODULE, MODULE.replace("Who asks", "A rank asks").replace("Where.", "").replace("# none", ""))


def test_other_code_is_a_change():
    for old, new in (("1'000", "1'001"), ("who waits", "it waits"), ("NOLINT(x)", "NOLINT(y)"), ('// "who"', '// "it"'), ("<a>", "<b>"),
                     ("/ *p", "*p"), ("inline ", "inline // "), ("#include <a>  // for a", "// #include <a>")):
        assert old in HEADER and not same("c", HEADER, HEADER.replace(old, new)), (old, new)
    for old, new in (("true", "false"), ("a # b", "a # c"), ("# who", "# it"), ("#!/bin/bash", "#!/bin/sh")):
        assert old in SCRIPT and not same("shell", SCRIPT, SCRIPT.replace(old, new)), (old, new)
    for old, new in (("# who", "# it"), (" b)", " c)"), ("set", "# set")):
        assert old in LISTFILE and not same("cmake", LISTFILE, LISTFILE.replace(old, new)), (old, new)
    for old, new in (("nobody", "a rank"), ("f()", "g()"), ("    return", "    # return")):
        assert old in MODULE and not same("python", MODULE, MODULE.replace(old, new)), (old, new)
    shown = MODULE + "print(__doc__)\n"
    assert not same("python", shown, shown.replace("Who asks", "It asks")) and same("python", shown, shown.replace("Where", "If"))


def test_what_a_commit_may_not_do():
    assert comments_only.complaint("a.hpp", HEADER, HEADER.replace("Whoever", "A caller")) is None
    assert "code changed" in comments_only.complaint("a.hpp", HEADER, HEADER.replace("1'000", "1"))
    assert comments_only.complaint("a.hpp", None, HEADER) == "added" and comments_only.complaint("a.hpp", HEADER, None) == "removed"
    assert "known" in comments_only.complaint("a.json", "{}", "[]")
    assert "read" in comments_only.complaint("a.py", MODULE, "def f(:\n")
    assert "prints" in comments_only.complaint("a.py", MODULE + "print(__doc__)", MODULE.replace("Who", "A") + "print(__doc__)")


def test_lost_facts_are_listed():
    before = "/// Waits 250 ms for three ranks (RFC 1952, section 2.3), as take_part() and TUTTI_RANK say: see `x/y`, Job::end.\n"
    assert dict(facts_kept.lost("a.hpp", before, before.replace("Waits", "Blocks for"))) == {}
    gone = dict(facts_kept.lost("a.hpp", before, "/// Waits for ranks.\n"))
    assert {"RFC 1952", "section 2.3"} <= set(gone["citation"]) and "250 ms" in gone["number"] and gone["number word"] == ["three"], gone
    assert {"take_part()", "TUTTI_RANK", "x/y", "Job::end"} <= set(gone["identifier"]), gone
    assert "250 ms" in dict(facts_kept.lost("a.hpp", before, before.replace("250 ms", "250 s")))["number"]
    assert not dict(facts_kept.lost("a.hpp", "int a = 250;\n", "int a;\n")), "code is no comment"


def test_folders_keep_their_limits():
    limits = words.read_limits(words.LIMITS.read_text())
    over = list(words.over_limits(words.count(ROOT), limits))
    assert not over, "\n" + "\n".join(over)


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"{name}: ok")


if __name__ == "__main__":
    sys.exit(main())
