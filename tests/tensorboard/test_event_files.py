#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads the event files of a training with TensorBoard: curves, hyper-parameters, input samples, histograms."""
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

import numpy
from PIL import Image
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.hparams import backend_context, metadata
from tensorboard.util import tensor_util

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
TRAIN = str(BUILD / "examples" / "train_cifar10")
TINY = ["--dataset", "synthetic", "--num-examples", "64", "--image-shape", "3,16,20", "--depth", "8", "--batch-size", "16",
        "--threads", "1", "--disp-batches", "1", "--seed", "3", "--epochs", "2", "--pad-size", "2"]


class EventFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(TRAIN, os.X_OK):
            print(f"SKIP: no {TRAIN}")
            sys.exit(77)

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def train(self, *options, code=0, run="a"):
        environment = {k: v for k, v in os.environ.items() if k != "TUTTI_DATA"}
        done = subprocess.run([TRAIN, *TINY, "--run-dir", str(self.folder / run), *options], env=environment, capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def read(self, run="a"):
        self.multiplexer = plugin_event_multiplexer.EventMultiplexer(size_guidance={"images": 0, "tensors": 0, "scalars": 0},
                                                                     tensor_size_guidance={p: 0 for p in ("images", "histograms",
                                                                                                          "scalars")})
        self.multiplexer.AddRunsFromDirectory(str(self.folder))
        self.multiplexer.Reload()
        return self.multiplexer.GetAccumulator(run)

    def hparams(self, read, tag):
        return metadata.parse_session_start_info_plugin_data(self.plugin_data(read, tag)) if "start" in tag else \
            metadata.parse_session_end_info_plugin_data(self.plugin_data(read, tag))

    def plugin_data(self, read, tag):
        return read.SummaryMetadata(tag).plugin_data.content

    def test_curves_options_and_how_the_run_ended(self):
        self.train("--lr", "0.05")
        read = self.read()
        self.assertEqual([e.step for e in read.Tensors("train/loss")], [4 * n // 4 for n in range(1, 9)])
        loss = [json.loads(line) for line in (self.folder / "a/log.jsonl").read_text().splitlines()]
        loss = [numpy.float32(e["train_loss"]) for e in loss if e["event"] == "step"]
        self.assertEqual([tensor_util.make_ndarray(e.tensor_proto).item() for e in read.Tensors("train/loss")], loss)
        start = self.hparams(read, "_hparams_/session_start_info")
        options = json.loads((self.folder / "a/log.jsonl").read_text().splitlines()[0])["options"]
        for name, value in options.items():
            if value is None:
                self.assertNotIn(name, start.hparams)
                continue
            got = start.hparams[name]
            self.assertEqual(value, getattr(got, got.WhichOneof("kind")), name)
        self.assertEqual(start.hparams["lr"].number_value, 0.05)
        self.assertEqual(self.hparams(read, "_hparams_/session_end_info").status, 1)

    def test_runs_are_compared_by_their_differences(self):
        self.train("--lr", "0.05")
        self.train("--lr", "0.1", run="b")
        self.read()
        provider = data_provider.MultiplexerDataProvider(self.multiplexer, str(self.folder))
        context = backend_context.Context(types.SimpleNamespace(data_provider=provider))
        request = RequestContext()
        experiment = context.experiment_from_metadata(request, "", True, context.hparams_metadata(request, ""), [])
        infos = {i.name: i for i in experiment.hparam_infos}
        self.assertIn("batch-size", infos)
        self.assertEqual((infos["lr"].domain_interval.min_value, infos["lr"].domain_interval.max_value), (0.05, 0.1))
        self.assertTrue(infos["lr"].differs)
        self.assertFalse(infos["batch-size"].differs)
        metrics = {(m.name.group, m.name.tag) for m in experiment.metric_infos}
        self.assertGreaterEqual(metrics, {("", "test/top1"), ("", "train/loss")})

    def test_a_run_that_fails(self):
        self.train("--lr", "1e6", "--warmup-epochs", "0", "--epochs", "50", code=6)
        self.assertEqual(self.hparams(self.read(), "_hparams_/session_end_info").status, 2)

    def test_first_images_as_the_net_gets_them(self):
        self.train()
        self.train("--no-random-crop", "--no-random-mirror", run="plain")
        read = self.read()
        tags = [t for t in read.Tags()["tensors"] if t.startswith("input/")]
        self.assertEqual(len(tags), 8)
        pictures = {}
        for run in ("a", "plain"):
            of_run = self.multiplexer.GetAccumulator(run)
            for tag in tags:
                self.assertEqual(of_run.SummaryMetadata(tag).plugin_data.plugin_name, "images")
                (event,) = of_run.Tensors(tag)
                self.assertEqual(event.step, 1)
                width, height, png = tensor_util.make_ndarray(event.tensor_proto)
                picture = numpy.asarray(Image.open(io.BytesIO(png)))
                self.assertEqual((int(height), int(width), picture.shape), (16, 20, (16, 20, 3)))
                self.assertGreater(picture.std(), 1)
                pictures[run, tag] = picture
        # The augmented samples are shifted and mirrored copies of the plain ones.
        changed = sum(not numpy.array_equal(pictures["a", t], pictures["plain", t]) for t in tags)
        self.assertGreaterEqual(changed, 4)

    def test_histograms_on_request(self):
        self.train()
        self.train("--histograms", "3", run="b")
        read = self.read("b")
        tags = [t for t in read.Tags()["tensors"] if t.startswith(("weights/", "gradients/"))]
        self.assertIn("weights/conv1.weight", tags)
        self.assertIn("gradients/fc.weight", tags)
        self.assertFalse([t for t in self.multiplexer.GetAccumulator("a").Tags()["tensors"] if t.startswith("weights/")])
        for tag in tags:
            events = read.Tensors(tag)
            self.assertEqual([e.step for e in events], [3, 6])
            for e in events:
                buckets = tensor_util.make_ndarray(e.tensor_proto)
                self.assertEqual(buckets.shape[1], 3)
                self.assertTrue((buckets[1:, 0] == buckets[:-1, 1]).all())
        # 16 filters of 3 x 3 pixels over 3 channels.
        first = tensor_util.make_ndarray(read.Tensors("weights/conv1.weight")[0].tensor_proto)
        self.assertEqual(first[:, 2].sum(), 16 * 3 * 9)
        self.assertLess(first[0, 0], 0)
        self.assertGreater(first[-1, 1], 0)

    def test_resumed_run(self):
        self.train()
        self.train("--resume", "--epochs", "3")
        read = self.read()
        self.assertEqual([e.step for e in read.Tensors("train/loss")], list(range(1, 13)))

    def test_refused_options(self):
        self.assertIn("--histograms", self.train("--histograms", "-1", code=2))
        self.assertIn("--histograms", self.train("--histograms", "1", "--no-tensorboard", code=2))


if __name__ == "__main__":
    unittest.main()
