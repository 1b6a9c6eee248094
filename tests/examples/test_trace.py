#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# processors: 2
"""Tests --trace of the training programs: the timeline of one process, of several processes, and of runs that end
early."""
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
LAUNCH, TRAIN = str(BUILD / "tools" / "tutti-launch"), str(BUILD / "examples" / "train_cifar10")
TINY = ["--dataset", "synthetic", "--num-examples", "64", "--image-shape", "3,16,16", "--depth", "8", "--batch-size", "16",
        "--threads", "1", "--disp-batches", "1", "--seed", "3"]
STEP = '"cat":"step","name":"step"'  # a step that has ended; the row's name comes before it
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader,tcp"]


def opened(text):
    """Returns the events as viewers do, which accept a text without the closing bracket."""
    text = text.rstrip()
    if not text.endswith("]"):
        text = text[:text.rindex("\n")] if not text.endswith("},") else text
        text = text.rstrip(",\n") + "]"
    return json.loads(text)


def times(event):
    return event["ts"], event["ts"] + event["dur"]


class TraceCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(TRAIN, os.X_OK) or not os.access(LAUNCH, os.X_OK):
            print(f"SKIP: no {TRAIN} or no {LAUNCH}")
            sys.exit(77)

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {k: v for k, v in os.environ.items() if k not in ("TUTTI_DATA", "TUTTI_TRACE")}
        self.environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.trace = self.folder / "out.json"

    def run_program(self, *options, code=0, before=()):
        done = subprocess.run([*before, TRAIN, *TINY, "--run-dir", "run", "--trace", "out.json", *options], cwd=self.folder,
                              env=self.environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def spans(self, whole=True):
        """Returns the spans. Checks that they nest on each row, and that each row and process has a name."""
        text = self.trace.read_text()
        events = json.loads(text) if whole else opened(text)
        rows, named = collections.defaultdict(list), set()
        for e in events:
            if e["ph"] == "X":
                self.assertGreaterEqual(e["dur"], 0)
                rows[e["pid"], e["tid"]].append(e)
            if e["ph"] == "M":
                named.add((e["name"], e["pid"], e.get("tid")))
        for (process, row), all_of_row in rows.items():
            self.assertIn(("process_name", process, None), named)
            self.assertIn(("thread_name", process, row), named)
            self.assertEqual(1, len({e["cat"] for e in all_of_row}))
            around = []
            for e in sorted(all_of_row, key=lambda e: (e["ts"], -e["dur"])):
                begin, end = times(e)
                while around and times(around[-1])[1] <= begin:
                    around.pop()
                if around:
                    self.assertLessEqual(end, times(around[-1])[1] + 0.002, (e, around[-1]))
                around.append(e)
        return [e for e in events if e["ph"] == "X"]

    def steps(self, spans, process=0):
        return sorted(e["args"]["step"] for e in spans if e["name"] == "step" and e["pid"] == process)


class OneProcess(TraceCase):
    def test_every_step_with_its_layers_data_evaluation_and_checkpoint(self):
        self.assertIn("timeline in out.json", self.run_program("--epochs", "2", "--num-examples", "80"))
        spans = self.spans()
        self.assertEqual(self.steps(spans), list(range(1, 11)))
        kinds = collections.Counter((e["cat"], e["name"]) for e in spans)
        for name in ("wait for data", "forward", "backward", "update"):
            self.assertGreaterEqual(kinds["step", name], 10, name)
        self.assertEqual(kinds["evaluation", "evaluation"], 2)
        self.assertEqual(kinds["checkpoint", "checkpoint"], 2)
        self.assertGreater(kinds["data", "images"], 0)
        layers = {e["name"] for e in spans if e["cat"] == "compute"}
        for part in ("conv2d ", "conv2d_backward_weights", "batch_norm", "linear", "update"):
            self.assertTrue(any(part in name for name in layers), (part, layers))
        # Each layer's time lies within a pass of a step. That includes the layers of the update.
        passes = [times(e) for e in spans if e["name"] in ("forward", "backward", "update") and e["cat"] == "step"]
        inside = [e for e in spans if e["cat"] == "compute"]
        self.assertTrue(all(any(b <= e["ts"] and times(e)[1] <= t + 0.002 for b, t in passes) for e in inside))

    def test_a_window_of_steps(self):
        self.run_program("--epochs", "3", "--trace-steps", "4:5")
        spans = self.spans()
        self.assertEqual(self.steps(spans), list(range(1, 13)))
        window = [times(e) for e in spans if e["name"] == "step" and e["args"]["step"] in (4, 5)]
        layers = [e for e in spans if e["cat"] == "compute"]
        self.assertTrue(layers)
        for e in layers:
            self.assertTrue(any(begin <= e["ts"] and times(e)[1] <= end for begin, end in window), e)

    def test_by_default_ten_steps_have_their_layers(self):
        self.run_program("--epochs", "4")
        spans = self.spans()
        tenth = next(e for e in spans if e["name"] == "step" and e["args"]["step"] == 10)
        last = max(times(e)[1] for e in spans if e["cat"] == "compute")
        self.assertLessEqual(last, times(tenth)[1])
        self.assertEqual(len(self.steps(spans)), 16)
        self.assertLess(self.trace.stat().st_size, 5e6)

    def test_invalid_window_and_missing_file(self):
        for steps in ("5:4", "0:3", "5", ":", "1:x", "-1:2", "1:2:3", "1:99999999999999999999"):
            self.assertIn("--trace-steps", self.run_program("--trace-steps", steps, code=2))
        done = subprocess.run([TRAIN, *TINY, "--run-dir", "run", "--trace-steps", "1:2"], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--trace FILE together with it", done.stderr)
        self.assertIn("folder/", self.run_program("--trace", "folder/", code=3))

    def test_failed_run_leaves_a_complete_file(self):
        self.run_program("--epochs", "9", "--lr", "1e6", "--warmup-epochs", "0", code=6)
        self.assertTrue(self.steps(self.spans()))

    def end_by(self, number):
        process = subprocess.Popen([TRAIN, *TINY, "--run-dir", "run", "--trace", "out.json", "--epochs", "100000"], cwd=self.folder,
                                   env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 120
            while not self.trace.exists() or STEP not in self.trace.read_text():
                self.assertLess(time.monotonic(), until)
                time.sleep(0.05)
            process.send_signal(number)
            return process.wait(timeout=900)
        finally:
            process.kill()
            process.wait()

    def test_run_that_is_asked_to_stop_leaves_a_complete_file(self):
        self.assertEqual(self.end_by(signal.SIGTERM), 143)
        self.assertIn(1, self.steps(self.spans()))

    def test_killed_run_leaves_a_readable_file(self):
        self.assertEqual(self.end_by(signal.SIGKILL), -signal.SIGKILL)
        self.assertIn(1, self.steps(self.spans(whole=False)))

    def test_evaluation_only(self):
        self.run_program("--epochs", "1")
        self.run_program("--eval-only", "--resume")
        self.assertEqual(["evaluation"], [e["name"] for e in self.spans() if e["cat"] == "evaluation"])


class SeveralProcesses(TraceCase):
    def look_at(self, ranks, steps):
        self.assertEqual([p.name for p in self.folder.glob("out*")], ["out.json"])
        spans = self.spans()
        for rank in range(ranks):
            self.assertEqual(self.steps(spans, rank), list(range(1, steps + 1)))
            lanes = {e["cat"] for e in spans if e["pid"] == rank}
            self.assertGreaterEqual(lanes, {"step", "compute", "communication", "data", "evaluation"})
        # No rank leaves a sum before all ranks have entered it.
        sums = collections.defaultdict(list)
        for e in spans:
            if e["name"].startswith("all_reduce step "):
                self.assertGreater(e["args"]["bytes"], 0)
                sums[e["name"]].append(times(e))
        self.assertGreaterEqual(len(sums), steps)
        for name, of_ranks in sums.items():
            self.assertEqual(len(of_ranks), ranks, name)
            self.assertLess(max(begin for begin, _ in of_ranks), min(end for _, end in of_ranks), name)

    def test_timelines_of_mpirun_are_merged(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun")
        out = self.run_program("--epochs", "2", before=[*MPIRUN, "-np", "2"])
        self.assertIn("timeline of 2 processes in out.json", out)
        self.look_at(2, 4)

    def test_timelines_of_the_launcher_are_merged(self):
        out = self.run_program("--epochs", "2", "--strategy", "gloo", before=[LAUNCH, "-n", "2"])
        if "strategy" in out and "gloo is not" in out:
            self.skipTest("no gloo")
        self.look_at(2, 4)

    def test_launcher_merges_files_of_killed_processes(self):
        process = subprocess.Popen([LAUNCH, "-n", "2", TRAIN, *TINY, "--strategy", "gloo", "--run-dir", "run", "--trace=out.json",
                                    "--epochs", "100000"], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        parts = [self.folder / f"out.rank{n}.json" for n in range(2)]
        until = time.monotonic() + 120
        try:
            while not all(p.exists() and STEP in p.read_text() for p in parts):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.05)
            for child in self.trainings(process.pid):
                os.kill(child, signal.SIGKILL)
            out, _ = process.communicate(timeout=900)
        finally:
            process.kill()
            process.wait()
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("timeline of 2 processes in out.json", out)
        for rank in range(2):
            self.assertIn(1, self.steps(self.spans(), rank))

    @staticmethod
    def trainings(launcher):
        """Returns the processes that a launcher has started and that train."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        def below(process):
            while process in parents and process != launcher:
                process = parents[process]
            return process == launcher
        def trains(process):
            try:
                return os.readlink(f"/proc/{process}/exe") == os.path.realpath(TRAIN)
            except OSError:
                return False
        return [p for p in parents if below(p) and trains(p)]

    def test_workers_of_servers(self):
        out = self.run_program("--epochs", "2", "--strategy", "ps", before=[LAUNCH, "-n", "2", "-s", "1"])
        self.assertIn("out.json", out)
        events = json.loads(self.trace.read_text())
        for rank in range(2):
            parts = [e for e in events if e["pid"] == rank and e.get("cat") == "communication"]
            begins = {e["id"]: e for e in parts if e["ph"] == "b"}
            ends = {e["id"]: e for e in parts if e["ph"] == "e"}
            self.assertEqual(begins.keys(), ends.keys())
            self.assertTrue(all(begins[i]["ts"] <= ends[i]["ts"] for i in begins))
            names = {e["name"] for e in parts}
            self.assertGreaterEqual(names, {f"push and pull step {n} bucket 0" for n in range(1, 5)})
        sums = [e for e in self.spans() if e["pid"] == 2]
        self.assertEqual({(e["cat"], e["name"]) for e in sums}, {("communication", "add up")})
        self.assertGreater(len([e for e in sums if e["args"]["bytes"] > 1000]), 4)

    def test_server_that_owns_the_weights(self):
        self.run_program("--epochs", "2", "--strategy", "ps_async", before=[LAUNCH, "-n", "2", "-s", "1"])
        served = {re.sub(" on .*", "", e["name"]) for e in self.spans() if e["pid"] == 2 and e["cat"] == "communication"}
        self.assertEqual(served, {"serve rank 0", "serve rank 1"})


class Values(TraceCase):
    """Tests the values of TUTTI_TRACE."""

    def train(self, *options, code=0, value="1"):
        done = subprocess.run([TRAIN, *TINY, "--run-dir", "run", *options], cwd=self.folder, capture_output=True, text=True,
                              env=dict(self.environment, TUTTI_TRACE=value), timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def test_each_op_prints_its_result(self):
        lines = self.train("--epochs", "1").splitlines()
        self.assertEqual([l for l in lines if "training" in l], [f"trace: pass {n}, training, 16 rows" for n in range(1, 5)])
        first = lines[:lines.index("trace: pass 2, training, 16 rows")]
        form = re.compile(r"trace: \S+ '[^']+' -> .+ \[[0-9, ]+\] (f32|f64) (min \S+ max \S+ mean \S+)$")
        for line in first[1:]:
            self.assertRegex(line, form)
        of_loss = [l for l in first if "softmax_cross_entropy" in l]
        of_weights = [l for l in first if "conv2d_backward_weights 'conv1' -> conv1.weight [16, 3, 3, 3] f32" in l]
        self.assertTrue(of_loss and len(of_weights) == 1)
        self.assertLess(first.index(of_loss[0]), first.index(of_weights[0]))

    def test_the_same_bits_with_every_backend_that_is_built(self):
        for backend in ("auto", "eigen", "reference"):
            weights = []
            for value in ("0", "1"):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                self.train("--epochs", "1", "--precision", "f32", "--backend", backend, value=value)
                weights.append(next((self.folder / "run/checkpoints").glob("*/model.safetensors")).read_bytes())
            self.assertEqual(weights[0], weights[1], backend)

    def test_the_first_op_that_makes_a_nan_is_named(self):
        told = self.train("--epochs", "50", "--lr", "1e6", "--warmup-epochs", "0", code=6)
        lines = told.splitlines()
        with_nan = [l for l in lines if l.startswith("trace: ") and " NaN" in l]
        self.assertEqual(len(with_nan), 1)
        op = re.match(r"trace: (\S+ '[^']+') ->", with_nan[0])[1]
        error = lines[-1]
        self.assertIn(f"[{op} in pass", error)
        self.assertIn("its inputs were", error)

    def test_each_of_two_ranks_prints_its_results(self):
        told = subprocess.run([LAUNCH, "-n", "2", TRAIN, *TINY, "--strategy", "gloo", "--run-dir", "run", "--epochs", "1"],
                              cwd=self.folder, capture_output=True, text=True, env=dict(self.environment, TUTTI_TRACE="1"), timeout=300)
        self.assertEqual(told.returncode, 0, told.stderr)
        for rank in "01":
            self.assertIn(f"[{rank}] trace: pass 1, training", told.stderr)

    def test_value_other_than_1_is_an_error(self):
        self.assertIn("[environment TUTTI_TRACE] expected 1", self.train(value="out.json", code=2))


if __name__ == "__main__":
    unittest.main()
