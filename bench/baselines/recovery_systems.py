# SPDX-License-Identifier: MIT
"""The systems that recovery.py compares: how each starts on four hosts, how a host joins and leaves, its progress, and an
audit of the samples that its workers were given. Each class names the pages of its project from which its settings come."""
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import environment
import netns_cluster
from recovery_worker import BATCH, IMAGES

HERE = Path(__file__).resolve().parent
WORKER = HERE / "recovery_worker.py"


def children(pids):
    """Returns these processes and all their descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = set(pids)
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found & set(parents)


class System:
    STARTS = 0  # seconds that may pass before the first step, in addition to the limit of all steps

    def __init__(self, cluster, folder, epochs, timeout, build):
        self.cluster, self.folder, self.epochs, self.timeout, self.build = cluster, folder, epochs, timeout, build
        self.started, self.out, self.read, self.step = [], open(folder / "output", "wb"), {}, 0
        self.agents = {}  # of hosts
        (folder / "steps").mkdir()

    def launch(self, host, command, **more):
        """Starts a process on a host, or on this machine if host is None."""
        command = [str(c) for c in command]
        process = subprocess.Popen(command if host is None else self.cluster.inside(host, command), stdin=subprocess.DEVNULL, stdout=self.out,
                                   stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **more})
        self.started.append((host, process))
        return process

    def pids(self):
        """Returns all processes of the job."""
        inside = {p for h in range(self.cluster.count) for p in self.cluster.pids(h)}
        return inside | children(p.pid for _, p in self.started)

    def ended(self):
        """Returns whether an agent reports success, or all have ended."""
        codes = [p.poll() for _, p in self.started]
        return 0 in codes or None not in codes

    def leave(self, host):
        """Asks the agent of a host to end in order."""
        self.agents[host].send_signal(signal.SIGTERM)

    def worker(self, index):
        """Returns the process of a worker, by the order of ranks."""
        there = self.workers()
        return there[sorted(there)[index]]

    def finished(self):
        return self.epochs * IMAGES // (4 * BATCH) <= self.step

    def said(self):
        return (self.folder / "output").read_bytes().decode(errors="replace")

    def stop(self):
        for pid in self.pids() - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for _, process in self.started:
            process.wait(60)
        self.out.close()

    def new_lines(self, folder, pattern):
        for file in sorted(folder.glob(pattern)):
            with open(file, "rb") as f:
                f.seek(self.read.get(file, 0))
                text = f.read()
            whole = text[:text.rfind(b"\n") + 1]
            self.read[file] = self.read.get(file, 0) + len(whole)
            for line in whole.splitlines():
                yield file, json.loads(line)


class PyTorch(System):
    """What the systems have in common whose worker is recovery_worker.py."""

    def __init__(self, *args):
        super().__init__(*args)
        self.lines = {}  # of each worker's file

    @staticmethod
    def python(build):
        return environment.python_of("torchft", lambda text: print(text, file=sys.stderr, flush=True))

    @classmethod
    def versions(cls, build):
        code = ("from importlib.metadata import version as v; import sys; "
                "print(', '.join(n + ' ' + v(n) for n in sys.argv[1:]))")
        return subprocess.run([cls.python(build), "-c", code, *cls.PACKAGES], text=True, capture_output=True, check=True).stdout.strip()

    def progress(self):
        for file, line in self.new_lines(self.folder / "steps", "steps-*.jsonl"):
            self.lines.setdefault(file, []).append(line)
            if line["event"] == "done":
                self.step = max(self.step, line["step"])
        return self.step

    def workers(self):
        """Returns {rank: process} of the newest generation."""
        starts = sorted((x[0]["generation"], x[0]["rank"], x[0]["pid"]) for x in self.lines.values())
        newest = starts[-1][0] if starts else 0
        return {rank: pid for generation, rank, pid in starts if generation == newest and Path(f"/proc/{pid}").exists()}

    def torchrun(self, host, options, worker, **more):
        command = [self.python(self.build), "-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=100", *options,
                   WORKER, worker, self.folder / "steps", self.epochs, self.timeout]
        self.agents[host] = self.launch(host, command, GLOO_SOCKET_IFNAME="eth0", **more)

    def start(self, hosts):
        for host in hosts:
            self.join(host)

    def losses(self):
        steps = {}
        for lines in self.lines.values():
            for x in lines:
                if x["event"] == "done":
                    steps.setdefault(x["step"], []).append(x["loss"])
        return statistics.mean(statistics.mean(steps[s]) for s in sorted(steps)[-16:])

    def audit(self):
        """A step counts as its newest generation did it: it began from the checkpoint before this step."""
        self.progress()
        given = {}
        for start, *lines in self.lines.values():
            for x in lines:
                if x["event"] == "given":
                    given.setdefault(x["step"], {}).setdefault(start["generation"], []).append(x)
        counted = Counter((x["epoch"], s) for by in given.values() for x in by[max(by)] for s in x["samples"])
        return {**self.count(counted), "repeated": sum(len(by) - 1 for by in given.values())}

    def count(self, counted):
        """Counts in whole epochs: if the job has not finished, its last one does not count."""
        last = max((e for e, _ in counted), default=0) + (1 if self.ended() else 0)
        here = {k: n for k, n in counted.items() if k[0] < last}
        return {"lost": last * IMAGES - len(here), "twice": sum(here.values()) - len(here), "loss": self.losses()}


class Torchrun(PyTorch):
    """docs.pytorch.org/docs/stable/elastic/quickstart.html (an elastic job, backend c10d, --max-restarts), train_script.html
    (a checkpoint, loaded after each restart) and rendezvous.html (time-outs). last_call_timeout keeps its default, 30 s."""
    PACKAGES, CONF = ("torch",), ""

    def join(self, host):
        # Without this variable all generations of workers use one store, and new ranks connect to addresses of ended ones:
        # "Gloo connectFullMesh failed ... Connection refused", until --max-restarts.
        self.torchrun(host, ["--nnodes=1:4", "--rdzv-id=race", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.cluster.address(0)}:29400",
                             f"--local-addr={self.cluster.address(host)}",
                             f"--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt={self.timeout}{self.CONF}"],
                      "torchrun", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


class TorchrunTuned(Torchrun):
    """torchrun with last_call_timeout=1 (30 by default), which rendezvous.html describes but does not recommend. Its other settings
    need no change: --monitor-interval is 0.1 s by default, join_timeout is only a limit, and the detection has the time-out of this race."""
    CONF = ",last_call_timeout=1"


class Torchft(PyTorch):
    """README.md of meta-pytorch/torchft: a lighthouse with these options, and one torchrun with a replica group of one worker
    for each host. docs: "heartbeat_timeout_ms" 5000 is the lighthouse's default."""
    PACKAGES = ("torchft-nightly", "torch")

    def join(self, host):
        self.torchrun(host, ["--nnodes=1", "--master_addr=127.0.0.1", f"--master_port={29600 + host}"], "torchft", REPLICA_GROUP_ID=str(host),
                      NUM_REPLICA_GROUPS="4", TORCHFT_LIGHTHOUSE=f"http://{self.cluster.here}:29510")

    def start(self, hosts):
        self.lighthouse = self.launch(None, [Path(self.python(self.build)).parent / "torchft_lighthouse", "--bind", "[::]:29510", "--min_replicas", 1,
                                             "--quorum_tick_ms", 100, "--join_timeout_ms", 10000, "--heartbeat_timeout_ms", 1000 * self.timeout])
        super().start(hosts)

    def ended(self):
        codes = [p.poll() for p in self.agents.values()]
        return 0 in codes or None not in codes or self.lighthouse.poll() is not None

    def workers(self):
        """Replica groups have no common generation: the newest process of each counts."""
        starts = sorted((x[0]["generation"], x[0]["rank"], x[0]["pid"]) for x in self.lines.values())
        return {rank: pid for _, rank, pid in starts if Path(f"/proc/{pid}").exists()}

    def audit(self):
        """A sample is lost if a worker was given it, and no step with it was committed. Groups go through their shards at their own
        pace: samples of a group that is behind do not count as lost."""
        self.progress()
        counted, given, dropped = Counter(), set(), 0
        for _, *lines in self.lines.values():
            for x, then in zip(lines, lines[1:]):
                if x["event"] == "given" and then["event"] == "done":
                    counted.update((x["epoch"], s) for s in x["samples"])
                dropped += x["event"] == "given" and then["event"] == "dropped"
            given.update((x["epoch"], s) for x in lines if x["event"] == "given" for s in x["samples"])
        if not self.ended():  # then the last step of each worker has no end yet
            given.clear()
        return {"lost": len(given - set(counted)), "twice": sum(counted.values()) - len(counted), "loss": self.losses(), "repeated": dropped}


class Ray(PyTorch):
    """docs.ray.io/en/latest/train/user-guides/elastic-training.html (a range of workers, max_failures) and
    fault-tolerance.html, checkpoints.html (report() with a checkpoint). The interval of resizes, 60 s by default, and the
    health checks of nodes have the time-out of this race. Ray Train needs minutes to its first step on two cores: each host
    has an agent of several processes, and the controller, the workers' actors and their imports of PyTorch start one after the
    other (37 s for the actors and 67 s for their context were measured)."""
    PACKAGES, STARTS = ("ray", "torch"), 400

    def start(self, hosts):
        # The function of the workers is sent to them without its module, so they find what it imports by PYTHONPATH.
        self.more = {"RAY_TRAIN_V2_ENABLED": "1", "RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "1000",
                     "RAY_health_check_failure_threshold": str(self.timeout), "RAY_health_check_initial_delay_ms": "1000",
                     "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_ADDRESS": f"{self.cluster.here}:6379",
                     "PYTHONPATH": f"{HERE}:{HERE.parents[1] / 'tests' / 'golden'}"}
        self.bin = Path(self.python(self.build)).parent
        common = ["--object-store-memory=100000000", "--disable-usage-stats", "--block"]
        self.common = common
        self.head = self.launch(None, [self.bin / "ray", "start", "--head", f"--node-ip-address={self.cluster.here}", "--port=6379", "--num-cpus=0",
                                       "--include-dashboard=false", *common], **self.more)
        self.wait_for(self.head, 1)
        for number, host in enumerate(hosts):  # one after the other: ray start fails if a node needs more than 30 s
            self.join(host)
            self.wait_for(self.agents[host], number + 2)
        self.driver = self.launch(None, [self.python(self.build), WORKER, "ray", self.folder / "steps", self.epochs, self.timeout],
                                  **self.more)

    def join(self, host):
        self.agents[host] = self.launch(host, [self.bin / "ray", "start", f"--address={self.cluster.here}:6379", "--num-cpus=1",
                                              f"--node-ip-address={self.cluster.address(host)}", *self.common], GLOO_SOCKET_IFNAME="eth0", **self.more)

    def wait_for(self, process, count):
        end = time.monotonic() + 120
        while self.said().count("Ray runtime started.") < count:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("ray start: " + self.said()[-2000:])
            time.sleep(0.1)

    def ended(self):
        return self.driver.poll() is not None


class Tutti(System):
    """docs/how-to/elastic-job.md: --elastic-at step, and the time-out of this race."""

    @staticmethod
    def versions(build):
        header = (HERE.parents[1] / "include" / "tutti" / "version.hpp").read_text()
        return "tutti " + re.search(r'version = "([^"]+)"', header)[1]

    def list(self, hosts):
        new = self.folder / "new"
        new.write_text("".join(f"{self.cluster.address(h)} slots=1\n" for h in hosts))
        return new

    def start(self, hosts):
        self.hosts, self.program, self.run, self.loss = list(hosts), self.build / "examples" / "train_cifar10", self.folder / "run", []
        command = [self.build / "tools" / "tutti-launch", "--elastic", "--elastic-at", "step", "--elastic-dir", self.folder, "--rank-timeout",
                   self.timeout, "-n", len(self.hosts), "-H", self.list(hosts), "--ssh-config", self.cluster.ssh_config, self.program, "--strategy",
                   "gloo", "--dataset", "synthetic", "--num-examples", IMAGES, "--network", "resnet", "--depth", 20, "--batch-size", BATCH * 4 // len(self.hosts),
                   "--threads", 1, "--epochs", self.epochs, "--disp-batches", 1, "--evaluate-every", 0,
                   "--audit", "--run-dir", self.run]
        self.launch(None, command, TUTTI_STATE_DIR=str(self.folder / "state"))

    def edit(self, hosts):
        self.hosts = hosts
        self.list(hosts).rename(self.folder / "host_worker")

    def join(self, host):
        self.edit([*self.hosts, host])

    def leave(self, host):
        self.edit([h for h in self.hosts if h != host])

    def progress(self):
        for _, line in self.new_lines(self.run, "log.jsonl"):
            if line["event"] == "step":
                self.step = max(self.step, line["step"])
                self.loss.append(line["train_loss"] if "train_loss" in line else line["loss"])
        return self.step

    def workers(self):
        """Returns {process number: process}; rank 0 is the oldest."""
        found = {}
        for pid in (p for h in range(self.cluster.count) for p in self.cluster.pids(h)):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if netns_cluster.runs(pid, self.program) and b"TUTTI_ROLE=worker" in words and b"TUTTI_ASK=launch" not in words:
                    found.update({int(w[11:]): pid for w in words if w.startswith(b"TUTTI_RANK=")})
        return found

    def audit(self):
        """tutti-check-audit counts. The audit does not show an interrupted step, in which no worker has updated its weights."""
        done = subprocess.run([self.build / "tools" / "tutti-check-audit", self.run], text=True, capture_output=True, check=False)
        epochs = re.findall(r"^epoch \d+: (\d+) of (\d+) samples(?:, (\d+) seen again)?", done.stdout + done.stderr, re.M)
        if not epochs:
            raise RuntimeError("tutti-check-audit: " + done.stdout + done.stderr)
        if not self.ended():
            epochs.pop()
        return {"lost": sum(int(of) - int(there) for there, of, _ in epochs), "twice": sum(int(again or 0) for *_, again in epochs),
                "repeated": None, "loss": statistics.mean(self.loss[-16:])}


SYSTEMS = {"torchrun": Torchrun, "torchrun-tuned": TorchrunTuned, "torchft": Torchft, "ray": Ray, "tutti": Tutti}
