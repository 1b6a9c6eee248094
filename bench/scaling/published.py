# SPDX-License-Identifier: MIT
"""The numbers of the model of larger clusters (model.py), each with its source, and the points that it is compared with. Used by
simulate.py, tutti-plan and tests.

Three kinds of numbers: measured sums of this project, to which fit_host() fits the parameters of a host; published numbers from which
ranges of uncertain parameters follow (CALIBRATION, ranges()); published speeds that were held out (HELD_OUT), with which
simulate.py --published compares. No held-out speed of several GPUs enters a parameter. The speed of one GPU of each held-out series
is an input of its prediction.

Search dates of the links: November 2026."""
import functools
import math
from dataclasses import dataclass, replace

import model
import traces


@dataclass(frozen=True)
class Source:
    title: str
    year: int
    place: str  # URL, or section of bench/RESULTS.md


NCCL = "https://github.com/NVIDIA/nccl"
TUNING = Source("NVIDIA NCCL, src/graph/tuning.cc (latencies in us, bandwidth of trees)", 2020, f"{NCCL}/blob/master/src/graph/tuning.cc")
TOPOLOGY = Source("NVIDIA NCCL, src/graph/topo.h (20 GB/s a link of V100)", 2026, f"{NCCL}/blob/master/src/graph/topo.h")
CHANNELS = Source("NCCL #689, answers of NVIDIA: 2 multiprocessors with one network card, 16 in a DGX", 2022, f"{NCCL}/issues/689")
PASSES = Source("NCCL #1428, answers of NVIDIA: 2 to 3 accesses to memory a byte", 2024, f"{NCCL}/issues/1428")
EC2_A100 = Source("NCCL #527: all-reduce of 1 GiB on 8 A100, 230.8 GB/s on links of 300 GB/s", 2022, f"{NCCL}/issues/527")
TCP_32 = Source("NCCL #209: TCP between hosts of Google Cloud with 32 Gbit/s, 1 and 8 V100 each", 2019, f"{NCCL}/issues/209")
AZURE_25 = Source("nccl-tests #83: TCP in Azure with 25 Gbit/s, 1.7 GB/s", 2021, "https://github.com/NVIDIA/nccl-tests/issues/83")
P3DN_100 = Source("NCCL #398: TCP between two p3dn.24xlarge with 100 Gbit/s, about 6 GB/s", 2020, f"{NCCL}/issues/398")
EFA_100 = Source("NCCL #235: EFA, p3dn.24xlarge, 80 Gbit/s on 2 hosts, 50 to 60 on 8 to 32", 2019, f"{NCCL}/issues/235")
IPERF_100 = Source("iperf #286: iperf 2 with 16 flows over 100 Gbit/s, 96.4", 2015, "https://github.com/esnet/iperf/issues/286")
TCP_STEP = Source("nccl-tests #82: 8 bytes over TCP between two hosts, 38 to 46 us", 2021, "https://github.com/NVIDIA/nccl-tests/issues/82")
ONE_GPU = Source("Horovod #466: steps of one GPU, images/s 204.8, deviation 0.2 to 0.6", 2018,
                 "https://github.com/horovod/horovod/issues/466")
GPU_SPREAD = Source("Sinha et al., Not All GPUs Are Created Equal, SC22: 8 % average variation of equal GPUs", 2022,
                    "https://arxiv.org/abs/2208.11035")
CYCLE = Source("Horovod 0.21 release notes: the default cycle time, 5 ms, becomes 1 ms", 2020,
               "https://github.com/horovod/horovod/releases/tag/v0.21.0")
DLE_MXNET = Source("NVIDIA DeepLearningExamples, MXNet RN50 v1.5, README, training performance", 2021,
                   "https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5")
DLE_PYTORCH = Source("NVIDIA DeepLearningExamples, PyTorch RN50 v1.5, README as of April 2024, training performance", 2024,
                     "https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5")
DLE_TF = Source("NVIDIA DeepLearningExamples, TensorFlow RN50 v1.5, README as of April 2024, training performance", 2024,
                "https://github.com/NVIDIA/DeepLearningExamples/tree/master/TensorFlow/Classification/ConvNets/resnet50v1.5")
AWS_256 = Source("AWS Machine Learning Blog, Scalable multi-node training with TensorFlow, and its tutorial", 2018,
                 "https://aws.amazon.com/blogs/machine-learning/scalable-multi-node-training-with-tensorflow/")
AWS_USER = Source("aws-samples/deep-learning-models #2, Some benchmarking results", 2018,
                  "https://github.com/aws-samples/deep-learning-models/issues/2")
HOROVOD_USER = Source("Horovod #779, ResNet-50 on synthetic images, p3.16xlarge", 2019, "https://github.com/horovod/horovod/issues/779")
DLPERF = Source("OneFlow DLPerf, benchmark report v1, table 4-3: mixed precision, InfiniBand 100 Gbit/s", 2020,
                "https://github.com/Oneflow-Inc/DLPerf/blob/master/reports/dlperf_benchmark_test_report_v1_cn.md")
ALLREDUCE = Source("All-reduce on one host", 2026, "bench/RESULTS.md")
WAITING = Source("Waiting on a busy machine", 2026, "bench/RESULTS.md")


# --- Sums in the memory of one host, measured by bench/allreduce
@dataclass(frozen=True)
class HostPoint:
    machine: str
    ranks: int  # on 2 cores
    size: float  # bytes
    seconds: float
    source: Source


HOST_POINTS = (
    HostPoint("Zen 5", 2, 1024, 0.72e-6, WAITING),  # 0.71 and 0.74
    HostPoint("Zen 5", 2, 16 * 1024, 2.92e-6, WAITING),
    HostPoint("Zen 5", 2, 256 * 1024, 29e-6, WAITING),
    HostPoint("Zen 5", 2, 4 * 2**20, 278e-6, WAITING),
    HostPoint("Zen 5", 2, 44.7e6, 2.56e-3, ALLREDUCE),
    HostPoint("Zen 5", 4, 4096, 5.3e-6, ALLREDUCE),
    HostPoint("Zen 5", 4, 44.7e6, 7.1e-3, ALLREDUCE),
    HostPoint("Zen 3", 2, 1e6, 0.038e-3, ALLREDUCE),
    HostPoint("Zen 3", 2, 16e6, 1.27e-3, ALLREDUCE),
    HostPoint("Zen 3", 2, 45e6, 4.38e-3, ALLREDUCE),
    HostPoint("Zen 3", 4, 16e6, 3.7e-3, ALLREDUCE),
    HostPoint("Zen 3", 4, 45e6, 9.4e-3, ALLREDUCE),
)
FIT_ERROR = 0.16  # the fit reproduces each point with at most this relative error


@functools.lru_cache(maxsize=None)
def fit_host(machine):
    """Fits a host's parameters to the points of a machine: one exponent, and for each number of ranks a bandwidth and a barrier.
    Returns (exponent, {ranks: (memory_gb, barrier_us)}). Searches the exponent in steps of 0.01; for each one, the bandwidth makes
    the largest and the smallest relative error of the largest sums equal, and the barrier is the rest of the smallest sum, if that has less
    than 64 KiB. Takes the exponent with the smallest largest error."""
    points = [p for p in HOST_POINTS if p.machine == machine]
    best = None
    for exponent in (k / 100 for k in range(-40, 41)):
        fitted = {}
        for ranks in {p.ranks for p in points}:
            mine = sorted((p for p in points if p.ranks == ranks), key=lambda p: p.size)
            small = mine[0] if mine[0].size < 65536 else None
            barrier = 0.0
            for _ in range(20):  # the bandwidth and the barrier depend on each other
                moved = [2 * ranks * p.size * (p.size / model.SUM_BYTES) ** -exponent / max(1e-9, p.seconds - 2 * barrier)
                         for p in mine if p is not small]
                memory = math.sqrt(min(moved) * max(moved))
                if small:
                    copied = 2 * ranks * small.size / (memory * (small.size / model.SUM_BYTES) ** exponent)
                    barrier = max(0.0, (small.seconds - copied) / 2)
            fitted[ranks] = (memory / 1e9, barrier * 1e6)
        error = max(abs(host_point_error(p, exponent, *fitted[p.ranks])) for p in points)
        if best is None or error < best[0]:
            best = (error, exponent, fitted)
    return best[1], best[2]


def host_point_error(point, exponent, memory_gb, barrier_us):
    c = model.Cluster(ranks_per_host=point.ranks, memory_gb=memory_gb, memory_exponent=exponent, barrier_us=barrier_us)
    return model.host_seconds(point.size, point.ranks, c) / point.seconds - 1


# --- Published numbers from which the ranges follow
@dataclass(frozen=True)
class Reach:
    """A measured bandwidth of sums, relative to the nominal one."""
    system: str
    reached: float
    nominal: float
    source: Source


# Between hosts, Gbit/s. Sums of 8 GPUs a host reach less than those of one.
NETWORK = (
    Reach("32 Gbit/s, TCP, 2 hosts of 8", 14.5, 32, TCP_32),
    Reach("32 Gbit/s, TCP, 4 hosts of 8", 22.2, 32, TCP_32),
    Reach("32 Gbit/s, TCP, 4 hosts of 1", 30.8, 32, TCP_32),
    Reach("25 Gbit/s, TCP, 2 hosts of 4", 8 * 1.7, 25, AZURE_25),
    Reach("100 Gbit/s, TCP, 2 hosts of 8", 8 * 6, 100, P3DN_100),
    Reach("100 Gbit/s, EFA, 8 to 32 hosts of 8", 50, 100, EFA_100),
    Reach("100 Gbit/s, iperf 2", 96.4, 100, IPERF_100),
)
# Inside a host, GB/s
LINKS = (Reach("A100, NVLink", 230.8, 300, EC2_A100), Reach("V100, NVLink", 20, 25, TOPOLOGY))


@dataclass(frozen=True)
class Speed:
    """Published images/s of ResNet-50 on one GPU and on several of the same series."""
    series: str
    source: Source
    batch: int
    gpu: str
    alone: float  # images/s of one GPU
    points: tuple  # ((GPUs, images/s, or (low, high)), ...)
    network_gbit: float = 0
    cards: int = 1


# Hosts of one kind alone: what 8 GPUs of a host lose.
CALIBRATION = (
    Speed("MXNet, DGX-1", DLE_MXNET, 192, "V100", 1376, ((8, 10723),)),
    Speed("MXNet, DGX-2", DLE_MXNET, 256, "V100", 1492, ((8, 11368),)),
    Speed("MXNet, DGX A100", DLE_MXNET, 256, "A100", 2180, ((8, 16925),)),
    Speed("PyTorch, DGX A100", DLE_PYTORCH, 256, "A100", 2470, ((8, 16621),)),
    Speed("TensorFlow with XLA, DGX A100", DLE_TF, 256, "A100", 2375, ((8, 17400),)),
)
# Not used for any parameter. 740 images/s of one GPU: the user's measurement with the same program on the same instances, because the
# article has no speed of one GPU. The batch of HOROVOD_USER is not known: 256 is assumed.
HELD_OUT = (
    Speed("TensorFlow, p3.16xlarge, CUDA 9", AWS_256, 256, "V100", 740, ((256, (142700, 144800)),), 25),
    Speed("TensorFlow, p3.16xlarge, CUDA 10", AWS_256, 256, "V100", 740, ((256, 171000),), 25),
    Speed("TensorFlow, p3.16xlarge, a user", AWS_USER, 256, "V100", 740, ((8, 5000), (16, 9860), (32, 21300), (64, 37000)), 25),
    Speed("tf_cnn_benchmarks, p3.16xlarge", HOROVOD_USER, 256, "V100", 872,
          ((8, 6679), (16, 12828), (32, 23870), (64, 47195), (128, 89783)), 25),
    Speed("MXNet, 100 Gbit/s", DLPERF, 256, "V100", 1393.87, ((8, 9621.31), (16, 16219.03), (32, 30713.68)), 100),
    Speed("TensorFlow with XLA, 100 Gbit/s", DLPERF, 224, "V100", 1198.55, ((8, 8588.45), (16, 14931.03), (32, 29171.69)), 100),
    Speed("PyTorch, 100 Gbit/s", DLPERF, 256, "V100", 802.9, ((8, 6154.66), (16, 11991.94), (32, 22551.16)), 100),
)


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    why: str
    sources: tuple


# For a normal variable, the whiskers of a box plot (quartiles and 1.5 times their distance beyond) are this many deviations apart.
WHISKERS = 4 * 1.349
GPU_LINKS_GB = 6 * 25  # of a V100: NVLink, 6 links of 25 GB/s in each direction


def cited(rows):
    """Returns each source of the rows once."""
    return tuple(dict.fromkeys(row.source for row in rows))


@functools.lru_cache(maxsize=None)
def ranges():
    """Returns {field of model.Cluster: Range} of the parameters that no source fixes, for hosts of 8 V100."""
    memories = [memory for machine in {p.machine for p in HOST_POINTS} for memory, _ in fit_host(machine)[1].values()]
    network, links = [r.reached / r.nominal for r in NETWORK], [r.reached / r.nominal for r in LINKS]
    found = {
        "jitter": Range(0.2 / 204.8, 0.08 / WHISKERS, "steps of one GPU after each other; differences of equal GPUs, 8 % between the whiskers",
                        (ONE_GPU, GPU_SPREAD)),
        "correlated": Range(0, 1, "no source: all that is possible", ()),
        "network_efficiency": Range(min(network), max(network), "least and most of NETWORK", cited(NETWORK)),
        "memory_gb": Range(min(memories), max(memories), "least and most of fit_host, without GPUs", (ALLREDUCE, WAITING)),
        "latency_us": Range(9.6, 46, "NCCL's constant of a ring's step with RDMA; a step over TCP", (TUNING, TCP_STEP)),
        "channels": Range(2, 16, "one network card; a DGX", (CHANNELS,)),
        "memory_passes": Range(2, 3, "buffers alone; and the gradients", (PASSES,)),
        "host_link_gb": Range(GPU_LINKS_GB * min(links), GPU_LINKS_GB * max(links), "least and most of LINKS", cited(LINKS)),
        "coordination_us": Range(0, 5000, "no negotiation; the default cycle of Horovod until 2020", (CYCLE,)),
    }
    losses = [fit_host_loss(speed, found) for speed in CALIBRATION]
    found["host_loss"] = Range(min(losses), max(losses), "least and most of CALIBRATION", cited(CALIBRATION))
    return found


def gpu_cluster(gbit=25, cards=1):
    """Returns hosts of 8 V100. Fields with a range have the middle of it."""
    return model.Cluster(ranks_per_host=8, network_gbit=gbit, network_cards=cards, barrier_us=10, multiprocessors=80, device_memory_gb=900,
                         host_link_gb=GPU_LINKS_GB)


def fit_host_loss(speed, found):
    """Returns the host_loss with which the model gives the published speed of 8 GPUs, with the middle of the other ranges."""
    (gpus, images), = speed.points
    c = replace(gpu_cluster(), **{name: (r.low + r.high) / 2 for name, r in found.items()})
    trace = traces.gpu_trace(speed.batch, 0.99 * speed.batch / speed.alone, 0.01 * speed.batch / speed.alone, gpu=speed.gpu)
    low, high = 0.0, 0.5
    for _ in range(40):
        half = (low + high) / 2
        low, high = (half, high) if model.simulate(trace, gpus, replace(c, host_loss=half)).images_per_second > images else (low, half)
    return low


def bounds():
    return {name: (r.low, r.high) for name, r in ranges().items()}


def compare(speed):
    """Returns [(GPUs, published (low, high) images/s, model.Interval)] for a held-out series."""
    seconds = speed.batch / speed.alone
    trace = traces.gpu_trace(speed.batch, 0.99 * seconds, 0.01 * seconds, gpu=speed.gpu)
    cluster = gpu_cluster(speed.network_gbit, speed.cards)
    rows = []
    for gpus, images in speed.points:
        low, high = images if isinstance(images, tuple) else (images, images)
        rows.append((gpus, (low, high), model.interval(trace, gpus, cluster, bounds())))
    return rows
