#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures training on unequal cores with equal shares and with --shares measured, and compares the bits.

  bench/unequal.py OUT [--build build] [--steps 120] [--repeats 3] [--cases two four]

two: 2 ranks on a core each; a spinning process shares the second core. four: 4 ranks, of which SIGSTOP and SIGCONT let
the last one run half of the time; with fewer than 4 cores the ranks share them in pairs. `best split` is the throughput
of the best split of the logical ranks, from the measured seconds of each rank in log.jsonl. `both`, of case two: the sum
of the throughputs of two jobs of one process, one on each of these cores at the same time, which is what both can do.
`bits`: whether all runs of a case, those of one process included, end with the same weights. OUT: a folder for the runs;
a second call continues after the runs that are there. Prints a Markdown table. A short form is run by tests/bench.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

LOGICAL = 24


def lines_of(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def rate_of(run, window=None):
    """Returns images per second between two times of the run; default: of the second half of its steps, when shares have settled."""
    seen = [line for line in lines_of(run) if line["event"] == "step"]
    begin, end = window or half_of(run)
    seen = [line for line in seen if begin <= line["seconds"] <= end]
    return (seen[-1]["step"] - seen[0]["step"]) * seen[0]["batch"] / (seen[-1]["seconds"] - seen[0]["seconds"])


def half_of(run):
    """Returns the times of the first and the last step of the run's second half."""
    seen = [line for line in lines_of(run) if line["event"] == "step"]
    return next(line["seconds"] for line in seen if line["step"] >= seen[-1]["step"] // 2), seen[-1]["seconds"]


def best_split(times):
    """Returns the largest time of a rank if whole logical ranks are divided as well as possible."""
    shares = [0] * len(times)
    for _ in range(LOGICAL):
        rank = min(range(len(times)), key=lambda r: (shares[r] + 1) * times[r])
        shares[rank] += 1
    return shares, max(n * t for n, t in zip(shares, times))


@contextlib.contextmanager
def spinning(core):
    """A process that keeps a core busy."""
    words = ["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"]
    process = subprocess.Popen(words)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Throttle(threading.Thread):
    """Lets the process with the id that a file holds run half of the time, in turns of a few milliseconds."""

    def __init__(self, file):
        super().__init__(daemon=True)
        self.file, self.ends = file, threading.Event()

    def run(self):
        while not self.ends.is_set() and not self.file.exists():
            self.ends.wait(0.05)
        while not self.ends.is_set():
            try:
                process = int(self.file.read_text() or 0)
                if process == 0:
                    continue
                os.kill(process, signal.SIGSTOP)
                self.ends.wait(0.004)
                os.kill(process, signal.SIGCONT)
                self.ends.wait(0.004)
            except ProcessLookupError:
                return


def train_both(o, out, run, cores):
    """One run of one process on each core, at the same time; returns the sum of their rates while both train."""
    runs = [run.with_name(f"{run.name}-core{core}") for core in cores]
    if not all((one / "done").exists() for one in runs):
        for one in runs:
            (one / "done").unlink(missing_ok=True)
        with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
            list(pool.map(lambda job: train(o, out, job[0], 1, [job[1]], "equal"), zip(runs, cores)))
    windows = [half_of(one / "files") for one in runs]
    window = max(w[0] for w in windows), min(w[1] for w in windows)
    if window[0] >= window[1]:  # one is more than twice as fast: while the faster one trains
        window = min(windows, key=lambda w: w[1])
    return sum(rate_of(one / "files", window) for one in runs), [weights(one) for one in runs]


def train(o, out, run, ranks, cores, shares, throttled=False):
    """One run, unless it is complete already. Each rank is pinned to its core."""
    if (run / "done").exists():
        return
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    program = [o.build.resolve() / "examples/train_cifar10", "--dataset", "synthetic", "--num-examples", 100 * LOGICAL * o.batch,
               "--depth", o.depth, "--batch-size", o.batch, "--logical-ranks", LOGICAL, "--max-steps", o.steps, "--epochs", 100,
               "--disp-batches", 5, "--evaluate-every", 0, "--save-period", 1, "--threads", 1, "--data-nthreads", 1, "--run-dir", run / "files", "--no-tensorboard"]
    words = ["taskset", "-c", str(cores[0]), *map(str, program)]
    if ranks > 1:
        place = " ".join(str(c) for c in cores)
        script = (f'set -- {place} -- "$@"; r=${{TUTTI_RANK:-0}}; shift $r; core=$1; while [ "$1" != -- ]; do shift; done; shift; '
                  f'[ $r = {ranks - 1} ] && echo $$ > "{run}/pid"; exec taskset -c $core "$@"')
        words = [str(o.build.resolve() / "tools/tutti-launch"), "-n", str(ranks), "bash", "-c", script, "rank", *words[3:], "--strategy",
                 "gloo", "--shares", shares]
    throttle = Throttle(run / "pid") if throttled else None
    if throttle:
        throttle.start()
    with open(run / "out.txt", "w") as text:
        code = subprocess.run(words, stdout=text, stderr=subprocess.STDOUT, cwd=out).returncode
    if throttle:
        throttle.ends.set()
        throttle.join()
    if code != 0:
        sys.exit(f"{' '.join(words)} ended with {code}:\n{(run / 'out.txt').read_text()[-2000:]}")
    (run / "done").touch()


def weights(run):
    return max((run / "files/checkpoints").glob("step-*")).joinpath("model.safetensors").read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parents[1] / "build")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4, help="images of a logical rank")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--cases", nargs="+", choices=("two", "four"), default=["two", "four"])
    o = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("unequal.py: one core; expected 2 or more", file=sys.stderr)
        return 4
    out = o.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()
    cases = {"two": (2, cores[:2], False), "four": (4, (cores * 2)[:4], True)}
    print("| case | equal, images/s | measured | shares | best split | of the best | both | of both | bits |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for case in o.cases:
        ranks, places, throttled = cases[case]
        rates, found, ends = {"equal": [], "measured": []}, [], set()
        sums = []
        for turn in range(o.repeats):
            with contextlib.nullcontext() if throttled else spinning(places[-1]):
                both, weights_of_one = train_both(o, out, out / f"{case}-both-{turn}", places[:1] if throttled else places)
                sums.append(both)
                ends.update(weights_of_one)
            for shares in rates:
                run = out / f"{case}-{shares}-{turn}"
                with contextlib.nullcontext() if throttled else spinning(places[-1]):
                    train(o, out, run, ranks, places, shares, throttled)
                rates[shares].append(rate_of(run / "files"))
                ends.add(weights(run))
            found += [line for line in lines_of(run / "files") if line["event"] == "shares"][-1:]
        measured, equal = statistics.median(rates["measured"]), statistics.median(rates["equal"])
        split, share, shares, both, of_both = "", "", "did not change", "", ""
        if not throttled:
            both, of_both = f"{statistics.median(sums):.1f}", f"{100 * measured / statistics.median(sums):.0f} %"
        if found:
            times = [statistics.median(line["seconds"][r] for line in found) for r in range(ranks)]
            best, seconds = best_split(times)
            images, shares = LOGICAL * o.batch / seconds, " ".join(map(str, found[-1]["shares"]))
            split, share = f"{images:.1f} ({' '.join(map(str, best))})", f"{100 * measured / images:.0f} %"
        print(f"| {case} | {equal:.1f} | {measured:.1f} | {shares} | {split} | {share} | {both} | {of_both} | "
              f"{'equal' if len(ends) == 1 else 'DIFFERENT'} |", flush=True)
    print(f"\nload before and after: {load[0]:.2f}, {os.getloadavg()[0]:.2f}; {len(cores)} cores; {time.strftime('%F')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
