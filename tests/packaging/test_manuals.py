#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# needs: stage
"""Tests that the manual pages and the completions of bash and zsh in an installation contain the options that each
installed program's --help lists, and complete them."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
# Prints how many words zsh offers after a line. zsh runs in a separate terminal.
ZSH = r"""
zmodload zsh/zpty
zpty one zsh -f -i
zpty -w one "unsetopt zle_bracketed_paste; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w one 'LISTMAX=10000; COLUMNS=300; LINES=1000; say() { print -r -- "<<$compstate[nmatches]>>" }'
zpty -w one 'offer() { comppostfuncs=(say); zle list-choices }; zle -N offer; bindkey "^X" offer; print rea""dy'
zpty -r -m one out '*ready*'
zpty -n -w one "$2"$'\x18'
zpty -r -m one out '*<<*>>*'
print -r -- "$out"
zpty -d one
"""


def run(*argv, **options):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
    return subprocess.run([str(a) for a in argv], text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
                          env=dict(environment, COLUMNS="100", MANWIDTH="100", **options.pop("env", {})), **options)


class Manuals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory()
        cls.prefix = Path(cls.work.name) / "prefix"
        stage = Path(os.environ.get("STAGED_INSTALL", "/nonexistent"))
        if (stage / "complete").is_file():
            shutil.copytree(stage / "prefix", cls.prefix, symlinks=True)
            said = (stage / "log").read_text()
        else:
            done = run("cmake", "--install", BUILD, "--prefix", cls.prefix)
            assert done.returncode == 0, done.stderr
            said = done.stdout
        if "it takes python3" in said:
            print("SKIP: the manual pages were not made: no python3 when this tree was configured")
            sys.exit(77)
        cls.helps = {p.name: done.stdout for p in sorted((cls.prefix / "bin").iterdir())
                     if not p.is_symlink() and (done := run(p, "--help")).returncode == 0}
        # --help of these programs lists only the common options.
        for name, text in list(cls.helps.items()):
            if "--help-all" in text:
                cls.helps[name] = run(cls.prefix / "bin" / name, "--help-all").stdout

    @classmethod
    def tearDownClass(cls):
        cls.work.cleanup()

    def page(self, name):
        return self.prefix / "share" / "man" / "man1" / f"{name}.1"

    def bash(self, name, *words, before=""):
        """Returns the completions that bash offers for the last of these words."""
        function = "_tutti_" + re.sub(r"\W", "_", name)
        script = f'{before}\nsource "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); {function}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        file = self.prefix / "share" / "bash-completion" / "completions" / name
        done = run("bash", "--norc", "-c", script, "bash", file, name, *words, cwd=self.work.name)
        self.assertEqual(done.stderr, "", f"{name} {words}")
        return done.stdout.split()

    def test_every_program_has_them(self):
        self.assertGreaterEqual(len(self.helps), 5, "programs that know --help")
        for name in self.helps:
            self.assertTrue(self.page(name).is_file(), name)
            text = self.page(name).read_text()
            self.assertNotIn(str(ROOT), text)
            self.assertIn(f'"tutti {self.version()}"', text)

    def version(self):
        header = (ROOT / "include" / "tutti" / "version.hpp").read_text()
        return ".".join(re.search(rf"TUTTI_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))

    def test_pages_hold_the_options_of_help(self):
        if not shutil.which("man"):
            self.skipTest("no man (Debian: apt-get install man-db)")
        for name, text in self.helps.items():
            done = run("man", "--warnings", "-l", self.page(name), env={"LC_ALL": "C.UTF-8", "MANPAGER": "cat"})
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            shown = done.stdout
            for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"):
                self.assertRegex(shown, rf"(?m)^{heading}$", name)
            self.assertRegex(shown, rf"(?m)^ +{name} - \S", "whatis needs this line")
            self.assertEqual(set(OPTION.findall(shown)), set(OPTION.findall(text)), name)
            # The page contains each word of --help, except headings that are written differently.
            words = set(re.findall(r"[A-Za-z]{4,}", text)) - set(re.findall(r"[A-Za-z]{4,}", shown))
            self.assertLessEqual(words, {"Usage", "usage", "Options", "options", "Exit", "codes"}, name)

    def test_help_knows_every_option(self):
        """Tests programs with a --help text that is separate from the table of their options."""
        spellings = (ROOT / "tools" / "command_line" / "spellings.cpp").read_text()
        for name, folder in (("tutti-data", "data"), ("generate-trainer", "generate_trainer")):
            if name not in self.helps:
                continue
            source = (ROOT / "tools" / folder / "options.cpp").read_text()
            table = {n for names in re.findall(r'[{ ]"((?:-\w,)?--[a-z][a-z0-9-]+)"', source) for n in names.split(",")}
            self.assertGreater(len(table), 5, name)
            if name == "tutti-data":
                other = re.findall(r'\{data, "[a-z-]+", "([a-z-]+)"\}', spellings)
                self.assertGreater(len(other), 5)
                table |= {f"--{o}" for o in other}
            said = set(OPTION.findall(self.helps[name].replace("_", "-")))
            self.assertLessEqual(table, said, name)

    def test_bash_completes_every_option(self):
        for name, text in self.helps.items():
            listed = set()
            for line in text.splitlines():
                if re.match(r" {2,8}--?[A-Za-z]", line):
                    listed |= set(OPTION.findall(re.split(r"\s{2,}", line.strip())[0]))
            offered = {o.split("=")[0].replace("_", "-") for o in self.bash(name, "-")}
            self.assertLessEqual({o.replace("_", "-") for o in listed}, offered, name)

    def test_bash_completes_words(self):
        """Tests that options and their values are completed in each of the forms that the programs accept."""
        if "train_cifar10" in self.helps:
            self.assertEqual(self.bash("train_cifar10", "--epo"), ["--epochs", "--epoch-end"])
            self.assertEqual(self.bash("train_cifar10", "--batch_s"), ["--batch-size"])
            for words in (["--backend", ""], ["--backend", "="], ["--backend", "=", ""]):
                self.assertEqual(self.bash("train_cifar10", *words), ["auto", "reference", "eigen", "onednn", "cuda"])
            self.assertEqual(self.bash("train_cifar10", "--backend", "=", "o"), ["onednn"])
            self.assertEqual(self.bash("train_cifar10", "--run_once", ""), ["0", "1"])
            self.assertEqual(self.bash("train_cifar10", "--epochs", ""), [])
            self.assertIn("--resume=best", self.bash("train_cifar10", "--resu"))
            self.assertIn("prefix", self.bash("train_cifar10", "--run-dir", "pre"))
        if "tutti-data" in self.helps:
            self.assertEqual(self.bash("tutti-data", ""), ["convert", "preprocess", "resize", "verify", "info"])
            self.assertEqual(self.bash("tutti-data", "convert", "--to", "t"), ["tfrecord"])
        self.assertEqual(self.bash("tutti-launch", "--launcher", "s"), ["ssh", "srun"])
        self.assertIn("prefix", self.bash("tutti-launch", "-n", "2", "pre"))
        self.assertEqual(self.bash("tutti-launch", "-n", "2", "--elastic_at", "s"), ["step"])
        # After the name of a program, the completion of this program is used.
        asked = "_command_offset() { COMPREPLY=(offset$1); }"
        self.assertEqual(self.bash("tutti-launch", "-n", "2", "train_cifar10", "--ep", before=asked), ["offset3"])
        self.assertEqual(self.bash("tutti-launch", "--log-dir", "=", "x", "prog", "", before=asked), ["offset4"])

    def test_zsh_completes(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh (Debian: apt-get install zsh)")
        folder = self.prefix / "share" / "zsh" / "site-functions"
        for name in self.helps:
            self.assertEqual(run("zsh", "-n", folder / f"_{name}").stderr, "", name)
        try:
            for end in os.openpty():
                os.close(end)
        except OSError as error:
            self.skipTest(f"no terminal to be had: {error}")
        cases = [("tutti-launch --launcher ", 4), ("tutti-report --ou", 1)]
        if "train_cifar10" in self.helps:
            cases += [("train_cifar10 --backend ", 5), ("train_cifar10 --backend=o", 1), ("train_cifar10 --tf32 ", 2)]
        if "tutti-data" in self.helps:
            cases += [("tutti-data ", 5)]
        for line, count in cases:
            done = run("zsh", "-f", "-c", ZSH, "zsh", folder, line, env={"TERM": "dumb"})
            self.assertRegex(done.stdout, rf"<<{count}>>", line)

    def test_a_program_without_options_is_refused(self):
        mute = Path(self.work.name) / "mute"
        for body in ("true", "echo hello", "exit 3"):
            mute.write_text(f"#!/bin/sh\n{body}\n")
            mute.chmod(0o755)
            done = run(sys.executable, ROOT / "cmake" / "manuals" / "manuals.py", "--out", self.work.name, "--version", "1", mute)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("expected", done.stderr)


if __name__ == "__main__":
    unittest.main()
