#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a busy neighbour costs, in turns: one thread per core without a neighbour, the same while another process keeps
the first core busy, and one thread on another core than the neighbour's. The neighbour has the same priority as the
measured program. The bound, relative to one core, is the free cores plus half of the shared one. Prints the medians
with minimum and maximum as a table in Markdown.

  TUTTI_STEP   tutti's program (default: build/bench/tutti_step)
"""
import argparse
import os
import shlex
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent / "baselines"))
import environment  # noqa: E402
from table import Samples, markdown  # noqa: E402
from turns import Failed, competitor, locked, run, say  # noqa: E402

WAYS = ("no neighbour", "busy neighbour", "one thread next to it")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="f32", choices=("f32", "bf16"))
    parser.add_argument("--seconds", type=float, default=3, help="seconds of each run (default: 3)")
    parser.add_argument("--repeats", type=int, default=5, help="number of turns (default: 5)")
    parser.add_argument("--tutti", default="", metavar="OPTIONS", help="more options of tutti_step, in one argument")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--lock", metavar="FILE", help="a file to lock during each turn")
    args = parser.parse_args()
    if min(args.repeats, args.batch) < 1 or args.seconds <= 0 or args.timeout <= 0:
        parser.error("expected 1 repeat and image or more, and seconds over 0")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        say("busy_neighbour.py: one core; expected 2 or more")
        return 4
    step = os.environ.get("TUTTI_STEP", str(environment.ROOT / "build" / "bench" / "tutti_step"))
    if not os.access(step, os.X_OK):
        say(f"busy_neighbour.py: no {step}. hint: cmake -B build -DTUTTI_BUILD_BENCH=ON && cmake --build build --target bench_tutti_step")
        return 3
    began, rates, system = environment.load(), {way: Samples() for way in WAYS}, ""
    try:
        for turn in range(args.repeats):
            with locked(args.lock):
                for way in WAYS:
                    alone = way == WAYS[2]
                    command = [*(["taskset", "-c", cores[-1]] if alone else []), step, "--model", args.model, "--batch", args.batch,
                               "--precision", args.precision, "--threads", 1 if alone else len(cores), "--seconds", args.seconds,
                               *shlex.split(args.tutti)]
                    with competitor(way != WAYS[0]):
                        found = run(command, {}, args.timeout)
                    rates[way].add(found["images_per_second"])
                    system = f"{found['system']} ({found['how']})"
            say(f"turn {turn + 1} of {args.repeats}: " + ", ".join(f"{way} {rates[way].text()}" for way in WAYS))
    except Failed as e:
        say(f"busy_neighbour.py: {e}")
        return 1
    one = rates[WAYS[2]].median
    print(markdown(["net", "batch", "type", *WAYS, "busy to one", "bound"],
                   [[args.model, args.batch, args.precision, *[rates[way].text() for way in WAYS],
                     f"{rates[WAYS[1]].median / one:.2f}", f"{len(cores) - 0.5:.1f}"]]))
    print(f"\n{environment.conditions(began)}\n- {system}; turns of {args.seconds:g} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
