#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that tutti-predict classifies image files as the evaluation of the training does, and reports bad input."""
import json
import os
import shutil
import unittest

from predict_case import (CIFAR, IMAGENET, PREDICT, PredictCase, pixels_of, png, read_safetensors, run, write_recordio,
                          write_safetensors)

CLASSES, SIDE = 4, 20
CIFAR_OPTIONS = ["--data-train", "train.rec", "--data-val", "val.rec", "--depth", "8", "--batch-size", "16", "--epochs", "1",
                 "--threads", "2", "--data-nthreads", "1", "--seed", "3"]
FOLDER_OPTIONS = ["--data-dir", "images", "--image-size", "32", "-m", "resnet18", "-b", "8", "--num_epochs", "1", "--display_every", "100",
                  "--nofp16", "--evaluate-every", "1"]


class Predict(PredictCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        sets = {"train": range(16), "val": range(100, 110)}
        for split, numbers in sets.items():
            records = []
            for number in numbers:
                for label in range(CLASSES):
                    image = png(SIDE, SIDE, pixels_of(label, number, SIDE, SIDE))
                    records.append((label, image))
                    if split == "val":
                        (cls.folder / "pngs").mkdir(exist_ok=True)
                        (cls.folder / "pngs" / f"{number}-{label}.png").write_bytes(image)
                    # This image is larger than the net's input, and not square.
                    large = cls.folder / "images" / split / f"class {label}"
                    large.mkdir(parents=True, exist_ok=True)
                    (large / f"{number}.png").write_bytes(png(45, 38, pixels_of(label, number, 45, 38)))
            write_recordio(cls.folder / f"{split}.rec", records)
        cls.small = cls.train(CIFAR, "small", *CIFAR_OPTIONS)
        cls.large = cls.train(IMAGENET, "large", *FOLDER_OPTIONS)

    def check(self, run_folder, answers, label_of, names=None):
        """Checks that the answers agree with the last evaluation."""
        evaluation = json.loads((run_folder / "evaluation.json").read_text())
        confusion = {}
        for image, answer in answers.items():
            best = answer["classes"]
            self.assertAlmostEqual(sum(c["probability"] for c in best), 1, places=5)
            self.assertEqual([c["probability"] for c in best], sorted((c["probability"] for c in best), reverse=True))
            for c in best:
                self.assertEqual(c["class"], names[c["index"]] if names else str(c["index"]))
            pair = label_of(image), best[0]["index"]
            confusion[pair] = confusion.get(pair, 0) + 1
        theirs = list(zip(*[iter(evaluation["confusion"])] * 3, strict=True))
        self.assertEqual(confusion, {(label, said): n for label, said, n in theirs})
        return evaluation

    def test_a_run_of_small_images(self):
        answers, said = self.predict("--top", "10", self.small, "pngs")
        self.assertEqual(said, "")
        self.assertEqual(len(answers), 10 * CLASSES)
        evaluation = self.check(self.small, answers, lambda image: int(image[-5]))  # the records have no names
        self.assertEqual(evaluation["images"], len(answers))
        # The confidence for the worst images. The set has its images in this order.
        order = [f"pngs/{number}-{label}.png" for number in range(100, 110) for label in range(CLASSES)]
        self.assertTrue(evaluation["worst"])
        for w in evaluation["worst"]:
            best = answers[order[w["index"]]]["classes"][0]
            self.assertEqual(best["index"], w["said"])
            self.assertAlmostEqual(best["probability"], w["sure"], places=5)

    def test_a_run_of_large_images(self):
        answers, said = self.predict(self.large, "images/val", "--top", CLASSES)
        self.assertEqual(said, "")
        self.check(self.large, answers, lambda image: int(image.split("/")[2][-1]), [f"class {k}" for k in range(CLASSES)])

    def test_a_model_is_a_run_a_checkpoint_or_a_file(self):
        checkpoints = sorted((self.small / "checkpoints").glob("step-*"))
        expected, _ = self.predict(self.small, "pngs")
        shutil.copy(checkpoints[-1] / "model.safetensors", self.folder / "alone.safetensors")
        for model in (checkpoints[-1], str(checkpoints[-1]) + "/", self.folder / "alone.safetensors"):
            self.assertEqual(self.predict(model, "pngs")[0], expected)

    def test_any_batch_threads_and_precision(self):
        exact, _ = self.predict("--batch-size", "32", self.small, "pngs")
        for words in (["--batch-size", "1", "--threads", "1", "--data-nthreads", "0"], ["--batch-size=7", "--data_nthreads=3"]):
            other, _ = self.predict(*words, self.small, "pngs")
            self.assertEqual(list(other), list(exact))
            for image, answer in exact.items():
                for a, b in zip(answer["classes"], other[image]["classes"], strict=True):
                    self.assertAlmostEqual(a["probability"], b["probability"], places=4)
        rounded, _ = self.predict("--precision", "bf16", self.small, "pngs")
        for image, answer in exact.items():
            self.assertAlmostEqual(answer["classes"][0]["logit"], rounded[image]["classes"][0]["logit"], delta=0.2)
        self.assertNotEqual(exact, rounded)

    def test_averaged_weights(self):
        averaged = self.train(CIFAR, "averaged", *CIFAR_OPTIONS, "--ema-decay", "0.5")
        automatic, _ = self.predict(averaged, "pngs")
        self.assertEqual(self.predict("--averaged", "yes", averaged, "pngs")[0], automatic)
        self.assertNotEqual(self.predict("--averaged", "no", averaged, "pngs")[0], automatic)
        self.assertIn("[model ", run(PREDICT, "--averaged", "yes", self.small, "pngs", cwd=self.folder, code=3).err)
        # The averaged weights were evaluated last, so evaluation.json describes them.
        self.assertTrue(json.loads((averaged / "evaluation.json").read_text())["averaged"])
        self.check(averaged, self.predict("--top", "10", averaged, "pngs")[0], lambda image: int(image[-5]))

    def test_text_lines(self):
        lines = run(PREDICT, "--top", "2", self.small, "pngs", cwd=self.folder).out.splitlines()
        self.assertEqual(len(lines), 10 * CLASSES)
        for line in lines:
            self.assertRegex(line, r"^pngs/\d+-\d\.png: class \d \d+\.\d\d %, class \d \d+\.\d\d %$")
        said = run(PREDICT, "--verbose", self.small, "pngs", cwd=self.folder).err
        self.assertIn("resnet_preact-8, 10 classes", said)
        self.assertIn("40 images", said)
        self.assertIn("images/s", said)

    def test_names_of_classes_cannot_write_to_the_terminal(self):
        newest = sorted((self.small / "checkpoints").glob("step-*"))[-1]
        tensors, metadata = read_safetensors(newest / "model.safetensors")
        card = dict(json.loads(metadata["tutti"]), name="\x1b[2J", classes=["tiré\n\x1b[2J\x7f\x9b2J日"] * 10)
        write_safetensors(self.folder / "evil.safetensors", tensors, {"tutti": json.dumps(card)})
        done = run(PREDICT, "--verbose", "--top", "1", "evil.safetensors", "pngs/100-0.png", cwd=self.folder)
        self.assertRegex(done.out, r"^pngs/100-0\.png: tiré\?\?\[2J\?\?2J日 \d+\.\d\d %\n$")
        self.assertNotIn("\x1b", done.err)

    def test_names_of_images_cannot_write_to_the_terminal(self):
        folder = self.folder / "odd"
        folder.mkdir(exist_ok=True)
        good = (self.folder / "pngs" / "100-0.png").read_bytes()
        (folder / "a\x1b[2J\n.png").write_bytes(good)
        (folder / "b\x1b[2J\n.png").write_bytes(good[:50])
        done = run(PREDICT, "--top", "1", self.small, "odd", cwd=self.folder, code=3)
        self.assertRegex(done.out, r"^odd/a\?\[2J\?\.png: class \d \d+\.\d\d %\n$")
        self.assertRegex(done.err, r"^tutti-predict: .*odd/b\?\[2J\?\.png.*\n$")
        self.assertEqual(list(self.predict(self.small, "odd", code=3)[0]), ["odd/a\x1b[2J\n.png", "odd/b\x1b[2J\n.png"])

    def test_standard_input(self):
        expected, _ = self.predict(self.small, "pngs")
        listed = "".join(f"{name}\n" for name in expected).encode()
        self.assertEqual(self.predict(self.small, "-", stdin=listed)[0], expected)
        self.assertEqual(self.predict(self.small, "-", stdin=b"pngs\r\n\r\n")[0], expected)
        name = next(iter(expected))
        answer, _ = self.predict(self.small, "-", stdin=(self.folder / name).read_bytes())
        self.assertEqual(answer["-"]["classes"], expected[name]["classes"])
        for nothing in (b"", b"\n\r\n\n"):
            self.assertIn("[standard input]", self.predict(self.small, "-", stdin=nothing, code=3)[1])

    def test_images_that_cannot_be_read(self):
        bad = self.folder / "bad"
        bad.mkdir(exist_ok=True)
        good = (self.folder / "pngs" / "100-0.png").read_bytes()
        (bad / "cut.png").write_bytes(good[:len(good) // 2])
        (bad / "empty.png").write_bytes(b"")
        (bad / "text.jpg").write_text("no image")
        (bad / "huge.png").write_bytes(png(1, 1, b"abc").replace(b"\0\0\0\1\0\0\0\1\x08", b"\x7f\xff\xff\xff\x7f\xff\xff\xff\x08"))
        (bad / "good.png").write_bytes(good)
        (self.folder / "none").mkdir(exist_ok=True)
        words = ["bad", "nowhere.png", "none", "pngs/100-0.png"]
        answers, said = self.predict(self.small, *words, code=3)
        wrong = ["bad/cut.png", "bad/empty.png", "bad/huge.png", "bad/text.jpg", "nowhere.png", "none"]
        self.assertEqual([image for image, answer in answers.items() if "error" in answer], [w for w in wrong])
        for image in wrong:
            self.assertIn(image, said)
            self.assertIn("expected", answers[image]["error"])
        self.assertEqual(len(said.splitlines()), len(wrong), said)
        self.assertEqual(answers["bad/good.png"]["classes"], answers["pngs/100-0.png"]["classes"])
        self.assertEqual(run(PREDICT, self.small, *words, code=3, cwd=self.folder).err, said)
        # A good image gives no error.
        self.assertEqual(len(self.predict(self.small, "bad/cut.png", code=3)[0]), 1)
        # There are more errors than a loader reports.
        many = "bad/text.jpg\n" * 200
        self.assertEqual(len(run(PREDICT, self.small, "-", stdin=many.encode(), code=3, cwd=self.folder).err.splitlines()), 200)

    def test_unsuitable_model_files(self):
        model = self.folder / "model.safetensors"
        newest = sorted((self.small / "checkpoints").glob("step-*"))[-1]
        tensors, metadata = read_safetensors(newest / "model.safetensors")

        def error(changed, meta=metadata, *words):
            write_safetensors(model, changed, meta)
            return run(PREDICT, *words, model, "pngs", code=3, cwd=self.folder).err

        def without(name):
            return {k: v for k, v in tensors.items() if k != name}

        self.assertIn("a tensor layer2.0.conv1.weight [32, 16, 3, 3], which is missing", error(without("layer2.0.conv1.weight")))
        kind, _, data = tensors["fc.weight"]
        self.assertIn("a tensor fc.weight [64, 10] for [10, 64], which has another shape", error({**tensors, "fc.weight": (kind, [64, 10], data)}))
        self.assertIn("a tensor more [1], which is not in the net", error({**tensors, "more": ("F32", [1], b"\0\0\0\0")}))
        self.assertIn("has another type", error({**tensors, "fc.bias": ("I32", [10], b"\0" * 40)}))
        # The error names the first of several differences, in the order of the net.
        several = {**without("bn1.weight"), "fc.weight": (kind, [64, 10], data)}
        self.assertIn("got a tensor bn1.weight [64], which is missing", error(several))
        self.assertIn("--model", error(tensors, None))
        self.assertIn("conv1.weight [16, 3, 3, 3] for [64, 3, 7, 7]", error(tensors, None, "--model", "resnet18"))
        card = json.loads(metadata["tutti"])
        for change, words in ((dict(card, version=9), "version 1"), (dict(card, net={}), "input"), (dict(card, classes=["one"]), "classes"),
                              (dict(card, net=None), "ops"), (dict(card, image=dict(card["image"], height=99999999)), "65536")):
            self.assertIn(words, error(tensors, {"tutti": json.dumps(change)}))
        # Rules for the preparation of images. The error names the file, and no memory is allocated for the values in
        # it.
        for change, words in (({"scaled": [65536, 65536], "short_side": 65536}, "2^26 pixels"), ({"short_side": 1}, "a short side"),
                              ({"crop": "central", "share": 0}, "a central share"), ({"crop": "\x1b[2J"}, r"\x1b[2J"),
                              ({"pad": 50, "pad_mode": "reflect"}, "a padding"), ({"fill": [1, 2]}, "fill")):
            said = error(tensors, {"tutti": json.dumps(dict(card, image=dict(card["image"], **change)))})
            self.assertIn(f"[{model} model image", said)
            self.assertIn(words, said)
            self.assertNotIn("\x1b", said)
        for k, node in enumerate(card["net"]["nodes"]):
            for change in ({"op": "evil"}, {"in": [k]}, {"in": [-1]}, {"in": ["nothing"]}, {"in": []}, {"kernel": [0, 0]}, {"kernel": [3]},
                           {"stride": 0}, {"padding": 10**9}, {"eps": 0}, {"name": 7}):
                if k > 8 or (next(iter(change)) not in node and "op" not in change):
                    continue
                nodes = [dict(node, **change) if i == k else n for i, n in enumerate(card["net"]["nodes"])]
                if node["op"] == "normalize" and "in" in change:
                    continue
                write_safetensors(model, tensors, {"tutti": json.dumps(dict(card, net=dict(card["net"], nodes=nodes)))})
                run(PREDICT, model, "pngs", code=3, cwd=self.folder)
        evil = dict(card["net"], nodes=[*card["net"]["nodes"], {"op": "\x1b[2J", "name": "\x1b[2J", "in": []}])
        self.assertIn(r"got '\x1b[2J'", error(tensors, {"tutti": json.dumps(dict(card, net=evil))}))
        self.assertIn("key in double quotes", error(tensors, {"tutti": "{"}))
        huge = json.loads(json.dumps(card))
        huge["net"]["input"] = [3, 2**40, 2**40]
        error(tensors, {"tutti": json.dumps(huge)})
        model.write_bytes((newest / "model.safetensors").read_bytes()[:1000])
        self.assertIn("truncated", run(PREDICT, model, "pngs", code=3, cwd=self.folder).err)
        for begin in (b"PK\3\4", b"\x80\2}"):
            model.write_bytes(begin + b"rest of a pickle")
            self.assertIn("pytorch_weights.py", run(PREDICT, model, "pngs", code=3, cwd=self.folder).err)
        for model in ("nowhere", "pngs", self.folder / "images"):
            self.assertIn("[model ", run(PREDICT, model, "pngs", code=3, cwd=self.folder).err)
        damaged = self.folder / "damaged"
        shutil.copytree(newest, damaged, dirs_exist_ok=True)
        data = bytearray((damaged / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (damaged / "model.safetensors").write_bytes(data)
        self.assertIn("CRC-32C", run(PREDICT, damaged, "pngs", code=3, cwd=self.folder).err)

    def test_weights_that_are_not_finite(self):
        tensors, metadata = read_safetensors(sorted((self.small / "checkpoints").glob("step-*"))[-1] / "model.safetensors")
        kind, shape, data = tensors["fc.bias"]
        write_safetensors(self.folder / "nan.safetensors", {**tensors, "fc.bias": (kind, shape, b"\0\0\xc0\x7f" * (len(data) // 4))}, metadata)
        self.assertIn("finite", run(PREDICT, "nan.safetensors", "pngs", code=6, cwd=self.folder).err)

    def test_names_of_classes(self):
        (self.folder / "names").write_text("".join(f"kind {k}\r\n" for k in range(10)))
        answers, _ = self.predict("--classes", "names", "--top", "1", self.small, "pngs")
        self.assertTrue(all(a["classes"][0]["class"] == f"kind {a['classes'][0]['index']}" for a in answers.values()))
        (self.folder / "few").write_text("one\ntwo\n")
        self.assertIn("10 classes", run(PREDICT, "--classes", "few", self.small, "pngs", code=3, cwd=self.folder).err)

    def test_usage(self):
        for words in ([], [self.small], ["--no-such", self.small, "pngs"], ["--top", "0", self.small, "pngs"], ["--top", self.small],
                      ["--precision", "f64", self.small, "pngs"], ["--json=yes", self.small, "pngs"], ["--backend", "none", self.small, "pngs"],
                      ["--model", "resnet50", self.small, "pngs"], ["--image-size", "32", self.small, "pngs"], ["--averaged", "perhaps", self.small, "pngs"],
                      ["--rgb-mean", "1,2", self.small, "pngs"]):
            self.assertRegex(run(PREDICT, *words, code=2, cwd=self.folder).err, r"^tutti-predict: \[.+\] expected .*, got .*\.$")
        help_text = run(PREDICT, "--help").out
        for option in ("--top", "--json", "--model", "--classes", "--averaged", "Exit codes:"):
            self.assertIn(option, help_text)
        self.assertRegex(run(PREDICT, "--version").out, r"^tutti-predict of tutti \d")


if __name__ == "__main__":
    if not os.access(PREDICT, os.X_OK):
        raise SystemExit(f"{PREDICT} has not been built")
    unittest.main()
