#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Tests tutti-export for each net that the programs train: onnx checks the file, and ONNX Runtime gives the same logits
as tutti-predict."""
import json
import math
import os
import random
import sys
import unittest
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tools")]
from predict_case import BUILD, CIFAR, EXPORT, IMAGENET, PREDICT, PredictCase, png, read_safetensors, run, write_safetensors  # noqa: E402

SMALL = ["--dataset", "synthetic", "--num-examples", "32", "--batch-size", "16", "--epochs", "1", "--threads", "2", "--seed", "5"]
LARGE = ["--synthetic", "--num-examples", "16", "-b", "8", "--num_epochs", "1", "--num-classes", "12", "--nofp16", "--seed", "5"]
# For each net: the program and options that train it, and the number of batch norms that no convolution can absorb.
NETS = {
    "resnet-20": (CIFAR, [*SMALL, "--image-shape", "3,32,32", "--network", "resnet", "--depth", "20"], 0),
    "grey": (CIFAR, [*SMALL, "--image-shape", "1,28,28", "--network", "resnet_postact", "--depth", "8"], 0),
    "preact-20": (CIFAR, [*SMALL, "--image-shape", "3,28,28", "--network", "resnet_preact", "--depth", "20"], 10),
    "preact-164": (CIFAR, [*SMALL, "--image-shape", "3,16,16", "--network", "resnet_preact", "--depth", "164"], 55),
    "fast": (CIFAR, [*SMALL, "--image-shape", "3,32,32", "--network", "cifar_fast"], 0),
    "fast, wide": (CIFAR, [*SMALL, "--image-shape", "3,40,40", "--recipe", "fast", "--width", "1.5"], 0),
    "small stem": (IMAGENET, [*LARGE, "--image-size", "32", "-m", "resnet18"], 0),
    "resnet18": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "resnet18"], 0),
    "resnet34": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "resnet34"], 0),
    "resnet50": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "resnet50"], 0),
    "resnet50 v1": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "resnet50", "--v1"], 0),
    "resnet101": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "resnet101"], 0),
    "resnet50d": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "resnet50d"], 0),
    "seresnet50": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "seresnet50"], 0),
    "mobilenet_v2": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "mobilenet_v2"], 0),
    "convnext_tiny": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "convnext_tiny"], 0),
    "resnet152": (IMAGENET, [*LARGE, "--image-size", "64", "-m", "resnet152"], 0),
}
# Large nets whose ops smaller nets, or layers_net, have too. They are tested if TUTTI_CHECK_ALL is 1.
AT_NIGHT = {"resnet101", "resnet50d", "convnext_tiny", "resnet152"}


def session_of(file):
    """Returns a session with one thread: other threads of ONNX Runtime spin while they wait, and take processors from other tests."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def random_weights(tensors):
    """Returns the same tensors with other values that a net could have. Some scales are negative."""
    draw = np.random.default_rng(11)
    out = {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "F32":
            if name.endswith("running_var"):
                v = draw.uniform(0.5, 2, shape)
            elif name.endswith(("bn2.weight", "bn3.weight")):
                v = draw.uniform(-0.3, 0.3, shape)
            elif len(shape) == 1 and name.endswith("weight"):
                v = draw.uniform(0.5, 1.5, shape) * draw.choice([-1, 1], shape, p=[0.2, 0.8])
            else:
                v = draw.standard_normal(shape, np.float32) * np.float32(0.2 if len(shape) == 1 else math.sqrt(2 / math.prod(shape[1:])))
            data = v.astype("<f4").tobytes()
        out[name] = (dtype, shape, data)
    return out


class Onnx(PredictCase):
    def answers(self, model, files):
        said, _ = self.predict("--top", "100000", model, *files)
        return np.array([[c["logit"] for c in sorted(said[str(f)]["classes"], key=lambda c: c["index"])] for f in files])

    def compare(self, ours, theirs):
        most = np.abs(ours).max()
        self.assertLess(np.abs(ours - theirs).max(), 1e-4 * most)
        for a, b in zip(ours, theirs, strict=True):
            best = np.argsort(-a, kind="stable")[:5]
            # Both nets have the same best five classes. Two classes may change places if their values are almost equal.
            self.assertTrue(np.all(np.abs(a[best] - a[np.argsort(-b, kind="stable")[:5]]) <= 2e-4 * most))

    def check(self, model, norms):
        out = self.folder / "net.onnx"
        run(EXPORT, model, out)
        onnx.checker.check_model(out, full_check=True)  # also infers the shapes, and is strict
        net = onnx.load(out)
        self.assertEqual([(o.domain, o.version) for o in net.opset_import], [("", 17)])
        self.assertEqual(sum(n.op_type == "BatchNormalization" for n in net.graph.node), norms)
        session = session_of(out)
        (given,), (made,) = session.get_inputs(), session.get_outputs()
        self.assertEqual((given.name, made.name, given.shape[0], made.shape[0]), ("images", "logits", "batch", "batch"))
        channels, height, width = given.shape[1:]
        metadata = session.get_modelmeta().custom_metadata_map
        self.assertEqual(sorted(set(metadata) - {"classes"}), ["image", "input", "mean", "model", "std"])
        draw = random.Random(3)
        images = []
        for k in range(3):
            grey = bytes(min(255, max(0, 110 + 30 * k + int(60 * math.sin(0.2 * (x + y * k))) + draw.randrange(-50, 50)))
                         for y in range(height) for x in range(width))
            images.append(bytes(v for v in grey for _ in range(3)) if channels == 1 else
                          bytes(draw.randrange(30 * k, 256) if i % 7 else 80 * k for i in range(3 * height * width)))
        # The net's own rules crop larger images to the centre.
        files = []
        kind = json.loads(metadata["image"])
        for k, pixels in enumerate(images):
            file = self.folder / f"{k}.png"
            if kind["stored"]:
                file.write_bytes(png(width, height, pixels))
            else:
                # The central rule: the net's input is the part `share` in the middle of the image.
                self.assertEqual((kind["crop"], kind["share"]), ("central", 0.8))
                border = round((height / 0.8 - height) / 2)
                rows = [pixels[3 * width * y:3 * width * (y + 1)] for y in range(height)]
                edge = b"\0" * (3 * border)
                blank = b"\0" * (3 * (width + 2 * border))
                large = blank * border + b"".join(edge + r + edge for r in rows) + blank * border
                file.write_bytes(png(width + 2 * border, height + 2 * border, large))
            files.append(file)
        x = np.stack([np.frombuffer(p, np.uint8).reshape(height, width, 3)[:, :, :channels] for p in images]).astype(np.float32).transpose(0, 3, 1, 2)
        mean, std = (np.array(json.loads(metadata[k]), np.float32).reshape(1, channels, 1, 1) for k in ("mean", "std"))
        ours = self.answers(model, files)
        normalized = (x / 255 - mean) / std
        theirs = session.run(None, {"images": normalized})[0]
        self.compare(ours, theirs)
        # The batch size is not fixed.
        self.compare(ours[:1], session.run(None, {"images": normalized[:1]})[0])
        run(EXPORT, "--input", "pixels", "--output", "probabilities", model, out)
        onnx.checker.check_model(out, full_check=True)
        session = session_of(out)
        shares = session.run(["probabilities"], {"images": x})[0]
        wanted = np.exp(ours - ours.max(axis=1, keepdims=True))
        self.assertLess(np.abs(shares - wanted / wanted.sum(axis=1, keepdims=True)).max(), 1e-3)

    def test_every_net_trained_and_random(self):
        for name, (program, options, norms) in NETS.items():
            if name in AT_NIGHT and os.environ.get("TUTTI_CHECK_ALL") != "1":
                continue
            with self.subTest(net=name):
                run_folder = self.train(program, name, *options)
                self.check(run_folder, norms)
                newest = sorted((run_folder / "checkpoints").glob("step-*"))[-1] / "model.safetensors"
                tensors, metadata = read_safetensors(newest)
                other = self.folder / "random.safetensors"
                write_safetensors(other, random_weights(tensors), metadata)
                self.check(other, norms + (3 if name.startswith("fast") else 0))

    def test_layers_that_the_programs_lack(self):
        model = self.folder / "layers"
        run(BUILD / "tests" / "interchange" / "layers_net", model)
        self.check(model, 0)
        net = onnx.load(self.folder / "net.onnx")
        groups = [a.i for n in net.graph.node if n.op_type == "Conv" for a in n.attribute if a.name == "group"]
        self.assertEqual(sorted(groups), [4, 16, 96])

    def test_metadata(self):
        model = self.train(CIFAR, "named", *SMALL, "--image-shape", "3,16,16", "--depth", "8", "--rgb-mean", "127.5", "--rgb-std", "51,102,255")
        (self.folder / "names").write_text("".join(f"kind {k}\n" for k in range(10)))
        said = run(EXPORT, "--classes", self.folder / "names", model, self.folder / "named.onnx").out
        self.assertRegex(said, r"named.onnx: resnet\w*-8, 10 classes, the weights of step \d+, [\d.]+ MB\n$")
        net = onnx.load(self.folder / "named.onnx")
        metadata = {p.key: p.value for p in net.metadata_props}
        self.assertEqual(json.loads(metadata["classes"]), [f"kind {k}" for k in range(10)])
        self.assertEqual((json.loads(metadata["mean"]), json.loads(metadata["std"])), ([0.5] * 3, [0.2, 0.4, 1.0]))
        self.assertEqual(json.loads(metadata["image"])["scaled"], [16, 16])
        self.assertEqual((net.producer_name, net.ir_version), ("tutti", 8))

    def test_usage(self):
        for code, words in ((2, []), (2, ["a"]), (2, ["a", "b"]), (2, ["a", "b.onnx", "c"]), (2, ["--input", "raw", "a", "b.onnx"]), (3, ["nowhere", "b.onnx"])):
            self.assertRegex(run(EXPORT, *words, code=code, cwd=self.folder).err, r"^tutti-export: \[.+\] expected .*, got .*\.$")
        model = self.train(CIFAR, "plain", *SMALL, "--image-shape", "3,16,16", "--depth", "8")
        self.assertIn("none", run(EXPORT, model, "none/b.onnx", code=3, cwd=self.folder).err)
        self.assertIn("--output", run(EXPORT, "--help").out)
        self.assertRegex(run(EXPORT, "--version").out, r"^tutti-export of tutti \d")


if __name__ == "__main__":
    for tool in (EXPORT, PREDICT):
        if not os.access(tool, os.X_OK):
            raise SystemExit(f"{tool} has not been built")
    unittest.main()
