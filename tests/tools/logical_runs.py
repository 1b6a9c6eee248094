# SPDX-License-Identifier: MIT
"""Runs of train_cifar10 and train_imagenet with logical ranks, and what must be equal on any number of processes: the
checkpoint's tensors, and the numbers of log.jsonl."""
import hashlib
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

from launch_case import BUILD, LAUNCH

TRAIN = str(BUILD / "examples" / "train_cifar10")
IMAGENET = str(BUILD / "examples" / "train_imagenet")
# ResNet-8 with batch norm and augmentation on images that a function makes. Five logical ranks have 101 images in 7
# steps; the last one has 11 images.
SMALL = ("--dataset", "synthetic", "--num-examples", 101, "--image-shape", "3,12,12", "--depth", 8, "--pad-size", 2, "--seed", 3,
         "--disp-batches", 1, "--logical-ranks", 5, "--batch-size", 3, "--evaluation-batch", 20, "--epochs", 2)
# Fields of the lines of log.jsonl that do not depend on time.
FIELDS = {"step": ("epoch", "step", "train_loss", "train_top1", "lr", "batch"),
          "epoch": ("epoch", "step", "train_loss", "train_top1", "test_loss", "test_top1", "test_top5", "test_ema_loss",
                    "test_ema_top1", "test_ema_top5", "lr", "batch", "skipped"),
          "views": ("step", "views", "test_loss", "test_top1", "test_ema_loss", "test_ema_top1")}


def without(strategy):
    """Returns the package that the build lacks for a strategy, or an empty text."""
    environment = {name: value for name, value in os.environ.items() if name != "TUTTI_DATA"}
    said = subprocess.run([TRAIN, "--strategy", strategy, "--data", "/nowhere"], env=environment, capture_output=True, text=True,
                          timeout=900).stderr
    found = re.search(r"install ([\w.-]+)", said) if "the strategies of this build" in said else None
    return found.group(1) if found else ""


def log_lines(run):
    """Returns {(event, step): {field: value}} of a run. A repeated line replaces the earlier one."""
    found = {}
    for line in (Path(run) / "log.jsonl").read_text().splitlines():
        entry = json.loads(line)
        kind = entry["event"]
        if kind in FIELDS:
            found[kind, entry["step"]] = {name: entry[name] for name in FIELDS[kind] if name in entry}
    return found


def newest(run):
    return max((Path(run) / "checkpoints").glob("step-*"))


def hashes(run, whole=True):
    """Returns the SHA-256 of the tensors of the newest checkpoint; with `whole` also of evaluation.json."""
    files = [newest(run) / "model.safetensors", newest(run) / "optimizer.safetensors"]
    evaluation = Path(run) / "evaluation.json"
    if whole and evaluation.exists():
        files.append(evaluation)
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def differences(run, quiet, whole=True):
    """Returns how a run differs from the quiet run: [] if all promised numbers are equal. A resumed run has fewer lines.
    Without `whole`, one of the runs was stopped, and has no line for the steps since the last report."""
    expected, lines, others = hashes(quiet, whole), log_lines(run), log_lines(quiet)
    found = [f"{name}: {value[:16]}, not {expected.get(name, 'none')[:16]}" for name, value in hashes(run, whole).items()
             if value != expected.get(name)]
    if not lines.keys() & others.keys():
        found.append("no line of the log is in both runs")
    if whole and max(lines) != max(others):
        found.append(f"ends with {max(lines)}, not {max(others)}")
    for key in sorted(lines.keys() & others.keys()):
        found += [f"{key}: {name} is {value!r}, not {others[key].get(name)!r}" for name, value in lines[key].items()
                  if value != others[key].get(name)]
    return found


def command(strategy="solo", ranks=1, servers=0, options=(), run=None, program=TRAIN, launcher=()):
    """Returns the command of a run with fixed processes. launcher: more options of tutti-launch."""
    words = []
    if strategy != "solo":
        words = [LAUNCH, "-n", ranks, *(("-s", servers) if servers else ()), *launcher]
    words += [program, "--strategy", strategy, *options]
    if run is not None:
        words += ["--log_dir" if program == IMAGENET else "--run-dir", run]
    return [str(w) for w in words]


def text_of(words):
    return shlex.join(str(w) for w in words)


def environment_of(folder):
    """Returns the environment of runs in a folder."""
    kept = {name: value for name, value in os.environ.items() if not re.match(r"GLOO_|DMLC_|HOROVOD_", name)}
    return dict(kept, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TUTTI_STATE_DIR=str(Path(folder) / "state"))


def execute(words, folder, timeout=900, **environment):
    """Runs a command in the folder. Returns the exit code and the output."""
    done = subprocess.run(words, cwd=folder, env=dict(environment_of(folder), **environment), stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", timeout=timeout)
    return done.returncode, done.stdout
