#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Runs with logical ranks have the same bits on any number of processes, with each strategy, number of threads and size of
buckets, resumed on other processes, and while workers join and are killed; other options are refused. tests/logical_ranks.py
is the long form."""
import os
import signal
import sys
import tempfile
import unittest
from pathlib import Path

from endings_case import EndingsCase
from logical_runs import IMAGENET, SMALL, TRAIN, command, differences, execute, log_lines, newest, text_of, without

BUILD = Path(TRAIN).parents[1]
CLIPPED = ("--clip-norm", 0.5, "--ema-decay", 0.9)


class RunsCase(unittest.TestCase):
    """Gives each test a folder. The first run of a test is the quiet one, to which all others are equal."""
    PROGRAM = TRAIN

    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="tutti-logical-")
        self.addCleanup(temp.cleanup)
        self.folder = Path(temp.name)
        self.quiet, self.count = None, 0

    def train(self, *options, code=0, **how):
        """Trains, and returns the run's folder. how: the arguments of command()."""
        missing = "" if how.get("strategy", "solo") == "solo" else without(how["strategy"])
        if missing:
            print(f"not run without {missing}: {how}")
            return None
        self.count += 1
        run = self.folder / f"run{self.count}"
        words = command(options=options, run=run, program=self.PROGRAM, **how)
        status, said = execute(words, self.folder)
        self.assertEqual(status, code, f"{text_of(words)}\n{said[-4000:]}")
        return run

    def check(self, *options, **how):
        """Trains, and compares the run with the quiet one."""
        run = self.train(*options, **how)
        if run is None:
            return
        if self.quiet is None:
            self.quiet = run
            return
        self.assertEqual(differences(run, self.quiet), [], text_of(command(options=options, **how)))


class SameBits(RunsCase):
    def test_strategies_and_worlds(self):
        options = (*SMALL, *CLIPPED)
        self.check(*options, "--threads", 1)
        self.assertGreater(len(log_lines(self.quiet)), 15)
        self.check(*options, "--threads", 1, strategy="mpi", ranks=2)
        self.check(*options, "--threads", 1, strategy="mpi", ranks=3)
        for ranks in (2, 3, 4, 5):
            self.check(*options, "--threads", 1, strategy="gloo", ranks=ranks)
        for ranks, servers in ((2, 1), (3, 2), (5, 3)):
            self.check(*options, "--threads", 1, strategy="ps", ranks=ranks, servers=servers)
        # Sums that travel through sockets.
        self.check(*options, "--threads", 1, "--no-shared-memory", strategy="gloo", ranks=3)
        self.check(*options, "--threads", 1, "--no-shared-memory", strategy="ps", ranks=2, servers=2)

    def test_measured_shares(self):
        """Times decide which process has which logical ranks. No bit depends on them."""
        options = (*SMALL, *CLIPPED, "--epochs", 6, "--threads", 1)
        self.check(*options)
        self.check(*options, "--shares", "measured")
        for strategy, servers in (("gloo", 0), ("mpi", 0), ("ps", 1)):
            self.check(*options, "--shares", "measured", strategy=strategy, ranks=3, servers=servers)

    def test_shares_of_rows(self):
        """They need no logical ranks, and say what they do to batch norm. Each sample is seen once in each epoch."""
        missing = without("gloo")
        if missing:
            self.skipTest(f"no {missing}")
        run = self.folder / "rows"
        words = command(options=(*SMALL, "--logical-ranks", 0, "--shares", "rows", "--audit", "--threads", 1, "--epochs", 4), run=run,
                        strategy="gloo", ranks=3)
        status, said = execute(words, self.folder)
        self.assertEqual(status, 0, said[-3000:])
        self.assertIn("note: --shares rows: batch norm sees the rows of one process", said)
        status, said = execute([str(BUILD / "tools" / "tutti-check-audit"), "--epochs", "4", str(run)], self.folder)
        self.assertEqual(status, 0, said)

    def test_threads(self):
        for threads in (1, 2, 4, 5, 16):
            self.check(*SMALL, *CLIPPED, "--threads", threads)
        self.check(*SMALL, *CLIPPED, "--threads", 2, "--data-nthreads", 3, strategy="gloo", ranks=2)

    def test_bf16_and_optimizers(self):
        for precision, optimizer in (("bf16", "adamw"), ("f32", "lars"), ("bf16", "nag"), ("f32", "adamw")):
            with self.subTest(precision=precision, optimizer=optimizer):
                self.quiet = None
                options = (*SMALL, "--precision", precision, "--optimizer", optimizer, "--threads", 1)
                self.check(*options)
                self.check(*options, strategy="gloo", ranks=3)
                self.check(*options, strategy="ps", ranks=2, servers=2)

    def test_bucket_sizes(self):
        """A net of several buckets. Micro-batches cut the rows of a logical rank."""
        options = ("--dataset", "synthetic", "--num-examples", 24, "--image-shape", "3,8,8", "--network", "resnet_imagenet",
                   "--depth", 18, "--seed", 3, "--disp-batches", 1, "--logical-ranks", 3, "--batch-size", 2, "--accumulate", 2,
                   "--evaluate-every", 0, "--epochs", 1, "--threads", 1)
        self.check(*options)
        for mib in (1, 4, 64):
            self.check(*options, "--bucket-mib", mib, strategy="gloo", ranks=2)

    def test_logical_ranks_without_rows(self):
        """The last step has one image, so four logical ranks have no image."""
        options = (*SMALL, "--batch-size", 4, "--epochs", 1, "--threads", 1)
        self.check(*options)
        self.assertEqual([v["batch"] for k, v in log_lines(self.quiet).items() if k[0] == "step"][-1], 20)
        self.check(*options, strategy="gloo", ranks=2)
        self.check(*options, strategy="gloo", ranks=5)

    def test_resumed_on_another_world(self):
        """In the middle of an epoch, and of the steps of a report."""
        options = (*SMALL, *CLIPPED, "--disp-batches", 3, "--save-steps", 4, "--keep", 20, "--tta", 1, "--threads", 1)
        self.check(*options)
        for first, then in ((dict(), dict(strategy="gloo", ranks=3)),
                            (dict(strategy="gloo", ranks=4), dict(strategy="ps", ranks=2, servers=1)),
                            (dict(strategy="gloo", ranks=2), dict())):
            run = self.train(*options, "--max-steps", 4, **first)
            if run is not None:
                self.check(*options, f"--resume={newest(run)}", **then)

    def test_image_folder(self):
        """Decoding and augmentation do not depend on the processes."""
        self.PROGRAM = IMAGENET
        images = self.folder / "images"
        status, said = execute([str(BUILD / "examples" / "save_images"), str(images), "12"], self.folder)
        self.assertEqual(status, 0, said)
        options = ("--data_dir", images, "-m", "resnet18", "--image_size", 32, "--stem", "imagenet", "--increased_aug", "--logical-ranks", 3, "-b", 3,
                   "--num_batches", 4, "--display_every", 1, "--evaluation-batch", 5, "--evaluate-every", 1, "--nofp16",
                   "--threads", 1)
        self.check(*options)
        self.check(*options, "--num_parallel_calls", 2, strategy="gloo", ranks=2)

    def test_image_sizes(self):
        """Images become larger after an epoch, also when the run goes on in the middle of the second epoch."""
        self.PROGRAM = IMAGENET
        images = self.folder / "images"
        status, said = execute([str(BUILD / "examples" / "save_images"), str(images), "4"], self.folder)
        self.assertEqual(status, 0, said)
        options = ("--data_dir", images, "-m", "resnet18", "--image_size", 32, "--image-size-steps", "1:48", "--stem", "imagenet",
                   "--augmentation", "torchvision", "--logical-ranks", 2, "-b", 3, "--num_epochs", 2, "--display_every", 1,
                   "--evaluate-every", 1, "--save-steps", 1, "--nofp16", "--threads", 1)
        self.check(*options)
        self.check(*options, strategy="gloo", ranks=2)
        run = self.train(*options, "--max-steps", 4, strategy="gloo", ranks=2)
        if run is not None:
            self.check(*options, f"--resume={newest(run)}", strategy="gloo", ranks=2)

    def test_mixed_images(self):
        """Mixup and cutmix of the rows of each logical rank, with binary cross entropy, also after a resume."""
        options = (*SMALL, *CLIPPED, "--mixup", 0.4, "--cutmix", 1, "--bce-loss", "--bce-target-thresh", 0.2, "--threads", 1,
                   "--save-steps", 4, "--keep", 20)
        self.check(*options)
        self.check(*options, "--data-nthreads", 3, strategy="gloo", ranks=2)
        run = self.train(*options, "--max-steps", 4, strategy="gloo", ranks=3)
        if run is not None:
            self.check(*options, f"--resume={newest(run)}")
        plain = self.train(*SMALL, *CLIPPED, "--threads", 1, "--save-steps", 4, "--keep", 20)
        self.assertNotEqual(differences(plain, self.quiet), [])


class Refused(RunsCase):
    def refuse(self, text, *options, **how):
        missing = "" if how.get("strategy", "solo") == "solo" else without(how["strategy"])
        if missing:
            return
        words = command(options=(*SMALL, "--threads", 1, *options), run=self.folder / "refused", **how)
        status, said = execute(words, self.folder)
        self.assertEqual(status, 2, f"{text_of(words)}\n{said[-3000:]}")
        self.assertIn(text, said)
        self.assertFalse((self.folder / "refused").exists())

    def test_options(self):
        wrong = "[--logical-ranks] expected at least the 3 processes that were started, got 2. hint: start at most 2"
        self.refuse(wrong, "--logical-ranks", 2, strategy="gloo", ranks=3)
        self.refuse("[--logical-ranks] expected 0 to 4096, got -1", "--logical-ranks=-1")
        self.refuse("[--strategy] expected solo, mpi, gloo, nccl or ps with --logical-ranks", strategy="ps_async", ranks=2, servers=1)
        self.refuse("[--shares] expected equal, measured or rows, got 'foo'", "--shares", "foo")
        self.refuse("[--shares] expected equal or rows without --logical-ranks", "--logical-ranks", 0, "--shares", "measured")
        self.refuse("[--shares] expected equal or measured with --logical-ranks, got rows", "--shares", "rows")
        self.refuse("[--shares] expected equal with --find-lr", "--shares", "measured", "--find-lr")
        self.refuse("[--shares] expected equal with --find-lr", "--logical-ranks", 0, "--shares", "rows", "--find-lr")
        self.refuse("[--shares] expected equal with backend cuda", "--logical-ranks", 0, "--shares", "rows", "--backend", "cuda", "--dry-run")
        self.refuse("[--shares] expected equal with --elastic-batch worker", "--logical-ranks", 0, "--shares", "rows", "--elastic-batch",
                    "worker", strategy="gloo", ranks=2, launcher=("--elastic",))
        self.refuse("[--shares] expected equal with --strategy ps_async", "--shares", "measured", strategy="ps_async", ranks=2, servers=1)
        self.refuse("[--comm-wire] expected same with --logical-ranks", "--comm-wire", "bf16", strategy="gloo", ranks=2)
        self.refuse("[--gc-type] expected none with --logical-ranks", "--gc-type", "2bit", strategy="ps", ranks=2, servers=1)
        self.refuse("[--convolution] expected auto, direct or winograd with --logical-ranks", "--convolution", "tune")
        self.refuse("[--autotune] expected no --autotune with --logical-ranks", "--autotune")
        self.refuse("[--elastic-batch] expected global with --logical-ranks", "--elastic-batch", "worker", strategy="gloo", ranks=2,
                    launcher=("--elastic",))
        self.refuse("[--allow-other-bits] expected --logical-ranks with it", "--logical-ranks", 0, "--allow-other-bits")

    def test_resume_with_other_bits(self):
        options = (*SMALL, "--epochs", 1, "--threads", 1)
        run = self.train(*options, "--max-steps", 3)
        for changes, name in ((("--logical-ranks", 3, "--global-batch-size", 15), "logical"), (("--backend", "eigen"), "backend")):
            with self.subTest(name=name):
                goes_on = command(options=(*options, *changes, "--resume"), run=run)
                status, said = execute(goes_on, self.folder)
                if "the backends of this build" in said:
                    continue
                self.assertEqual(status, 2, said[-3000:])
                self.assertIn(name, said)
                self.assertIn("--allow-other-bits", said)
        with self.subTest("another instruction set"):
            status, said = execute(command(options=(*options, "--resume"), run=run), self.folder, TUTTI_ISA="baseline")
            self.assertEqual(status, 2, said[-3000:])
            self.assertIn("--allow-other-bits", said)
        status, said = execute(command(options=(*options, "--logical-ranks", 3, "--global-batch-size", 15, "--resume",
                                                "--allow-other-bits"), run=run), self.folder)
        self.assertEqual(status, 0, said[-3000:])


class Elastic(EndingsCase):
    """A worker joins, the first one is killed, another one takes its place: the results are those of one process."""
    STRATEGY = ("--strategy", "gloo")
    # More than the workers that ever train at once.
    LOGICAL = ("--logical-ranks", 5, "--batch-size", 4, "--num-examples", 161, "--ema-decay", 0.9, "--clip-norm", 1)
    # The tests of the base class are for other options.
    test_done = test_interrupted = test_terminated = test_all_workers_are_asked_to_leave = test_last_worker_is_killed = None
    test_weights_are_not_finite = test_all_processes_are_paused = None

    def ranks(self):
        return [e["ranks"] for e in self.events() if e["event"] == "members"]

    def edit(self, slots):
        new = self.folder / "elastic" / "new"
        new.write_text(f"localhost slots={slots}\n")
        new.rename(self.folder / "elastic" / "host_worker")

    def test_join_and_kill(self):
        missing = without("gloo")
        if missing:
            self.skipTest(f"no {missing}")
        self.begin(*self.LOGICAL, epochs=120)
        self.wait_for_steps(5)
        self.edit(3)
        self.wait(lambda: self.ranks() == [3])
        self.wait_for_steps(5)
        os.kill(self.processes()[0], signal.SIGKILL)
        self.wait(lambda: self.ranks() == [3, 2, 3])
        self.edit(1)
        self.wait(lambda: self.ranks() == [3, 2, 3, 1])
        self.compare()

    def test_fine_tuning_options(self):
        """Frozen parameters and statistics, rates of groups, weights of classes, and an end by --patience."""
        missing = without("gloo")
        if missing:
            self.skipTest(f"no {missing}")
        self.begin(*self.LOGICAL, "--freeze", "layer1", "--freeze-statistics", "--rate-of", "fc=2", "--class-weights", "0=2,3=0.5",
                   "--patience", 60, epochs=150)
        self.wait_for_steps(5)
        self.edit(3)
        self.wait(lambda: self.ranks() == [3])
        self.wait_for_steps(5)
        self.edit(2)
        self.wait(lambda: self.ranks() == [3, 2])
        self.compare()

    def compare(self):
        """Waits for the end of the job, and compares it with one process."""
        self.check(0, "")
        quiet = self.folder / "quiet"
        options = [str(w) for w in self.job.args]
        options = options[options.index(TRAIN) + 1:]
        at = options.index("--run-dir")
        del options[at:at + 4]  # and --strategy gloo
        status, said = execute(command(options=options, run=quiet), self.folder)
        self.assertEqual(status, 0, said[-3000:])
        self.assertEqual(differences(self.run_dir, quiet), [])


del EndingsCase

if __name__ == "__main__":
    if not os.access(TRAIN, os.X_OK):
        print(f"SKIP: no {TRAIN}; the examples or CLI11 are missing")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
