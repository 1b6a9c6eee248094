#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: 2
"""Tests tutti-data convert, resize and preprocess: the output contains the images of the input, reduced as
requested."""
import json
import os
import shutil
import subprocess
import sys

from data_case import (CLASSES, IMAGES, PROGRAM, DataCase, example, main, make_folder, parse_example, read_tfrecord,
                       real_images, records, shape, unlike_others, write_tfrecord)


class RoundTrip(DataCase):
    def through_all_forms(self, source, made, shards):
        steps = [("a", "tfrecord", shards), ("b", "packed", shards + 2), ("c", "recordio", 1), ("d", "recordio", shards),
                 ("e", "tfrecord", 1), ("f", "packed", 1)]
        for name, form, count in steps:
            self.run_tool("convert", "-i", source, "-o", name, "--to", form, "-s", "train", "--shards", count)
            got = records(self.folder / name)
            self.assertEqual(len(got), len(made), name)
            self.assertEqual(set(got), made, name)
            files = [p for p in (self.folder / name).iterdir() if "-of-" in p.name or p.suffix == ".rec"]
            self.assertEqual(len(files), count, name)
            done = self.run_tool("verify", name, "--decode")
            self.assertIn(f"{len(made)} good records, 0 errors", done.stdout)
            source = name
        return steps

    def test_small_images_through_all_forms(self):
        made = make_folder(self.folder / "in" / "train", 97)
        self.through_all_forms("in", made, 4)
        names = {e["image/class/synset"].decode(): e["image/class/label"]
                 for p in (self.folder / "e").glob("train-*") for e in map(parse_example, read_tfrecord(p))}
        self.assertEqual(names, {c: k + 1 for k, c in enumerate(CLASSES)})

    def test_real_images_through_all_forms(self):
        made = real_images(self.folder / "in")
        if not made:
            self.skipTest("no imagenet-sample.tar in $TUTTI_DATA or ../shared/data")
        self.through_all_forms("in", made, 5)
        # Reduced images have the same order, and each is within the limit.
        self.run_tool("convert", "-i", "in", "-o", "g", "-s", "train", "--shards", 3, "-r", 200)
        self.run_tool("convert", "-i", "in", "-o", "h", "-s", "train", "--shards", 3)
        for (label, small), (same, image) in zip(records(self.folder / "g"), records(self.folder / "h"), strict=True):
            self.assertEqual(label, same)
            (w, h, c), (width, height, components) = shape(small), shape(image)
            self.assertEqual(c, components)
            self.assertEqual(min(w, h), min(200, width, height))
            self.assertLessEqual(abs(w / h - width / height), 0.02 * width / height)
            if min(width, height) <= 200:
                self.assertEqual(small, image)
        self.run_tool("verify", "g", "--decode")

    def test_shuffle(self):
        made = make_folder(self.folder / "in" / "train", 60)
        make_folder(self.folder / "in" / "validation", 20)

        def order(name, *options):
            self.run_tool("convert", "-i", "in", "-o", name, "--shards", 4, "--validation-shards", 3, *options)
            return records(self.folder / name), records(self.folder / name, "validation")

        plain, validation = order("plain", "--no-shuffle")
        first, shuffled_validation = order("first")
        again, _ = order("again", "--seed", 0)
        second, _ = order("second", "--seed", 1)
        labels = [label for label, _ in plain]
        self.assertEqual(labels, sorted(labels))
        self.assertEqual(first, again)
        self.assertEqual({*plain}, made)
        for shuffled in (first, second):
            self.assertEqual({*shuffled}, made)
            self.assertNotEqual(shuffled, plain)
        self.assertNotEqual(first, second)
        # Validation images keep their order.
        self.assertEqual(validation, shuffled_validation)

    def test_threads_do_not_change_the_result(self):
        make_folder(self.folder / "in" / "train", 120, ("large.jpg", "420.jpg", "cmyk.jpg"))
        for form, shards in (("packed", 7), ("tfrecord", 2), ("recordio", 1)):
            results = []
            for threads in (1, 2, 5, 16):
                name = f"{form}-{threads}"
                self.run_tool("convert", "-i", "in", "-o", name, "-s", "train", "--to", form, "--shards", shards,
                              "-r", 40, "--threads", threads)
                results.append(self.bits(name))
            for r in results[1:]:
                self.assertEqual(r, results[0])

    def test_shards_are_even_and_may_be_empty(self):
        made = make_folder(self.folder / "in" / "train", 23)
        for form in ("packed", "tfrecord", "recordio"):
            self.run_tool("convert", "-i", "in", "-o", form, "-s", "train", "--to", form, "--shards", 5)
            sizes = [len(records(self.folder / form, p.name)) for p in (self.folder / form).iterdir()
                     if "-of-" in p.name or p.suffix == ".rec"]
            self.assertEqual(sorted(sizes), [4, 4, 5, 5, 5])
            self.run_tool("convert", "-i", "in", "-o", f"{form}-many", "-s", "train", "--to", form, "--shards", 40)
            self.assertEqual({*records(self.folder / f"{form}-many")}, made)
            self.run_tool("verify", f"{form}-many")


class Images(DataCase):
    def folder_of(self, *names):
        for k, name in enumerate(names):
            path = self.folder / "in" / "train" / "n01" / (f"{k}-{name}".replace(".jpg", ".JPEG").replace(".png", ".JPEG"))
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(IMAGES / name, path)

    def converted(self, out, *options, names):
        self.run_tool("convert", "-i", "in", "-o", out, "-s", "train", "--to", "tfrecord", "--shards", 1,
                      "--no-shuffle", *options)
        got = [parse_example(p) for p in read_tfrecord(self.folder / out / "train-00000-of-00001")]
        self.run_tool("verify", out, "--decode")
        return {n: e for n, e in zip(names, got, strict=True)}

    def test_grey_cmyk_and_png(self):
        names = ["420.jpg", "grey.jpg", "cmyk.jpg", "image.png", "grey_alpha.png", "palette.png"]
        self.folder_of(*names)
        got = self.converted("a", names=names)
        for name, e in got.items():
            width, height, components = shape(e["image/encoded"])
            self.assertEqual((width, height), (53, 38), name)
            self.assertEqual((e["image/width"], e["image/height"]), (53, 38), name)
            self.assertEqual(components, 1 if name == "grey.jpg" else 3, name)
            self.assertEqual(e["image/format"], b"JPEG")
            self.assertEqual(e["image/colorspace"], b"RGB")
            self.assertEqual(e["image/channels"], 3)
            self.assertEqual(e["image/class/label"], 1)
            self.assertEqual(e["image/class/synset"], b"n01")
            self.assertIn(name[:-4].encode(), e["image/filename"])
        for name in ("420.jpg", "grey.jpg"):
            self.assertEqual(got[name]["image/encoded"], (IMAGES / name).read_bytes())
        kept = self.converted("b", "--keep-format", names=names)
        for name, e in kept.items():
            self.assertEqual(e["image/encoded"], (IMAGES / name).read_bytes())
            self.assertEqual(e["image/format"], b"PNG" if name.endswith("png") else b"JPEG")

    def test_sizes(self):
        names = ["large.jpg", "420.jpg", "1x1.jpg", "1x37.jpg", "41x1.jpg", "grey.jpg", "cmyk.jpg", "image.png"]
        self.folder_of(*names)
        want = {"large.jpg": (203, 151), "1x1.jpg": (1, 1), "1x37.jpg": (1, 37), "41x1.jpg": (41, 1)}
        for size in (500, 151, 150, 38, 37, 20, 1):
            for name, e in self.converted(f"s{size}", "-r", size, names=names).items():
                width, height = want.get(name, (53, 38))
                w, h, components = shape(e["image/encoded"])
                self.assertEqual((e["image/width"], e["image/height"]), (w, h))
                if min(width, height) <= size:
                    self.assertEqual((w, h), (width, height), name)
                    if name not in ("cmyk.jpg", "image.png"):
                        self.assertEqual(e["image/encoded"], (IMAGES / name).read_bytes())
                else:
                    self.assertEqual(min(w, h), size)
                    self.assertLessEqual(abs(max(w, h) - max(width, height) * size / min(width, height)), 0.5)
                self.assertEqual(components, 1 if name == "grey.jpg" else 3)
        for name, e in self.converted("stretched", "-r", 48, "-R", names=names).items():
            self.assertEqual(shape(e["image/encoded"])[:2], (48, 48))
        small = self.converted("low", "-r", 100, "-Q", 20, names=names)["large.jpg"]
        large = self.converted("high", "-r", 100, "-Q", 95, names=names)["large.jpg"]
        self.assertLess(len(small["image/encoded"]), len(large["image/encoded"]))

    def test_memory_does_not_grow_with_the_set(self):
        if os.environ.get("TUTTI_SANITIZE"):
            self.skipTest("sanitizers keep memory")

        def peak(count):
            name = str(count)
            make_folder(self.folder / name / "train", count, ["large.jpg"])
            # A small process starts the tool, because the memory of the parent counts for the child too.
            measure = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2); "
                       "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
            done = self.run_tool("-c", measure, PROGRAM, "convert", "-i", name, "-o", f"{name}-out", "-s", "train",
                                 "--to", "recordio", "-r", 100, program=sys.executable)
            return int(done.stdout)
        few, many = peak(200), peak(4000)
        self.assertLess(many - few, 4000)  # kB; the images have 20 MB


class Resize(DataCase):
    def setUp(self):
        super().setUp()
        self.input = self.folder / "imagenet-full"
        self.input.mkdir()
        large, small = (IMAGES / "large.jpg").read_bytes(), (IMAGES / "420.jpg").read_bytes()
        number = 0
        self.payloads = []
        for k in range(3):
            payloads = []
            for r in range(4 + k):
                image = unlike_others(large if r % 2 else small, number)
                number += 1
                payloads.append(example({"image/encoded": image, "image/height": 151 if r % 2 else 38,
                                         "image/width": 203 if r % 2 else 53, "image/class/label": number,
                                         "image/class/synset": f"n{number:08}".encode(),
                                         "image/class/text": b"tench, Tinca tinca", "image/format": b"JPEG",
                                         "image/object/bbox/xmin": [0.25, 0.5], "image/filename": f"{number}".encode(),
                                         "image/channels": 3, "image/colorspace": b"RGB"}))
            self.payloads.append(payloads)
            write_tfrecord(self.input / f"train-{k:05}-of-00003", payloads)

    def test_a_file_for_each_file_numbered_from_1(self):
        self.run_tool("resize", "-i", self.input, "-o", "out", "-r", 64, "--num_preprocess_threads", 2,
                      "--num_intra_threads", 2, "--num_inter_threads", 2)
        self.assertEqual(sorted(p.name for p in (self.folder / "out").iterdir() if p.suffix != ".json"),
                         ["train-00001-of-00003", "train-00002-of-00003", "train-00003-of-00003"])
        for k, payloads in enumerate(self.payloads):
            got = list(read_tfrecord(self.folder / "out" / f"train-{k + 1:05}-of-00003"))
            self.assertEqual(len(got), len(payloads))
            for r, (new, old) in enumerate(zip(got, payloads)):
                if r % 2 == 0:
                    self.assertEqual(new, old)  # equal to the byte
                    continue
                a, b = parse_example(new), parse_example(old)
                self.assertEqual(shape(a["image/encoded"]), (86, 64, 3))
                self.assertEqual((a.pop("image/width"), a.pop("image/height")), (86, 64))
                a.pop("image/encoded")
                self.assertEqual(a, {n: v for n, v in b.items() if n in a})
                self.assertEqual(len(a), len(b) - 3)
        self.run_tool("verify", "out", "--decode")

    def test_start_offset_and_force(self):
        self.run_tool("resize", "-i", self.input, "-o", "all", "-r", 64)
        self.run_tool("resize", "-i", self.input, "-o", "out", "-r", 64, "--start_offset", 2)
        self.assertEqual([p.name for p in (self.folder / "out").glob("train-*")], ["train-00003-of-00003"])
        self.assertIn("00001", self.run_tool("verify", "out", code=3).stderr)
        # The next run makes the missing files and keeps the existing ones.
        kept = (self.folder / "out" / "train-00003-of-00003").stat().st_mtime_ns
        self.run_tool("resize", "-i", self.input, "-o", "out", "-r", 64)
        self.assertEqual((self.folder / "out" / "train-00003-of-00003").stat().st_mtime_ns, kept)
        self.assertEqual(self.bits("out"), self.bits("all"))
        self.run_tool("resize", "-i", self.input, "-o", "out", "-r", 32, code=2)
        self.run_tool("resize", "-i", self.input, "-o", "out", "-r", 32, "-f")
        self.run_tool("resize", "-i", self.input, "-o", "out", "-r", 32, "--start_offset", 3, code=2)
        self.run_tool("resize", "-i", self.input, "-o", "stretched", "-r", 300, "-R")
        for _, image in records(self.folder / "stretched"):
            self.assertEqual(shape(image)[:2], (300, 300))

    def test_several_machines(self):
        whole = ["-i", self.input, "--shards", 5, "--to", "tfrecord", "-s", "train"]
        self.run_tool("convert", *whole, "-o", "all")
        # Runs all ranges at the same time: once into one folder, and once into separate folders with a merge of the
        # files afterwards.
        ranges = [(0, 1), (2, 2), (3, 4)]
        parts = [subprocess.Popen([PROGRAM, "convert", *map(str, whole), "-o", "shared", "--first-shard", str(first),
                                   "--last-shard", str(last)], cwd=self.folder, stdout=subprocess.DEVNULL)
                 for first, last in ranges]
        self.assertEqual([p.wait() for p in parts], [0, 0, 0])
        for k, (first, last) in enumerate(ranges):
            self.run_tool("convert", *whole, "-o", f"part{k}", "--first-shard", first, "--last-shard", last)
            self.assertEqual(len(list((self.folder / f"part{k}").glob("train-*-of-*"))), last - first + 1)
            shutil.copytree(self.folder / f"part{k}", self.folder / "together", dirs_exist_ok=True)
        self.run_tool("convert", *whole, "-o", "together")
        for name in ("shared", "together"):
            self.assertEqual(self.bits(name), self.bits("all"), name)
        done = self.run_tool("convert", *whole, "-o", "x", "--last-shard", 5, code=2)
        self.assertIn("[--last-shard] expected a number below the 5 shards of train, got 5", done.stderr)
        done = self.run_tool("convert", *whole, "-o", "x", "--first-shard", 3, "--last-shard", 2, code=2)
        self.assertIn("[--last-shard]", done.stderr)

    def test_data_set_names(self):
        self.input.rename(self.folder / "plain")
        done = self.run_tool("resize", "-i", "plain", "-o", "out", code=2)
        self.assertIn("imagenet or flowers", done.stderr)
        # The labels go up to 15, but there are only five flowers.
        done = self.run_tool("resize", "-i", "plain", "-o", "out", "-d", "flowers", code=3)
        self.assertRegex(done.stderr, r"record \d+.*label of 1 to 5")
        self.run_tool("resize", "-i", "plain", "-o", "out", "-d", "imagenet", "-f")
        self.run_tool("resize", "-i", "plain", "-o", "val", "-d", "imagenet", "-s", "validation", code=3)


class Preprocess(DataCase):
    def raw(self):
        raw = self.folder / "raw"
        made = make_folder(raw / "train", 50)
        shutil.copy(IMAGES / "image.png", raw / "train" / "n02" / "n02_105855.JPEG")
        shutil.copy(IMAGES / "cmyk.jpg", raw / "train" / "n03" / "n03_18876.JPEG")
        labels = []
        (raw / "validation").mkdir()
        for k in range(7):
            (raw / "validation" / f"ILSVRC2012_val_{k + 1:08}.JPEG").write_bytes(
                unlike_others((IMAGES / "422.jpg").read_bytes(), k))
            labels.append(CLASSES[(3 * k) % 5])
        (raw / "synset_labels.txt").write_text("\n".join(labels) + "\n")
        return raw, made, labels

    def test_the_published_layout(self):
        raw, made, labels = self.raw()
        self.run_tool("preprocess", "--raw_data_dir", raw, "--local_scratch_dir", "out")
        for subset, count in (("train", 1024), ("validation", 128)):
            names = sorted(p.name for p in (self.folder / "out" / subset).iterdir() if "-of-" in p.name)
            self.assertEqual(names, [f"{subset}-{k:05}-of-{count:05}" for k in range(count)])
        train = [parse_example(p) for f in sorted((self.folder / "out" / "train").glob("train-*"))
                 for p in read_tfrecord(f)]
        self.assertEqual(len(train), 52)
        features = {f"image/{n}" for n in ("height", "width", "colorspace", "channels", "class/label", "class/synset",
                                           "format", "filename", "encoded")}
        for e in train:
            self.assertEqual(set(e), features)
            self.assertEqual(e["image/class/label"], CLASSES.index(e["image/class/synset"].decode()) + 1)
            self.assertTrue(e["image/filename"].startswith(e["image/class/synset"]))
            self.assertIn(shape(e["image/encoded"]), [(53, 38, 3), (53, 38, 1)])
            self.assertEqual((e["image/channels"], e["image/colorspace"], e["image/format"]), (3, b"RGB", b"JPEG"))
        self.assertLess(len(made - {(e["image/class/label"] - 1, e["image/encoded"]) for e in train}), 1)
        filenames = [e["image/filename"] for e in train]
        self.assertNotEqual(filenames, sorted(filenames))
        validation = [parse_example(p) for f in sorted((self.folder / "out" / "validation").glob("validation-*"))
                      for p in read_tfrecord(f)]
        self.assertEqual([e["image/class/synset"].decode() for e in validation], labels)
        done = self.run_tool("verify", "out", "--decode")
        self.assertIn("52 good records, 0 errors, 5 of 5 classes", done.stdout)
        self.assertIn("7 good records, 0 errors", done.stdout)
        self.assertIn("exist already", self.run_tool("preprocess", "--raw_data_dir", raw, "--local_scratch_dir",
                                                     "out").stdout)
        manifest = json.loads((self.folder / "out" / "train" / "tutti-data-train.json").read_text())
        self.assertEqual((manifest["seed"], manifest["shuffled"], manifest["complete"]), ("0", True, True))

    def test_invalid_raw_data(self):
        raw, _, labels = self.raw()

        def message(code=3):
            return self.run_tool("preprocess", "--raw_data_dir", raw, "--local_scratch_dir", "out", code=code).stderr

        (raw / "synset_labels.txt").write_text("\n".join(labels[1:]) + "\n")
        self.assertIn("synset_labels.txt", message())
        (raw / "synset_labels.txt").write_text("\n".join(["n99", *labels[1:]]) + "\n")
        self.assertIn("n99", message())
        (raw / "synset_labels.txt").unlink()
        self.assertIn("validation", message())
        shutil.rmtree(raw / "validation")
        self.assertIn("validation", message())
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    main()
