#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the recipes of --recipe with their originals in PyTorch: loss, parameter groups, optimizer, schedule and average,
20 steps with a warmup of 5.

  bench/baselines/recipes.py [NAME...] [--types "f64 f32 bf16"] [--no-planted] [--build build] [--golden FOLDER]

tutti draws images, mixes them as the recipe says, and writes them with its initial weights (build/bench/recipe_steps). An
original (torch_recipes.py) trains on them. Then tutti does each step from the original's state (weights, optimizer, batch norm
and average), and a free run from the initial weights. The difference of a step is that of each tensor's change, as a share of
the norm of the original's change; in f32 that of all weights, statistics, averages or momenta together. What rounding of the
tensor itself explains, two units in its last place, does not count.
Targets: 1e-10 in f64, 1e-5 in f32, 1e-3 for the free run. If PyTorch's own steps in f32 differ more from its steps in f64, from
the same states, twice that is the target of f32. In bf16 a step has no target of its own: it is compared with
PyTorch's autocast from the same states. Each recipe is also run with wrong constants (decay, average, smoothing, momentum, rate
of step 15), which must miss the target in f64. And the rates of the whole published run, with 8 steps an epoch, are compared.
Prints a Markdown table. The exit code is 1 if a target was missed or a wrong constant was not found.

The first run installs PyTorch into build/peers/torch. --golden writes recipes.safetensors for tests/golden.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import environment
from environment import ROOT
from table import markdown
from turns import Failed, say

try:
    import numpy as np
    import torch
    from safetensors.numpy import load_file, save_file

    from torch_recipe_run import PER_EPOCH, STEPS, Run
    from torch_recipes import ORIGINALS
except ImportError:  # restarts with the Python that has PyTorch
    if os.environ.get("TUTTI_IN_PEER") is not None:
        raise
    python = environment.python_of("torch", say)
    os.execve(python, [str(python), __file__, *sys.argv[1:]], {**os.environ, "TUTTI_IN_PEER": "torch"})

TARGET = {"f64": 1e-10, "f32": 1e-5, "free f64": 1e-3, "free f32": 1e-3, "rates": 1e-12, "images": 0.501}
TYPES = {"f64": "float64", "f32": "float32", "bf16": "float32"}
PLANTED_RATE = "15:1.001"


class Program:
    """build/bench/recipe_steps, with a folder for its files."""

    def __init__(self, build, folder):
        self.path, self.folder = Path(build) / "bench" / "recipe_steps", Path(folder)

    def __call__(self, command, *words, read=None):
        # The training programs refuse a TUTTI_ variable that they do not know.
        plain = {k: v for k, v in os.environ.items() if k != "TUTTI_IN_PEER"}
        done = subprocess.run([str(w) for w in (self.path, command, *words)], text=True, capture_output=True, check=False, cwd=self.folder,
                              env=plain)
        if done.returncode != 0:
            raise Failed(f"recipe_steps {command} {' '.join(map(str, words))}: {done.stderr.strip()[-600:]}")
        return load_file(self.folder / read) if read else done.stdout

    def begin(self, words):
        return self("begin", "begin", *words, read="begin")

    def rates(self, words):
        return self("rates", "rates", *words, read="rates")

    def write_states(self, states):
        save_file({f"{n}/{k}": a for n, s in enumerate(states[:-1]) for k, a in s.items()}, self.folder / "states")

    def steps(self, kind, words, planted="-"):
        """Does the steps from the written states. Returns the states after them, that of the free run, and the losses."""
        found = self("steps", "states", "after", kind, planted, *words, read="after")
        states = [{} for _ in range(STEPS)]
        free = {}
        for k, a in found.items():
            place, _, name = k.partition("/")
            if place == "free":
                free[name] = a
            elif place.isdigit():
                states[int(place)][name] = a
        return states, free, found["loss"], found["free.loss"]


def kind_of(name):
    """Returns what a tensor belongs to: the weights, the statistics of batch norm, the average, or a state of the optimizer."""
    prefix = next((p for p in ("ema.", "momentum.", "exp_avg.", "exp_avg_sq.") if name.startswith(p)), "")
    return prefix + ("statistics" if ".running_" in name else "weights")


def change_difference(before, theirs, ours, kind):
    """Returns the largest difference of a tensor's change, as a share of the norm of their change, and the tensor's name. In f32 all
    tensors of a kind count together: a tensor of which little is left of large summands has larger differences there."""
    for name in theirs.keys() ^ ours.keys():
        return np.inf, f"{name}, which only one side has"
    squares = {}
    for name, their in theirs.items():
        their, own, old = (a.astype(np.float64) for a in (their, ours[name], before[name]))
        last = np.spacing(np.maximum(abs(their), abs(old)).astype(TYPES[kind])).astype(np.float64)
        both = squares.setdefault(name if kind == "f64" else kind_of(name), np.zeros(2))
        both += np.sum(np.maximum(abs(own - their) - 2 * last, 0) ** 2), np.sum((their - old) ** 2)
    worst, where = 0.0, ""
    for name, (off, change) in squares.items():
        share = 0.0 if off == 0 else float(np.sqrt(off / change)) if change > 0 else np.inf
        if not share <= worst:
            worst, where = share, name
    return worst, where


def steps_difference(states, losses, ours, our_losses, kind):
    """Returns the largest difference of all steps, and where it is."""
    worst, where = 0.0, ""
    for n in range(STEPS):
        share, name = change_difference(states[n], states[n + 1], ours[n], kind)
        loss = abs(our_losses[n] - losses[n]) / abs(losses[n])
        if loss > share:
            share, name = loss, "loss"
        if not share <= worst:
            worst, where = share, f"{name}, step {n}"
    return worst, where


def free_difference(states, losses, free, free_losses):
    """Returns the difference of the change of all weights in the whole run, or of a loss if that is larger."""
    names = [k for k in states[0] if not k.startswith(("momentum.", "exp_avg", "ema."))]
    flat = lambda s: np.concatenate([s[k].astype(np.float64).ravel() for k in names])
    off = np.linalg.norm(flat(free) - flat(states[-1])) / np.linalg.norm(flat(states[-1]) - flat(states[0]))
    return max(off, *(abs(a - b) / abs(b) for a, b in zip(free_losses, losses)))


def image_difference(begin, pairs):
    """Returns the largest difference of an image in grey levels from the original's mixture of the images before, and of a
    label's share. The pixels of cutmix are exact."""
    worst, kinds = 0.0, set()
    for n in range(STEPS):
        before, images, labels = (begin[k][n].astype(np.int64) for k in ("before", "images", "labels"))
        partner = (lambda a: np.roll(a, 1, 0)) if pairs == "previous" else (lambda a: a[::-1])
        share = float(begin["share"][n][0])
        if pairs is None or share == 1:
            worst = max(worst, np.abs(before - images).max())
            continue
        if (begin["share"][n] != begin["share"][n][0]).any() or (begin["second"][n] != partner(labels)).any():
            return np.inf, kinds
        other = partner(before)
        off = np.abs(share * before + (1 - share) * other - images).max()
        if off > TARGET["images"] and ((images == before) | (images == other)).all():
            kinds.add("cutmix")
            rows, columns = np.nonzero((images != before).any((0, 3)))
            box = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
            off = abs(1 - box / before[0, :, :, 0].size - share)
        else:
            kinds.add("mixup")
        worst = max(worst, off)
    return worst, kinds


def rates_difference(name, original, program, begin):
    """Compares the rates of the short run and of the published one, and the average's decay and interval."""
    short = np.array(original.short_rates())
    worst = np.max(abs(begin["rates"] - short) / abs(short).max())
    found = program.rates([original.program, "--recipe", name])
    whole = np.array(original.rates(original.rate, original.epochs, 8, original.warmup))
    if found["rates"].shape != whole.shape:
        return np.inf
    numbers = original.numbers(original.epochs) if original.numbers else (0, 1)
    return max(worst, np.max(abs(found["rates"] - whole) / whole.max()), *(abs(a - b) / max(b, 1) for a, b in zip(found["average"], numbers)))


class Comparison:
    """One recipe next to its original."""

    def __init__(self, name, program):
        self.name, self.original, self.program = name, ORIGINALS[name], program
        self.words = self.original.short_words(name)
        self.begin = program.begin(self.words)
        self.found, self.missed, self.planted, self.target = {}, [], {}, dict(TARGET)

    def note(self, what, value, where=""):
        self.found[what] = value
        if not value <= self.target.get(what, np.inf):
            self.missed.append(f"{what} {value:.1e}{' (' + where + ')' if where else ''}")

    def compare(self, kinds, planted):
        self.note("rates", rates_difference(self.name, self.original, self.program, self.begin))
        worst, mixes = image_difference(self.begin, self.original.pairs)
        self.note("images", worst)
        if self.original.pairs and mixes != set(self.original.mixes):
            self.missed.append(f"drawn: {mixes or 'nothing'}, expected {', '.join(self.original.mixes)}")
        single = None
        if "f64" in kinds:
            self.run = Run(self.original, self.begin, torch.float64)
            states, losses, _ = self.run.all_steps()
            self.states, self.losses = states, losses
            self.program.write_states(states)
            after, free, own, own_free = self.program.steps("f64", self.words)
            self.note("f64", *steps_difference(states, losses, after, own, "f64"))
            self.note("free f64", free_difference(states, losses, free, own_free))
            if self.original.own:
                theirs, losses_of_own, _ = Run(replace(self.original, **self.original.own), self.begin, torch.float64).all_steps()
                self.own = free_difference(theirs, losses_of_own, free, own_free)
            if planted:
                self.plant(states, losses)
        if "f32" in kinds or "bf16" in kinds:
            single = Run(self.original, self.begin, torch.float32).all_steps([k for k in ("bf16", "f64") if k == "f64" or k in kinds])
            self.program.write_states(single[0])
        if "f32" in kinds:
            after, free, own, own_free = self.program.steps("f32", self.words)
            self.rounding(single)
            self.note("f32", *steps_difference(single[0], single[1], after, own, "f32"))
            self.note("free f32", free_difference(single[0], single[1], free, own_free))
        if "bf16" in kinds:
            self.halves(single)

    def rounding(self, single):
        """Raises the targets of f32 to twice the difference between PyTorch's steps in f32 and in f64, if that is more. The first
        step of Adam's form is g / |g|, so that small gradients have large differences."""
        states, losses, others = single
        worst = 0.0
        for n in range(STEPS):
            keep = lambda s: {k: a for k, a in s.items() if not k.startswith("ema.")}
            worst = max(worst, change_difference(states[n], keep(states[n + 1]), keep(others["f64"][n]), "f32")[0])
        self.found["PyTorch's f32"] = worst
        self.target["f32"] = max(TARGET["f32"], 2 * worst)
        if hasattr(self, "states"):
            own = free_difference(self.states, self.losses, states[-1], losses)
            self.target["free f32"] = max(TARGET["free f32"], 2 * own)

    def halves(self, single):
        """In bf16: the norm of the difference of all weights' change in a step, the median of the steps."""
        states, theirs = single[0], single[2]["bf16"]
        after, *_ = self.program.steps("bf16", self.words)
        names = [k for k in states[0] if not k.startswith(("momentum.", "exp_avg", "ema.")) and "running" not in k]

        def median(of):
            shares = []
            for n in range(STEPS):
                flat = lambda s: np.concatenate([s[k].astype(np.float64).ravel() for k in names])
                if (flat(states[n + 1]) == flat(states[n])).all():
                    continue  # a rate of 0
                shares.append(np.linalg.norm(flat(of[n]) - flat(states[n + 1])) / np.linalg.norm(flat(states[n + 1]) - flat(states[n])))
            return float(np.median(shares))

        self.note("bf16", median(after))
        self.note("bf16 of PyTorch", median(theirs))
        if not self.found["bf16"] <= 2 * self.found["bf16 of PyTorch"]:
            self.missed.append(f"bf16 {self.found['bf16']:.1e}, more than twice PyTorch's")

    def plant(self, states, losses):
        for what, more in {**self.original.planted, "rate": ()}.items():
            after, _, own, _ = self.program.steps("f64", [*self.words, *more], "-" if more else PLANTED_RATE)
            share, _ = steps_difference(states, losses, after, own, "f64")
            self.planted[what] = bool(share > TARGET["f64"])
            if not self.planted[what]:
                self.missed.append(f"a wrong {what} was not found")

    def row(self):
        cell = lambda what: f"{self.found[what]:.0e}" if what in self.found else "-"
        count = f"{sum(self.planted.values())} of {len(self.planted)}" if self.planted else "-"
        return [f"`{self.name}`", *[cell(w) for w in ("f64", "free f64", "f32", "PyTorch's f32", "free f32", "bf16", "bf16 of PyTorch", "rates")], count]


def golden(comparisons, folder):
    """Writes the losses and the norms of the changes of a free run in f64."""
    sys.path.insert(0, str(ROOT / "tests" / "golden"))
    from make_golden import write

    out, words = {}, {}
    norm = lambda parts: float(np.sqrt(sum(np.sum(np.square(p)) for p in parts)))
    for c in comparisons:
        o = c.original
        every = max(1, math.ceil(o.epochs) // 8)
        out[f"{c.name}.rates"] = np.array(o.rates(o.rate, o.epochs, 8, o.warmup)[::every])
        words[c.name] = {"whole": [o.program, "--recipe", c.name], "every": every}
        if o.steps_as:
            continue
        names = [k for k, _ in c.run.model.named_parameters()]
        out[f"{c.name}.loss"] = np.array(c.losses)
        out[f"{c.name}.change"] = np.array([norm(b[k] - a[k] for k in names) for a, b in zip(c.states, c.states[1:])])
        if o.average:
            out[f"{c.name}.average"] = np.array([norm(s["ema." + k] - s[k] for k in names) for s in c.states[1:]])
        words[c.name] |= {"steps": c.words, "planted": o.planted}
    write(Path(folder) / "recipes.safetensors", out,
          {"made_by": f"bench/baselines/recipes.py, PyTorch {torch.__version__.split('+')[0]}, timm 1.0.31", "recipes": json.dumps(words)})


def check_list(program):
    """Returns the recipes without an original here, and what is wrong with the others: batch and length."""
    wrong, without = [], []
    for which in ("train_imagenet", "train_cifar10"):
        listed = {w[0]: (int(w[1]), int(w[2])) for w in (line.split() for line in program("list", which).splitlines())}
        without += [name for name in listed if name not in ORIGINALS]
        for name, o in ORIGINALS.items():
            if o.program == which and listed.get(name) != (o.batch, math.ceil(o.epochs)):
                wrong.append(f"{name}: batch and epochs {listed.get(name)}, the original has {(o.batch, math.ceil(o.epochs))}")
    return without, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes; default: all")
    parser.add_argument("--types", default="f64 f32 bf16")
    parser.add_argument("--planted", action=argparse.BooleanOptionalAction, default=True, help="also run wrong constants")
    parser.add_argument("--build", default=os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
    parser.add_argument("--golden", metavar="FOLDER", help="write recipes.safetensors of all recipes into this folder")
    args = parser.parse_args()
    kinds = args.types.split()
    if unknown := [n for n in args.names if n not in ORIGINALS] + [k for k in kinds if k not in TYPES]:
        parser.error(f"expected recipes {', '.join(ORIGINALS)} and types {', '.join(TYPES)}, got {', '.join(unknown)}")
    torch.set_num_threads(1)
    began, rows, done = environment.load(), [], []
    with tempfile.TemporaryDirectory(prefix="tutti-recipes-") as folder:
        program = Program(args.build, folder)
        without, wrong = check_list(program)
        for name in args.names or ORIGINALS:
            c = Comparison(name, program)
            c.compare([] if args.golden and c.original.steps_as else kinds, args.planted)
            done.append(c)
            rows.append(c.row())
            wrong += [f"{name}: {m}" for m in c.missed]
            say(f"{name}: {', '.join(c.missed) or 'good'}")
    if args.golden:
        golden(done, args.golden)
    print(markdown(["recipe", "f64, step", "free run", "f32, step", "PyTorch's f32", "free run", "bf16, step", "PyTorch's bf16", "rates", "wrong constants found"], rows))
    print(f"\n{environment.conditions(began)}\n- PyTorch {torch.__version__}, timm 1.0.31, {STEPS} steps, {PER_EPOCH} of them warmup")
    for c in done:
        if hasattr(c, "own"):
            print(f"- `{c.name}`: a free run in f64 differs by {c.own:.0e} from one with the original's own rule")
    if without:
        print(f"- not compared, because there is no original here: {', '.join(sorted(set(without)))}")
    for line in wrong:
        print(f"missed: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, environment.Unavailable) as e:
        sys.exit(str(e))
