#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains on two ranks while processes are interrupted, killed and stopped, the disk of the run fills up and its
checkpoints are damaged, at random; after each end the job is started again. Some of its records cannot be read. The
weights must be those of an undisturbed run, bit by bit.

usage: tests/tools/soak_resume.py [--minutes N] [--seed N] [--only KIND,KIND]

  --minutes  default: 60; the last round runs to its end. --seed: default: from the clock, and printed

tests/hosts/soak_elastic.py tests elastic jobs. TUTTI_BUILD_DIR is the build folder (default: build). The
disk that fills up needs root. Exits with 1 if a promise was broken.
"""
import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", "build")).resolve()
LAUNCH, TRAIN = BUILD / "tools" / "tutti-launch", BUILD / "examples" / "train_imagenet"
CLASSES, IMAGES, SIDE, EPOCHS = 3, 16, 40, 8
DISK = 700 << 20  # size of the run's disk in bytes


def png(rows):
    """Returns a PNG image from rows of bytes, three for each pixel."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows)))
            + chunk(b"IEND", b""))


def make_images(folder, random_):
    """Makes class folders that contain one truncated image and one file that is no image."""
    for part in ("train", "val"):
        for label in range(CLASSES):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True)
            for i in range(IMAGES):
                rows = [bytes((random_.randrange(128) + 40 * label) & 255 for _ in range(3 * SIDE)) for _ in range(SIDE)]
                (place / f"{i:02}.png").write_bytes(png(rows))
    cut = folder / "train" / "class0" / "03.png"
    cut.write_bytes(cut.read_bytes()[:900])
    (folder / "train" / "class1" / "05.png").write_bytes(b"no image")


class Broken(Exception):
    pass


class Run:
    """A run of the program, which is started again when it has ended early."""

    def __init__(self, data, folder, work, seed):
        self.data, self.folder, self.work, self.seed = data, folder, work, seed
        self.starts, self.job, self.output = 0, None, work / f"{folder.name}.out"

    def start(self):
        environment = {k: v for k, v in os.environ.items() if k != "TUTTI_DATA"}
        environment |= {"TUTTI_STATE_DIR": str(self.work / "state")}
        self.starts += 1
        with self.output.open("w", encoding="utf-8") as out:
            self.job = subprocess.Popen(
                [LAUNCH, "-n", "2", "--stop-timeout", "60", TRAIN, "--strategy", "gloo", "--data-dir", self.data, "-m", "resnet18",
                 "-b", "4", "--image-size", "32", "--num-epochs", str(EPOCHS), "--display-every", "1", "--nofp16", "--seed",
                 str(self.seed), "--threads", "1", "--on-bad-record", "skip", "--save-checkpoints-steps", "4", "--keep", "2",
                 "--resume", "--log-dir", self.folder], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.work, env=environment)

    def said(self):
        return self.output.read_text(errors="replace")[-3000:]

    def step(self):
        log = self.folder / "log.jsonl"
        last = 0
        with contextlib.suppress(OSError):
            for line in log.read_text(errors="replace").splitlines()[-20:]:
                with contextlib.suppress(ValueError):
                    last = json.loads(line).get("step", last)
        return last

    def wait_for_steps(self, more):
        """Waits until the run has done this number of further steps, or has ended."""
        begin, turns = self.step(), 0
        while self.job.poll() is None and not begin <= self.step() - more and turns < 4000:
            time.sleep(0.05)
            turns += 1
            begin = min(begin, self.step())  # the run has returned to a checkpoint

    def wait(self):
        """Waits for the job and returns its exit code. Kills a job that hangs, with a message."""
        try:
            return self.job.wait(600)
        except subprocess.TimeoutExpired:
            self.job.kill()
            self.job.wait()
            raise Broken(f"the job hangs: {self.said()}") from None

    def ranks(self):
        mark = f"TUTTI_STATE_DIR={self.work / 'state'}".encode()
        found = []
        for p in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (p / "environ").read_bytes().split(b"\0")
                if mark in words and b"TUTTI_ROLE=worker" in words and os.readlink(p / "exe") == str(TRAIN):
                    found.append(int(p.name))
        return found

    def weights(self):
        newest = sorted((self.folder / "checkpoints").glob("step-*"))[-1]
        return newest.name, {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in newest.glob("*.safetensors")}


class Soak:
    def __init__(self, work, random_):
        self.work, self.random, self.run = work, random_, None
        self.disk = work / "disk"
        self.disk.mkdir()
        self.full = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", self.disk], capture_output=True).returncode == 0
        self.counts = {}

    def close(self):
        if self.run is not None and self.run.job is not None and self.run.job.poll() is None:
            self.run.job.kill()
            self.run.job.wait()
        if self.full:
            subprocess.run(["umount", "-l", self.disk], check=False)

    # Disturbances of a running job, after which it may have ended.
    def interrupt(self):
        self.run.job.send_signal(signal.SIGINT)
        self.ends({0, 130})

    def terminate(self):
        self.run.job.send_signal(signal.SIGTERM)
        self.ends({0, 143})

    def kill_rank(self):
        self.signal_a_rank(signal.SIGKILL)
        self.ends({0, 5, 137})

    def kill_launcher(self):
        self.run.job.kill()
        self.ends({0, -9})
        for _ in range(1200):
            if not self.run.ranks():
                return
            time.sleep(0.05)
        raise Broken("ranks live on without their launcher")

    def stop_rank(self):
        pid = self.signal_a_rank(signal.SIGSTOP)
        time.sleep(self.random.random())
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGCONT)

    def fill_disk(self):
        ballast = self.disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as f:
            while True:
                f.write(bytes(1 << 20))
        self.run.wait_for_steps(self.random.randint(2, 9))
        ballast.unlink(missing_ok=True)
        if self.run.job.poll() not in (None, 0, 3):  # 0: the disk had enough room for the rest of the run
            raise Broken(f"a full disk: exit code {self.run.job.returncode}: {self.run.said()}")

    def damage_checkpoint(self):
        self.interrupt()
        there = sorted((self.run.folder / "checkpoints").glob("step-*"))
        if len(there) < 2:
            return
        file = self.random.choice(sorted(there[-1].iterdir()))
        data = bytearray(file.read_bytes())
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        file.write_bytes(data)
        self.run.start()
        self.run.wait_for_steps(1)
        if there[-1].name not in self.run.said():
            raise Broken(f"a damaged checkpoint is not named: {self.run.said()}")

    def signal_a_rank(self, number):
        there = self.run.ranks()
        if not there:
            return None
        pid = self.random.choice(there)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    def ends(self, codes):
        code = self.run.wait()
        if code not in codes:
            raise Broken(f"exit code {code}, expected one of {sorted(codes)}: {self.run.said()}")

    # A round has an undisturbed run, and a run that is disturbed until it is complete.
    def round(self, number, kinds):
        data = self.work / f"data{number}"
        make_images(data, self.random)
        seed = self.random.randrange(1 << 30)
        quiet = Run(data, self.disk / "quiet", self.work, seed)
        quiet.start()
        self.run = quiet
        self.ends({0})
        wanted = quiet.weights()
        shutil.rmtree(quiet.folder)
        self.run = Run(data, self.disk / "disturbed", self.work, seed)
        for _ in range(1000):
            if self.run.job is None or self.run.job.poll() is not None:
                code = None if self.run.job is None else self.run.job.returncode
                if code == 0:
                    break
                if code in (2, 4, 6):
                    raise Broken(f"exit code {code}: {self.run.said()}")
                self.run.start()
            self.run.wait_for_steps(self.random.randint(1, 14))
            if self.run.job.poll() is None:
                kind = self.random.choice(kinds)
                self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
                before = self.run.step()
                kind()
                print(f"  {kind.__name__} at step {before}: {self.run.job.poll()}, step {self.run.step()}", flush=True)
        got = self.run.weights()
        if got != wanted:
            raise Broken(f"other weights than those of the quiet run: {got} for {wanted}: {self.run.said()}")
        print(f"round {number}: {self.run.starts} starts, {wanted[0]}, the same weights", flush=True)
        shutil.rmtree(self.run.folder)
        shutil.rmtree(data)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    for program in (LAUNCH, TRAIN):
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} has not been built")
    work = Path(tempfile.mkdtemp(prefix="tutti-soak-"))
    soak = Soak(work, random.Random(args.seed))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes what the test has made, above all the mount
    kinds = [soak.interrupt, soak.terminate, soak.kill_rank, soak.kill_launcher, soak.stop_rank, soak.damage_checkpoint]
    if soak.full:
        kinds.append(soak.fill_disk)
    else:
        print("no disk of our own can be filled up: this user makes no mount")
    chosen = list(filter(None, args.only.split(",")))
    if unknown := set(chosen) - {k.__name__ for k in kinds}:
        parser.error(f"[--only] expected some of {' '.join(k.__name__ for k in kinds)}; got {' '.join(sorted(unknown))}")
    kinds = [k for k in kinds if not chosen or k.__name__ in chosen]
    print(f"seed {args.seed}", flush=True)
    end, number = time.monotonic() + 60 * args.minutes, 0
    try:
        while number == 0 or time.monotonic() < end:
            soak.round(number, kinds)
            number += 1
        print(f"{number} rounds; {', '.join(f'{k} {n}' for k, n in sorted(soak.counts.items()))}")
    except Broken as e:
        print(f"round {number}, seed {args.seed}: {e}")
        return 1
    finally:
        soak.close()
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
