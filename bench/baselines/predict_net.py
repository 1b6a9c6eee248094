# SPDX-License-Identifier: MIT
"""predict.py --net: compares the forward pass of ResNet-50 alone, on images in memory, with ONNX Runtime, OpenVINO and
PyTorch compiled with frozen weights. Every system is loaded once; their turns alternate."""
import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

import environment
from environment import HERE, ROOT
from table import Samples, better, markdown, ratio
from turns import Failed, locked, run, say

PEERS = {"torch": "PyTorch, frozen", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


class Peer:
    """A system that has loaded its net and waits for turns."""

    def __init__(self, args, python, system, precision, model):
        self.what = PEERS[system]
        self.started = subprocess.Popen([str(c) for c in (python, HERE / "peer_inference.py", system, model, "--precision", precision, "--threads",
                                                          args.threads, "--batch", *args.batch)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait(self):
        line = self.started.stdout.readline().strip()
        if line != "ready":
            self.end()
            raise environment.Unavailable(f"{self.what} does not run on this machine")

    def turn(self, batch, seconds):
        try:
            self.started.stdin.write(f"{batch} {seconds}\n")
            self.started.stdin.flush()
            return json.loads(self.started.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError) as e:
            raise Failed(f"{self.what}, batch {batch}: no result, status {self.end()}") from e

    def end(self):
        """Ends the process, if it has not ended, and returns its status."""
        self.started.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.started.stdin.close()
        try:
            return self.started.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.started.kill()
            return self.started.wait()


def tutti(args, precision, batch):
    return run([os.environ.get("TUTTI_INFERENCE", ROOT / "build/bench/inference"), "--model", "resnet50", "--precision", precision, "--threads", args.threads, "--batch", batch,
                "--seconds", args.seconds], timeout=args.timeout)


def measure(args, weights_script):
    began = environment.load()
    names = {"tutti": "tutti"}
    precisions = args.precisions.split()
    times = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch = environment.python_of("torch", say)
        weights, net = folder / "weights.safetensors", folder / "resnet50.onnx"
        subprocess.run([torch, "-c", weights_script, ROOT / "tools", weights], check=True)
        subprocess.run([os.environ.get("TUTTI_EXPORT", ROOT / "build/tools/tutti-export"), "--model", "resnet50", weights, net], check=True, stdout=subprocess.DEVNULL)
        for precision in precisions:
            peers = {}
            for system in args.peers.split():
                if (system, precision) == ("onnxruntime", "bf16"):
                    continue
                try:
                    python = environment.python_of(system, say)
                    peers[system] = Peer(args, python, system, precision, weights if system == "torch" else net)
                    peers[system].wait()
                except environment.Unavailable as e:
                    peers.pop(system, None)
                    say(f"left out: {e}")
            try:
                for batch in args.batch:
                    for number in range(args.repeats):
                        with locked(args.lock):
                            turns = {"tutti": tutti(args, precision, batch), **{s: p.turn(batch, args.seconds) for s, p in peers.items()}}
                        for system, got in turns.items():
                            names[system] = got["system"]
                            times.setdefault((system, precision, batch), Samples()).add(got["batch_ms"])
                        say(f"turn {number + 1} of {args.repeats}, {precision}, batch {batch}: "
                            + ", ".join(f"{s} {got['batch_ms']} ms" for s, got in turns.items()))
            finally:
                for peer in peers.values():
                    peer.end()
    rows = []
    for precision in precisions:
        for batch in args.batch:
            of = {s: times.get((s, precision, batch), Samples()) for s in ("tutti", *PEERS)}
            rates = {s: Samples(1 / v for v in samples.values) for s, samples in of.items()}
            best = better([rates[s] for s in PEERS])
            rows.append([f"{precision}, batch {batch}", *(of[s].text() for s in ("tutti", *PEERS)), ratio(rates["tutti"], best) if best else "-"])
    print(f"**ResNet-50 alone, {args.threads} threads**, milliseconds of a batch, median of {args.repeats} turns of {args.seconds} s (least to largest):\n")
    print(markdown(["", "tutti", *PEERS.values(), "speed of tutti / the best peer"], rows))
    print("\n" + environment.conditions(began) + "\n- " + "; ".join(names.values()))
    return 0
