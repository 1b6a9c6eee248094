#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures how well two hosts train together: build/bench/scaling over Gloo, one rank on each of two network namespaces.

usage: bench/two_hosts.py [--wires f32 bf16] [--turns 3] [--rounds 3] [--seconds 5] [--model resnet18] [--batch 32] [--program FILE]
                          [--mpi]

Each turn runs bench/scaling once for each type of gradients on the wire; the table shows medians of the turns. The floor comes from
build/bench/network_sums: the processor time that plain sockets and the sums need, if they use the core of the training. --mpi also
measures the same ranks over MPI. Needs root, iproute2, and the targets bench_scaling, bench_network_sums and tutti-launch.
TUTTI_BUILD_DIR is the build folder of tutti (default: build). Exits with 77 if something is missing.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "hosts")]
import netns_cluster  # noqa: E402

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build")).resolve()


def output(command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [line[line.index("{"):] for line in done.stdout.splitlines() if "{" in line and line.endswith("}")]
    if done.returncode != 0 or not lines:
        sys.exit(f"two_hosts.py: {command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return json.loads(lines[-1])


def floor(cluster):
    """Returns the measurement of plain sockets between the two hosts, for the gradients of ResNet-18."""
    places = [word for host in range(2) for word in (cluster.names[host], cluster.address(host))]
    return output([BUILD / "bench" / "network_sums", *places, 45])


def over_gloo(cluster, args, wire):
    return output([BUILD / "tools" / "tutti-launch", "-n", 2, "-H", cluster.hosts_file(), "--ssh-config", cluster.ssh_config, args.program,
                   "--strategy", "gloo", "--wire", wire, *args.options])


def over_mpi(cluster, args, wire):
    net = f"{cluster.net}.0/24"
    settings = {"plm_rsh_agent": f"ssh -F {cluster.ssh_config}", "oob_tcp_if_include": net, "btl_tcp_if_include": net, "btl": "tcp,self"}
    hosts = ",".join(f"{cluster.address(host)}:1" for host in range(2))
    return output(["mpirun", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
                   *(w for name, value in settings.items() for w in ("--mca", name, value)), "--host", hosts, "-np", 2,
                   args.program, "--wire", wire, *args.options])


def row(name, runs):
    def of(key):
        return statistics.median(r[key] for r in runs)

    shares = [100 * r["efficiency"] for r in runs]
    spread = f" ({min(shares):.1f} to {max(shares):.1f})" if len(shares) > 1 else ""
    cost = of("step_cpu_ms") - of("compute_cpu_ms")
    return (f"| {name} | {statistics.median(shares):.1f} %{spread} | {of('compute_ms'):.0f} | {of('step_ms'):.0f} | {of('exposed_ms'):.1f} | "
            f"{of('communication_ms'):.0f} | {of('communication_cpu_ms'):.1f} | {cost:.1f} | {of('gbytes_per_s'):.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wires", nargs="+", default=["f32", "bf16"], choices=["f32", "bf16"])
    parser.add_argument("--program", type=Path, default=BUILD / "bench" / "scaling", help="another build of bench/scaling")
    for name, value in (("turns", 3), ("rounds", 3), ("seconds", 5.0), ("model", "resnet18"), ("batch", 32)):
        parser.add_argument("--" + name, type=type(value), default=value)
    parser.add_argument("--mpi", action="store_true")
    args = parser.parse_args()
    args.options = [w for name in ("model", "batch", "rounds", "seconds") for w in ("--" + name, getattr(args, name))]
    runs = {}
    with netns_cluster.NetnsCluster(2) as cluster:
        plain = floor(cluster)
        for _ in range(args.turns):
            for wire in args.wires:
                runs.setdefault(f"Gloo, {wire}", []).append(over_gloo(cluster, args, wire))
                if args.mpi:
                    runs.setdefault(f"MPI, {wire}", []).append(over_mpi(cluster, args, wire))
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| way | relative to unconnected ranks | ms: compute | step | exposed | communication | its thread's processor time | "
          "more processor time than alone | GB/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, measured in runs.items():
        print(row(name, measured))
    one = runs[next(iter(runs))]
    compute = statistics.median(r["compute_ms"] for r in one)
    copied = plain["exchange_cpu_ms"] / plain["megabytes"] * statistics.median(r["megabytes"] for r in one)
    print(f"plain sockets: {json.dumps(plain)}")
    for wire, share in (("f32", 1.0), ("bf16", 0.5)):
        least = share * copied + plain["half_sum_cpu_ms"]
        print(f"floor with {wire}: {least:.1f} ms of processor time, {100 * compute / (compute + least):.1f} % of unconnected ranks")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except netns_cluster.Unavailable as e:
        netns_cluster.skip(str(e))
