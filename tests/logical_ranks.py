#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Logical ranks at full length: each run must have the bits of the quiet run, which one process does. Hashes of the model
and of the optimizer's state, and the numbers of log.jsonl, are compared.

usage: tests/logical_ranks.py [--out FOLDER] [--only PIECE[,PIECE]] [--events N] [--epochs N] [--full]

  fixed     worlds 1 to 5, each strategy, 1 to 3 servers, 1 to 64 threads, three sizes of buckets; five kinds of training
  resume    runs that stop at random steps and continue on other processes with another strategy
  elastic-gloo, elastic-ps
            jobs on four hosts (network namespaces) with random joins, leaves, kills, cuts and pauses; needs root
  resnet20  two epochs of ResNet-20 on CIFAR-10; needs $TUTTI_DATA
  accuracy  ResNet-20 with three seeds: 4 logical ranks of one process, and 4 plain ranks; needs $TUTTI_DATA. Not a part
            of the default, because it takes hours

  --out     default: build/logical-ranks. A run that is in results.jsonl there as good, for the same program, is not repeated:
            a script that was stopped continues when it is started again.
  --events  of each elastic piece, in jobs of 25; default: 100
  --epochs  of accuracy; default: 15
  --full    fixed: all combinations of placement, threads and buckets; otherwise each placement with each number of
            threads, and one size of buckets

Prints a table for bench/RESULTS.md. TUTTI_BUILD_DIR is the build folder (default: build). Exits with 1 if a run differs.
"""
import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "tools"))

from logical_runs import TRAIN, command, differences, execute, hashes, log_lines, newest, text_of, without  # noqa: E402

LOGICAL = 5
SMALL = ("--dataset", "synthetic", "--num-examples", 403, "--image-shape", "3,16,16", "--depth", 8, "--pad-size", 2, "--seed", 7,
         "--disp-batches", 1, "--logical-ranks", LOGICAL, "--batch-size", 4, "--evaluation-batch", 20, "--epochs", 2)
# A net of several buckets.
LARGE = ("--dataset", "synthetic", "--num-examples", 43, "--image-shape", "3,8,8", "--network", "resnet_imagenet", "--depth", 18,
         "--seed", 7, "--disp-batches", 1, "--logical-ranks", LOGICAL, "--batch-size", 2, "--epochs", 1)
KINDS = {"nag, f32, clipped, averaged": (*SMALL, "--clip-norm", 0.5, "--ema-decay", 0.95),
         "nag, bf16": (*SMALL, "--precision", "bf16"),
         "AdamW, bf16": (*SMALL, "--precision", "bf16", "--optimizer", "adamw"),
         "LARS, f32": (*SMALL, "--optimizer", "lars"),
         "several buckets": LARGE}
THREADS, BUCKETS = (1, 2, 4, 5, 16, 64), (1, 4, 64)
PIECES = ("fixed", "resume", "elastic-gloo", "elastic-ps", "resnet20", "accuracy")


def placements():
    """Returns the placements whose strategy the build has, the quiet one first."""
    found = [{}]
    for strategy in ("mpi", "gloo", "ps"):
        if without(strategy):
            print(f"not run: {strategy}, because {without(strategy)} is missing", flush=True)
            continue
        for ranks in range(2 if strategy != "ps" else 1, LOGICAL + 1):
            found += [dict(strategy=strategy, ranks=ranks, servers=servers) for servers in ((1, 2, 3) if strategy == "ps" else (0,))]
    return found


def name_of(how):
    words = how.get("strategy", "solo") + (f" {how['ranks']}" if how else "")
    return words + (f" with {how['servers']} servers" if how.get("servers") else "")


class Results:
    """The lines of results.jsonl: {"key": ..., "ok": ..., ...}. A key contains the hash of the program."""

    def __init__(self, out):
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        self.program = hashlib.sha256(Path(TRAIN).read_bytes()).hexdigest()[:16]
        path = out / "results.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        self.done = {}
        for line in lines:
            if line.endswith("}"):  # not cut off
                entry = json.loads(line)
                if entry["ok"]:
                    self.done[entry["key"]] = entry
        self.file = path.open("a", encoding="utf-8")
        self.used = []

    def once(self, piece, what, f):
        """Returns the entry of this run; calls f() for it if there is none yet. f returns a dictionary with "ok"."""
        key = f"{self.program} {piece}: {what}"
        if key not in self.done:
            begin = time.monotonic()
            entry = {"key": key, "piece": piece, "what": what, **f(), "seconds": round(time.monotonic() - begin, 1)}
            self.file.write(json.dumps(entry) + "\n")
            self.file.flush()
            self.done[key] = entry
        entry = self.done[key]
        self.used.append(entry)
        print(f"{'ok ' if entry['ok'] else 'RED'} {piece}: {what}{'' if entry['ok'] else ': ' + entry.get('why', '')[-2000:]}",
              flush=True)
        return entry

    def train(self, folder, options, **how):
        """Trains in a new folder. Returns why it failed, or an empty text."""
        shutil.rmtree(folder, ignore_errors=True)
        words = command(options=options, run=folder, **how)
        code, said = execute(words, self.out, timeout=36000)
        return "" if code == 0 else f"{text_of(words)}: exit code {code}\n{said}"

    def quiet(self, name, options, **how):
        """Returns the folder of the quiet run. It is kept for the next start."""
        mark = hashlib.sha256(f"{self.program} {options}".encode()).hexdigest()[:12]
        folder = self.out / f"quiet-{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{mark}"
        if not (folder / "ended").exists():
            why = self.train(folder, options, **how)
            if why:
                sys.exit(why)
            (folder / "ended").touch()
        return folder

    def compare(self, piece, what, options, quiet, **how):
        def run():
            folder = self.out / "run"
            why = self.train(folder, options, **how) or "; ".join(differences(folder, quiet))
            found = {"ok": not why, "why": why, "hash": "" if why else hashes(folder)["model.safetensors"]}
            shutil.rmtree(folder, ignore_errors=True)
            return found
        return self.once(piece, what, run)


def fixed(results, full):
    for kind, options in KINDS.items():
        quiet = results.quiet(kind, (*options, "--threads", 1))
        for i, how in enumerate(placements()):
            for j, threads in enumerate(THREADS):
                for mib in BUCKETS if full else (BUCKETS[(i + j) % len(BUCKETS)],):
                    # One process has no buckets to sum.
                    bucket = ("--bucket-mib", mib) if how else ()
                    results.compare("fixed", f"{kind}; {name_of(how)}; {threads} threads" + (f"; {mib} MiB" if how else ""),
                                    (*options, "--threads", threads, *bucket), quiet, **how)


def resume(results):
    random_ = random.Random(11)
    for kind in list(KINDS)[:4]:
        options = (*KINDS[kind], "--epochs", 3, "--disp-batches", 7, "--save-steps", 1000)
        quiet = results.quiet("resume " + kind, (*options, "--threads", 1))
        last = max(step for _, step in log_lines(quiet))
        for number in range(10):
            stops = sorted(random_.sample(range(1, last), 3))
            there = [random_.choice(placements()) for _ in range(4)]
            threads = [random_.choice(THREADS[:4]) for _ in there]

            def chain(stops=stops, there=there, threads=threads, options=options, quiet=quiet):
                folders = [results.out / f"part{i}" for i in range(4)]
                why = ""
                for i, how in enumerate(there):
                    more = [] if i == 0 else [f"--resume={newest(folders[i - 1])}"]
                    more += ["--max-steps", stops[i]] if i < 3 else []
                    why = why or results.train(folders[i], (*options, "--threads", threads[i], *more), **how)
                why = why or "; ".join(differences(folders[3], quiet))
                found = {"ok": not why, "why": why, "hash": "" if why else hashes(folders[3])["model.safetensors"]}
                for folder in folders:
                    shutil.rmtree(folder, ignore_errors=True)
                return found
            where = ", ".join(f"{name_of(how)} to step {stop}" for how, stop in zip(there, [*stops, last]))
            results.once("resume", f"{kind}; {number}: {where}", chain)


def elastic(results, strategy, events):
    if without(strategy):
        print(f"not run: elastic {strategy}, because {without(strategy)} is missing", flush=True)
        return
    for job in range(-(-events // 25)):
        kind = (("--ema-decay", "0.9", "--clip-norm", "1"), ("--precision", "bf16", "--optimizer", "adamw"))[job % 2]
        servers = ("-s", "2") if strategy == "ps" else ()
        count = min(25, events - 25 * job)
        words = [sys.executable, str(ROOT / "tests" / "hosts" / "soak_elastic.py"), "--events", str(count), "--seed", str(100 + job), "--",
                 *servers, "--", "--strategy", strategy, "--logical-ranks", str(LOGICAL), "--batch-size", "4", *kind]

        def soak(words=words):
            done = subprocess.run(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                                  timeout=36000)
            found = re.search(r"^the bits of one process: (.*), SHA-256 (\w+)$", done.stdout, re.M)
            if done.returncode == 77:
                return {"ok": True, "why": "skipped", "note": done.stdout.strip().splitlines()[-1], "events": 0}
            ok = done.returncode == 0 and found is not None
            return {"ok": ok, "why": "" if ok else done.stdout, "events": count, "note": found.group(1) if found else "",
                    "hash": found.group(2) if found else ""}
        results.once(f"elastic-{strategy}", f"job {job}, seed {100 + job}, {count} events, {' '.join(kind)}", soak)


def resnet20(results):
    options = ("--depth", 20, "--epochs", 2, "--logical-ranks", 4, "--batch-size", 32, "--seed", 1)
    quiet = results.quiet("resnet20", options)
    for how in (dict(strategy="mpi", ranks=2), dict(strategy="gloo", ranks=3), dict(strategy="ps", ranks=4, servers=2)):
        if not without(how["strategy"]):
            results.compare("resnet20", f"2 epochs; {name_of(how)}", options, quiet, **how)


def accuracy(results, epochs):
    options = ("--depth", 20, "--epochs", epochs, "--save-period", 0, "--evaluate-every", epochs)
    for seed in (1, 2, 3):
        for name, more, how in (("V = 4, one process", ("--logical-ranks", 4, "--batch-size", 32), {}),
                                ("4 plain ranks", ("--batch-size", 32), dict(strategy="gloo", ranks=4))):
            def run(more=more, how=how, seed=seed):
                folder = results.out / "run"
                why = results.train(folder, (*options, *more, "--seed", seed), **how)
                line = {} if why else [v for k, v in sorted(log_lines(folder).items()) if k[0] == "epoch"][-1]
                shutil.rmtree(folder, ignore_errors=True)
                return {"ok": not why, "why": why, "top1": line.get("test_top1"), "loss": line.get("test_loss")}
            results.once("accuracy", f"{name}; seed {seed}; {epochs} epochs", run)


def table(results):
    print("\n| piece | runs | equal | minutes | |\n|---|---|---|---|---|")
    for piece in PIECES:
        of = [e for e in results.used if e["piece"] == piece]
        if not of:
            continue
        notes = [e["note"] for e in of if e.get("note")]
        if piece == "elastic-gloo" or piece == "elastic-ps":
            notes.insert(0, f"{sum(e.get('events', 0) for e in of)} events")
        if piece == "accuracy":
            notes = [f"{e['what']}: {100 * e['top1']:.2f} %, loss {e['loss']:.4f}" for e in of if e.get("top1")]
        print(f"| {piece} | {len(of)} | {sum(e['ok'] for e in of)} | {sum(e['seconds'] for e in of) / 60:.0f} | {'; '.join(notes)} |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("--out", default="build/logical-ranks")
    parser.add_argument("--only", default=",".join(PIECES[:-1]))
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--full", action="store_true")
    a = parser.parse_args()
    only = a.only.split(",")
    if not set(only) <= set(PIECES):
        sys.exit(f"logical_ranks.py: [--only] expected pieces of {', '.join(PIECES)}, got {a.only}")
    if not os.access(TRAIN, os.X_OK):
        print(f"SKIP: no {TRAIN}")
        sys.exit(77)
    results = Results(Path(a.out).resolve())
    for piece in only:
        if piece in ("resnet20", "accuracy") and "TUTTI_DATA" not in os.environ:
            print(f"not run: {piece}, because there is no CIFAR-10 in $TUTTI_DATA", flush=True)
        elif piece == "fixed":
            fixed(results, a.full)
        elif piece == "resume":
            resume(results)
        elif piece == "resnet20":
            resnet20(results)
        elif piece == "accuracy":
            accuracy(results, a.epochs)
        else:
            elastic(results, piece.split("-")[1], a.events)
    table(results)
    sys.exit(0 if all(e["ok"] for e in results.used) else 1)


if __name__ == "__main__":
    main()
