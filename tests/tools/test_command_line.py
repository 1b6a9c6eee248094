#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the command lines of all programs: the message for bad input, and the exit code 2."""
import os
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
LONGEST = 131000  # Linux accepts arguments of up to 128 KiB
MILLION = 1 << 20


@dataclass
class Program:
    path: str
    begin: tuple  # words before the options
    end: tuple  # words after them
    accepted: int  # the exit code of begin + end, with files that do not exist
    text: tuple  # an option that takes any text, and a value
    number: tuple  # an option, a number outside of its range, and the range in the message
    near: tuple  # a misspelled option, and the right one
    switch: str = ""

    @property
    def name(self):
        return os.path.basename(self.path)


PROGRAMS = [
    Program("tools/tutti-launch", ("-n", "1"), ("true",), 0, ("--job-name", "x"), ("--root-port", "65535", "from 1 to 65534"),
            ("--num-worker=1", "--num-workers"), "--elastic"),
    Program("tools/tutti-data", ("convert", "-i", "none"), ("-o", "out"), 3, ("--output", "out"), ("--quality", "101", "from 1 to 100"),
            ("--qualty=3", "--quality"), "--keep-format"),
    Program("tools/tutti-check-audit", (), ("none",), 3, (), ("--epochs", "0", "from 1 to"), ("--epoch=3", "--epochs")),
    Program("tools/tutti-report", (), ("none",), 3, ("--title", "x"), (), ("--titl=x", "--title")),
    Program("tools/tutti-predict", (), ("none", "image"), 3, ("--classes", "none"), ("--top", "0", "from 1 to"),
            ("--precison=f32", "--precision"), "--json"),
    Program("tools/tutti-export", (), ("none", "out.onnx"), 3, ("--classes", "none"), ("--image-size", "4097", "from 1 to 4096"),
            ("--inpu=pixels", "--input")),
    Program("tools/generate-trainer", ("--worker_gpu_count", "0", "--trainer_script_dir", "out", "--workers_file_path", "none"),
            ("--worker_count", "1", "--training_script", "p"), 3, (), ("--worker_count", "65537", "from 0 to 65536"), ()),
    Program("examples/train_cifar10", ("--dry-run", "--dataset", "synthetic"), (), 0, ("--run-dir", "out"),
            ("--batch-size", "0", "1 to 1000000"), ("--epoch=3", "--epochs"), ""),
]


class CommandLines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_words(self, program, words):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
        if program.name == "tutti-launch":
            environment["TUTTI_STATE_DIR"] = f"{self.folder}/state"
            os.makedirs(f"{self.folder}/state", 0o700, exist_ok=True)
        return subprocess.run([BUILD / program.path, *words], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=600)

    def gives(self, program, words, code, part=""):
        done = self.run_words(program, (*program.begin, *words, *program.end))
        said = done.stderr.decode("ascii")  # bytes that are not ASCII are escaped
        shown = [w[:60] for w in words]
        self.assertEqual(done.returncode, code, f"{program.name} {shown}: {said[:500]}")
        if code == 2:
            self.assertRegex(said, rf"(?s)^{program.name}: \[.+\] expected .+, got .+", shown)
            self.assertLess(len(said), 2000, shown)
        self.assertIn(part, said, shown)

    def each(self):
        return [p for p in PROGRAMS if os.access(BUILD / p.path, os.X_OK)]

    def test_unknown_options(self):
        for p in self.each():
            if p.near:
                near, option = p.near
                self.gives(p, (near,), 2, f"did you mean {option}")
                self.gives(p, (near.replace("--", "--no-such-"),), 2, "got ")
                self.gives(p, ("-%",), 2, "'-%'")
                self.gives(p, ("--=1",), 2, "got ")
                self.gives(p, ("---",), 2, "got ")

    def test_values_that_are_missing(self):
        for p in self.each():
            for option in filter(None, {*p.text[:1], *p.number[:1]}):
                done = self.run_words(p, (*p.begin, option))
                self.assertEqual(done.returncode, 2, p.name)
                self.assertIn(f"[{option}] expected a value, got none", done.stderr.decode())

    def test_empty_values_do_not_take_the_next_word(self):
        for p in self.each():
            for option in filter(None, {*p.text[:1], *p.number[:1]}):
                if p.name == "train_cifar10" and option in p.text:
                    continue  # the default there is an empty text
                for words in ((f"{option}=",), (option, "")):
                    self.gives(p, words, 2, f"[{option}] expected")
        launch = PROGRAMS[0]
        self.gives(launch, ("--mpi-arg=", "--launcher", "local"), 2, "[--mpi-arg] expected --launcher mpi")

    def test_values_out_of_range(self):
        for p in self.each():
            if p.number:
                option, number, allowed = p.number
                self.gives(p, (option, number), 2, allowed)
                for bad in ("x", "1x", "1e99999", "9" * 30, "-1", " 1", "\N{ARABIC-INDIC DIGIT ONE}"):
                    self.gives(p, (f"{option}={bad}",), 2, f"[{option}] expected")

    def test_an_option_that_is_given_twice(self):
        """Tests that the last value of an option counts, but that the first value is checked too."""
        for p in self.each():
            if p.text:
                self.gives(p, (*p.text, *p.text), p.accepted)
            if p.number and p.name != "train_cifar10":
                option, number, _ = p.number
                self.gives(p, (option, number, option, "1"), 2, f"'{number}'")
        done = self.run_words(PROGRAMS[0], ("-n", "3", "-n2", "--num_workers=1", "echo", "-n", "5"))
        self.assertEqual(done.stdout, b"[0] 5\n")

    def test_switches_take_no_value(self):
        for p in self.each():
            if p.switch:
                for value in ("", "1"):
                    self.gives(p, (f"{p.switch}={value}",), 2, f"[{p.switch}] expected no value, got '{value}'")

    def test_bytes_that_are_not_utf_8(self):
        for p in self.each():
            if p.number:
                self.gives(p, (p.number[0].encode() + b"=\xff\xfe\x1b[31m",), 2, "\\xff\\xfe\\x1b[31m")
            if p.near:
                self.gives(p, (b"--\xff\n",), 2, "\\xff\\x0a")
                self.gives(p, (b"-\xff",), 2, "\\xff")
            if p.text:
                done = self.run_words(p, (*p.begin, p.text[0], b"out\xff", *p.end))
                self.assertIn(done.returncode, (p.accepted, 3), p.name)

    def test_long_words(self):
        for p in self.each():
            if p.number:
                self.gives(p, (p.number[0], "7" * LONGEST), 2, "777...")
            if p.near:
                self.gives(p, ("--" + "x" * LONGEST,), 2, "xxx...")
                self.gives(p, ("-" + "x" * LONGEST,), 2)
            if p.text:
                option, value = p.text
                self.gives(p, (*[option, "y" * LONGEST] * (MILLION // LONGEST + 1), option, value), p.accepted)

    def test_names_are_accepted_with_both_dashes(self):
        for p in self.each():
            if p.number:
                option, number, allowed = p.number
                self.gives(p, ("--" + option[2:].replace("-", "_"), number), 2, allowed)
                self.gives(p, ("--" + option[2:].replace("_", "-"), number), 2, allowed)

    def test_help(self):
        for p in self.each():
            for option in ("--help", "-h"):
                done = self.run_words(p, (*p.begin, option, "--no-such"))
                if p.name == "train_cifar10":
                    continue  # the program checks the words after it
                self.assertEqual((done.returncode, done.stderr), (0, b""), p.name)
                self.assertIn(f"sage: {p.name}".encode(), done.stdout)
            done = self.run_words(p, ("--version",))
            self.assertRegex(done.stdout.decode(), rf"^{p.name} of tutti \d+\.\d+\.\d+\n$")
            if b"--help-all" in self.run_words(p, ("--help",)).stdout:
                self.assertGreater(len(self.run_words(p, ("--help-all",)).stdout), len(self.run_words(p, ("--help",)).stdout))

    def test_the_words_after_the_command_belong_to_it(self):
        launch = PROGRAMS[0]
        show = ("sh", "-c", 'printf "(%s)" "$@"', "name")
        for between in ((), ("--",), ("-n", "1", "--launcher=local")):
            words = ("--help", "--", "-n", "0", "--no-such", "", "--job_name=")
            done = self.run_words(launch, ("--num_workers", "1", *between, *show, *words))
            self.assertEqual((done.returncode, done.stdout.decode()), (0, f"[0] {''.join(f'({w})' for w in words)}\n"))

    def test_the_words_of_a_training_script_belong_to_it(self):
        Path(self.folder, "hosts").write_text("one\n")
        words = ["-x", "3", "--workers-file-path=hosts", "--training_script", "p", "a", "-", "--worker_gpu_count=0", "b", "--worker_count",
                 "1", "--unknown=c", "--trainer_script_dir", "out", "-hidden"]
        done = self.run_words(next(p for p in PROGRAMS if p.name == "generate-trainer"), words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(Path(self.folder, "out", "one.sh").read_text(), r"p'? '?a'? '?-'? '?-x'? '?3'? '?b'? '?--unknown=c'? '?-hidden")


if __name__ == "__main__":
    if not os.access(BUILD / "tools" / "tutti-launch", os.X_OK):
        sys.exit(f"{BUILD}/tools/tutti-launch has not been built")
    unittest.main()
