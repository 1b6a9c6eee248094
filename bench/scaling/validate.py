#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Predicts two and four ranks on this host from the trace of one run, then measures them: are they within 5 %?

  validate.py BUILD_DIR [--model resnet18] [--batch 16] [--rounds 5] [--seconds 8]

The model gets two numbers of the host: the bandwidth of bench/allreduce at the size of the bucket, and the cost of
sharing a core between independent ranks.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from model import Cluster, simulate
from traces import Trace

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader"]
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
BUCKET = 16 << 20


def run(ranks, *command):
    return subprocess.run([*MPIRUN, "-np", str(ranks), *map(str, command)], env=ENVIRONMENT, check=True,
                          stdout=subprocess.PIPE, text=True).stdout


def memory_gb(build, ranks):
    """Returns the GB/s that a sum moves. Each byte of each rank is read once and written once."""
    out = run(ranks, build / "bench" / "allreduce", "--min", BUCKET, "--max", BUCKET, "--mode", "shm")
    row = next(line.split() for line in out.splitlines() if line.split()[:2] == [str(BUCKET), "shm"])
    return 2 * ranks * BUCKET / (float(row[3]) * 1e-6) / 1e9


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    a.add_argument("build", type=Path)
    for name, value in (("model", "resnet18"), ("batch", 16), ("rounds", 5), ("seconds", 8.0)):
        a.add_argument("--" + name, type=type(value), default=value)
    o = a.parse_args()
    cores = len(os.sched_getaffinity(0))
    options = [w for name in ("model", "batch", "rounds", "seconds") for w in ("--" + name, getattr(o, name))]
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for ranks in (2, 4):
            more = ["--trace", path] if ranks == 2 else []
            measured[ranks] = json.loads(run(ranks, o.build / "bench" / "scaling", *options, *more))
        trace = Trace.read(path)
    on_a_core = max(1, 4 / cores)
    loss = 2 * measured[2]["unconnected"] / on_a_core / measured[4]["unconnected"] - 1
    cost = max(0.0, loss / (on_a_core - 1)) if on_a_core > 1 else 0.0
    print("| ranks | predicted, images/s | measured | difference |")
    print("|---|---|---|---|")
    worst = 0
    for ranks in (2, 4):
        cluster = Cluster(ranks_per_host=ranks, cores=cores, memory_gb=memory_gb(o.build, ranks), sharing_cost=cost)
        predicted, real = simulate(trace, ranks, cluster).images_per_second, measured[ranks]["images_per_second"]
        worst = max(worst, abs(predicted / real - 1))
        print(f"| {ranks} | {predicted:.1f} | {real:.1f} | {100 * (predicted / real - 1):+.1f} % |")
    print(f"sharing a core costs unconnected ranks {100 * cost:.1f} %")
    sys.exit(0 if worst <= 0.05 else 1)


if __name__ == "__main__":
    main()
