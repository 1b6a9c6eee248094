# SPDX-License-Identifier: MIT
"""Runs the fast CIFAR-10 recipe with train_cifar10 and with PyTorch on the same files. Returns accuracy and time for
each seed."""
import contextlib
import json
import tempfile
from pathlib import Path

import environment
import loaders
from environment import HERE
from table import Samples, markdown, ratio
from turns import Failed, locked, run, say


def views_of(log):
    """Returns the test accuracy of the averaged weights over several views of each image, and the last training loss,
    from a run's log."""
    found = {}
    for line in log.read_text().splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event.get("event") == "views":
                found["accuracy"] = event["test_ema_top1"]
            elif event.get("event") == "epoch":
                found["loss"] = event["train_loss"]
    return found


def ours(args, folder, seed):
    with tempfile.TemporaryDirectory(prefix="tutti-recipe-") as run_dir:
        command = [args.programs["train"], "--recipe", "fast", "--data", folder, "--seed", seed, "--epochs", args.epochs, "--width", f"{args.width:g}",
                   "--precision", args.recipe_precision, "--threads", args.recipe_threads, "--run-dir", Path(run_dir) / "run"]
        if args.num_examples:
            command += ["--num-examples", args.num_examples]
        found = run(command, {}, args.timeout, args.nice, lambda out: views_of(Path(run_dir) / "run" / "log.jsonl"))
        if not {"accuracy", "loss"} <= set(found):
            raise Failed(f"train_cifar10, seed {seed}: no accuracy in its log")
        return found


def theirs(args, python, folder, seed):
    command = [python, HERE / "torch_cifar_recipe.py", "--device", "cpu", "--data", folder, "--seed", seed, "--epochs", args.epochs, "--width",
               args.width, "--precision", args.recipe_precision, "--threads", args.recipe_threads, "--num-examples", args.num_examples]
    if args.ways == ["compile"]:
        command.append("--compile")

    def read(out):
        found = json.loads(out.splitlines()[-1])
        return {"accuracy": found["accuracy_of_views"], "loss": found["loss"], "system": found["system"]}

    more = {**args.mallocs["glibc-keep"], "OMP_NUM_THREADS": str(args.recipe_threads)}
    return run(command, more, args.timeout, args.nice, read)


def measure(args, pythons):
    """Runs both programs with each seed. Returns a row for each seed, and the means with the spread."""
    began, folder, rows = environment.load(), loaders.find_images()["cifar10"], []
    accuracy, seconds, loss = ({who: Samples() for who in ("PyTorch", "tutti")} for _ in range(3))
    for seed in args.seeds:
        for who, train in (("PyTorch", lambda: theirs(args, pythons["torch"], folder, seed)), ("tutti", lambda: ours(args, folder, seed))):
            with locked(args.lock):
                found = train()
            accuracy[who].add(100 * found["accuracy"])
            loss[who].add(found["loss"])
            seconds[who].add(found["seconds"])
            args.systems.setdefault(who, found.get("system", who))
            say(f"seed {seed}, {who}: {100 * found['accuracy']:.2f} %, {found['seconds']:.0f} s")
        rows.append([f"seed {seed}", *[f"{s[who].values[-1]:.{digits}f}" for s, digits in ((accuracy, 2), (loss, 4), (seconds, 0))
                                       for who in s], ratio(*(Samples([seconds[w].values[-1]]) for w in ("PyTorch", "tutti")))])
    mean = {who: sum(s.values) / len(s) for who, s in accuracy.items()}
    spread = {who: max(s.values) - min(s.values) for who, s in accuracy.items()}
    head = ["fast recipe", "PyTorch, %", "tutti, %", "PyTorch, loss", "tutti, loss", "PyTorch, s", "tutti, s", "PyTorch s / tutti s"]
    way = "compiled" if args.ways == ["compile"] else "eager"
    return "\n".join([
        f"**Test accuracy of six views and seconds from start to end**, {args.epochs} epochs, width {args.width:g}, "
        f"{args.num_examples or 50000} images, {args.recipe_precision}, PyTorch {way}:", "", markdown(head, rows), "",
        "Mean accuracy: " + ", ".join(f"{who} {mean[who]:.2f} % (spread {spread[who]:.2f})" for who in mean)
        + f"; tutti {'is not below' if mean['tutti'] >= mean['PyTorch'] - max(spread.values()) else 'IS BELOW'} PyTorch within the spread.",
        "", environment.conditions(began), f"- {args.systems['PyTorch']}; {args.recipe_threads} threads", ""])
