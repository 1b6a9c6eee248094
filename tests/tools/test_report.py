#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests tutti-report: the page of runs of train_cifar10, of damaged runs, and without a run."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from report_case import EVIL, LAUNCH, OPTIONS, REPORT, TRAIN, ReportCase, main, png


class Report(ReportCase):
    def test_one_run(self):
        data, said = self.page(0, "first")
        self.assertEqual(said, "")
        run = data["runs"][0]
        self.assertEqual((run["name"], run["status"], run["top_k"], run["problems"]), ("first", "finished", "5", []))
        logged = [json.loads(line) for line in (self.folder / "first" / "log.jsonl").read_text().splitlines()]
        losses = [line["train_loss"] for line in logged if line["event"] == "step"]
        self.assertEqual(len(losses), 16)
        for ours, theirs in zip(run["steps"]["train_loss"]["mean"], losses, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-5 * theirs)
        for name in ("images_per_second", "lr", "train_top1", "data_wait", "compute", "time"):
            self.assertEqual(len(run["steps"][name]["mean"]), 16, name)
        self.assertEqual(run["epochs"]["step"]["mean"], [8, 16])
        for name in ("test_loss", "test_top1", "test_topk"):
            self.assertEqual(len(run["epochs"][name]["mean"]), 2, name)
        self.assertEqual(run["options"]["depth"], 8)

    def test_the_last_evaluation(self):
        for run in self.page(0, "first", "second")[0]["runs"]:
            e = run["evaluation"]
            self.assertEqual((e["epoch"], e["step"], e["averaged"], e["classes"]), (2, 16, run["name"] == "second", 10))
            triples = list(zip(*[iter(e["confusion"])] * 3, strict=True))
            images = sum(n for _, _, n in triples)
            self.assertEqual(images, e["images"])
            name = "test_ema_top1" if e["averaged"] else "test_top1"
            self.assertAlmostEqual(sum(n for label, said, n in triples if label == said) / images, run["epochs"][name]["mean"][-1], places=5)
            self.assertEqual(len(e["worst"]), min(24, sum(n for label, said, n in triples if label != said)))
            losses = [w["loss"] for w in e["worst"]]
            self.assertEqual(losses, sorted(losses, reverse=True))
            for w in e["worst"]:
                self.assertIn([w["label"], w["said"]], [[label, said] for label, said, _ in triples if label != said])
                self.assertEqual(png(w["png"])[:2], (16, 16))

    def test_several_ranks_have_the_page_of_one(self):
        folder = self.folder / "ranks"
        done = subprocess.run([LAUNCH, "-n", "2", TRAIN, *OPTIONS, "--batch-size", "16", "--strategy", "ps", "--max-steps", "8", "--run-dir", folder],
                              text=True, capture_output=True, timeout=300)
        if "libzmq" in done.stderr or "zeromq" in done.stderr and done.returncode == 2:
            self.skipTest("no ZeroMQ")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        e = self.page(0, folder)[0]["runs"][0]["evaluation"]
        first = self.page(0, "first")[0]["runs"][0]["evaluation"]
        self.assertEqual((e["step"], e["images"], sum(e["confusion"][2::3])), (8, first["images"], first["images"]))

    def test_a_damaged_evaluation(self):
        folder = self.damaged(lambda log: log)
        file = folder / "evaluation.json"
        for text in (file.read_text()[:100], "", file.read_text().replace('"format":1', '"format":2')):
            file.write_text(text)
            data, said = self.page(3, folder)
            self.assertIn("there is no confusion matrix: ", said)
            self.assertIsNone(data["runs"][0]["evaluation"])
            self.assertEqual(data["runs"][0]["steps"]["rows"], 16)

    def test_several_runs(self):
        data, _ = self.page(0, "first", self.folder / "second" / "log.jsonl")
        self.assertEqual([run["name"] for run in data["runs"]], ["first", "second"])
        self.assertIn("test_ema_top1", data["runs"][1]["epochs"])
        self.assertNotEqual(data["runs"][0]["options"]["lr"], data["runs"][1]["options"]["lr"])
        # Two runs with the same name are distinguished by their paths.
        shutil.copytree(self.folder / "first", self.folder / "other" / "first")
        data, _ = self.page(0, "first", "other/first/")
        self.assertEqual([run["name"] for run in data["runs"]], ["first", "other/first/"])

    def test_a_long_run_makes_a_small_page(self):
        folder = self.folder / "long"
        folder.mkdir()
        shutil.copy(self.folder / "first" / "evaluation.json", folder)
        line = '{"event":"step","epoch":1,"step":%d,"train_loss":%.15f,"train_top1":%.15f,"images_per_second":%.12f,"lr":%.17f,' \
               '"batch":128,"data_wait":%.17f,"comm_wait":%.17f,"compute":%.17f,"seconds":%.9f}\n'
        with (folder / "log.jsonl").open("w") as log:
            for n in range(1, 100_001):
                x = n * 0.618034 % 1
                log.write(line % (n, 50 if n == 77_777 else 1 + x, x, 1000 + x, x / 10, x / 4, x / 4, 1 - x / 2, n / 10))
        data, _ = self.page(0, folder)
        self.assertLess((self.folder / "page.html").stat().st_size, 1_000_000)
        steps = data["runs"][0]["steps"]
        self.assertEqual((steps["rows"], len(steps["train_loss"]["mean"]), max(steps["train_loss"]["max"])), (100_000, 800, 50))

    def test_output_file(self):
        with tempfile.TemporaryDirectory() as here:
            self.assertRegex(self.report(0, self.folder / "first", cwd=here).stdout, r"^report\.html: 1 run, \d+ KB\n$")
            self.assertEqual(os.listdir(here), ["report.html"])
        done = self.report(0, "first", "--out", "-", "--title", "a <b> & 'c'")
        self.assertTrue(done.stdout.startswith("<!DOCTYPE html>"))
        self.assertIn("<title>a &lt;b&gt; &amp; &#39;c&#39;</title>", done.stdout)
        self.assertIn("[file] expected", self.report(3, "first", "--out", "none/page.html").stderr)

    def test_no_run(self):
        (self.folder / "empty").mkdir(exist_ok=True)
        for named, got in (("missing", "none"), ("empty", "a folder without log.jsonl"), ("first/checkpoints/best.json", "a file")):
            said = self.report(3, "first", named, "--out", "never.html").stderr
            self.assertIn(f"tutti-report: [{named}] expected a run's folder", said)
            self.assertIn(got, said)
        self.assertFalse((self.folder / "never.html").exists())
        self.assertIn("--help", self.report(2).stderr)
        self.assertIn("--frobnicate", self.report(2, "first", "--frobnicate").stderr)
        self.assertIn("Usage: tutti-report", self.report(0, "--help").stdout)
        self.assertIn("tutti-report of tutti", self.report(0, "--version").stdout)

    def damaged(self, change):
        folder = self.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "first", folder)
        log = folder / "log.jsonl"
        log.write_bytes(change(log.read_bytes()))
        return folder

    def test_running_run(self):
        # A reader may find a log that is truncated at any byte.
        whole = (self.folder / "first" / "log.jsonl").read_bytes()
        for size in (0, 1, len(whole) // 3, len(whole) - 1):
            data, said = self.page(0, self.damaged(lambda log: log[:size]))
            self.assertEqual(data["runs"][0]["problems"], [])
            self.assertEqual("the last line" in said, size > 0 and size != len(whole) - 1, said)
        self.assertEqual(len(self.page(0, self.damaged(lambda log: log[:len(whole) // 2]))[0]["runs"]), 1)

    def test_damage_is_reported_and_the_rest_is_shown(self):
        def spoil(log):
            lines = log.split(b"\n")
            lines[3] = b"\x00\xff garbage"
            return b"\n".join(lines)

        data, said = self.page(3, "second", self.damaged(spoil))
        self.assertEqual(len(data["runs"]), 2)
        self.assertEqual(data["runs"][1]["steps"]["rows"], 15)
        self.assertIn("line 4", data["runs"][1]["problems"][0])
        self.assertIn("1 line of", said)
        # The run has checkpoints, but no log.
        folder = self.damaged(lambda log: log)
        (folder / "log.jsonl").unlink()
        data, said = self.page(3, folder)
        self.assertIn("there is no", said)
        (folder / "log.jsonl").mkdir()
        self.assertIn("expected a regular file", self.page(3, folder)[1])

    def test_hostile_strings(self):
        data, _ = self.page(0, self.evil_run())
        run = data["runs"][0]
        self.assertEqual(run["options"][EVIL], EVIL)
        self.assertEqual((run["status"], run["warnings"]), (EVIL, [EVIL]))
        # A name that is not UTF-8.
        odd = os.fsencode(self.folder) + b"/odd\xff"
        shutil.copytree(os.fsencode(self.folder / "first"), odd)
        done = subprocess.run([REPORT, "--out", "page.html", odd], cwd=self.folder, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"<title>odd?</title>", (self.folder / "page.html").read_bytes())


if __name__ == "__main__":
    main()
