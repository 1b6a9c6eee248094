#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Runs schedules of the simulation with fixed seeds, and tests that a seed repeats its history and its failure."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
RUN = Path(__file__).with_name("run.py")

SCENARIOS = ["members", "training", "tables", "hosts", "shares"]


def run(scenario, *options):
    return subprocess.run([BUILD / "tests" / "simulation" / scenario, *options], text=True, capture_output=True)


# Seeds that found errors, with the scenario and its options.
FOUND = [
    # A worker lacked the last message of a step. The others had done the step and waited for the next generation.
    (140, "members"),
    # A server that was removed while it entered a generation waited for its peers and did not end.
    (223, "members"),
    # A worker that was released while it waited for its lease ended with an error.
    (745, "members"),
    # A worker that was asked to leave just before it completed the work did not count: a worker joined without state.
    (434, "members"),
    # In the same case the job ended with exit code 5.
    (805, "members"),
    # A worker lacked the last message of a worker that had completed its work and left, and waited without end.
    (544, "members"),
    # A leaving worker that alone had the state left, because servers counted as members that have it.
    (119, "members", "--rank-timeout", "1"),
    # A worker that joined counted as having the state before its group had formed. The last one with the state left.
    (2425, "members"),
    # A worker had done the work, the last server lost its power before the other workers ended, and the job exited with 5.
    (828, "members"),
    # A worker of ps_async that connected when a server was killed ended instead of waiting for it.
    (108, "tables"),
    # An in-place edit that followed a rename was read while it was half-written.
    (102, "hosts"),
    # Of two hosts that were added at once with --launch-worker, one was lost.
    (22, "hosts"),
    # --launch-worker took a job that had not written its hosts file yet for one that runs, and failed to open the file.
    (25, "hosts"),
    # A host that was added right before the watch of the hosts file began was lost.
    (828, "hosts"),
    # The file of a launcher was not made, because another process had removed the empty folder of its job.
    (354, "hosts"),
    # A worker was killed just before the weights of the others were not finite, and the launcher exited with 5, not with 6.
    (2127, "hosts"),
    # A worker that was asked to leave ended with an error, because its release arrived after its lease had ended.
    (518, "training"),
    # A rank that could not write the audit of a step in time repeated the step after the change of members.
    (603, "training"),
    # A process that joined before the job had begun exchanged other data than the founders, and all trained with it.
    (1578, "training"),
    # A process that joined divided the test images into other steps than the founders: an evaluation left some out.
    (13, "training"),
    # A worker was lost while the founders compared the facts of the job in Trainer's constructor: the others ended.
    (230, "training"),
    # The process that made the folder of checkpoints could not sync it, and no later one did: the power cut took them all.
    (2347, "training"),
    # A full disk kept a generation out of the run's folder: the continued run used its number again in the audit.
    (926, "training"),
]


STAND_IN = """#!/usr/bin/env bash
[[ $1 == --lists ]] && echo 250 && exit
echo "$4 seeds from $2: 0 failed, 1 s simulated, 2 switches"
[[ $2 != 7 || -e $(dirname "$0")/../../mended ]]
"""


class Seeds(unittest.TestCase):
    def test_errors_that_were_found(self):
        for seed, *command in FOUND:
            done = run(*command, "--first-seed", str(seed))
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_members(self):
        done = run("members", "--first-seed", "1", "--seeds", "300")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_lists_of_faults(self):
        """Lists of each of the three changes, and with each of the five faults."""
        for first in 1, 9000, 20000, 28900, 40000, 57840, 70000, 86700:
            done = run("members", "--exhaustive", "--first-seed", str(first), "--seeds", "10")
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_short_time_out(self):
        done = run("members", "--first-seed", "1", "--seeds", "100", "--rank-timeout", "1")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_tables(self):
        done = run("tables", "--first-seed", "1", "--seeds", "300")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_hosts(self):
        done = run("hosts", "--first-seed", "1", "--seeds", "300")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_training(self):
        done = run("training", "--first-seed", "1", "--seeds", "200")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_shares(self):
        done = run("shares", "--first-seed", "1", "--seeds", "60")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_run(self):
        done = subprocess.run([sys.executable, RUN, "--seeds", "20", "--jobs", "1", "--build", BUILD], text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"members: 20 seeds from 1 in \d+ s, .* 0 failed\n$")

    def test_number_of_lists(self):
        # 3 changes, and 1 or 2 of 5 faults of 3 workers, each after 1 to 16 messages.
        self.assertEqual(run("members", "--lists").stdout, "86760\n")
        done = run("members", "--exhaustive", "--first-seed", "86761")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("expected lists from 1 to 86760, got 1 from 86761", done.stderr)

    def test_all_lists_are_run_once_and_again(self):
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            self.write_stand_in(build)
            (build / "mended").touch()
            command = [sys.executable, RUN, "--scenario", "stand_in", "--build", build, "--jobs", "2", "--exhaustive"]
            for seeds in 250, 500:
                done = subprocess.run([*command, "--hours", "1"], text=True, capture_output=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertRegex(done.stdout, f": 250 seeds from 1 in .* in all {seeds} seeds,")
                self.assertTrue(done.stdout.endswith("complete, the last of 250 lists was run\n"), done.stdout)
                self.assertEqual(json.loads((build / "simulation" / "stand_in-exhaustive.json").read_text())["next"], 251)
            done = subprocess.run([*command, "--first-seed", "241", "--seeds", "50"], text=True, capture_output=True)
            self.assertRegex(done.stdout, ": 10 seeds from 241 in ", done.stderr)

    def write_stand_in(self, build, name="stand_in", text=STAND_IN):
        """Writes a program with 250 lists. Its seed 7 fails until the file `mended` exists."""
        program = build / "tests" / "simulation" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)

    def test_night(self):
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            (build / "mended").touch()
            for name in SCENARIOS:
                self.write_stand_in(build, name)
            # Two pieces, with 40 ms for each scenario.
            command = [sys.executable, RUN, "--build", build, "--jobs", "1", "--piece", "0.0033333", "--night",
                       "0.00011111"]
            store = build / "simulation-night.json"
            done = subprocess.run(command, text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            parts = json.loads(store.read_text())
            self.assertEqual([(p["piece"], p["scenario"]) for p in parts], [(n, s) for n in (1, 2) for s in SCENARIOS])

            def all_of(scenario):
                return json.loads((build / "simulation" / f"{scenario}.json").read_text())["seeds"]

            before = {s: all_of(s) for s in SCENARIOS}
            for s in SCENARIOS:
                self.assertEqual(sum(p["seeds"] for p in parts if p["scenario"] == s), before[s])
            # The last part was stopped when its seeds until then were stored. A part that was complete does not run again.
            last = parts[-1]
            last.update(done=False, seeds=last["seeds"] - before[last["scenario"]])
            store.write_text(json.dumps(parts))
            done = subprocess.run(command, text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            after = {s: all_of(s) for s in SCENARIOS}
            name = last["scenario"]
            self.assertGreater(after[name], before[name])
            self.assertEqual({**after, name: 0}, {**before, name: 0})
            seeds = sum(p["seeds"] for p in json.loads(store.read_text()))
            self.assertEqual(seeds, sum(after.values()))
            self.assertIn(f"| all | all | {seeds:,} |", done.stdout)
            # A part that was stopped before its counts were lost begins again, and runs the scenario that it began with.
            parts = json.loads(store.read_text())
            parts[-1].update(done=False, scenario="members", seeds=-10**9)
            store.write_text(json.dumps(parts))
            (build / "simulation" / "members.json").unlink()
            done = subprocess.run(command, text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(json.loads(store.read_text())[-1]["seeds"], all_of("members"))
            self.assertGreater(all_of("members"), 0)
            # All programs must be there before the first part begins.
            (build / "tests" / "simulation" / SCENARIOS[-1]).unlink()
            done = subprocess.run([*command, "--again"], text=True, capture_output=True)
            self.assertEqual(done.stdout, "")
            self.assertIn(f"{SCENARIOS[-1]} is not built", done.stderr)

    def test_same(self):
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            file = build / "histories.json"
            self.write_stand_in(build, "stand_in", "#!/usr/bin/env bash\n[[ $2 != 3 ]] || echo $$\necho \"  repeat: $$\"\n")
            command = [sys.executable, RUN, "--scenario", "stand_in", "--build", build, "--same", "5"]
            done = subprocess.run([*command, "--histories", file], text=True, capture_output=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("4 of 5 seeds have the same history in two processes\n0 of 0 seeds", done.stdout)
            self.assertTrue(done.stdout.endswith("  stand_in: seed 3 differs\n"), done.stdout)
            # Another machine has another history of each seed that FILE contains.
            self.write_stand_in(build, "stand_in", "#!/usr/bin/env bash\necho other\n")
            command[-1] = "6"
            done = subprocess.run([*command, "--histories", file], text=True, capture_output=True)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("6 of 6 seeds have the same history in two processes\n0 of 5 seeds", done.stdout)
            stored = json.loads(file.read_text())
            self.assertEqual(len(stored["stand_in"]), 6)
            # Another revision has other histories.
            file.write_text(json.dumps({**stored, "revision": "another"}))
            done = subprocess.run([*command, "--histories", file], text=True, capture_output=True)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("has the histories of revision another, and this is revision ", done.stderr)
            # A program that ends without a history, or with another code, has no result.
            for text, said in ("echo 1; exit 3", "3"), ("exit 0", "0 and no output"), ("echo 1; kill -9 $$", "-9"):
                self.write_stand_in(build, "stand_in", f"#!/usr/bin/env bash\n{text}\n")
                done = subprocess.run(command, text=True, capture_output=True)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertEqual(done.stderr, f"run.py: stand_in: seed 1 ended with {said}\n")

    def test_histories_of_two_processes_are_equal(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, RUN, "--build", BUILD, "--same", "8", "--histories", Path(folder) / "histories"]
            for known in 0, 8:
                done = subprocess.run(command, text=True, capture_output=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(f"8 of 8 seeds have the same history in two processes\n{known} of {known} seeds",
                              done.stdout)

    def test_run_continues(self):
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            self.write_stand_in(build)
            store = build / "simulation" / "stand_in.json"
            store.parent.mkdir()
            store.write_text(json.dumps({"next": 301, "seeds": 300, "seconds": 9.0, "switches": 5, "failed": [7]}))
            command = [sys.executable, RUN, "--scenario", "stand_in", "--build", build, "--jobs", "1", "--minutes",
                       "1e-6"]
            for code, failed in (1, [7]), (0, []):
                done = subprocess.run(command, text=True, capture_output=True)
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertEqual(json.loads(store.read_text())["failed"], failed)
                (build / "mended").touch()
            done = subprocess.run([sys.executable, RUN, "--table", "--build", build], text=True, capture_output=True)
            self.assertEqual(done.stdout.splitlines()[-1], "| stand_in | 300 | 0.0 | 5 | none |", done.stderr)

    def test_histories_are_equal(self):
        for scenario in SCENARIOS:
            done = run(scenario, "--first-seed", "1000", "--seeds", "20", "--twice")
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_failure_is_repeated(self):
        # A job rarely ends at the moment of its last fault.
        first = run("members", "--first-seed", "1", "--seeds", "10", "--bound", "0")
        self.assertEqual(first.returncode, 1, first.stdout)
        failure = re.search(r"seed \d+: (FAILED: the job has not ended .*)\n  repeat: (.*)\n", first.stdout)
        self.assertIsNotNone(failure, first.stdout)
        again = subprocess.run(failure[2].split(), text=True, capture_output=True)
        self.assertEqual(again.returncode, 1, again.stdout)
        self.assertTrue(again.stdout.startswith(failure[1]), again.stdout)
        # The lines of a history have a time, and the last one is the failure.
        story = again.stdout.splitlines()[1:-3]
        self.assertTrue(all(re.match(r"\d+\.\d{6} \S", line) for line in story), again.stdout)
        self.assertIn("FAILED: the job has not ended", story[-1])


if __name__ == "__main__":
    sys.exit(unittest.main())
