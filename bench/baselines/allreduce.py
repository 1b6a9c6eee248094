#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares tutti's all-reduce in shared memory with MPI_Allreduce: as Open MPI chooses its algorithm, and with each of
its algorithms for large sums.

    bench/baselines/allreduce.py [--ranks 2 4] [--sizes 1 16 45] [--turns 3]

In each turn, bench/allreduce runs once with tutti and Open MPI's own choice in turns, and once with each algorithm
(coll_tuned_allreduce_algorithm). The table shows medians of the turns' medians, in milliseconds; a ratio above 1 means
that tutti is faster. Needs build/bench/allreduce (ninja -C build bench_allreduce) and mpirun.
"""
import argparse
import os
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parent)]

from environment import ROOT  # noqa: E402
from table import Samples, markdown, ratio  # noqa: E402
from turns import Failed, run, say  # noqa: E402

# The numbers of coll_tuned_allreduce_algorithm of Open MPI 4.1: those that do not send everything to one rank.
ALGORITHMS = {3: "recursive doubling", 4: "ring", 5: "segmented ring", 6: "Rabenseifner"}
LINE = re.compile(r"^ *(\d+) (mpi|shm) +[\d.]+ +([\d.]+) ", re.M)


def medians(program, ranks, size, mode, algorithm=None):
    """Returns the median of a sum in milliseconds for each way of bench/allreduce."""
    chosen = {} if algorithm is None else {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
                                           "OMPI_MCA_coll_tuned_allreduce_algorithm": str(algorithm)}
    command = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-np", ranks, program,
               "--min", size, "--max", size, "--mode", mode]
    found = run(command, chosen, read=lambda out: {w: float(us) / 1000 for _, w, us in LINE.findall(out)})
    if not found.keys() >= ({"mpi"} if mode == "mpi" else {"mpi", "shm"}):
        raise Failed(f"bench/allreduce with {ranks} ranks printed no times")
    return found


def compare(program, ranks, size, turns):
    """Returns the cells of a row: tutti, Open MPI's choice, its best algorithm, and the two ratios."""
    ours, default = Samples(), Samples()
    tuned = {name: Samples() for name in ALGORITHMS.values()}
    for _ in range(turns):
        both = medians(program, ranks, size, "all")
        ours.add(both["shm"])
        default.add(both["mpi"])
        for number, name in ALGORITHMS.items():
            tuned[name].add(medians(program, ranks, size, "mpi", number)["mpi"])
    best = min(tuned, key=lambda name: tuned[name].median)
    return [ours.text(), default.text(), f"{tuned[best].text()} {best}", ratio(default, ours), ratio(tuned[best], ours)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 16, 45], help="megabytes (1,000,000 bytes)")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    program = ROOT / "build/bench/allreduce"
    if not program.is_file():
        sys.exit(f"allreduce.py: no {program.relative_to(ROOT)}. hint: ninja -C build bench_allreduce")
    rows = []
    for ranks in args.ranks:
        for size in args.sizes:
            say(f"{size:g} MB, {ranks} ranks, load {os.getloadavg()[0]:.1f}")
            cells = compare(program, ranks, int(size * 1e6) // 4 * 4, args.turns)
            rows.append([f"{size:g} MB, {ranks} ranks", *cells])
    print(markdown(["sum", "tutti, shared memory", "Open MPI, its choice", "Open MPI, its best algorithm",
                    "choice / tutti", "best / tutti"], rows))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"allreduce.py: {e}")
