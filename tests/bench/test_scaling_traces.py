#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the traces of the model of larger clusters: those of GPUs, and hostile files."""
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench" / "scaling"))

import traces  # noqa: E402
from traces import MIB, Trace, TraceError, gpu_trace, make_buckets  # noqa: E402

GOOD = {"images": 32, "backward_end": 0.1, "update": 0.01, "buckets": [{"bytes": 1e7, "ready": 0.05}]}


class Buckets(unittest.TestCase):
    def test_rule_of_the_trainer(self):
        """The cases of tests/tensor for make_buckets(): whole slices, and a small first bucket."""
        def sizes(slices, bucket, first):
            return [size for size, _ in make_buckets([(s, 0) for s in slices], bucket, first)]
        self.assertEqual(sizes([4, 4, 4, 4, 4], 8, 4), [4, 8, 8])
        self.assertEqual(sizes([1, 1, 1, 9, 1], 8, 2), [2, 10, 1])
        self.assertEqual(sizes([100], 8, 2), [100])
        self.assertEqual(sizes([3, 3, 3], 100, 100), [9])
        self.assertEqual(sizes([], 8, 2), [])
        self.assertEqual(make_buckets([(5, 0.1), (5, 0.3), (5, 0.2)], 10, 1), [(5, 0.1), (10, 0.3)])

    def test_constants_are_the_trainers(self):
        self.assertIn("buckets.size() <= 1 ? first_bytes : bytes", (ROOT / "include/tutti/tensor/arena.hpp").read_text())
        options = (ROOT / "include/tutti/train/trainer_options.hpp").read_text()
        self.assertIn(f" first_bucket_bytes = std::size_t{{{traces.FIRST_BUCKET // MIB}}} << 20;", options)
        self.assertIn(f" bucket_bytes = std::size_t{{{traces.BUCKET // MIB}}} << 20;", options)


class Gpu(unittest.TestCase):
    def test_resnet50(self):
        self.assertEqual(traces.resnet50_parameters(), 25557032)  # torchvision's resnet50
        layers = traces.resnet50("V100")
        self.assertEqual(len(layers), 54)  # 53 convolutions, a fully connected layer
        forward, backward = (sum(layer[k] for layer in layers) for k in (0, 1))
        self.assertTrue(1.5 < backward / forward < 2.5)  # two of three passes
        self.assertEqual(layers[0][2], [64, 64, 3 * 64 * 49])

    def test_trace(self):
        for gpu in traces.gpus():
            t = gpu_trace(256, 0.3, 0.01, gpu=gpu)
            self.assertEqual((t.images, t.backward_end, t.update), (256, 0.3, 0.01))
            self.assertAlmostEqual(sum(size for size, _ in t.buckets), 4 * 25557032)
            times = [ready for _, ready in t.buckets]
            self.assertEqual(times, sorted(times))
            self.assertTrue(0.05 < times[0] < 0.15)  # the last layer's gradients are final when the forward pass is done
            self.assertAlmostEqual(times[-1], 0.3)
            # Most bytes belong to late layers, whose gradients are final first.
            self.assertGreater(sum(size for size, ready in t.buckets if ready < 0.2), 0.6 * 4 * 25557032)
            self.assertTrue(all(size >= 16 * MIB for size, _ in t.buckets[1:-1]))

    def test_other_nets_have_the_profile_of_resnet50(self):
        t = gpu_trace(256, 0.3, 0.01, 2 * 11.69e6)
        self.assertAlmostEqual(sum(size for size, _ in t.buckets), 2 * 11.69e6)
        (size, ready), = gpu_trace(256, 0.3, 0.01, 0).buckets
        self.assertEqual(size, 0)
        self.assertAlmostEqual(ready, 0.3)
        with self.assertRaisesRegex(TraceError, r"\[gpu\] expected one of V100, .*, got T4"):
            gpu_trace(1, 1, 1, gpu="T4")


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "trace.json"

    def refuse(self, content, tells="expected"):
        self.path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with self.assertRaises(TraceError) as caught:
            Trace.read(self.path)
        self.assertRegex(str(caught.exception), r"^\[.+\] expected .+, got .+\.")
        self.assertIn(tells, str(caught.exception))
        self.assertLess(len(str(caught.exception)), 1000)

    def test_good(self):
        self.path.write_text(json.dumps(GOOD))
        self.assertEqual(Trace.read(self.path), Trace(32, 0.1, 0.01, ((1e7, 0.05),)))
        # The medians of different rounds differ a little.
        self.path.write_text(json.dumps({**GOOD, "buckets": [{"bytes": 1, "ready": 0.105}], "more": 1}))
        self.assertEqual(Trace.read(self.path).buckets, ((1, 0.1),))
        self.path.write_text(json.dumps({**GOOD, "buckets": []}))
        self.assertEqual(Trace.read(self.path).buckets, ())

    def test_no_json(self):
        for content in ("", "{", "\xff\xfe", b"\xff\xfe\x00", "\x00", "[" * 100000, '{"a":' * 100000, "nul", '{"images": 1e}'):
            self.refuse(content)
        self.refuse(json.dumps(GOOD) + "x")
        self.refuse(b" " * (traces.MOST_BYTES + 1), "at most 16 MiB")

    def test_no_file(self):
        for path in (self.path.parent, self.path.parent / "none", "/dev/null/x", "a\0b"):
            with self.assertRaisesRegex(TraceError, "expected a trace"):
                Trace.read(path)

    def test_no_trace(self):
        for value in (None, 1, "x", [], [GOOD]):
            self.refuse(json.dumps(value), "images, backward_end, update and buckets")
        for name in GOOD:
            self.refuse(json.dumps({key: value for key, value in GOOD.items() if key != name}), f"no {name}")

    def test_bad_numbers(self):
        for name, bad in (("images", (0, -1, 1e300)), ("backward_end", (0, -1, 1e9)), ("update", (-1, 1e9))):
            for value in bad:
                self.refuse(json.dumps({**GOOD, name: value}), "expected a number")
        for name in ("images", "backward_end", "update"):
            for text in ('"1"', "true", "null", "[1]", "{}", "NaN", "Infinity", "-Infinity", "1e999", "9" * 400):
                self.refuse(json.dumps({**GOOD, name: 12345}).replace("12345", text), "expected a number")

    def test_bad_buckets(self):
        for buckets in (None, {}, 1, "x"):
            self.refuse(json.dumps({**GOOD, "buckets": buckets}), "expected a list")
        self.refuse(json.dumps({**GOOD, "buckets": [GOOD["buckets"][0]] * 1025}), "at most 1024 buckets, got 1025")
        for bucket in (None, 1, "x", [], {}, {"bytes": 1}, {"ready": 0}):
            self.refuse(json.dumps({**GOOD, "buckets": [bucket]}), "bucket 0] expected an object")
        for name, values in (("bytes", ("-1", "1e16", "NaN", "true", '"1"')), ("ready", ("-1", "0.2", "NaN", "Infinity"))):
            for text in values:
                self.refuse(json.dumps({**GOOD, "buckets": [GOOD["buckets"][0], {**GOOD["buckets"][0], name: 12345}]}).replace("12345", text),
                            f"bucket 1 {name}] expected a number")


if __name__ == "__main__":
    unittest.main()
