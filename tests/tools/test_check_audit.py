#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that tutti-check-audit accepts good audits in both forms, and prints the faults of bad ones."""
import json
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
TRAIN = str(BUILD / "examples" / "train_cifar10")
CHECK = str(BUILD / "tools" / "tutti-check-audit")
GOOD = "0 1 0: 0 1\n0 2 0: 2 3\n1 3 0: 3 2\n1 4 0: 1 0\n"
ELASTIC = ("generation 1 1 0 0\n0 1 0 1: 0 1\ngeneration 2 1 0 1\nclosed 0 1 0 2: 0 1\n0 2 0 2: 2 3\n1 3 0 2: 3 2\n"
           "1 4 0 2: 1 0\n")


class CheckAudit(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.run_dir = Path(temp.name)
        self.file = self.run_dir / "audit-rank0.txt"
        (self.run_dir / "log.jsonl").write_text(json.dumps({"event": "start", "train_images": 4}) + "\n")

    def check(self, text, code, *options, runs=None):
        if text is not None:
            self.file.write_text(text)
        done = subprocess.run([CHECK, *options, *map(str, runs or [self.run_dir])], text=True, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_good(self):
        for text in (GOOD, ELASTIC):
            said = self.check(text, 0, "--epochs", "2")
            self.assertEqual(said, "epoch 0: 4 of 4 samples, each once\nepoch 1: 4 of 4 samples, each once\n")
        # The last epoch may be incomplete, unless an option requires its end.
        part = GOOD.replace("1 4 0: 1 0\n", "")
        self.assertIn("epoch 1: 2 of 4 samples\n", self.check(part, 0))
        self.assertIn("epoch 1: 2 missing, 0 seen again (0, 1)", self.check(part, 3, "--epochs=2"))
        # Audits in the folders of several hosts.
        with tempfile.TemporaryDirectory() as other:
            Path(other, "audit-rank1.txt").write_text("1 4 1: 0 1\n")
            self.check(part, 0, "--epochs", "2", runs=[self.run_dir, other])
        self.check(GOOD, 0, "--num_examples", "4", runs=[self.file])

    def test_bad(self):
        said = self.check(GOOD.replace("0 2 0: 2 3", "0 2 0: 2"), 3)
        self.assertIn("[audit] expected every sample once in each epoch, got epoch 0: 1 missing, 0 seen again (3)",
                      said)
        said = self.check(GOOD.replace("1 4 0: 1 0", "1 4 0: 1 3"), 3)
        self.assertIn(f"epoch 1: 1 missing, 1 seen again (0, 3), sample 3: {self.file} line 3 and {self.file} line 4", said)
        self.assertIn("epoch 1: 3 of 4 samples, 1 seen again\n", said)
        for bad, line in ((GOOD + "x\n", 5), (GOOD + "1 4 0: 9\n", 5), (GOOD + "1 4 0: 1", 5), (ELASTIC + "1 5 0 3: 1\n", 8),
                          (ELASTIC + "\0\xff\n", 8)):
            self.assertIn(f"{self.file} line {line}", self.check(bad, 3))
        self.assertIn("a generation that its coordinator has begun, got generation 3", self.check(ELASTIC + "1 5 0 3: 1\n", 3))

    def test_full_disk(self):
        """A run with an audit ends before it trains on samples that the audit does not have, and can be resumed."""
        run = self.run_dir / "run"
        audit = run / "audit-rank0.txt"

        def train(epochs, code, *more, room=None):
            limit = None if room is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            # Python ignores the signal of the limit, and so does the program.
            done = subprocess.run([TRAIN, "--dataset", "synthetic", "--num-examples", "64", "--depth", "8", "--batch-size", "8",
                                   "--epochs", str(epochs), "--audit", "--run-dir", run, *more], text=True, timeout=300,
                                  capture_output=True, preexec_fn=limit, restore_signals=False)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            return done.stdout + done.stderr

        train(1, 0)
        said = train(3, 3, "--resume", room=audit.stat().st_size + 100)
        self.assertIn(f"[file] expected to write {audit}, got ", said)
        self.assertTrue(audit.read_text().endswith("\n"))
        train(3, 0, "--resume")
        self.check(None, 0, "--epochs", "3", runs=[run])

    def test_no_such_run(self):
        for run in ("nowhere", "", "/dev/null", "a" * 5000):
            self.assertIn("expected a run's folder or an audit file, got ", self.check(None, 3, runs=[run]))

    def test_missing_audit(self):
        self.assertIn("expected audit-rank0.txt", self.check(None, 3))
        self.check(GOOD, 3, "--num-examples", "4", runs=[self.run_dir / "none"])
        (self.run_dir / "log.jsonl").unlink()
        self.assertIn("--num-examples", self.check(GOOD, 2))
        self.check(GOOD, 2, "--epochs", "0")
        self.check(GOOD, 2, "--epochs")
        self.check(GOOD, 2, "--what")
        self.assertIn("Usage", self.check(GOOD, 0, "--help"))


if __name__ == "__main__":
    if not os.access(CHECK, os.X_OK):
        sys.exit(f"{CHECK} has not been built")
    unittest.main()
