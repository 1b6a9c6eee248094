#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests planted.py with a small program in place of the scenarios."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import planted

# Its seeds fail: 3 with --rank-timeout, 120 with a fault.
STAND_IN = """#!/usr/bin/env bash
[[ $TUTTI_PLANTED != other ]] || exit 5
for ((seed = $2; seed < $2 + $4; ++seed)); do
  if [[ ($seed == 3 && -n $6) || ($seed == 120 && -n $TUTTI_PLANTED) ]]; then echo "seed $seed: FAILED: it"; exit 1; fi
done
"""
HEADER = """// SPDX-License-Identifier: MIT
#pragma once
inline int value() { return 1; }
inline int other() { return 1; }
"""
# Its seed 7 fails if value() is wrong.
PROGRAM = """#include <cstdio>
#include <cstdlib>
#include <tutti/a.hpp>
int verdict();
int main(int, char** a) {
  const int first = std::atoi(a[2]), seeds = std::atoi(a[4]);
  const bool fails = value() + verdict() != 1 && first <= 7 && 7 < first + seeds;
  if (fails) std::printf("seed 7: FAILED: a wrong value; simulated 3 ms\\n");
  return fails ? 1 : 0;
}
"""


class Planted(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_seeds_of_a_fault(self):
        """A seed that fails with the options of a fault, but without the fault, does not count. A search continues."""
        program, store, slow = self.folder / "stand_in", self.folder / "found.json", ("--rank-timeout", "1")
        program.write_text(STAND_IN)
        program.chmod(0o755)
        found = planted.Score(store).find(program, "fault", "key", "sources", 100, slow)
        self.assertEqual((found["seed"], found["seeds"]), (None, 100))
        found = planted.Score(store).find(program, "fault", "key", "sources", 200, slow)
        self.assertEqual((found["seed"], found["seeds"], found["line"]), (120, 120, "FAILED: it"))
        self.assertEqual(list(json.loads(store.read_text())["without"].values()), [True, False])
        self.assertEqual(planted.Score(store).find(program, "fault", "another key", "sources", 60, slow)["seed"], None)
        self.assertEqual(planted.Score(store, ends=0).find(program, "late", "key", "sources", 60)["seeds"], 0)
        with self.assertRaisesRegex(SystemExit, "stand_in, other: seeds from 1 ended with 5"):
            planted.Score(store).find(program, "other", "key", "sources", 10)

    def score(self, faults, *options):
        """Runs planted.py. Returns its exit code and its output."""
        names = list(dict.fromkeys(f[0] for f in faults))
        output = io.StringIO()
        with mock.patch.multiple(planted, ROOT=self.folder, PLANTED=faults, SCENARIOS=names), \
                mock.patch.object(sys, "argv", ["planted.py", "--build", str(self.folder / "build"), "--seeds", "60", *options]), \
                contextlib.redirect_stdout(output):
            return planted.main(), output.getvalue()

    def test_score(self):
        """Only changed sources are compiled and run again, and each fault of a program is planted alone."""
        self.write("include/tutti/a.hpp", HEADER)
        self.write("tests/simulation/tiny.cpp", PROGRAM)
        self.write("tools/launch/job/job_verdict.cpp", "// SPDX-License-Identifier: MIT\nint verdict() { return 0; }\n")
        faults = [("tiny", "wrong", "a.hpp", "value() { return 1; }", "value() { return 2; }"),
                  ("tiny", "verdict", "tools/launch/job/job_verdict.cpp", "return 0;", "return PLANTED ? 4 : 0;"),
                  ("tiny", "equal", "a.hpp", "other() { return 1; }", "other() { return 2; }")]
        # The whole function is no expression or statement, so both texts name the place of the fault.
        faults = [(s, n, f, t, w if "PLANTED" in w else t.replace("return 1", "return PLANTED ? 2 : 1"))
                  for s, n, f, t, w in faults]
        code, output = self.score(faults)
        self.assertEqual(code, 1)
        self.assertIn("tiny: compiled in ", output)
        self.assertIn("| tiny | 3 | 2 | 2 | 1 | 0 |\n", output)
        self.assertTrue(output.endswith("  tiny: equal: not found in 60 seeds\n"), output)
        code, output = self.score(faults, "--details")
        self.assertNotIn("compiled", output)
        self.assertIn("| tiny | wrong | 7 |", output)
        # A fault more needs another program, and only its own seeds.
        faults.append(("tiny", "added", "a.hpp", "int value() {", "int value() { if (PLANTED) return 3;"))
        code, output = self.score(faults)
        self.assertEqual([line.split(":")[0] for line in output.splitlines() if ": seed" in line], ["added"])
        # With a time of zero no seed is run, and results of other sources do not count.
        self.write("include/tutti/a.hpp", HEADER + "// changed\n")
        code, output = self.score(faults, "--minutes", "0")
        self.assertEqual(code, 1)
        self.assertIn("| tiny | 4 | 0 | 0 | 0 | 4 |\n", output)
        faults[0] = ("tiny", "wrong", "a.hpp", "no such text", ";")
        code, output = self.score(faults)
        self.assertIn("  tiny: wrong: its text is not in the file\n", output)
        self.assertIn("| tiny | 4 | 2 | 2 | 1 | 1 |\n", output)

    def test_groups(self):
        """The groups of the launcher's library that have a changed source are compiled, with the changed source."""
        unity = "build/tools/CMakeFiles/tutti_tools_launch.dir/Unity/unity_"
        for i, name in enumerate(("a", "b")):
            self.write(f"{unity}{i}_cxx.cxx", f'#include "{self.folder}/tools/launch/{name}.cpp"\n')
        with mock.patch.object(planted, "ROOT", self.folder):
            program = planted.Program("hosts", self.folder / "build")
            group, = program.groups([program.overlay / "tools/launch/b.cpp"])
            self.assertEqual(group.read_text(), '#include "tools/launch/b.cpp"\n')
            with self.assertRaisesRegex(SystemExit, 'has no library of the launcher with "tools/launch/c.cpp"'):
                program.groups([program.overlay / "tools/launch/c.cpp"])

    def write(self, path, text):
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    sys.exit(unittest.main())
