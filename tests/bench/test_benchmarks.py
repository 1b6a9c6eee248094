#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs one tiny case of each benchmark program and checks that it prints its counters, whatever their values."""
import json
import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(os.environ.get("TUTTI_BUILD_DIR", "build")) / "bench"

OP = ("%peak", "GFLOP/s", "steps")
# For each program: a filter, the minimum number of benchmarks that it must select, and the counters that they print.
PROGRAMS = {
    "convolution": ("^convolution/resnet20/8x8x64->64/k3s1/b2/f32/", 3, OP),
    "gemm": ("^gemm/resnet20/128x64->10/", 6, OP),
    "batch_norm": ("^batch_norm/resnet20/8x8x64/add.relu/b128/bf16/", 2, ("%bandwidth", "GB/s", "steps")),
    "loader": ("^loader/synthetic/", 3, ("images/s", "images/cpu_s")),
}
CONTEXT = {"convolution": ("peak_gflops_f32", "peak_gflops_bf16"), "gemm": ("peak_gflops_f32", "peak_gflops_bf16"),
           "batch_norm": ("memory_gbytes_per_s",), "loader": ()}
DIRECTIONS = {"convolution": {"forward", "backward_data", "backward_weights"},
              "gemm": {"forward", "backward_data", "backward_weights"}, "batch_norm": {"forward", "backward"}}


def run(program, *arguments):
    return subprocess.run([BENCH / program, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def check(program, pattern, least, counters):
    done = run(program, f"--benchmark_filter={pattern}", "--benchmark_min_time=0.000001", "--benchmark_format=json",
               "--threads=2")
    assert done.returncode == 0, f"{program}: exit code {done.returncode}\n{done.stderr}"
    report = json.loads(done.stdout)
    for key in ("backend", "isa", "threads") + CONTEXT[program]:
        assert report["context"].get(key), f"{program}: no {key} in the context"
    assert report["context"]["threads"] == "2", report["context"]["threads"]
    results = report["benchmarks"]
    assert len(results) >= least, f"{program}: {len(results)} benchmarks, at least {least} expected"
    for r in results:
        assert not r.get("error_occurred"), f"{r['name']}: {r.get('error_message')}"
        for c in counters:
            assert r.get(c, 0) > 0, f"{r['name']}: counter {c} is {r.get(c)}"
    if program in DIRECTIONS:
        found = {r["name"].removesuffix("/manual_time").rsplit("/", 1)[1] for r in results}
        assert found == DIRECTIONS[program], f"{program}: {found}"
    print(f"{program}: {len(results)} benchmarks")


def check_names():
    """Each backend, precision and direction has a benchmark with its name."""
    names = run("convolution", "--benchmark_list_tests").stdout.split()
    backends = {n.split("/")[6] for n in names}
    assert "reference" in backends, backends
    for backend in backends - {"reference"}:
        for precision in ("f32", "bf16"):
            # Of oneDNN only if it has bf16 on this processor.
            if (backend, precision) == ("onednn", "bf16") and not any("/bf16/onednn/" in n for n in names):
                continue
            for direction in DIRECTIONS["convolution"]:
                wanted = f"convolution/resnet20/32x32x16->16/k3s1/b128/{precision}/{backend}/{direction}"
                assert any(n.startswith(wanted) for n in names), f"no {wanted}"
    assert not any("x3->" in n and "backward_data" in n for n in names), "an input gradient of images"


def check_wrong_use():
    for arguments in (["--threads=0"], ["--threads=x"], ["--no_such_flag"], ["--benchmark_filter=^nothing$"]):
        done = run("loader", *arguments)
        assert done.returncode == 2, f"{arguments}: exit code {done.returncode}\n{done.stderr}"


def check_parameter_server():
    done = run("parameter_server", "--bytes", "100000", "--turns", "1", "--rounds", "1", "--workers", "3", "--servers", "2")
    if done.returncode == 4 and "without ZeroMQ" in done.stdout:
        return
    assert done.returncode == 0, done.stderr
    for way in ("windows", "ZeroMQ ", "ZeroMQ with CURVE", "TCP"):
        assert any(line.startswith(way) and line.endswith("GB/s") for line in done.stdout.splitlines()), done.stdout
    assert run("parameter_server", "--bytes", "none").returncode == 2


def main():
    if (BENCH / "parameter_server").exists():
        check_parameter_server()
    there = [p for p in PROGRAMS if (BENCH / p).exists()]
    if not there:
        print("SKIP: the benchmarks are not built (no libbenchmark-dev, or TUTTI_BUILD_BENCH is off)")
        return 77
    assert len(there) == len(PROGRAMS), f"only {there} are built"
    check_names()
    check_wrong_use()
    for program, expected in PROGRAMS.items():
        check(program, *expected)
    return 0


if __name__ == "__main__":
    sys.exit(main())
