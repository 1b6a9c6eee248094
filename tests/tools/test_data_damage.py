#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: 2
"""Tests tutti-data with damaged input, and tutti-data verify."""
import json
import os
import shutil
import struct
import subprocess

from data_case import (FORMS, IMAGES, PROGRAM, DataCase, example, main, make_folder, masked, read_tfrecord, records,
                       write_tfrecord)


class BadInput(DataCase):
    def setUp(self):
        super().setUp()
        make_folder(self.folder / "in" / "train", 30)

    def message(self, *options, source="in", code=3):
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        done = self.run_tool("convert", "-i", source, "-o", "out", "-s", "train", "--shards", 3, *options, code=code)
        self.assertEqual([p.name for p in (out.iterdir() if out.exists() else []) if p.name.startswith(".tmp")], [])
        return done.stderr

    def test_folders(self):
        train = self.folder / "in" / "train"
        (train / "n99").mkdir()
        self.assertIn("n99", self.message())
        (train / "n99").rmdir()
        bad = train / "n03" / "bad.JPEG"
        good = (IMAGES / "420.jpg").read_bytes()
        for content in (b"", b"no image", good[:200], good[:20] + b"\xff" * 300):
            bad.write_bytes(content)
            self.assertIn("bad.JPEG", self.message("-r", 20))
            self.assertIn("bad.JPEG", self.run_tool("verify", "in", code=3).stderr)
        bad.unlink()
        self.message(code=0)

    def test_files_that_are_left_out_are_counted(self):
        for command in ("info", "verify"):
            self.assertNotIn("neither JPEG nor PNG", self.run_tool(command, "in").stdout)
        for name in ("n01/a.webp", "n02/b.WEBP", "n02/sub/c.gif", "n03/Thumbs", "n03/.DS_Store"):
            path = self.folder / "in" / "train" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"something")
        line = "train: 4 files are neither JPEG nor PNG: .webp 2, without extension 1, .gif 1\n"
        for words in (("info", "in"), ("verify", "in"), ("verify", "in", "--decode"),
                      ("convert", "-i", "in", "-o", "out", "-s", "train", "--shards", 2)):
            self.assertEqual(self.run_tool(*words).stdout.count(line), 1, words)

    def test_damage_that_only_decoding_finds(self):
        good = (IMAGES / "444.jpg").read_bytes()
        # Inserts a marker into the entropy-coded data.
        bad = good[:-600] + b"\xff\xc4" + good[-598:]
        (self.folder / "in" / "train" / "n02" / "bad.JPEG").write_bytes(bad)
        self.run_tool("verify", "in")
        self.assertIn("bad.JPEG", self.run_tool("verify", "in", "--decode", code=3).stderr)
        self.assertIn("bad.JPEG", self.message("-r", 20))

    def test_unreadable_file(self):
        bad = self.folder / "in" / "train" / "n03" / "bad.JPEG"
        bad.write_bytes((IMAGES / "420.jpg").read_bytes())
        bad.chmod(0)
        more = {}
        if os.geteuid() == 0:
            for p in [self.folder, *self.folder.rglob("*")]:
                if p.is_dir():
                    p.chmod(0o777)
            more = {"user": 65534, "group": 65534, "extra_groups": []}
            try:
                subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, **more)
            except (OSError, subprocess.CalledProcessError):
                self.skipTest("another user cannot run the program where it is")
        words = ["convert", "-i", "in", "-o", "out", "-s", "train", "--shards", 2]
        self.assertIn("bad.JPEG", self.run_tool(*words, code=3, **more).stderr)
        self.assertIn("bad.JPEG", self.run_tool("verify", "in", code=3, **more).stderr)

    def test_labels_out_of_range(self):
        image = (IMAGES / "420.jpg").read_bytes()
        for label in (0, 6, 1 << 40):
            shutil.rmtree(self.folder / "tf", ignore_errors=True)
            (self.folder / "tf").mkdir()
            write_tfrecord(self.folder / "tf" / "train-00000-of-00001",
                           [example({"image/encoded": image, "image/class/label": v}) for v in (1, 5, label)])
            for words in (["convert", "-i", "tf", "-o", "out", "-s", "train", "--classes", 5, "--shards", 1],
                          ["verify", "tf", "--classes", 5]):
                self.assertRegex(self.run_tool(*words, code=3).stderr,
                                 rf"train-00000-of-00001 record 2\].* label of 1 to 5, got {label}")

    def test_examples_without_required_features(self):
        image = (IMAGES / "420.jpg").read_bytes()
        for features in ({"image/encoded": image}, {"image/class/label": 1}, {"image/encoded": b"", "image/class/label": 1},
                         {"image/encoded": b"xx", "image/class/label": 1}):
            shutil.rmtree(self.folder / "tf", ignore_errors=True)
            (self.folder / "tf").mkdir()
            write_tfrecord(self.folder / "tf" / "train-00000-of-00001", [example(features)])
            self.assertIn("train-00000-of-00001 record 0", self.run_tool("verify", "tf", code=3).stderr)
            self.assertIn("train-00000-of-00001 record 0", self.message(source="tf"))

    def test_missing_sets(self):
        self.assertIn("nowhere", self.message(source="nowhere"))
        self.assertIn("nowhere", self.run_tool("verify", "nowhere", code=3).stderr)
        self.assertIn("nowhere", self.run_tool("info", "nowhere", code=3).stderr)
        # If a split is missing, the tool fails before it writes a file.
        self.run_tool("convert", "-i", "in", "-o", "both", code=3)
        self.assertFalse((self.folder / "both").exists())


class Verify(DataCase):
    def setUp(self):
        super().setUp()
        make_folder(self.folder / "in" / "train", 40)
        make_folder(self.folder / "in" / "validation", 10)

    def made(self, form):
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        self.run_tool("convert", "-i", "in", "-o", "out", "--to", form, "--shards", 4, "--validation-shards", 1)
        self.run_tool("verify", "out", "--decode")
        return out

    def shard(self, out, form, k):
        return out / FORMS[form].format(k, 4)

    def test_complete_set(self):
        for form in FORMS:
            self.made(form)
            done = self.run_tool("verify", "out", "--threads", 3)
            self.assertIn("train: ", done.stdout)
            self.assertRegex(done.stdout, r"4 files, 40 good records, 0 errors, 5 of 5 classes, \d+\.\d kB, \d+ records/s")
            self.assertIn("1 files, 10 good records, 0 errors", done.stdout)
            self.assertNotIn("train", self.run_tool("verify", "out", "-s", "validation").stdout)
            info = self.run_tool("info", "out").stdout
            self.assertIn("40 records, 5 classes, 4 shards", info)
            self.assertIn("10 records, 5 classes, 1 shards", info)
        self.assertIn("image folder, 40 records, 5 classes", self.run_tool("info", "in").stdout)
        self.assertIn("40 good records", self.run_tool("verify", "in").stdout)

    def test_every_flipped_bit_is_found(self):
        # RecordIO has no checksums, so a changed bit of an image may not be detected.
        for form in ("packed", "tfrecord"):
            path = self.shard(self.made(form), form, 2)
            good = path.read_bytes()
            for at in [*range(0, len(good), 211), *range(len(good) - 40, len(good)), *range(40)]:
                data = bytearray(good)
                data[at] ^= 1 << (at % 8)
                path.write_bytes(data)
                done = self.run_tool("verify", "out", "-s", "train", code=3)
                self.assertIn(path.name, done.stderr, at)
                if form == "tfrecord":
                    self.assertRegex(done.stderr, r"train-00002-of-00004 record \d")

    def test_the_record_is_named_and_the_others_are_read(self):
        for form in FORMS:
            path = self.shard(self.made(form), form, 1)
            data, images = path.read_bytes(), [image for _, image in records(path.parent, path.name)]
            at = data.index(images[6])
            path.write_bytes(data[:at] + b"\0\0\0" + data[at + 3:])
            done = self.run_tool("verify", "out", "-s", "train", code=3)
            self.assertIn(f"[{path.relative_to(self.folder)} record 6]", done.stderr)
            self.assertIn("39 good records, 1 errors", done.stdout)
            self.assertEqual(len(done.stderr.splitlines()), 2)

    def test_truncated_and_missing_files(self):
        for form in FORMS:
            out = self.made(form)
            path = self.shard(out, form, 2)
            good = path.read_bytes()
            for length in (len(good) - 1, len(good) - 100, len(good) // 2, 9, 0):
                path.write_bytes(good[:length])
                self.assertIn(path.name if length or form == "packed" else "out",
                              self.run_tool("verify", "out", code=3).stderr)
            path.write_bytes(good + b"\0" * 5)
            self.assertIn(path.name, self.run_tool("verify", "out", code=3).stderr)
            path.unlink()
            self.assertIn(path.name, self.run_tool("verify", "out", code=3).stderr)
            (out / "tutti-data-train.json").unlink()
            self.assertIn(path.name, self.run_tool("verify", "out", code=3).stderr)

    def test_shards_of_two_sets(self):
        out = self.made("packed")
        self.run_tool("convert", "-i", "in", "-o", "other", "--shards", 4, "--validation-shards", 1, "--seed", 5)
        name = "train-00001-of-00004.tutti"
        shutil.copy(self.folder / "other" / name, out / name)
        self.assertIn(name, self.run_tool("verify", "out", code=3).stderr)
        shutil.copy(out / "train-00002-of-00004.tutti", out / name)
        self.assertIn(name, self.run_tool("verify", "out", code=3).stderr)

    def test_wrong_idx_file(self):
        out = self.made("recordio")
        path = out / "train_1.idx"
        text = path.read_text()
        for bad in (text.replace("3\t", "3 "), text + "99\t12\n", text + "99\t99999999\n"):
            path.write_text(bad)
            self.assertIn("train_1.idx line", self.run_tool("verify", "out", code=3).stderr)

    def test_manifest_counts_the_records(self):
        out = self.made("tfrecord")
        path = out / "train-00003-of-00004"
        payloads = list(read_tfrecord(path))
        write_tfrecord(path, payloads[:-1])
        self.assertIn("40 records", self.run_tool("verify", "out", code=3).stderr)
        write_tfrecord(path, payloads)
        self.run_tool("verify", "out")
        manifest = json.loads((out / "tutti-data-train.json").read_text())
        manifest["complete"] = False
        (out / "tutti-data-train.json").write_text(json.dumps(manifest))
        self.assertIn("finished", self.run_tool("verify", "out", code=3).stderr)

    def test_length_bombs(self):
        out = self.made("tfrecord")
        path = out / "train-00003-of-00004"
        for length in (1 << 62, (1 << 64) - 1, 1 << 30):
            head = struct.pack("<Q", length)
            path.write_bytes(head + struct.pack("<I", masked(head)) + b"x" * 50)
            self.assertIn(f"{path.name} record 0", self.run_tool("verify", "out", code=3).stderr)
        # A JPEG that claims to have 65,500 x 65,500 pixels in some hundred bytes.
        jpeg = bytearray((IMAGES / "420.jpg").read_bytes())
        at = jpeg.index(b"\xff\xc0")
        jpeg[at + 5:at + 9] = struct.pack(">HH", 65500, 65500)
        write_tfrecord(path, [example({"image/encoded": bytes(jpeg), "image/class/label": 1})])
        done = self.run_tool("verify", "out", "--decode", code=3)
        self.assertIn("65500x65500", done.stderr)
        shutil.rmtree(self.folder / "in" / "validation")
        (self.folder / "in" / "train" / "n01" / "bomb.JPEG").write_bytes(jpeg)
        self.assertIn("bomb.JPEG", self.run_tool("convert", "-i", "in", "-o", "b", "-s", "train", "-r", 9, code=3).stderr)


if __name__ == "__main__":
    main()
