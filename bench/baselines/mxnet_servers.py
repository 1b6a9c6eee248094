#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how long gradients take to be pushed and pulled with MXNet's parameter servers (dist_sync over ps-lite) and
with tutti's, in turns in one run. Both use the same number of workers and servers on this host and the same bytes. Each
process verifies its sums.

usage: bench/baselines/mxnet_servers.py [--bytes N] [--workers N] [--servers N] [--arrays N] [--turns N] [--rounds N]

  --bytes    that each worker pushes and pulls (default: 45 MiB); --arrays: number of equal arrays (default: 8)
  --turns    of the two systems (default: 5); --rounds: in each turn (default: 10, the median counts)

MXNet 1.9.1 (requirements/mxnet.txt) comes from PyPI into a virtual environment, MXNET_VENV (default:
build/peers/mxnet), made at the first run. Exits with 77 if it cannot be installed. PARAMETER_SERVER is tutti's program
(default: build/bench/parameter_server).
"""
import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import environment  # noqa: E402


def worker(args):
    """Runs a worker of MXNet, which prints the median time of a round in milliseconds."""
    import mxnet as mx

    store = mx.kv.create("dist_sync")
    count = args.bytes // 4 // args.arrays
    keys = list(range(args.arrays))
    mine = [mx.nd.full((count,), store.rank + 1) for _ in keys]
    sums = [mx.nd.zeros((count,)) for _ in keys]
    store.init(keys, sums)
    took, before = [], 0
    for number in range(args.rounds + 1):
        mx.nd.waitall()
        store._barrier()
        begin = time.monotonic()
        for key in keys:
            store.push(key, mine[key], priority=-key)
        for key in keys:
            store.pull(key, sums[key], priority=-key)
        mx.nd.waitall()
        if number > 0:
            took.append((time.monotonic() - begin) * 1000)
        # Without an optimizer, MXNet's servers accumulate all pushes, so only the first round gives the plain sum.
        least = sum(range(1, args.workers + 1)) if number == 0 else before + 1
        for each in sums:
            found = float(each.min().asscalar()), float(each.max().asscalar())
            if found[0] != found[1] or found[0] < least or (number == 0 and found[0] != least):
                sys.exit(f"mxnet_servers.py: round {number}: expected {least} or more, got {found[0]} to {found[1]}")
        before = found[0]
    store._barrier()
    print(f"MEDIAN {statistics.median(took)}", flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def mxnet_turn(args, python):
    """Returns the time of the slowest worker in milliseconds."""
    roles = dict(os.environ, DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=str(free_port()),
                       DMLC_NUM_WORKER=str(args.workers), DMLC_NUM_SERVER=str(args.servers))
    again = [str(python), __file__, "--bytes", str(args.bytes), "--arrays", str(args.arrays), "--rounds",
             str(args.rounds), "--workers", str(args.workers), "--servers", str(args.servers)]
    serve = [str(python), "-c", "import mxnet"]
    started = []
    try:
        for role, command, count in (("scheduler", serve, 1), ("server", serve, args.servers),
                                     ("worker", again + ["--as-worker"], args.workers)):
            for _ in range(count):
                started.append((role, subprocess.Popen(command, env=dict(roles, DMLC_ROLE=role), text=True,
                                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
        slowest = 0.0
        for role, process in started:
            if role != "worker":
                continue
            out, err = process.communicate(timeout=600)
            found = re.search(r"^MEDIAN ([0-9.]+)$", out, re.M)
            if process.returncode != 0 or found is None:
                sys.exit(f"mxnet_servers.py: a worker ended with status {process.returncode}:\n{err[-2000:]}")
            slowest = max(slowest, float(found.group(1)))
        return slowest
    finally:
        for _, process in started:
            if process.poll() is None:
                try:
                    process.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
            process.communicate()


def our_turn(args, program):
    """Returns {name of a transport: milliseconds}."""
    out = subprocess.run([program, "--bytes", str(args.bytes), "--workers", str(args.workers), "--servers",
                          str(args.servers), "--turns", "1", "--rounds", str(args.rounds)], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    return {name.strip(): float(ms) for name, ms in re.findall(r"^(.+?) +([0-9.]+) ms ", out, re.M)}


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    for name, usual in (("bytes", 45 << 20), ("workers", 2), ("servers", 1), ("arrays", 8), ("turns", 5),
                        ("rounds", 10)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if min(args.bytes, args.workers, args.servers, args.arrays, args.turns, args.rounds) < 1:
        parser.error("numbers from 1")
    if args.rounds > 100:
        parser.error("at most 100 rounds: the backlog of MXNet's servers doubles in each round")
    args.bytes = args.bytes // (4 * args.arrays) * (4 * args.arrays)
    if args.as_worker:
        return worker(args)
    program = os.environ.get("PARAMETER_SERVER", str(ROOT / "build" / "bench" / "parameter_server"))
    if not os.access(program, os.X_OK):
        sys.exit(f"mxnet_servers.py: no {program}; build tutti's benchmarks, or set PARAMETER_SERVER")
    try:
        python = environment.python_of("mxnet")
    except environment.Unavailable as e:
        print(f"SKIP: {e}")
        return 77
    found = {}
    for turn in range(args.turns):
        found.setdefault("MXNet 1.9.1 dist_sync", []).append(mxnet_turn(args, python))
        for name, ms in our_turn(args, program).items():
            found.setdefault(name, []).append(ms)
        print(f"turn {turn + 1} of {args.turns}: " + ", ".join(f"{n} {ms[-1]:.1f} ms" for n, ms in found.items()),
              file=sys.stderr)
    moved = 2 * args.bytes * args.workers
    first = statistics.median(next(iter(found.values())))
    print(f"{args.bytes} bytes, {args.workers} workers, {args.servers} servers, medians of {args.turns} turns")
    for name, ms in found.items():
        middle = statistics.median(ms)
        print(f"{name:<30} {middle:8.1f} ms ({min(ms):.1f} to {max(ms):.1f}) {moved / middle / 1e6:6.2f} GB/s "
              f"{first / middle:5.2f} x MXNet")
    return 0


if __name__ == "__main__":
    sys.exit(main())
