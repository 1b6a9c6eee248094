#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures training on unequal cores with equal shares and with --shares measured, and compares the bits.

  bench/unequal.py OUT [--build build] [--steps 120] [--repeats 3] [--batch 4] [--depth 20] [--cases two four]

two: 2 ranks on a core each; a spinning process shares the second core. four: 4 ranks with quotas of processor time
by cgroups, half as much for the last one as for each other one, on two cores 0.4, 0.4, 0.4 and 0.2 cores; it is skipped on a
machine without quotas. `best split` is the throughput of the best split of the logical ranks, from the measured seconds of
each rank in log.jsonl. `both`, of case two: the sum
of the throughputs of two jobs of one process, one on each of these cores at the same time, which is what both can do.
`bits`: whether all runs of a case, those of one process included, end with the same weights. OUT: a folder for the runs;
a second call continues after the runs that are there. Prints a Markdown table. A short form is run by tests/bench.
"""
import argparse
import concurrent.futures
import contextlib
import errno
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

LOGICAL = 24
PERIOD = 10000  # microseconds in which a process has its quota


def lines_of(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def rate_of(run, window=None):
    """Returns images per second between two times of the run; default: of the second half of its steps, when shares have settled."""
    seen = [line for line in lines_of(run) if line["event"] == "step"]
    begin, end = window or half_of(run)
    inside = [line for line in seen if begin <= line["seconds"] <= end]
    seen = inside if len(inside) > 1 else seen
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


class NoQuotas(Exception):
    """This machine gives no quotas of processor time. The message gives the reason."""


def group_folders():
    """Returns the folders of cgroups, of both versions, in which this process may make groups with quotas."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            yield from (Path("/sys/fs/cgroup") / name / path.lstrip("/") for name in (controllers, "cpu"))
        elif not controllers:
            yield Path("/sys/fs/cgroup") / path.lstrip("/")


def limit(group, part):
    """Makes a cgroup whose processes have this part of a core."""
    group.mkdir()
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(round(PERIOD * part)))
    else:
        (group / "cpu.max").write_text(f"{round(PERIOD * part)} {PERIOD}")


def remove(group):
    """Removes a cgroup. Its last processes may end some time after the job; if they still run after a second, it stays."""
    for _ in range(20):
        with contextlib.suppress(FileNotFoundError):
            try:
                group.rmdir()
            except OSError as why:
                if why.errno != errno.EBUSY:
                    raise
                time.sleep(0.05)
                continue
        return


@contextlib.contextmanager
def quotas(parts):
    """Gives a cgroup for each of these parts of a core. A process enters one by its file cgroup.procs."""
    parent, made = next((f for f in group_folders() if (f / "cgroup.procs").exists() and os.access(f, os.W_OK)), None), []
    if parent is None:
        raise NoQuotas("no cgroup in which this process may make others")
    try:
        try:
            for rank, part in enumerate(parts):
                made.append(parent / f"tutti-unequal-{os.getpid()}-{rank}")
                limit(made[-1], part)
        except OSError as why:
            raise NoQuotas(f"{why.filename}: {why.strerror}") from why
        yield made
    finally:
        for folder in made:
            remove(folder)


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


def train(o, out, run, ranks, cores, shares, groups=()):
    """One run, unless it is complete already. Each rank is pinned to its core, or enters its cgroup."""
    if (run / "done").exists():
        return
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    program = [o.build.resolve() / "examples/train_cifar10", "--dataset", "synthetic", "--num-examples", 100 * LOGICAL * o.batch,
               "--depth", o.depth, "--batch-size", o.batch, "--logical-ranks", LOGICAL, "--max-steps", o.steps, "--epochs", 100,
               "--disp-batches", 5, "--evaluate-every", 0, "--save-period", 1, "--threads", 1, "--data-nthreads", 1, "--run-dir", run / "files", "--no-tensorboard"]
    words = ["taskset", "-c", str(cores[0]), *map(str, program)]
    if ranks > 1:
        place = " ".join(map(str, groups or cores))
        enter = 'echo $$ > "$place/cgroup.procs"; exec "$@"' if groups else 'exec taskset -c $place "$@"'
        script = (f'set -e -- {place} -- "$@"; r=${{TUTTI_RANK:-0}}; shift $r; place=$1; while [ "$1" != -- ]; do shift; done; shift; ' + enter)
        words = [str(o.build.resolve() / "tools/tutti-launch"), "-n", str(ranks), "bash", "-c", script, "rank", *words[3:], "--strategy",
                 "gloo", "--shares", shares]
    with open(run / "out.txt", "w") as text:
        code = subprocess.run(words, stdout=text, stderr=subprocess.STDOUT, cwd=out).returncode
    if code != 0:
        sys.exit(f"{' '.join(words)} ended with {code}:\n{(run / 'out.txt').read_text()[-2000:]}")
    (run / "done").touch()


def weights(run):
    return max((run / "files/checkpoints").glob("step-*")).joinpath("model.safetensors").read_bytes()


def compare(o, out, case, ranks, places, load, groups=()):
    """Runs a case with equal and with measured shares, and in one process: with processes that have no quotas, on each place at the
    same time. load(): the processes that share the cores meanwhile. Returns a row of the table."""
    rates, found, ends, sums = {"equal": [], "measured": []}, [], set(), []
    for turn in range(o.repeats):
        with load():
            both, weights_of_one = train_both(o, out, out / f"{case}-both-{turn}", places[:1] if groups else places)
            sums.append(both)
            ends.update(weights_of_one)
        for shares, seen in rates.items():
            run = out / f"{case}-{shares}-{turn}"
            with load():
                train(o, out, run, ranks, places, shares, groups)
            seen.append(rate_of(run / "files"))
            ends.add(weights(run))
        found += [line for line in lines_of(run / "files") if line["event"] == "shares"][-1:]
    measured, equal = statistics.median(rates["measured"]), statistics.median(rates["equal"])
    split, share, shares, both, of_both = "", "", "did not change", "", ""
    if not groups:
        both, of_both = f"{statistics.median(sums):.1f}", f"{100 * measured / statistics.median(sums):.0f} %"
    if found:
        times = [statistics.median(line["seconds"][r] for line in found) for r in range(ranks)]
        best, seconds = best_split(times)
        images, shares = LOGICAL * o.batch / seconds, " ".join(map(str, found[-1]["shares"]))
        split, share = f"{images:.1f} ({' '.join(map(str, best))})", f"{100 * measured / images:.0f} %"
    return (f"| {case} | {equal:.1f} | {measured:.1f} | {shares} | {split} | {share} | {both} | {of_both} | "
            f"{'equal' if len(ends) == 1 else 'DIFFERENT'} |")


def two(o, out, cores):
    return compare(o, out, "two", 2, cores[:2], lambda: spinning(cores[1]))


def four(o, out, cores):
    part = min(0.2 * len(cores), 1)
    with quotas([part, part, part, part / 2]) as groups:
        return compare(o, out, "four", 4, cores, contextlib.nullcontext, groups)


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
    before = os.getloadavg()
    print("| case | equal, images/s | measured | shares | best split | of the best | both | of both | bits |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for case in o.cases:
        try:
            print(two(o, out, cores) if case == "two" else four(o, out, cores), flush=True)
        except NoQuotas as why:
            print(f"| {case} | skipped: {why} | | | | | | | |", flush=True)
    print(f"\nload before and after: {before[0]:.2f}, {os.getloadavg()[0]:.2f}; {len(cores)} cores; {time.strftime('%F')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
