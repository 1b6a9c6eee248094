# SPDX-License-Identifier: MIT
"""The model of larger clusters: how long N ranks take for a step, given the trace of one (traces.py). Used by simulate.py,
validate.py and tutti-plan. No number of a machine stands here: published.py has them, with their sources.

Sums. Buckets are reduced one after the other, each when it is ready and the previous one is done. Inside a host every rank reads and
writes its share of all ranks' gradients at the host's memory bandwidth, or, with host_link_gb, the devices run a ring over links of
their own. Between hosts a ring or a tree runs, the cheaper one for each bucket. Both move 2 (H-1)/H of the bytes of H hosts over the
network cards of each host; the ring has 2 (H-1) latencies, the tree 2 ceil(log2 H) at TREE of the bandwidth.

Devices. While a sum runs on a GPU, its channels take multiprocessors from the kernels of the step, and its copies take memory
bandwidth: the kernels run at (1 - channels / multiprocessors) (1 - passes * rate of the sum / memory bandwidth) of their speed.

Stragglers. All ranks wait for the slowest. The time of a rank's step deviates by jitter (relative standard deviation) from the mean,
as a sum of two independent normal variables: one of the host with the share `correlated` of the variance, one of the rank. slowest()
integrates the expected maximum.

Input. jpeg_cores of a host decode jpeg_per_core images/s each; a step lasts at least until they have decoded its images."""
import functools
import math
from dataclasses import dataclass, replace

# NCCL's own model gives a tree 0.9 of a ring's bandwidth (NVIDIA/nccl, src/graph/tuning.cc, 2020).
TREE = 0.9
HOST_LOSS_RANKS = 8  # ranks of a host for which host_loss is given
SUM_BYTES = 16 * 2**20  # of a sum, for which memory_gb is given
INPUT, SUMS = "input", "sums"


@dataclass(frozen=True)
class Cluster:
    ranks_per_host: int = 1
    cores: float = 0  # for each host; 0: enough
    threads: int = 1  # for each rank
    sharing_cost: float = 0  # relative, for each further rank of a core, which fills the caches again
    memory_gb: float = 66.7  # GB/s that a sum of 16 MiB moves through the memory of a host (published.fit_host, Zen 5, 2 ranks)
    memory_exponent: float = 0.13  # a sum of s bytes moves memory_gb * (s / 16 MiB) ** memory_exponent
    barrier_us: float = 0.25  # of the ranks of a host; a sum has two
    host_link_gb: float = 0  # GB/s of each rank's link between the devices of a host; 0: they use the memory
    host_loss: float = 0  # relative loss of speed if 8 ranks share a host: input, processor, power; proportional to the other ranks
    network_gbit: float = 25  # Gbit/s of a network card
    network_cards: int = 1  # of a host
    network_efficiency: float = 1  # share of the cards' bandwidth that sums reach
    latency_us: float = 20  # between hosts
    coordination_us: float = 0  # from the moment when a bucket is ready on all ranks until its sum begins
    multiprocessors: int = 0  # of a GPU; 0: sums do not slow the step
    channels: float = 0  # of a sum: multiprocessors that it takes
    memory_passes: float = 0  # bytes of the GPU's memory that a sum moves for each byte on the link
    device_memory_gb: float = 900  # GB/s, of a GPU
    jitter: float = 0  # relative standard deviation of the time of a rank's step
    correlated: float = 0  # share of its variance that the ranks of a host have in common
    jpeg_cores: float = 0  # cores of a host that decode images; 0: enough
    jpeg_per_core: float = 1461  # images/s (bench/RESULTS.md, From JPEG to tensor, original size)


# Fields whose value may be uncertain: whether a larger value makes the step longer. If it does not, it makes it shorter or changes
# nothing.
LONGER = {"jitter": True, "correlated": False, "network_efficiency": False, "latency_us": True, "channels": True, "memory_passes": True,
          "host_link_gb": False, "host_loss": True, "coordination_us": True, "memory_gb": False, "jpeg_per_core": False}


@dataclass(frozen=True)
class Prediction:
    step: float  # seconds
    exposed: float  # seconds of sums after the end of the backward pass
    images_per_second: float  # of all ranks
    efficiency: float  # relative to the same number of lone ranks
    limit: str  # INPUT if decoding takes the longest, else SUMS


def host_seconds(size, local, c):
    """Returns the seconds for the sum of `size` bytes over `local` ranks of a host."""
    if local <= 1:
        return 0.0
    barriers = 2 * c.barrier_us * 1e-6
    if size <= 0:
        return barriers
    if c.host_link_gb > 0:
        return 2 * (local - 1) / local * size / (c.host_link_gb * 1e9) + barriers
    return 2 * local * size / (c.memory_gb * 1e9 * (size / SUM_BYTES) ** c.memory_exponent) + barriers


def network_rate(c):
    """Returns the bytes/s that sums reach between hosts."""
    return c.network_gbit * c.network_cards * c.network_efficiency / 8 * 1e9


def ring_seconds(size, hosts, c):
    return 0.0 if hosts <= 1 else 2 * (hosts - 1) / hosts * size / network_rate(c) + 2 * (hosts - 1) * c.latency_us * 1e-6


def tree_seconds(size, hosts, c):
    if hosts <= 1:
        return 0.0
    return 2 * (hosts - 1) / hosts * size / (TREE * network_rate(c)) + 2 * math.ceil(math.log2(hosts)) * c.latency_us * 1e-6


def network_seconds(size, hosts, c):
    return min(ring_seconds(size, hosts, c), tree_seconds(size, hosts, c))


def reduce_seconds(size, ranks, c):
    """Returns the seconds for the sum of one bucket of `size` bytes over all ranks."""
    return host_seconds(size, min(ranks, c.ranks_per_host), c) + network_seconds(size, math.ceil(ranks / c.ranks_per_host), c)


def speed_during_sums(size, ranks, seconds, c):
    """Returns the speed of a GPU's kernels, relative to their speed alone, while a sum of `size` bytes over `ranks` GPUs or hosts takes
    `seconds`. All of its bytes pass each GPU."""
    if c.multiprocessors <= 0 or seconds <= 0:
        return 1.0
    rate = 2 * (ranks - 1) / ranks * size / seconds
    return max(0.05, (1 - min(1, c.channels / c.multiprocessors)) * (1 - min(1, c.memory_passes * rate / (c.device_memory_gb * 1e9))))


# The steps of both integrals, in deviations.
GRID = [-9 + 0.05 * k for k in range(361)]
WEIGHTS = [(z, 0.1 * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)) for z in (-7 + 0.1 * k for k in range(141))]


def below(x):
    """Returns the probability that a standard normal variable is below x."""
    return math.erfc(-x / math.sqrt(2)) / 2


@functools.lru_cache(maxsize=256)
def host_below(ranks, correlated):
    """Returns, for each x of GRID, the probability that all `ranks` of one host are below x."""
    if correlated <= 0 or ranks == 1:
        return [below(x) ** ranks for x in GRID]
    if correlated >= 1:
        return [below(x) for x in GRID]
    common, own = math.sqrt(correlated), math.sqrt(1 - correlated)
    return [min(1.0, sum(w * below((x - common * z) / own) ** ranks for z, w in WEIGHTS)) for x in GRID]


@functools.lru_cache(maxsize=4096)
def slowest(ranks, ranks_per_host, correlated):
    """Returns by how many deviations the slowest of `ranks` is expected to be late: the integral of x over the distribution of the
    maximum. P(all below x) is a product over the hosts of the integral over z of phi(z) Phi((x - sqrt(c) z) / sqrt(1 - c)) ** R."""
    if ranks <= 1:
        return 0.0
    full, rest = divmod(ranks, ranks_per_host)
    p = [a ** full for a in host_below(ranks_per_host, correlated)] if full else [1.0] * len(GRID)
    if rest:
        p = [a * b for a, b in zip(p, host_below(rest, correlated))]
    # E = integral of (1 - P) above 0 minus integral of P below 0, by the trapezoidal rule.
    heights = [(1 - a if x >= 0 else -a) for x, a in zip(GRID, p)]
    middle = next(k for k, x in enumerate(GRID) if x >= -1e-9)
    upper, lower = heights[middle:], heights[:middle] + [-p[middle]]
    return 0.05 * (sum(upper) - (upper[0] + upper[-1]) / 2 + sum(lower) - (lower[0] + lower[-1]) / 2)


def simulate(trace, ranks, c):
    """Returns the Prediction for a step of `ranks` ranks."""
    local = min(ranks, c.ranks_per_host)
    hosts = math.ceil(ranks / c.ranks_per_host)
    on_a_core = max(1.0, local * c.threads / c.cores) if c.cores > 0 else 1.0
    slower = on_a_core * (1 + c.sharing_cost * (on_a_core - 1)) / (1 - min(0.99, c.host_loss * (local - 1) / (HOST_LOSS_RANKS - 1)))
    late = max(0.1, 1 + (c.jitter * slowest(ranks, c.ranks_per_host, c.correlated) if c.jitter > 0 else 0))
    scale = slower * late
    end = trace.backward_end * scale
    # `work` seconds of the step's passes are done at the time `clock`. Sums slow them.
    clock = work = 0.0
    finished = None  # the time at which the backward pass ends
    if ranks > 1:
        for size, ready in trace.buckets:
            wait = max(0.0, ready * scale - work)
            clock, work = clock + wait, work + wait
            inside, between = host_seconds(size, local, c), network_seconds(size, hosts, c)
            for seconds, speed in ((c.coordination_us * 1e-6, 1.0), (inside, speed_during_sums(size, local, inside, c)),
                                   (between, speed_during_sums(size, hosts, between, c))):
                if finished is None and work + seconds * speed >= end:
                    finished = clock + (end - work) / speed
                clock, work = clock + seconds, work + seconds * speed
    if finished is None:
        finished = clock + max(0.0, end - work)
    exposed = max(0.0, clock - finished)
    step = finished + exposed + trace.update * slower
    decoded = local * trace.images / (c.jpeg_cores * c.jpeg_per_core) if c.jpeg_cores > 0 else 0.0
    limit, step = (INPUT, decoded) if decoded > step else (SUMS, step)
    speed = ranks * trace.images / step
    return Prediction(step, exposed, speed, speed * (trace.backward_end + trace.update) / (ranks * trace.images), limit)


@dataclass(frozen=True)
class Interval:
    worst: Prediction  # all uncertain fields at the end of their range that makes the step longest
    best: Prediction  # all at the other end
    low: float  # images/s: nine of ten samples lie between low and high
    middle: float  # images/s: the median of the samples
    high: float


SAMPLES, PRIMES = 200, (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)


def halton(k, base):
    """Returns number k of the sequence of van der Corput in a base: the numbers fill [0, 1) evenly, and always the same way."""
    value, part = 0.0, 1.0
    while k > 0:
        part /= base
        k, digit = divmod(k, base)
        value += digit * part
    return value


def interval(trace, ranks, cluster, ranges):
    """Returns the Interval for `ranks` ranks. ranges: {field of Cluster, a key of LONGER: (low, high)}. The bounds have all fields
    at their worse and at their better ends. The samples take each field from its range, evenly and independently of the others."""
    ends = [replace(cluster, **{name: pair[LONGER[name] == longest] for name, pair in ranges.items()}) for longest in (True, False)]
    worst, best = (simulate(trace, ranks, c) for c in ends)
    samples = []
    for k in range(1, SAMPLES + 1) if ranges else ():
        # The correlation is taken from five values only: slowest() keeps what it has integrated.
        at = {name: halton(k, base) for name, base in zip(ranges, PRIMES)}
        values = {n: low + (high - low) * (round(4 * at[n]) / 4 if n == "correlated" else at[n]) for n, (low, high) in ranges.items()}
        samples.append(simulate(trace, ranks, replace(cluster, **values)).images_per_second)
    samples = sorted(samples) or [best.images_per_second]
    return Interval(worst, best, samples[len(samples) // 20], samples[len(samples) // 2], samples[-1 - len(samples) // 20])
