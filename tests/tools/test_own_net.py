#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Tests the way from a user's images to predictions: programs train, evaluate, predict and export with class folders,
and with files that tutti-data makes of them, with the names of the classes. No program needs options for facts that are
in the run's folder."""
import json
import re
import shutil
import unittest

from predict_case import BUILD, CIFAR, EXPORT, IMAGENET, PREDICT, PredictCase, pixels_of, png, run, write_recordio

DATA = str(BUILD / "tools" / "tutti-data")
REPORT = str(BUILD / "tools" / "tutti-report")
EXAMPLES = BUILD / "examples"
NAMES = ["apple", "pear \"conference\"", "star & moon"]
TINY = ["--data-dir", "images", "-m", "resnet18", "--image-size", "32", "--stem", "imagenet", "-b", "6", "--display-every", "100", "--nofp16", "--threads", "1", "--seed", "3"]
SMALL = ["--depth", "8", "--batch-size", "8", "--epochs", "1", "--threads", "1", "--seed", "3"]


class OwnNet(PredictCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for split, count in (("train", 6), ("validation", 4)):
            for label, name in enumerate(NAMES):
                folder = cls.folder / "images" / split / name
                folder.mkdir(parents=True)
                for k in range(count):
                    side = 24 if split == "train" else 30
                    (folder / f"{k}.png").write_bytes(png(side, side, pixels_of(label, k, side, side)))
        cls.image = f"images/validation/{NAMES[2]}/1.png"

    def use(self, run_folder, classes, image=None):
        """Checks that the folder of a run is enough to predict and to export."""
        answers, said = self.predict("--top", "100", run_folder, image or self.image)
        self.assertEqual(said, "")
        answer, = answers.values()
        self.assertEqual(sorted(c["class"] for c in answer["classes"]), sorted(classes))
        for c in answer["classes"]:
            self.assertEqual(c["class"], classes[c["index"]])
        done = run(EXPORT, run_folder, "net.onnx", cwd=self.folder)
        self.assertIn(f"{len(classes)} classes", done.out)
        return done.out

    def events(self, run_folder, event):
        lines = (self.folder / run_folder / "log.jsonl").read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["event"] == event]

    def confusion(self, run_folder):
        e = json.loads((self.folder / run_folder / "evaluation.json").read_text())
        triples = list(zip(*[iter(e["confusion"])] * 3, strict=True))
        return e["class_names"], sum(n for label, said, n in triples if label == said) / e["images"]

    def test_programs_of_the_tutorial(self):
        four = [str(k) for k in range(4)]
        places = ["top left", "top right", "bottom left", "bottom right"]
        for program, words, folder, classes in (("03_images", ["images", "runs/own", "2"], "runs/own", NAMES), ("01_net", ["runs/first"], "runs/first", four),
                                                ("02_data", ["runs/dots"], "runs/dots", places), ("04_train", ["runs/training"], "runs/training", four),
                                                ("07_fine_tuning", ["runs/tuning"], "runs/tuning/tuned", four), ("05_elastic", ["runs/elastic"], "runs/elastic", four)):
            with self.subTest(program=program):
                if not (EXAMPLES / program).exists():
                    self.skipTest(f"no {program}")
                run(EXAMPLES / program, *words, cwd=self.folder)
                said = self.use(folder, classes)
                self.assertRegex(said, r"^net\.onnx: net-\d+, ")
        names, accuracy = self.confusion("runs/own")
        self.assertEqual(names, NAMES)
        # tutti-predict gives the same answers for the test images as the program's own evaluation.
        answers, _ = self.predict("--averaged", "no", self.newest("runs/own"), "images/validation")
        right = sum(image.split("/")[2] == a["classes"][0]["class"] for image, a in answers.items())
        self.assertAlmostEqual(right / len(answers), accuracy)
        run(REPORT, "runs/own", "--out", "own.html", cwd=self.folder)
        self.assertIn("star \\u0026 moon", (self.folder / "own.html").read_text().replace("&amp;", "\\u0026").replace("star & moon", "star \\u0026 moon"))

    def newest(self, run_folder):
        return sorted((self.folder / run_folder / "checkpoints").glob("step-*"))[-1].relative_to(self.folder)

    def test_class_folders_are_evaluated_each_epoch_and_the_best_is_kept(self):
        options = [*TINY, "--num-epochs", "4", "--keep", "1", "--lr", "0.02", "--nofp16"]
        done = run(IMAGENET, *options, "--log-dir", "epochs", cwd=self.folder)
        self.assertEqual(len(re.findall(r"^epoch \d/4 .* test loss .* top-1 ", done.out, re.M)), 4)
        epochs = self.events("epochs", "epoch")
        rates = [e["test_top1"] for e in epochs]
        self.assertEqual(len(rates), 4)
        best = json.loads((self.folder / "epochs" / "checkpoints" / "best.json").read_text())
        self.assertAlmostEqual(best["metric"], max(rates))
        # The first of the best epochs counts. The step of the best checkpoint is that of its epoch.
        self.assertEqual(best["step"], epochs[rates.index(max(rates))]["step"])
        self.assertEqual([e["best"] for e in epochs], [r > max(rates[:k], default=-1) for k, r in enumerate(rates)])
        self.assertEqual(self.confusion("epochs")[0], NAMES)
        self.use("epochs", NAMES)
        for more in (["--evaluate-every", "0"], ["--eval-interval", "2"], ["--num-gpus", "1"]):
            done = run(IMAGENET, *TINY, "--num-epochs", "1", *more, "--log-dir", "plain", "--clear-log", cwd=self.folder)
            self.assertNotIn("Evaluation after", done.out)
        done = run(IMAGENET, "--synthetic", "--num-examples", "12", "--num-classes", "3", *TINY[2:], "--num-epochs", "1", "--log-dir", "made-up", cwd=self.folder)
        self.assertNotIn("Evaluation after", done.out)

    def test_evaluation_needs_only_the_net(self):
        run(IMAGENET, *TINY, "--num-epochs", "1", "--lr", "0.01", "--use-larc", "--ema-decay", "0.5", "--log-dir", "judged", cwd=self.folder)
        others = ["--data-dir", "images", "-m", "resnet18", "--image-size", "32", "--stem", "imagenet", "-b", "4", "--nofp16", "--num-epochs", "9", "--warmup-epochs", "2", "--eval"]
        done = run(IMAGENET, *others, "--log-dir", "judged", cwd=self.folder)
        self.assertNotIn("warning", done.out + done.err)
        self.assertIn(f"\n{4 * len(NAMES)} test images; files in judged\n", done.out)
        self.assertNotIn("training and", done.out)
        rows = re.findall(r"^ +\d+ +\d+\.\d +(\d+\.\d+) .*UTC:\S+ \S+?(  averaged weights)?$", done.out, re.M)
        self.assertEqual([bool(averaged) for _, averaged in rows], [False, True])
        last = self.events("judged", "epoch")[-1]
        self.assertEqual([float(r) for r, _ in rows], [float(f"{100 * last[k]:.3f}") for k in ("test_top1", "test_ema_top1")])
        # A message warns that the normalisation differs from the net's.
        done = run(IMAGENET, *others, "--rgb-mean", "1,2,3", "--log-dir", "judged", cwd=self.folder)
        self.assertRegex(done.err, r"^warning: --rgb-mean was ")

    def test_names_and_counts_travel_with_records(self):
        for form in ("tfrecord", "recordio", "packed"):
            with self.subTest(form=form):
                run(DATA, "convert", "-i", "images", "-o", form, "--to", form, "--shards", "2", "--validation-shards", "1", cwd=self.folder)
                words = ["--data-dir", form, *TINY[2:], "--num-batches", "1", "--log-dir", f"run-{form}", "--evaluate-every", "1"]
                run(IMAGENET, *words, cwd=self.folder)
                self.use(f"run-{form}", NAMES)
                self.assertEqual(self.confusion(f"run-{form}")[0], NAMES)
        # The net has more outputs than classes. In the report the existing classes keep their names.
        run(IMAGENET, "--data-dir", "packed", *TINY[2:], "--num-classes", "5", "--num-batches", "1", "--log-dir", "five", "--evaluate-every", "1", cwd=self.folder)
        self.assertEqual(self.confusion("five")[0], [*NAMES, "3", "4"])
        run(REPORT, "five", "--out", "five.html", cwd=self.folder)

    def test_small_images_in_records(self):
        for split in ("train", "val"):
            write_recordio(self.folder / f"{split}.rec", [(label, png(16, 16, pixels_of(label, k, 16, 16))) for k in range(4) for label in range(3)])
        options = ["--data-train", "train.rec", "--data-val", "val.rec", *SMALL]
        run(CIFAR, *options, "--run-dir", "unnamed", cwd=self.folder)
        self.use("unnamed", [str(k) for k in range(10)])
        self.assertEqual(self.confusion("unnamed")[0], [])
        small = self.folder / "few"
        for split in ("train", "validation"):
            for label, name in enumerate(NAMES):
                (small / split / name).mkdir(parents=True)
                for k in range(4):
                    (small / split / name / f"{k}.png").write_bytes(png(16, 16, pixels_of(label, k, 16, 16)))
        run(DATA, "convert", "-i", "few", "-o", "few-records", "--to", "recordio", "--shards", "1", "--validation-shards", "1", "--keep-format", cwd=self.folder)
        run(CIFAR, "--data-train", "few-records", "--data-val", "few-records", *SMALL, "--run-dir", "named", cwd=self.folder)
        self.use("named", NAMES)
        self.assertEqual(self.confusion("named")[0], NAMES)
        for split in ("train", "val"):
            shutil.copy(self.folder / f"{split}.rec", self.folder / f"cifar10_{split}.rec")
        run(CIFAR, "--data-train", "cifar10_train.rec", "--data-val", "cifar10_val.rec", *SMALL, "--run-dir", "cifar", cwd=self.folder)
        self.assertEqual(self.predict("--top", "10", "cifar", self.image)[0][self.image]["classes"].__len__(), 10)
        self.assertIn("frog", {c["class"] for c in self.predict("--top", "10", "cifar", self.image)[0][self.image]["classes"]})

    def test_run_begins_from_another_run(self):
        run(CIFAR, "--dataset", "synthetic", "--num-examples", "32", "--image-shape", "3,16,16", *SMALL, "--run-dir", "ten", cwd=self.folder)
        for program, start in ((CIFAR, ["--dataset", "synthetic", "--num-examples", "32", "--image-shape", "3,16,16", *SMALL, "--num-classes", "12"]),
                               (IMAGENET, [*TINY, "--num-batches", "1"])):
            with self.subTest(program=program):
                base = "ten"
                if program == IMAGENET:
                    run(IMAGENET, "--synthetic", "--num-examples", "12", "--num-classes", "7", *TINY[2:], "--num-batches", "1", "--log-dir", "seven", cwd=self.folder)
                    base = "seven"
                name = base + "-tuned"
                done = run(program, *start, "--pretrained", base, "--run-dir", name, cwd=self.folder)
                self.assertRegex(done.out, rf"\d+ tensors from {base}; the classifier starts from random weights, for another number"
                                           " of classes")
                self.assertEqual(len(self.events(name, "start")), 1)
        # With the same classes the whole net is loaded, so the run may begin with an evaluation.
        done = run(CIFAR, "--dataset", "synthetic", "--num-examples", "32", "--image-shape", "3,16,16", *SMALL, "--pretrained", "ten", "--eval-only", "--run-dir", "other", cwd=self.folder)
        self.assertRegex(done.out, r"\d+ tensors from ten\n")
        self.assertIn("test loss", done.out)
        for program, words in ((CIFAR, SMALL), (IMAGENET, [*TINY, "--num-batches", "1"])):
            said = run(program, *words, "--dataset" if program == CIFAR else "--synthetic", *(["synthetic"] if program == CIFAR else []), "--pretrained", "images",
                       "--run-dir", "never", code=3, cwd=self.folder).err
            self.assertIn("a run with checkpoints", said)

    def test_incomplete_set(self):
        run(DATA, "convert", "-i", "images", "-o", "part", "--to", "tfrecord", "--shards", "3", "--validation-shards", "1", cwd=self.folder)
        (self.folder / "part" / "train-00001-of-00003").unlink()
        words = ["--data-dir", "part", *TINY[2:], "--num-batches", "1", "--log-dir", "of-part"]
        said = run(IMAGENET, *words, code=3, cwd=self.folder).err
        self.assertIn("missing: train-00001-of-00003", said)
        self.assertIn("--allow-missing-shards", said)
        done = run(IMAGENET, *words, "--allow-missing-shards", cwd=self.folder)
        self.assertRegex(done.out, r"note: --allow-missing-shards: 2 of 3 files in part; missing: train-00001-of-00003\n")
        self.assertRegex(done.out, r"\n12 training and 12 test images")
        self.use("of-part", NAMES)

    def test_help_has_the_defaults(self):
        for program, keeps in ((CIFAR, "2"), (IMAGENET, "all")):
            text = " ".join(run(program, "--help").out.split())
            self.assertIn(f"number of newest checkpoints to keep, besides the best one; default: {keeps}", text)
            self.assertIn("--pretrained", text)

    def test_file_without_a_description_of_its_net(self):
        run(EXAMPLES / "07_fine_tuning", "runs/told", cwd=self.folder)
        said = run(PREDICT, "runs/told/told.safetensors", self.image, code=3, cwd=self.folder).err
        self.assertIn("checkpoints of tutti name their net themselves", said)


if __name__ == "__main__":
    unittest.main()
