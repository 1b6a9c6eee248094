#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the forward pass of ResNet-50 in a system for comparison, on random images in memory: torch (compiled with frozen
weights, channels last), onnxruntime or openvino.

Loads and compiles the net, runs it on each batch size, and prints "ready". Then, for each line "BATCH SECONDS" of the
standard input, it runs batches for this time and prints a line of JSON. The images are f32 and already normalised.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "tools")]
from peer_step import peak_mib  # noqa: E402


def with_torch(args):
    import pytorch_weights
    import torch
    import torchvision
    from torch._inductor import config as inductor
    torch.set_num_threads(args.threads)
    inductor.freezing = True
    model = torchvision.models.resnet50()
    model.load_state_dict(pytorch_weights.read_safetensors(torch, args.model))
    kind = torch.bfloat16 if args.precision == "bf16" else torch.float32
    model = model.eval().to(dtype=kind, memory_format=torch.channels_last)
    compiled = {batch: torch.compile(model, dynamic=False) for batch in args.batch}
    images = {batch: torch.randn(batch, 3, 224, 224).to(dtype=kind, memory_format=torch.channels_last) for batch in args.batch}

    def run(batch):
        with torch.inference_mode():
            compiled[batch](images[batch])

    return f"PyTorch {torch.__version__}, frozen", run


def with_onnxruntime(args):
    import onnxruntime
    if args.precision != "f32":
        sys.exit("onnxruntime: it computes ResNet-50 in f32 only on a processor")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    images = {batch: numpy.random.randn(batch, 3, 224, 224).astype(numpy.float32) for batch in args.batch}
    return f"ONNX Runtime {onnxruntime.__version__}", lambda batch: session.run(None, {name: images[batch]})


def with_openvino(args):
    import openvino
    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": args.threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": args.precision}
    requests = {}
    for batch in args.batch:
        model = core.read_model(args.model)
        model.reshape([batch, 3, 224, 224])
        requests[batch] = core.compile_model(model, "CPU", settings).create_infer_request()
    images = {batch: numpy.random.randn(batch, 3, 224, 224).astype(numpy.float32) for batch in args.batch}
    return f"OpenVINO {openvino.__version__.split('-')[0]}", lambda batch: requests[batch].infer([images[batch]], share_inputs=True, share_outputs=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=("torch", "onnxruntime", "openvino"))
    parser.add_argument("model", help="the ONNX file; for torch a safetensors file of torchvision's resnet50")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    args = parser.parse_args()
    name, run = {"torch": with_torch, "onnxruntime": with_onnxruntime, "openvino": with_openvino}[args.system](args)
    for batch in args.batch:
        for _ in range(3):
            run(batch)
    print("ready", flush=True)
    for line in sys.stdin:
        batch, seconds = int(line.split()[0]), float(line.split()[1])
        run(batch)
        times, cpu, began = [], time.process_time(), time.monotonic()
        while time.monotonic() - began < seconds or not times:
            start = time.perf_counter()
            run(batch)
            times.append(time.perf_counter() - start)
        cpu = time.process_time() - cpu
        median = statistics.median(times)
        print(json.dumps({"system": name, "batch": batch, "precision": args.precision, "threads": args.threads, "batch_ms": round(1e3 * median, 3),
                          "images_per_second": round(batch / median, 2), "images_per_cpu_second": round(batch * len(times) / cpu, 2),
                          "peak_rss_mib": round(peak_mib(), 1)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
