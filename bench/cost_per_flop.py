#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a FLOP costs in training as batch and depth grow: ResNet-18 at batch 16, 64 and 256, and ResNet of depth 20, 56
and 110 at batch 128, in turns. The update is listed separately, because its bytes do not depend on the batch. Prints
the medians with minimum and maximum as a table in Markdown.

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
from table import Samples, markdown, number  # noqa: E402
from turns import Failed, locked, run, say  # noqa: E402

GROUPS = ((("resnet18", 16), ("resnet18", 64), ("resnet18", 256)), (("resnet20", 128), ("resnet56", 128), ("resnet110", 128)))


class Case:
    def __init__(self, model, batch, precision):
        self.model, self.batch, self.precision = model, batch, precision
        self.rate, self.per_gflop, self.update, self.wall = Samples(), Samples(), Samples(), Samples()

    def add(self, found):
        gflop = found["flop_per_image"] * self.batch / 1e9
        self.rate.add(found["images_per_second"])
        self.per_gflop.add((found["step_cpu_ms"] - found["update_cpu_ms"]) / gflop)
        self.wall.add((found["step_ms"] - found["update_ms"]) / gflop)
        self.update.add(found["update_ms"])


def table(groups):
    rows, spreads = [], []
    for group in groups:
        least = min(c.per_gflop.median for c in group)
        spreads.append(f"{group[0].model} to {group[-1].model}, batch {group[0].batch} to {group[-1].batch}, {group[0].precision}: "
                       f"{100 * (max(c.per_gflop.median for c in group) / least - 1):.0f} %")
        rows += [[c.model, c.batch, c.precision, c.rate.text(), c.per_gflop.text(), f"{c.per_gflop.median / least:.2f}", number(c.wall.median),
                  number(c.update.median)] for c in group]
    head = ["net", "batch", "type", "images/s", "processor ms a GFLOP", "to the least", "ms a GFLOP", "update, ms"]
    return markdown(head, rows) + "\n\nCost of the most expensive FLOP above the cheapest: " + "; ".join(spreads) + "."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", default="f32 bf16", metavar="'f32 bf16'")
    parser.add_argument("--threads", type=int, default=environment.cores())
    parser.add_argument("--seconds", type=float, default=5, help="seconds of each run (default: 5)")
    parser.add_argument("--repeats", type=int, default=5, help="number of turns (default: 5)")
    parser.add_argument("--tutti", default="", metavar="OPTIONS", help="more options of tutti_step, in one argument")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--nice", type=int, help="priority of the measured program, -20 to 19 (below 0 needs root)")
    parser.add_argument("--lock", metavar="FILE", help="a file to lock during each run")
    args = parser.parse_args()
    precisions = args.precisions.split()
    if not precisions or set(precisions) - {"f32", "bf16"}:
        parser.error(f"argument --precisions: expected f32 or bf16, got '{args.precisions}'")
    if min(args.threads, args.repeats) < 1 or args.seconds <= 0 or args.timeout <= 0 or not -20 <= (args.nice or 0) <= 19:
        parser.error("expected 1 thread and repeat or more, seconds over 0, and a priority of -20 to 19")
    step = os.environ.get("TUTTI_STEP", str(environment.ROOT / "build" / "bench" / "tutti_step"))
    if not os.access(step, os.X_OK):
        say(f"cost_per_flop.py: no {step}. hint: cmake -B build -DTUTTI_BUILD_BENCH=ON && cmake --build build --target bench_tutti_step")
        return 3
    groups = [[Case(model, batch, precision) for model, batch in group] for precision in precisions for group in GROUPS]
    began, system = environment.load(), ""
    try:
        for turn in range(args.repeats):
            for case in (c for group in groups for c in group):
                with locked(args.lock):
                    found = run([step, "--model", case.model, "--batch", case.batch, "--precision", case.precision, "--threads", args.threads,
                                 "--seconds", args.seconds, *shlex.split(args.tutti)], {}, args.timeout, args.nice)
                case.add(found)
                system = f"{found['system']} ({found['how']})"
                say(f"turn {turn + 1} of {args.repeats}, {case.model} b{case.batch} {case.precision}: {found['images_per_second']:.1f} images/s")
    except Failed as e:
        say(f"cost_per_flop.py: {e}")
        return 1
    print(table(groups))
    print(f"\n{environment.conditions(began)}\n- {system}, {args.threads} threads; {args.repeats} turns of {args.seconds:g} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
