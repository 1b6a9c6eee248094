#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Predicts how fast N ranks train from the trace of one measured rank.

  simulate.py TRACE.json [--ranks 1,2,4,...] [--ranks-per-host R] [--network-gbit G] [--latency-us L] ...
  simulate.py --published     ResNet-50 on 1 to 256 V100 GPUs of eight-GPU hosts on 25 Gb/s, with the published values

bench/scaling writes TRACE.json: the images of a rank's step, the seconds of the step alone up to the end of the
backward pass, those of the update, and for each bucket its bytes and the time in the step when its gradients were
final.

The model. Buckets are reduced one after the other, each as soon as it is ready and the previous one is done. Inside a
host every rank reads and writes its share of all ranks' gradients at the host's memory bandwidth (or, with
--host-link-gb, as a ring over a separate link). Between hosts, one flow per host runs a ring: 2 (H-1)/H of the bytes at
the network's bandwidth, and 2 (H-1) latencies. The part that is not done when the backward pass ends is exposed. Ranks
that share cores slow each other down in proportion, and by --sharing-cost for each further rank of a core, which
fills the caches again. All ranks wait for the slowest: of N steps with the relative standard deviation --jitter the slowest is
about sqrt(2 ln N) deviations late.
"""
import argparse
import json
import math
import sys
from dataclasses import dataclass


@dataclass
class Trace:
    images: float  # images in a step of a rank
    backward_end: float  # seconds from the start of the step
    update: float  # seconds
    buckets: list  # (bytes, seconds until ready)

    @staticmethod
    def read(path):
        try:
            with open(path, encoding="utf-8") as f:
                d = json.load(f)
            trace = Trace(float(d["images"]), float(d["backward_end"]), float(d["update"]),
                          [(float(b["bytes"]), float(b["ready"])) for b in d["buckets"]])
        except (OSError, ValueError, KeyError, TypeError) as e:
            sys.exit(f"[simulate] expected a trace written by bench/scaling, got {path}: {e!r}.")
        numbers = [trace.images, trace.backward_end, *(x for b in trace.buckets for x in b)]
        if not all(math.isfinite(x) and x >= 0 for x in numbers) or trace.images == 0 or trace.backward_end == 0:
            sys.exit(f"[simulate] expected finite numbers, not negative, got others in {path}.")
        return trace


@dataclass
class Cluster:
    ranks_per_host: int = 1
    cores: float = 0  # for each host; 0: enough
    threads: int = 1  # for each rank
    memory_gb: float = 30  # GB per second that sums move through the memory of a host
    host_link_gb: float = 0  # per second and rank, on a link between the devices of a host; 0: they use the memory
    network_gbit: float = 25
    latency_us: float = 20
    barrier_us: float = 10
    sharing_cost: float = 0
    jitter: float = 0


@dataclass
class Prediction:
    step: float
    exposed: float
    images_per_second: float
    efficiency: float


def reduce_seconds(size, ranks, c):
    """Returns the seconds for the reduction of one bucket of `size` bytes over all ranks."""
    local = min(ranks, c.ranks_per_host)
    hosts = math.ceil(ranks / c.ranks_per_host)
    t = 0.0
    if local > 1:
        if c.host_link_gb > 0:
            t += 2 * (local - 1) / local * size / (c.host_link_gb * 1e9)
        else:
            t += 2 * local * size / (c.memory_gb * 1e9)
        t += 2 * c.barrier_us * 1e-6
    if hosts > 1:
        t += 2 * (hosts - 1) / hosts * size / (c.network_gbit / 8 * 1e9) + 2 * (hosts - 1) * c.latency_us * 1e-6
    return t


def simulate(trace, ranks, c):
    local = min(ranks, c.ranks_per_host)
    on_a_core = max(1.0, local * c.threads / c.cores) if c.cores > 0 else 1.0
    slower = on_a_core * (1 + c.sharing_cost * (on_a_core - 1))
    late = 1 + (c.jitter * math.sqrt(2 * math.log(ranks)) if ranks > 1 else 0)
    end = trace.backward_end * slower * late
    done = 0.0
    if ranks > 1:
        for size, ready in trace.buckets:
            done = max(done, ready * slower * late) + reduce_seconds(size, ranks, c)
    exposed = max(0.0, done - end)
    step = end + exposed + trace.update * slower
    alone = trace.images / (trace.backward_end + trace.update)
    speed = ranks * trace.images / step
    return Prediction(step, exposed, speed, speed / (ranks * alone))


def assumed_trace(images, step, update, gradient_bytes):
    """Returns a trace of a step of which only the seconds before the update are known. Its buckets become ready as in
    ResNet-50."""
    bucket = 16 * 2**20
    sizes = [min(2**20, gradient_bytes)]
    while sum(sizes) < gradient_bytes:
        sizes.append(min(bucket, gradient_bytes - sum(sizes)))
    backward = step * 2 / 3
    done, buckets = 0.0, []
    for size in sizes:
        # Late layers have most of the parameters, so most buckets are ready early. Here half of them are ready in the
        # first third.
        done += size
        share = done / gradient_bytes
        buckets.append((size, step - backward + backward * (share * 2 / 3 if share < 0.5 else (4 * share - 1) / 3)))
    return Trace(images, step, update, buckets)


def published():
    """ResNet-50, batch 256 per GPU, 668 images/s alone: the published runs of a multi-node all-reduce on V100 GPUs."""
    trace = assumed_trace(256, 256 / 668, 0.004, 25.56e6 * 4)  # gradients in f32
    cluster = Cluster(ranks_per_host=8, host_link_gb=60, network_gbit=25, latency_us=30, barrier_us=15, jitter=0.03)
    return trace, cluster


def table(trace, counts, c):
    print("| ranks | hosts | images/s | efficiency | step, ms | exposed, ms |")
    print("|---|---|---|---|---|---|")
    for n in counts:
        p = simulate(trace, n, c)
        print(f"| {n} | {math.ceil(n / c.ranks_per_host)} | {p.images_per_second:.1f} | {100 * p.efficiency:.1f} % | "
              f"{1e3 * p.step:.1f} | {1e3 * p.exposed:.1f} |")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    a.add_argument("trace", nargs="?")
    a.add_argument("--published", action="store_true")
    a.add_argument("--ranks", default="1,2,4,8,16,32,64,128,256,512,1024")
    defaults = Cluster()
    for name, value in vars(defaults).items():
        a.add_argument("--" + name.replace("_", "-"), type=type(value), default=None)
    o = a.parse_args()
    if o.published == bool(o.trace):
        a.error("expected a trace or --published")
    trace, cluster = published() if o.published else (Trace.read(o.trace), defaults)
    for name in vars(defaults):
        if getattr(o, name) is not None:
            setattr(cluster, name, getattr(o, name))
    try:
        counts = [int(n) for n in o.ranks.split(",")]
    except ValueError:
        a.error(f"--ranks: expected numbers with commas between, got {o.ranks!r}")
    if min(counts) < 1 or cluster.ranks_per_host < 1 or cluster.network_gbit <= 0 or cluster.memory_gb <= 0:
        a.error("expected ranks, ranks per host and bandwidths above 0")
    print("assumed: " + ", ".join(f"{k.replace('_', '-')} {v:g}" for k, v in vars(cluster).items()))
    table(trace, counts, cluster)
    if o.published:
        print("\npublished for 256 GPUs of this kind: 85 to 90 % of 256 times one GPU (142,700 to 144,800 images/s, later "
              "171,000 with newer libraries and faster GPUs)")


if __name__ == "__main__":
    main()
