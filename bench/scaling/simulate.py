#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Predicts how fast N ranks train from the trace of one rank.

  simulate.py TRACE.json [--ranks 1,2,4,...] [--ranks-per-host R] [--network-gbit G] ...   a trace of bench/scaling --trace
  simulate.py --gpu V100 --speed 740 [--batch 256] [--ranks ...] ...    ResNet-50 on GPUs of which the images/s of one are known
  simulate.py --published     published speeds of ResNet-50 on 8 to 256 V100, next to the predictions; none was used for the model
  simulate.py --sources       the ranges of uncertain parameters and the published numbers from which they follow

The options marked with * take a number or a range LOW:HIGH. Without such an option its range in --sources counts. The answer is then
a range, too: from the worst to the best end of all ranges, and the part that nine of ten samples reach that take each parameter evenly from its
range. model.py explains the model, and published.py has each number with its source. Exit codes: 0, 2 for wrong options, 3 for a bad
trace."""
import argparse
import math
import sys
from dataclasses import fields, replace

import model
import published
import traces

MOST_RANKS = 1000000
RANKS = "1,2,4,8,16,32,64,128,256,512,1024"
# Multiprocessors, GB/s of the links between the GPUs of a host in each direction (NVIDIA's data sheets; L4: 16 lanes of PCI Express 4.0)
GPU_HOSTS = {"V100": (80, published.GPU_LINKS_GB), "A100": (108, 300), "H100": (132, 450), "H200": (132, 450), "L4": (58, 31.5)}
# {field of model.Cluster: (least, most, whether the least is excluded, text of --help)}
OPTIONS = {
    "ranks_per_host": (1, 1024, False, "ranks of a host"),
    "cores": (0, 1e5, False, "processor cores of a host for training; 0: enough"),
    "threads": (1, 1e5, False, "threads of a rank"),
    "sharing_cost": (0, 10, False, "relative loss for each further rank of a core"),
    "memory_gb": (0, 1e6, True, "GB/s that a sum of 16 MiB moves through the memory of a host"),
    "memory_exponent": (-1, 1, False, "a sum of s bytes moves (s / 16 MiB) to the power of this as much"),
    "barrier_us": (0, 1e6, False, "us for a barrier of the ranks of a host"),
    "host_link_gb": (0, 1e6, False, "GB/s of links between the devices of a host; 0: they use its memory"),
    "host_loss": (0, 0.9, False, "relative loss of speed of 8 ranks of a host"),
    "network_gbit": (0, 1e6, True, "Gbit/s of a network card"),
    "network_cards": (1, 1024, False, "network cards of a host"),
    "network_efficiency": (0, 1, True, "share of their bandwidth that sums reach"),
    "latency_us": (0, 1e6, False, "us between hosts"),
    "coordination_us": (0, 1e7, False, "us from the moment when a bucket is ready until its sum begins"),
    "multiprocessors": (0, 1e4, False, "multiprocessors of a GPU; 0: sums do not slow the step"),
    "channels": (0, 1e4, False, "multiprocessors that a sum takes"),
    "memory_passes": (0, 100, False, "bytes of GPU memory that a sum moves for a byte on the link"),
    "device_memory_gb": (0, 1e6, True, "GB/s of a GPU's memory"),
    "jitter": (0, 1, False, "relative standard deviation of the time of a rank's step"),
    "correlated": (0, 1, False, "share of its variance that the ranks of a host have in common"),
    "jpeg_cores": (0, 1e5, False, "cores of a host that decode images; 0: enough"),
    "jpeg_per_core": (0, 1e6, True, "images/s that a core decodes"),
}
WHOLE = ("ranks_per_host", "threads", "network_cards", "multiprocessors")
# Ranges that count without an option: for every cluster, and for GPUs. A trace of bench/scaling has that of memory_gb, too.
ALWAYS = ("jitter", "correlated", "network_efficiency", "latency_us")
ON_GPUS = ("channels", "memory_passes", "host_link_gb", "host_loss")


def fail(where, expected, got, hint="", code=2):
    sys.stderr.write(f"simulate.py: [{where}] expected {expected}, got {got}.{' hint: ' + hint + '.' if hint else ''}\n")
    sys.exit(code)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail("arguments", "options as in --help", message)


def number(option, text, least, most, above=False, whole=False):
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not (least <= value <= most) or (above and value == least):
        fail(option, f"a {'whole ' if whole else ''}number {'above' if above else 'from'} {least:g} {'and ' if above else ''}to {most:g}", repr(text))
    return value


def values(name, text):
    """Returns (low, high) of the text of an option."""
    least, most, above, _ = OPTIONS[name]
    option = "--" + name.replace("_", "-")
    low, colon, high = text.partition(":")
    if colon and name not in model.LONGER:
        fail(option, "a number", repr(text), "only options marked with * in --help take a range")
    low = number(option, low, least, most, above, name in WHOLE)
    high = number(option, high, least, most, above, name in WHOLE) if colon else low
    if low > high:
        fail(option, "LOW:HIGH with LOW of at most HIGH", repr(text))
    return low, high


def counts(text):
    parts = text.split(",")
    if len(parts) > 1000:
        fail("--ranks", "at most 1000 numbers", len(parts))
    return [number("--ranks", part, 1, MOST_RANKS, whole=True) for part in parts]


def arguments(argv):
    a = Parser(prog="simulate.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("trace", nargs="?", metavar="TRACE.json")
    a.add_argument("--published", action="store_true", help="compare with published speeds")
    a.add_argument("--sources", action="store_true", help="print the ranges and their sources")
    a.add_argument("--gpu", help="GPU of ResNet-50: " + ", ".join(GPU_HOSTS))
    a.add_argument("--speed", help="with --gpu: images/s of one")
    a.add_argument("--batch", help="with --gpu: images of a step of one (256)")
    a.add_argument("--gradient-bytes", choices=("2", "4"), help="with --gpu: bytes of a gradient that is summed (4)")
    a.add_argument("--ranks", help=f"numbers of ranks, separated by commas ({RANKS})")
    for f in fields(model.Cluster):
        mark = " *" if f.name in model.LONGER else ""
        a.add_argument("--" + f.name.replace("_", "-"), metavar="X", help=OPTIONS[f.name][3] + f" ({f.default:g}){mark}")
    return a.parse_args(argv)


def gpu_input(o):
    """Returns (trace, cluster, ranges) for --gpu."""
    if o.gpu not in GPU_HOSTS:
        fail("--gpu", "one of " + ", ".join(GPU_HOSTS), o.gpu)
    if o.speed is None:
        fail("--speed", "the images/s of one GPU with --gpu", "none")
    batch = number("--batch", o.batch or "256", 1, 1e6, whole=True)
    seconds = batch / number("--speed", o.speed, 0, 1e7, above=True)
    bytes_ = int(o.gradient_bytes or 4) * traces.resnet50_parameters()
    multiprocessors, links = GPU_HOSTS[o.gpu]
    cluster = replace(published.gpu_cluster(), multiprocessors=multiprocessors, device_memory_gb=traces.gpus()[o.gpu][0] / 1e9, host_link_gb=links)
    found = {name: published.bounds()[name] for name in (*ALWAYS, *ON_GPUS)}
    found["host_link_gb"] = tuple(x * links / published.GPU_LINKS_GB for x in found["host_link_gb"])
    return traces.gpu_trace(batch, 0.99 * seconds, 0.01 * seconds, bytes_, o.gpu), cluster, found


def table(trace, ranks, cluster, ranges):
    if not ranges:
        print("| ranks | hosts | images/s | efficiency | step, ms | exposed, ms |\n|---|---|---|---|---|---|")
        for n in ranks:
            p = model.simulate(trace, n, cluster)
            print(f"| {n} | {math.ceil(n / cluster.ranks_per_host)} | {p.images_per_second:.1f} | {100 * p.efficiency:.1f} % | "
                  f"{1e3 * p.step:.1f} | {1e3 * p.exposed:.1f} |{' limited by decoding' if p.limit == model.INPUT else ''}")
        return
    print("| ranks | hosts | images/s, worst to best | nine of ten | efficiency | step, ms | exposed, ms |\n|---|---|---|---|---|---|---|")
    for n in ranks:
        i = model.interval(trace, n, cluster, ranges)
        a, b = i.worst, i.best
        print(f"| {n} | {math.ceil(n / cluster.ranks_per_host)} | {a.images_per_second:.1f} to {b.images_per_second:.1f} | {i.low:.1f} to "
              f"{i.high:.1f} | {100 * a.efficiency:.1f} to {100 * b.efficiency:.1f} % | {1e3 * b.step:.1f} to {1e3 * a.step:.1f} | "
              f"{1e3 * b.exposed:.1f} to {1e3 * a.exposed:.1f} |{' limited by decoding' if a.limit == model.INPUT else ''}")


def print_published():
    """Prints the held-out speeds next to the predicted ranges. Returns (points inside of the range, points)."""
    inside = total = 0
    print("Efficiency, % of N times one GPU. Ranges: worst to best end of all ranges; nine of ten samples.")
    print("| published series | GPUs | published images/s | published | predicted range | nine of ten | |\n|---|---|---|---|---|---|---|")
    for speed in published.HELD_OUT:
        for gpus, (low, high), i in published.compare(speed):
            alone = gpus * speed.alone / 100
            within = i.worst.images_per_second <= low and high <= i.best.images_per_second
            inside, total = inside + within, total + 1
            text = [f"{x:,.0f}" if low == high else f"{x:,.0f} to {y:,.0f}" for x, y in ((low, high),)]
            share = f"{low / alone:.1f}" if low == high else f"{low / alone:.1f} to {high / alone:.1f}"
            print(f"| {speed.series} | {gpus} | {text[0]} | {share} | {100 * i.worst.efficiency:.1f} to {100 * i.best.efficiency:.1f} | "
                  f"{i.low / alone:.1f} to {i.high / alone:.1f} | {'inside' if within else '**outside**'} |")
    print(f"\n{inside} of {total} published speeds lie inside of the predicted range. None of them was used for a parameter.")
    return inside, total


def print_sources():
    print("| parameter | range | what | sources |\n|---|---|---|---|")
    for name, r in published.ranges().items():
        cited = "; ".join(f"{s.title} ({s.year}), {s.place}" for s in r.sources)
        print(f"| {name.replace('_', '-')} | {r.low:.4g} to {r.high:.4g} | {r.why} | {cited} |")
    print("\n| used for host-loss | images/s of 1 and 8 GPUs | source |\n|---|---|---|")
    for s in published.CALIBRATION:
        print(f"| {s.series} | {s.alone:g}, {s.points[0][1]:g} | {s.source.title} ({s.source.year}), {s.source.place} |")
    print("\n| sums in the memory of a host | bytes | measured, us | fit |\n|---|---|---|---|")
    for p in published.HOST_POINTS:
        exponent, fitted = published.fit_host(p.machine)
        print(f"| {p.machine}, {p.ranks} ranks on 2 cores | {p.size:g} | {1e6 * p.seconds:g} | "
              f"{100 * published.host_point_error(p, exponent, *fitted[p.ranks]):+.0f} % |")


def main(argv=None):
    o = arguments(argv)
    if sum(map(bool, (o.published, o.sources, o.gpu, o.trace))) != 1:
        fail("arguments", "one of TRACE.json, --gpu, --published and --sources", "several or none")
    given = {f.name: values(f.name, getattr(o, f.name)) for f in fields(model.Cluster) if getattr(o, f.name) is not None}
    if not o.gpu and (o.speed or o.batch or o.gradient_bytes):
        fail("--gpu", "--gpu with --speed, --batch and --gradient-bytes", "none")
    if (o.published or o.sources) and (given or o.ranks is not None):
        fail("--" + next(iter(given), "ranks").replace("_", "-"), "no option of the cluster with --published and --sources", "one")
    ranks = counts(RANKS if o.ranks is None else o.ranks)
    if o.sources:
        return print_sources()
    if o.published:
        return print_published()
    try:
        if o.gpu:
            trace, cluster, ranges = gpu_input(o)
        else:
            trace, cluster, ranges = traces.Trace.read(o.trace), model.Cluster(), {name: published.bounds()[name] for name in (*ALWAYS, "memory_gb")}
    except traces.TraceError as why:
        sys.stderr.write(f"simulate.py: {why}\n")
        sys.exit(3)
    for name, (low, high) in given.items():
        cluster = replace(cluster, **{name: low})
        ranges.pop(name, None)
        if low < high:
            ranges[name] = (low, high)
    shown = {f.name: "{:g}".format(getattr(cluster, f.name)) for f in fields(cluster)} | {n: f"{a:.4g}:{b:.4g}" for n, (a, b) in ranges.items()}
    print("assumed: " + ", ".join(f"{name.replace('_', '-')} {value}" for name, value in shown.items()))
    table(trace, ranks, cluster, ranges)


if __name__ == "__main__":
    main()
