#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Trains five epochs of CIFAR-10 in f64 without batch norm, once with two workers that stay, and once with one to
three workers that join, leave and die. The weights, the momentum and the average of the weights must be equal to 1e-9.

usage: tests/tools/test_elastic_weights.py [--all]     (all 50,000 images, not the first 10,000)
"""
import json
import os
import signal
import struct
import sys

from launch_case import BUILD, LaunchCase, main, state, wait_until

TRAIN = BUILD / "tests" / "strategy" / "train_f64"
EPOCHS = 5
IMAGES = 10000


def tensors(checkpoint):
    """Returns {name: numbers} of the f64 tensors in a checkpoint."""
    found = {}
    for file in ("model", "optimizer"):
        data = (checkpoint / f"{file}.safetensors").read_bytes()
        size, = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__" or entry["dtype"] != "F64":
                continue
            begin, end = entry["data_offsets"]
            found[file, name] = struct.unpack_from(f"<{(end - begin) // 8}d", data, 8 + size + begin)
    return found


class ElasticWeights(LaunchCase):
    def begin(self, name, pause):
        self.elastic, self.run = self.folder / name, self.folder / name / "run"
        self.elastic.mkdir()
        with open(self.elastic / "out", "w") as out:
            self.job = self.start("--elastic", "--elastic-dir", self.elastic, "--elastic-at", "step", "-n", 2, TRAIN, self.run, IMAGES,
                                  EPOCHS, pause, stdout=out, stderr=out)
        # end() closes them.
        self.job.stdout = self.job.stderr = open(self.elastic / "out")

    def events(self, kind):
        log = self.run / "log.jsonl"
        text = log.read_text() if log.exists() else ""
        found = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
        return [e for e in found if e["event"] == kind]

    def wait(self, condition):
        def found():
            self.assertIsNone(self.job.poll(), self.job.stdout)
            return condition()
        return wait_until(found, 120)

    def workers(self):
        """Returns the process ids of the workers, the oldest one first."""
        files = (self.runtime / "tutti" / "jobs").glob("*/worker-*.process")
        numbers = {int(f.stem.split("-")[1]): int(f.read_text().split()[0]) for f in files}
        return [numbers[n] for n in sorted(numbers) if state(numbers[n])]

    def edit(self, slots):
        new = self.elastic / "new"
        new.write_text(f"localhost slots={slots}\n")
        new.rename(self.elastic / "host_worker")

    def change(self, at, do, sizes):
        """Makes a change when this share of the steps is done. Afterwards the number of workers must take these values,
        one after the other."""
        steps = EPOCHS * (-(-IMAGES // 32))
        self.wait(lambda: self.events("step") and self.events("step")[-1]["step"] >= at * steps)
        do()
        self.sizes += sizes
        self.wait(lambda: len(self.events("members")) >= len(self.sizes))

    def finish_run(self):
        code = self.job.wait(240)
        said = (self.elastic / "out").read_text()
        self.assertEqual(code, 0, said[-4000:])
        self.assertEqual([e["epoch"] for e in self.events("epoch")], list(range(1, EPOCHS + 1)))
        return tensors(max((self.run / "checkpoints").glob("step-*")))

    def test_ten_changes(self):
        self.begin("quiet", 0)
        quiet = self.finish_run()
        self.assertEqual(self.events("members"), [])

        self.begin("changes", 5)
        self.sizes = []
        self.change(0.02, lambda: self.edit(3), [3])
        self.change(0.12, lambda: os.kill(self.workers()[0], signal.SIGKILL), [2, 3])  # a new worker replaces it
        self.change(0.25, lambda: self.edit(1), [1])
        self.change(0.35, lambda: self.edit(2), [2])
        self.change(0.45, lambda: os.kill(self.workers()[-1], signal.SIGKILL), [1, 2])
        self.change(0.6, lambda: self.edit(3), [3])
        self.change(0.7, lambda: os.kill(self.workers()[0], signal.SIGTERM), [2])
        self.change(0.8, lambda: self.edit(1), [1])
        changed = self.finish_run()
        self.assertEqual([e["ranks"] for e in self.events("members")], self.sizes)
        self.assertEqual(len(self.sizes), 10)

        self.assertEqual(set(changed), set(quiet))
        self.assertGreater(len(quiet), 10)
        apart = {name: max(abs(a - b) for a, b in zip(values, quiet[name])) for name, values in changed.items()}
        print(f"{sum(map(len, quiet.values()))} numbers, at most {max(apart.values()):.2g} apart")
        self.assertLess(max(apart.values()), 1e-9, apart)


if __name__ == "__main__":
    if "TUTTI_DATA" not in os.environ:
        print("SKIP: no CIFAR-10 in $TUTTI_DATA")
        sys.exit(77)
    if not TRAIN.exists():
        sys.exit(f"{TRAIN} has not been built")
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        IMAGES = 50000
    main()
