#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: 2
"""Tests tutti-data when it is killed, when other files are in the way, and on a full disk."""
import contextlib
import fcntl
import os
import pty
import shutil
import signal
import subprocess
import time

from data_case import FORMS, IMAGES, PROGRAM, DataCase, main, make_folder, records


class Interrupted(DataCase):
    def kill_when(self, words, out, shards):
        """Starts the tool and kills it when this number of files is finished. Returns whether it was still
        running."""
        process = subprocess.Popen([PROGRAM, *map(str, words)], cwd=self.folder, env=self.environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        while process.poll() is None:
            finished = len(list(out.glob("train*[0-9]*"))) if out.is_dir() else 0
            if finished >= shards and out.is_dir():
                break
        process.kill()
        return process.wait() == -signal.SIGKILL

    def test_killed_and_started_again(self):
        make_folder(self.folder / "in" / "train", 400, ["large.jpg"])
        for form in FORMS:
            words = ["convert", "-i", "in", "-s", "train", "--to", form, "--shards", 12, "-r", 100, "-o"]
            self.run_tool(*words, f"{form}-whole")
            whole = self.bits(f"{form}-whole")
            killed = 0
            for shards in (0, 1, 3, 6, 11):
                out = self.folder / f"{form}-{shards}"
                killed += self.kill_when([*words, out], out, shards)
                before = {p.name: p.stat().st_ino for p in out.iterdir() if p.name.startswith("train")}
                # Each file that has its final name is complete.
                for name in before:
                    self.assertEqual((out / name).read_bytes(), whole[name], name)
                if shards and len(before) < len(whole) - 1:
                    self.run_tool("verify", out, code=3)
                self.run_tool(*words, out)
                self.assertEqual(self.bits(out), whole)
                after = {p.name: p.stat().st_ino for p in out.iterdir() if p.name.startswith("train")}
                if form != "recordio":  # the tool writes a .rec without its .idx again
                    self.assertEqual(before, {n: after[n] for n in before})
                self.run_tool("verify", out)
            self.assertGreater(killed, 2)

    def test_killed_again_and_again(self):
        make_folder(self.folder / "in" / "train", 300, ["large.jpg"])
        words = ["convert", "-i", "in", "-s", "train", "--shards", 30, "-r", 90, "-o"]
        self.run_tool(*words, "whole")
        out = self.folder / "out"
        for shards in range(0, 30, 3):
            self.kill_when([*words, "out"], out, shards)
        self.run_tool(*words, "out")
        self.assertEqual(self.bits("out"), self.bits("whole"))

    def test_terminated(self):
        make_folder(self.folder / "in" / "train", 100, ["large.jpg"])
        process = subprocess.Popen([PROGRAM, "convert", "-i", "in", "-o", "out", "-s", "train", "-r", "90"],
                                   cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (self.folder / "out").is_dir():
            pass
        process.terminate()
        self.assertIn(process.wait(), (-signal.SIGTERM, 0))
        self.run_tool("convert", "-i", "in", "-o", "out", "-s", "train", "-r", 90)
        self.run_tool("verify", "out", "--decode")


class Existing(DataCase):
    def setUp(self):
        super().setUp()
        self.made = make_folder(self.folder / "in" / "train", 30)

    def convert(self, *options, **more):
        return self.run_tool("convert", "-i", "in", "-o", "out", "-s", "train", "--shards", 3, *options, **more)

    def test_files_of_other_programs_are_refused(self):
        out = self.folder / "out"
        for form, pattern in FORMS.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            (out / pattern.format(0, 3)).write_bytes(b"precious")
            (out / "other.txt").write_bytes(b"other")
            done = self.convert("--to", form, code=2)
            self.assertIn(pattern.format(0, 3), done.stderr)
            self.assertIn("-f", done.stderr)
            self.assertEqual((out / pattern.format(0, 3)).read_bytes(), b"precious")
            self.convert("--to", form, "-f")
            self.assertEqual({*records(out)}, self.made)
            self.assertEqual((out / "other.txt").read_bytes(), b"other")

    def test_another_number_of_shards_with_force_leaves_no_old_files(self):
        self.convert("--to", "tfrecord")
        self.convert("--to", "packed", "--shards", 5, "-f")
        self.assertEqual({*records(self.folder / "out")}, self.made)
        self.assertEqual(len(list((self.folder / "out").glob("train-*"))), 5)
        self.run_tool("verify", "out")

    def test_other_options_are_named(self):
        self.convert("-r", 100)
        before = self.bits("out")
        for options, part in ((["-r", 90], "size 100"), (["-r", 100, "-Q", 90], "quality 85"),
                              (["-r", 100, "--shards", 4], "shards 3"), (["-r", 100, "--seed", 1], 'seed "0"'),
                              (["-r", 100, "--no-shuffle"], "shuffled true"), (["-r", 100, "-R"], "stretch false"),
                              (["-r", 100, "--to", "tfrecord"], 'form "packed"')):
            self.assertIn(part, self.convert(*options, code=2).stderr)
        (self.folder / "in" / "train" / "n01" / "new.JPEG").write_bytes((IMAGES / "420.jpg").read_bytes())
        self.assertIn("records 30", self.convert("-r", 100, code=2).stderr)
        (self.folder / "in" / "train" / "n01" / "new.JPEG").unlink()
        (self.folder / "in" / "train" / "n01" / "n01_0.JPEG").rename(self.folder / "in" / "train" / "n01" / "x.JPEG")
        self.assertIn("input", self.convert("-r", 100, code=2).stderr)
        self.assertEqual(self.bits("out"), before)

    def test_damaged_manifest(self):
        self.convert()
        path = self.folder / "out" / "tutti-data-train.json"
        path.write_text(path.read_text()[:-40])
        self.assertIn("tutti-data-train.json", self.convert(code=3).stderr)
        self.run_tool("verify", "out", code=3)
        self.convert("-f")
        self.run_tool("verify", "out")

    def test_removed_shard_is_written_again(self):
        # A .rec does not count before its .idx exists.
        for form, name in (("packed", "train-00001-of-00003.tutti"), ("recordio", "train_1.rec"),
                           ("recordio", "train_1.idx")):
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            self.convert("--to", form)
            before = self.bits("out")
            (self.folder / "out" / name).unlink()
            self.convert("--to", form)
            self.assertEqual(self.bits("out"), before)

    def test_manifest_without_a_finished_shard_is_replaced(self):
        (self.folder / "in" / "train" / "n01" / "bad.JPEG").write_bytes(b"bad")
        self.convert("--shards", 1, code=3)
        self.assertEqual([p.name for p in (self.folder / "out").iterdir()], ["tutti-data-train.json"])
        (self.folder / "in" / "train" / "n01" / "bad.JPEG").unlink()
        self.convert()
        self.run_tool("verify", "out")

    def test_two_at_once(self):
        (self.folder / "out").mkdir()
        folder = os.open(self.folder / "out", os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        self.assertIn("another tutti-data", self.convert(code=2).stderr)
        os.close(folder)
        self.convert()

    def test_into_its_own_input(self):
        self.convert()
        before = self.bits("out")
        for options in ([], ["-f"], ["--to", "tfrecord", "-f"]):
            self.run_tool("convert", "-i", "out", "-o", "out/.", "-s", "train", *options, code=2)
        self.assertEqual({n: b for n, b in self.bits("out").items() if n in before}, before)

    def test_a_full_disk(self):
        if os.geteuid() != 0:
            self.skipTest("not root, so no small file system can be mounted")
        make_folder(self.folder / "large" / "train", 500, ["large.jpg"])
        out = self.folder / "out"
        out.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", out], capture_output=True).returncode:
            self.skipTest("no tmpfs can be mounted here")
        try:
            for form in FORMS:
                words = ["convert", "-i", "large", "-o", "out", "-s", "train", "--to", form, "--shards", 8]
                done = self.run_tool(*words, code=3)
                self.assertIn("No space left", done.stderr)
                self.assertEqual([p.name for p in out.iterdir() if p.name.startswith(".tmp")], [])
                subprocess.run(["mount", "-o", "remount,size=16m", out], check=True)
                self.run_tool(*words)
                self.run_tool("verify", "out")
                self.assertEqual(len(records(out)), 500)
                for p in out.iterdir():
                    p.unlink()
                subprocess.run(["mount", "-o", "remount,size=600k", out], check=True)
        finally:
            subprocess.run(["umount", "-l", out], check=True)

    def test_progress_on_a_terminal(self):
        try:
            master, slave = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal to be had: {error}")
        make_folder(self.folder / "large" / "train", 1500, ["large.jpg"])
        with open(os.devnull, "wb") as null:
            process = subprocess.Popen([PROGRAM, "convert", "-i", "large", "-o", "out", "-s", "train", "-r", "140",
                                        "--threads", "1"], cwd=self.folder, stdout=null, stderr=slave)
        os.close(slave)
        # A fast machine would end before the first progress line, so the test pauses the tool for longer than the time
        # until that line.
        out = self.folder / "out"
        while process.poll() is None and not (out.is_dir() and any(out.iterdir())):
            time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.7)
        process.send_signal(signal.SIGCONT)
        text = b""
        with contextlib.suppress(OSError):
            while data := os.read(master, 4096):
                text += data
        os.close(master)
        self.assertEqual(process.wait(), 0)
        self.assertRegex(text, rb"train: \d+/1500 images, \d+ images/s, .* MB/s, left ")
        # The tool also prints no progress lines to a file.
        shutil.rmtree(self.folder / "out")
        self.assertEqual(self.convert().stderr, "")


if __name__ == "__main__":
    main()
