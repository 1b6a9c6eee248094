#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures whole training steps of PyTorch, for comparison with bench/step. Prints a JSON line for each net and way to
run it as soon as it is measured, so that a run that is cut short has results.

Measures all nets in eager mode first: a compilation takes up to a minute. Synthetic images on the device, channels last,
autocast (in f16 with a scaler of gradients), SGD with momentum in one fused kernel.
"""
import argparse
import json
import sys
import time

import torch
import torchvision

# name, image size, classes, batch, precision, ways to run it
NETS = [("resnet50", 224, 1000, 256, "bf16", ("eager", "compile")), ("resnet50", 224, 1000, 512, "bf16", ("eager", "compile")),
        ("resnet50", 224, 1000, 256, "f16", ("eager",)),
        ("resnet50-32", 32, 10, 128, "bf16", ("eager", "compile", "reduce-overhead"))]


class Run:
    def __init__(self, name, size, classes, batch, precision, mode):
        self.name, self.batch, self.precision, self.mode = name, batch, precision, mode
        self.scaler = torch.amp.GradScaler("cuda", enabled=precision == "f16")
        torch.manual_seed(0)
        self.model = torchvision.models.resnet50(num_classes=classes).cuda().to(memory_format=torch.channels_last)
        self.images = torch.randn(batch, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
        self.labels = torch.randint(classes, (batch,), device="cuda")
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
        ways = {"eager": None, "compile": {}, "reduce-overhead": {"mode": "reduce-overhead"}}
        self.forward = self.model if ways[mode] is None else torch.compile(self.model, **ways[mode])

    def step(self):
        with torch.autocast("cuda", torch.float16 if self.precision == "f16" else torch.bfloat16):
            loss = self.loss(self.forward(self.images), self.labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def measure(self, seconds):
        for _ in range(5):
            self.step()
        torch.cuda.synchronize()
        windows = []
        end = time.monotonic() + seconds
        while time.monotonic() < end or not windows:
            start, steps = time.monotonic(), 0
            while time.monotonic() - start < min(0.5, seconds / 5) or steps == 0:
                self.step()
                steps += 1
                # The host must not queue more steps than it has timed.
                if steps % 10 == 0:
                    torch.cuda.synchronize()
            torch.cuda.synchronize()
            windows.append(steps * self.batch / (time.monotonic() - start))
        windows.sort()
        return windows[len(windows) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=float, default=float("inf"), help="end of the time there is, in seconds of Unix time")
    parser.add_argument("--seconds", type=float, default=4)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", file=sys.stderr, flush=True)
    for mode in ("eager", "compile", "reduce-overhead"):
        for name, size, classes, batch, precision, modes in NETS:
            if mode not in modes:
                continue
            if time.time() + args.seconds > args.until:
                print(f"no time is left for {name} {batch} {precision} {mode}", file=sys.stderr, flush=True)
                continue
            try:
                run = Run(name, size, classes, batch, precision, mode)
                speed = run.measure(args.seconds)
                print(json.dumps({"system": f"PyTorch {torch.__version__}", "model": name, "precision": precision,
                                  "batch": batch, "mode": mode, "images_per_second": round(speed, 1)}), flush=True)
            except Exception as e:  # the remaining nets still run
                print(f"{name} {batch} {precision} {mode}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            run = None
            torch.cuda.empty_cache()  # the next net needs the memory


if __name__ == "__main__":
    main()
