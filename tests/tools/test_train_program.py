#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: 2
# waits
"""Tests the first listing of README.md, examples/00_pets.cpp: it trains on a folder of images alone and with every
strategy. It continues when it is started again, and reports errors in its folders. The tools read its run."""
import json
import os
import shutil
import subprocess
import sys
import unittest

from launch_case import LAUNCH, BUILD, LaunchCase, wait_until
from predict_case import EXPORT, PREDICT, pixels_of, png

TRAIN = str(BUILD / "examples" / "00_pets")
FIRST_NET = str(BUILD / "examples" / "01_net")
REPORT = str(BUILD / "tools" / "tutti-report")
NAMES = ["bee", "cat", "dog"]
STEPS = 20  # for 18 images in batches of 64: one step per epoch


def built(strategy):
    done = subprocess.run([TRAIN], env=dict(os.environ, TUTTI_STRATEGY=strategy), cwd="/", capture_output=True, text=True, check=False)
    return "build again" not in done.stderr


class TrainProgram(LaunchCase):
    def setUp(self):
        super().setUp()
        for program in (TRAIN, LAUNCH, PREDICT, EXPORT, REPORT):
            if not os.access(program, os.X_OK):
                print("SKIP: no", program)
                sys.exit(77)
        self.environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TUTTI_THREADS="1",
                                TUTTI_STATE_DIR=str(self.folder / "state"))
        for name in ("TUTTI_STRATEGY", "TUTTI_BACKEND", "GLOO_SOCKET_IFNAME", "DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"):
            self.environment.pop(name, None)
        self.images("train", 6)
        self.images("val", 4)

    def images(self, split, count, names=None):
        for name in names or NAMES:
            folder = self.folder / "pets" / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for k in range(count):
                side = 24 + k
                (folder / f"{k}.png").write_bytes(png(side, side, pixels_of(NAMES.index(name) if name in NAMES else 3, k + 10 * (split == "val"), side, side)))

    def run_alone(self, *words, code=0, **environment):
        done = subprocess.run([*map(str, words or (TRAIN,))], cwd=self.folder, env=dict(self.environment, **environment),
                              capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def events(self, event):
        log = self.folder / "runs" / "pets" / "log.jsonl"
        if not log.exists():
            return []
        # The last line may be incomplete.
        return [e for e in map(json.loads, log.read_text().rsplit("\n", 1)[0].splitlines()) if e["event"] == event]

    def accuracy(self):
        return [e["test_top1"] for e in self.events("epoch")][-1]

    def launched(self, *words, strategy="auto", **more):
        job = self.start(*words, TRAIN, env=dict(self.environment, TUTTI_STRATEGY=strategy), **more)
        self.finish(job)
        self.assertEqual(job.returncode, 0, job.out + job.err)
        return job

    def test_program_trains_and_continues_and_the_tools_read_its_run(self):
        first = self.run_alone()
        self.assertIn(f"done: {STEPS} steps; files in runs/pets", first.stdout)
        self.assertGreaterEqual(self.accuracy(), 0.9)
        said = self.run_alone(PREDICT, "runs/pets", "pets/val/cat/1.png").stdout
        self.assertIn("cat", said)
        self.assertIn("3 classes", self.run_alone(EXPORT, "runs/pets", "net.onnx").stdout)
        self.run_alone(REPORT, "runs/pets", "--out", "pets.html")
        self.assertIn("pets", (self.folder / "pets.html").read_text())
        # A finished run does not train again.
        again = self.run_alone()
        self.assertIn("this run continues from runs/pets/checkpoints/step-", again.stdout)
        self.assertEqual(len(self.events("epoch")), STEPS)
        # An unfinished run continues from the last state but one.
        newest = max((self.folder / "runs" / "pets" / "checkpoints").glob("step-*"))
        self.assertTrue(newest.name.endswith(f"{STEPS:09d}"))
        weights = (newest / "model.safetensors").read_bytes()
        shutil.rmtree(newest)
        self.run_alone()
        self.assertGreater(len(self.events("epoch")), STEPS)
        self.assertEqual((newest / "model.safetensors").read_bytes(), weights, "a run that went on has other bits")

    def test_program_trains_with_every_strategy(self):
        for strategy, words in (("gloo", ("-n", 2)), ("mpi", ("-n", 2)), ("ps", ("-n", 2, "-s", 1)), ("ps_async", ("-n", 2, "-s", 1))):
            with self.subTest(strategy=strategy):
                if not built(strategy):
                    print("no strategy", strategy)
                    continue
                shutil.rmtree(self.folder / "runs", ignore_errors=True)
                job = self.launched(*words, strategy=strategy)
                name = {"ps": "parameter server", "ps_async": "asynchronous parameter server"}.get(strategy, strategy)
                self.assertIn(f"strategy {name}", job.out)
                self.assertIn("2 ranks", job.out)
                self.assertGreaterEqual(self.accuracy(), 0.9)
                self.assertEqual(len({e["epoch"] for e in self.events("epoch")}), STEPS)
                said = self.run_alone(PREDICT, "runs/pets", "pets/val/dog/1.png").stdout
                self.assertIn("dog", said)

    def test_processes_of_mpirun_find_each_other(self):
        mpirun = shutil.which("mpirun")
        if mpirun is None or not built("mpi"):
            self.skipTest("no mpirun, or no strategy mpi")
        done = self.run_alone(mpirun, "-np", "2", "--bind-to", "none", "--oversubscribe", TRAIN)
        self.assertIn("2 ranks", done.stdout)
        self.assertGreaterEqual(self.accuracy(), 0.9)

    def test_worker_joins_during_training(self):
        self.images("train", 60)
        for strategy, words in (("gloo", ("-n", 1)), ("mpi", ("-n", 1)), ("ps", ("-n", 1, "-s", 1)), ("ps_async", ("-n", 1, "-s", 1))):
            with self.subTest(strategy=strategy):
                if not built(strategy):
                    print("no strategy", strategy)
                    continue
                shutil.rmtree(self.folder / "runs", ignore_errors=True)
                elastic = self.folder / f"elastic-{strategy}"
                elastic.mkdir()
                (elastic / "host_worker").write_text("localhost slots=1\n")
                job = self.start("--elastic", "--elastic-dir", elastic, *words, TRAIN, env=dict(self.environment, TUTTI_STRATEGY=strategy))
                wait_until(lambda: self.events("epoch"))
                new = elastic / "new"
                new.write_text("localhost slots=2\n")
                new.rename(elastic / "host_worker")
                self.finish(job)
                self.assertEqual(job.returncode, 0, job.out + job.err)
                # With MPI two processes are restarted and continue from the checkpoint.
                ranks = [e["world"] for e in self.events("start")] if strategy == "mpi" else [e["ranks"] for e in self.events("members")]
                self.assertIn(2, ranks, job.out + job.err)
                self.assertGreaterEqual(self.accuracy(), 0.9)

    def test_errors_in_the_folders_are_reported(self):
        shutil.rmtree(self.folder / "pets" / "val")
        done = self.run_alone(code=3)
        self.assertIn("00_pets: ", done.stderr)
        self.assertIn("pets/val", done.stderr)
        self.images("val", 1, ["cat", "owl"])
        self.assertIn("expected classes of the training images: bee, cat, dog, got owl", self.run_alone(code=3).stderr)
        shutil.rmtree(self.folder / "pets")
        self.images("train", 1, ["cat"])
        self.images("val", 1, ["cat"])
        self.assertIn("expected two classes or more, got one, cat", self.run_alone(code=3).stderr)
        shutil.rmtree(self.folder / "pets")
        self.assertIn("pets/train", self.run_alone(code=3).stderr)

    def test_test_images_of_some_classes_have_the_labels_of_the_training_images(self):
        shutil.rmtree(self.folder / "pets" / "val" / "bee")
        self.run_alone()
        self.assertGreaterEqual(self.accuracy(), 0.9)

    def test_folder_of_another_run_is_refused(self):
        self.run_alone(FIRST_NET, "runs/pets")
        done = self.run_alone(code=2)
        self.assertIn("[fit .run runs/pets] expected the folder of a run with this net and this optimizer", done.stderr)

    def test_unknown_backend_or_strategy_is_refused(self):
        self.assertIn("[environment TUTTI_STRATEGY] expected solo", self.run_alone(code=2, TUTTI_STRATEGY="ring").stderr)
        self.assertIn("[environment TUTTI_BACKEND] expected auto", self.run_alone(code=2, TUTTI_BACKEND="abacus").stderr)
        self.assertIn("[environment TUTTI_THREADS] expected 0 to 4096 threads, got 'many'", self.run_alone(code=2, TUTTI_THREADS="many").stderr)

    def test_interrupted_run_is_saved(self):
        self.images("train", 60)
        job = subprocess.Popen([TRAIN], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: self.events("epoch"))
        job.send_signal(2)
        out, err = job.communicate(timeout=300)
        self.assertEqual(job.returncode, 130, out + err)
        self.assertIn("state saved; run the same command again to continue from runs/pets", out)
        self.assertEqual(self.events("end")[-1]["status"], "interrupted")
        self.assertIn("this run continues from", self.run_alone().stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
