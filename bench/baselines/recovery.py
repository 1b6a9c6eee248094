#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how long elastic training stands still when its members change, and which samples are lost: torchrun, torchft,
Ray Train and tutti on four hosts of network namespaces, with the same net (ResNet-20), batch (16 images a worker), number of
epochs and time-outs. Needs root.

usage: bench/baselines/recovery.py [--systems WORDS] [--cases WORDS] [--repeats N] [--epochs N] [--timeout S] [--results FILE]
                                   [--limit S] [--table]

  --systems  of torchrun,torchft,ray,tutti; default: all
  --cases    of quiet,join,leave,killed,killed0,cut,paused; default: all
  --repeats  of each case; default: 3. --epochs: of 1,024 images; default: 3. --timeout: of the detection, default: 10 s
  --results  a line of JSON for each run, with versions; runs that are in the file are not repeated, so the command continues
             after an interruption. Default: recovery.jsonl in the build folder. --table: only prints the table of the file
  --limit    seconds after which a run that makes no step counts as ended; default: 100. Ray Train may take 400 s more to its first step

A run starts four workers (three for join), acts after a third of the epochs, and trains to the end. Prints for each case how long
the job stood still (p50, p95), samples lost and seen twice, steps done again or dropped, and the last loss. The time comes from files
that all workers write after each step, which this script reads every 5 ms for all systems alike. A job stands still in the first time
without a step that ends after the event and is longer than three median steps before the event; later ones are noise. If no such time
is that long, the longest one counts. Each result has the times of all steps, relative to the event.

PyTorch, torchft and Ray (requirements/torchft.txt) come from PyPI into TORCHFT_VENV (default: build/peers/torchft).
TUTTI_BUILD_DIR is the build folder of tutti (default: build). Exits with 77 if something is missing.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "tests" / "hosts")]
import environment  # noqa: E402
import netns_cluster  # noqa: E402
import recovery_systems  # noqa: E402
from table import markdown  # noqa: E402

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
CASES = {"quiet": "nothing happens", "join": "a fourth host joins", "leave": "a host leaves in order", "killed": "SIGKILL of the last rank",
         "killed0": "SIGKILL of rank 0", "cut": "the link of a host is cut", "paused": "SIGSTOP of the last rank"}


def processor_seconds(pids):
    """Returns the processor time of these processes so far, by process."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return found


class Watch:
    """The progress of a job: when a step was done that is further than all before."""

    def __init__(self, system, limit):
        self.system, self.limit, self.times, self.step = system, limit, [], 0

    def look(self):
        step = self.system.progress()
        if step > self.step:
            self.step = step
            self.times.append(time.monotonic())

    def until(self, step, begin):
        """Waits until this step is done or the job ends. Returns False if no step is done for `limit` seconds."""
        while self.step < step and not self.system.ended():
            self.look()
            if time.monotonic() > max([begin, *self.times[-1:]]) + self.limit:
                return False
            time.sleep(0.005)
        self.look()
        return True


LONG = 3  # median steps


def still(times):
    """Returns how long a job stood still. times: of its steps, relative to the event. No value if no step followed."""
    gaps = list(zip(times, times[1:]))
    before = [b - a for a, b in gaps if b <= 0]
    after = [b - a for a, b in gaps if b > 0]
    if not after or not before:
        return max(after, default=None)
    usual = statistics.median(before)
    return next((gap for gap in after if gap > LONG * usual), max(after))


def act(case, system, cluster):
    if case == "join":
        system.join(3)
    elif case == "leave":
        system.leave(3)
    elif case == "killed":
        os.kill(system.worker(-1), signal.SIGKILL)
    elif case == "killed0":
        os.kill(system.worker(0), signal.SIGKILL)
    elif case == "paused":
        os.kill(system.worker(-1), signal.SIGSTOP)
    elif case == "cut":
        cluster.cut(3)


def idle(system, watch, step):
    """Returns the processor time of workers and of all other processes until this step."""
    before, at, begin, workers = processor_seconds(system.pids()), watch.step, time.monotonic(), set(system.workers().values())
    watch.until(step, begin)
    after = processor_seconds(before)
    used = {p: s - before[p] for p, s in after.items()}
    return {"processor": {"steps": watch.step - at, "seconds": time.monotonic() - begin,
                          "workers": sum(s for p, s in used.items() if p in workers),
                          "others": sum(s for p, s in used.items() if p not in workers)}}


def run(name, case, args):
    """Runs a case once. Returns the line for the file of results."""
    with tempfile.TemporaryDirectory(prefix="race-") as folder, netns_cluster.NetnsCluster(4) as cluster:
        system = recovery_systems.SYSTEMS[name](cluster, Path(folder), args.epochs, args.timeout, BUILD)
        steps = args.epochs * recovery_systems.IMAGES // (4 * recovery_systems.BATCH)
        watch = Watch(system, args.limit)
        try:
            system.start(range(3 if case == "join" else 4))
            on = watch.until(steps // 3, time.monotonic() + system.STARTS)
            if not on or system.ended():
                return {"system": name, "case": case, "error": f"no {steps // 3} steps: {system.said()[-2000:]}"}
            event = time.monotonic()
            more = idle(system, watch, 2 * steps // 3) if case == "quiet" else {}
            act(case, system, cluster)
            on = watch.until(10**9, event)
            times = [round(t - event, 4) for t in watch.times]
            usual = statistics.median(b - a for a, b in zip(times, times[1:]))
            stood = still(times)
            continued = bool(on and stood is not None)
            return {"system": name, "case": case, "still": stood, "step": usual, "continued": continued,
                    "finished": system.finished(), "steps": watch.step, "times": times, **more, **system.audit(),
                    **({} if continued else {"said": system.said()[-1500:]})}
        finally:
            system.stop()


def percentile(values, share):
    values = sorted(values)
    return values[int(share * (len(values) - 1) + 0.5)]


def row(case, name, lines, quiet):
    """A row of the table: all runs of a case with one system."""
    good = [x for x in lines if x.get("continued")]
    stood = [still(x["times"]) if "times" in x else x["still"] for x in good]
    if not good:
        return [CASES[case], name, f"0 of {len(lines)}", "-", "-", "-", "-", "-", "-"]
    times = f"{percentile(stood, 0.5):.2f}", f"{percentile(stood, 0.95):.2f}"
    sums = ["-" if good[0][key] is None else str(statistics.median(x[key] for x in good)).removesuffix(".0")
            for key in ("lost", "twice", "repeated")]
    loss = statistics.median(x["loss"] for x in good)
    beside = f"{loss:.3f} ({loss - quiet:+.3f})" if quiet is not None and case != "quiet" else f"{loss:.3f}"
    return [CASES[case], name, f"{sum(x['finished'] for x in good)} of {len(lines)}", *times, *sums, beside]


def show(lines):
    systems = [n for n in recovery_systems.SYSTEMS if any(x["system"] == n for x in lines)]
    rows, idle_rows = [], []
    for case in CASES:
        for name in systems:
            here = [x for x in lines if (x["system"], x["case"]) == (name, case)]
            calm = [x["loss"] for x in lines if (x["system"], x["case"]) == (name, "quiet") and x.get("continued")]
            if here:
                rows.append(row(case, name, here, statistics.median(calm) if calm else None))
    for name in systems:
        used = [x["processor"] for x in lines if x["system"] == name and "processor" in x and x["processor"]["steps"]]
        steps = [x["step"] for x in lines if x["system"] == name and "step" in x]
        if used:
            ms = [statistics.median(1000 * u[k] / u["steps"] for u in used) for k in ("workers", "others")]
            share = statistics.median(u["others"] / u["seconds"] for u in used)
            idle_rows.append([name, f"{1000 * statistics.median(steps):.0f}", *(f"{m:.1f}" for m in ms), f"{100 * share:.1f}"])
    print(markdown(["case", "system", "ended well", "still, s: p50", "p95", "lost", "twice", "steps again", "last loss"], rows))
    print()
    print(markdown(["system", "step, ms", "processor, ms a step: workers", "all others", "others, % of a core"], idle_rows))
    print()
    loads = sorted(x["load"] for x in lines if "load" in x)
    if loads:
        print(f"- {environment.processor()}; load {loads[0]:.1f} to {loads[-1]:.1f}; {len(lines)} runs")
        for name in systems:
            print(f"- {name}: {next(x['versions'] for x in lines if x['system'] == name)}")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--systems", type=words, default=list(recovery_systems.SYSTEMS))
    parser.add_argument("--cases", type=words, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=10)
    parser.add_argument("--limit", type=float, default=100)
    parser.add_argument("--results", type=Path, default=BUILD / "recovery.jsonl")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    for option, known in (("systems", recovery_systems.SYSTEMS), ("cases", CASES)):
        if set(getattr(args, option)) - set(known) or not getattr(args, option):
            parser.error(f"--{option}: expected some of {','.join(known)}, got {','.join(getattr(args, option))}")
    if min(args.repeats, args.epochs, args.timeout, args.limit) <= 0:
        parser.error("--repeats, --epochs, --timeout and --limit: expected numbers above 0")
    lines = [json.loads(x) for x in args.results.read_text().splitlines()] if args.results.exists() else []
    try:
        for turn in range(0 if args.table else args.repeats):
            for case in args.cases:
                for name in args.systems:
                    one_run(lines, turn, case, name, args)
    except (netns_cluster.Unavailable, environment.Unavailable) as e:
        netns_cluster.skip(str(e))
    if not lines:
        sys.exit(f"recovery.py: no runs in {args.results}")
    show([x for x in lines if x["system"] in args.systems and x["case"] in args.cases])


def one_run(lines, turn, case, name, args):
    """Runs a case unless the file has this turn of it, with the same versions and settings."""
    versions = recovery_systems.SYSTEMS[name].versions(BUILD)
    settings = {"epochs": args.epochs, "timeout": args.timeout}
    there = [x for x in lines if (x["system"], x["case"], x["versions"], x["settings"]) == (name, case, versions, settings) and "error" not in x]
    if len(there) > turn:
        return
    load = environment.load()
    line = {**run(name, case, args), "versions": versions, "settings": settings, "load": load}
    lines.append(line)
    with open(args.results, "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    print(f"{name} {case}: " + (line.get("error") or f"{line['still'] and round(line['still'], 2)} s still, lost {line['lost']}, "
          f"twice {line['twice']}, repeated {line['repeated']}, finished {line['finished']}"), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
