#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the same nets with PyTorch and with tutti (steps), reads the same images (input), or trains the fast CIFAR-10
recipe to its end (recipe), in turns, and prints tables of the medians with their spread.

PyTorch comes from PyPI into a virtual environment at the first run. It runs eagerly and compiled, with channels-last
memory, with as many threads as tutti, and with the settings that short runs find best for it: the malloc (glibc's,
glibc's with freed memory kept, and jemalloc and tcmalloc if they are installed), the optimizer (fused or foreach), and
in bf16 autocast or pure bf16 (weights and momentum too).

  TORCH_VENV, MXNET_VENV, TENSORFLOW_VENV   the virtual environments (default: build/peers/torch and so on)
  TUTTI_STEP, TUTTI_LOADER, TUTTI_JPEG      tutti's programs (default: build/bench/tutti_step, loader and jpeg)
  TUTTI_TRAIN                               (default: build/examples/train_cifar10)
  TUTTI_DATA                                the folder of cifar-10-batches-bin and of imagenet-sample.tar (default: data)
"""
import argparse
import os
import resource
import shlex
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import environment  # noqa: E402
import loaders  # noqa: E402
import recipe  # noqa: E402
from environment import ROOT, Unavailable  # noqa: E402
from peer_step import TORCH_NETS  # noqa: E402
from table import Samples, better, markdown, ratio  # noqa: E402
from turns import Failed, competitor, locked, run, say  # noqa: E402

HERE = Path(__file__).resolve().parent
NAMES = {"resnet20": "ResNet-20 CIFAR", "resnet56": "ResNet-56 CIFAR", "resnet110": "ResNet-110 CIFAR",
         "resnet18": "ResNet-18 CIFAR", "resnet50": "ResNet-50 224", "wrn28_10": "WRN-28-10 CIFAR",
         "resnext50_32x4d": "ResNeXt-50 224", "wide_resnet50_2": "Wide-ResNet-50-2 224", "resnet50d": "ResNet-50-D 224",
         "seresnet50": "SE-ResNet-50 224", "mobilenet_v2": "MobileNetV2 224", "convnext_tiny": "ConvNeXt-T 224"}
TORCH_WAYS = ("eager", "compile")
# For each measurement: tutti's programs that it needs.
MEASURES = {"steps": ("step",), "input": ("loader", "jpeg"), "recipe": ("train",)}
EXTRA = ("mxnet", "tensorflow")
COLUMNS = ("PyTorch eager", "PyTorch compiled", "MXNet", "TensorFlow", "tutti")


class Case:
    """A row of a table: net, batch, precision and threads."""

    def __init__(self, model, batch, precision, threads):
        self.model, self.batch, self.precision, self.threads = model, batch, precision, threads
        self.settings = {}  # settings of PyTorch for each way to run it
        self.rates = {c: Samples() for c in COLUMNS}
        self.per_cpu = {c: Samples() for c in COLUMNS}
        self.peaks = {c: Samples() for c in COLUMNS}

    @property
    def count(self):
        return environment.cores() if self.threads == "busy" else int(self.threads)

    def options(self, seconds):
        return ["--model", self.model, "--batch", self.batch, "--precision", self.precision, "--threads", self.count,
                "--seconds", seconds]

    def add(self, column, found):
        self.rates[column].add(found["images_per_second"])
        self.per_cpu[column].add(found["images_per_cpu_second"])
        self.peaks[column].add(found["peak_rss_mib"])

    def __str__(self):
        return f"{NAMES[self.model]} b{self.batch} {self.precision}, {self.threads} threads"


def torch_run(args, python, case, way, settings, seconds):
    name = settings["malloc"]
    more = {**args.mallocs[name], "OMP_NUM_THREADS": str(case.count),
            "TORCHINDUCTOR_CACHE_DIR": str(environment.folder_of("torch").parent / "inductor")}
    command = [python, HERE / "torch_step.py", *case.options(seconds), "--way", way, "--optimizer", settings["optimizer"],
               "--bf16", settings["bf16"]]
    return run(command, more, args.timeout, args.nice)


def find_settings(args, python, case):
    """Finds PyTorch's fastest settings with short runs, one setting after the other. The eager way uses the malloc and
    the optimizer of the compiled one."""
    given = {"malloc": args.malloc, "optimizer": args.optimizer, "bf16": args.bf16}
    choices = {"malloc": list(args.mallocs), "optimizer": ["fused", "foreach"], "bf16": ["autocast", "pure"]}
    usual = {"malloc": "glibc-keep", "optimizer": "fused", "bf16": "autocast"}
    settings = {k: usual[k] if v == "best" else v for k, v in given.items()}
    for way in args.ways:
        asked = [k for k in ("bf16", "malloc", "optimizer")
                 if given[k] == "best" and (k != "bf16" or case.precision == "bf16") and (way == args.ways[0] or k == "bf16")]
        seen = {}
        for key in asked:
            for choice in choices[key]:
                trial = {**settings, key: choice}
                of = tuple(trial.values())
                if of not in seen:
                    try:
                        with locked(args.lock), competitor(case.threads == "busy"):
                            seen[of] = torch_run(args, python, case, way, trial, args.tune_seconds)["images_per_second"]
                    except Failed as e:
                        say(f"  {way} {trial}: {e}")
                        seen[of] = 0
                say(f"  {way}, {', '.join(of)}: {seen[of]:.1f} images/s")
            settings = {**settings, key: max(choices[key], key=lambda c: seen[tuple({**settings, key: c}.values())])}
        case.settings[way] = dict(settings)


def turn(args, pythons, case):
    """Runs each program once for a case."""
    with competitor(case.threads == "busy"):
        for way in args.ways if "torch" in pythons else ():
            found = torch_run(args, pythons["torch"], case, way, case.settings[way], args.seconds)
            case.add("PyTorch eager" if way == "eager" else "PyTorch compiled", found)
            args.systems.setdefault("PyTorch", found["system"].rsplit(" ", 1)[0])
        for peer, column in (("mxnet", "MXNet"), ("tensorflow", "TensorFlow")):
            if peer in pythons and case.precision in args.peer_precisions[peer]:
                found = run([pythons[peer], HERE / f"{peer}_step.py", *case.options(args.seconds)],
                            {"OMP_NUM_THREADS": str(case.count)}, args.timeout, args.nice)
                case.add(column, found)
                args.systems.setdefault(column, found["system"])
        found = run([args.programs["step"], *case.options(args.seconds), *args.tutti], {}, args.timeout, args.nice)
        case.add("tutti", found)
        args.systems.setdefault("tutti", f"{found['system']} ({found['how']})")


def table(args, cases):
    """Returns the three tables and a description of how they were measured."""
    columns = [c for c in COLUMNS if any(len(case.rates[c]) for case in cases)]
    head = ["net", "batch", "type", "threads"]
    lines = []
    for title, of, form in (("Images per second", "rates", "x"), ("Images per second of processor time", "per_cpu", "x"),
                            ("Peak of resident memory while training, MiB", "peaks", "of")):
        rows = []
        for case in cases:
            samples = getattr(case, of)
            # For speed, uses the way of PyTorch with more images per second. For memory, uses this faster way too.
            fast = samples if form == "x" else case.rates
            best = better([fast[c] for c in columns if c.startswith("PyTorch")])
            theirs = next((samples[c] for c in columns if fast[c] is best), Samples())
            rows.append([NAMES[case.model], case.batch, case.precision, case.threads,
                         *[samples[c].text() for c in columns], ratio(samples["tutti"], theirs)])
        against = "tutti / PyTorch's better" if any(c.startswith("PyTorch") for c in columns) else "ratio"
        lines += [f"**{title}**, median of {args.repeats} (least to largest):", "", markdown([*head, *columns, against], rows), ""]
    return "\n".join(lines)


def conditions(args, cases, began):
    lines = [environment.conditions(began), f"- {'; '.join(args.systems.values())}; turns of {args.seconds:g} s"]
    if args.tutti:
        lines.append(f"- tutti with {shlex.join(args.tutti)}")
    for case in cases:
        for way, s in case.settings.items():
            bf16 = f", {s['bf16']} bf16" if case.precision == "bf16" else ""
            lines.append(f"- PyTorch {way}, {case}: malloc {s['malloc']}, {s['optimizer']} SGD{bf16}, channels last")
    used = {s["malloc"] for case in cases for s in case.settings.values()}
    for name in sorted(used):
        lines.append(f"- malloc {name}: {' '.join(f'{k}={v}' for k, v in args.mallocs[name].items()) or 'as it is'}")
    if args.missing:
        lines.append(f"- not tried, not installed: {', '.join(args.missing)}")
    return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="steps|input|recipe", help="what to measure (default: steps and input)")
    parser.add_argument("--models", default="resnet20:128 resnet18:64 resnet50:16", metavar="'MODEL:BATCH ...'",
                        help=f"some of {', '.join(NAMES)} (default: %(default)s)")
    parser.add_argument("--precisions", default="f32 bf16", metavar="'f32 bf16'")
    parser.add_argument("--threads", default=str(environment.cores()), metavar="'2 1 busy'",
                        help="busy: one thread per core, with a competing process on the first core (default: one thread per core)")
    parser.add_argument("--seconds", type=float, default=5, help="seconds of each run (default: 5)")
    parser.add_argument("--repeats", type=int, default=5, help="number of turns (default: 5)")
    parser.add_argument("--ways", default="eager compile", metavar="'eager compile'", help="ways of PyTorch")
    parser.add_argument("--malloc", default="best", help="best, glibc, glibc-keep, jemalloc or tcmalloc")
    parser.add_argument("--optimizer", choices=("best", "fused", "foreach"), default="best")
    parser.add_argument("--bf16", choices=("best", "autocast", "pure"), default="best")
    parser.add_argument("--tune-seconds", type=float, default=2, help="seconds of each short run that selects the settings (default: 2)")
    parser.add_argument("--also", default="", metavar="'mxnet tensorflow'", help="further columns (default: none)")
    parser.add_argument("--tutti", default="", metavar="OPTIONS", help="more options of tutti_step, in one argument")
    parser.add_argument("--seeds", default="1 2 3", metavar="'1 2 3'", help="seeds of the recipe")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the recipe (default: 10)")
    parser.add_argument("--width", type=float, default=1, help="width of the recipe's net (default: 1)")
    parser.add_argument("--num-examples", type=int, default=0, help="training images of the recipe; 0: all")
    parser.add_argument("--recipe-precision", choices=("f32", "bf16"), default="bf16")
    parser.add_argument("--timeout", type=float, default=0,
                        help="time limit of a run with its compilation, in seconds; 0: 900, or 4 hours for the recipe (default: 0)")
    parser.add_argument("--nice", type=int, help="priority of the measured programs, -20 to 19 (below 0 needs root)")
    parser.add_argument("--lock", metavar="FILE", help="a file to lock during each run or turn, for shared machines")
    args = parser.parse_args(arguments)
    for what in args.what:
        if what not in MEASURES:
            parser.error(f"expected {', '.join(MEASURES)}, got '{what}'")
    args.what = args.what or ["steps", "input"]
    args.cases = []
    for item in args.models.split():
        model, _, batch = item.partition(":")
        if model not in NAMES or not batch.isdecimal() or int(batch) < 1:
            parser.error(f"argument --models: expected MODEL:BATCH of {', '.join(NAMES)}, got '{item}'")
        for precision in args.precisions.split():
            if precision not in ("f32", "bf16"):
                parser.error(f"argument --precisions: expected f32 or bf16, got '{precision}'")
            for threads in args.threads.split():
                if threads != "busy" and not (threads.isdecimal() and int(threads) > 0):
                    parser.error(f"argument --threads: expected numbers from 1 or 'busy', got '{threads}'")
                args.cases.append(Case(model, int(batch), precision, threads))
    args.ways, args.also, args.tutti = args.ways.split(), args.also.split(), shlex.split(args.tutti)
    for option, values, known in (("--ways", args.ways, TORCH_WAYS), ("--also", args.also, EXTRA)):
        for value in values:
            if value not in known:
                parser.error(f"argument {option}: expected {' or '.join(known)}, got '{value}'")
    if not args.cases or not args.ways:
        parser.error("expected at least one model, precision, number of threads and way")
    if args.repeats < 1 or args.epochs < 1 or args.width <= 0 or args.num_examples < 0 or not 0 < args.seconds <= 3600 or not 0 < args.tune_seconds <= 3600 or args.timeout < 0:
        parser.error("expected 1 repeat and epoch or more, and seconds and a width over 0")
    args.mallocs, args.missing = environment.mallocs()
    if args.malloc != "best" and args.malloc not in args.mallocs:
        where = "not installed (Debian: apt-get install libjemalloc2 libtcmalloc-minimal4)" if args.malloc in args.missing else "unknown"
        parser.error(f"argument --malloc: '{args.malloc}' is {where}")
    args.programs = {name: os.environ.get(f"TUTTI_{name.upper()}", str(ROOT / "build" / program))
                     for name, program in (("step", "bench/tutti_step"), ("loader", "bench/loader"), ("jpeg", "bench/jpeg"), ("train", "examples/train_cifar10"))}
    args.seeds = args.seeds.split()
    for seed in args.seeds:
        if not seed.isdecimal():
            parser.error(f"argument --seeds: expected numbers from 0, got '{seed}'")
    if not args.seeds:
        parser.error("argument --seeds: expected one or more")
    # Uses the last number in --threads.
    args.recipe_threads = next((int(t) for t in reversed(args.threads.split()) if t != "busy"), environment.cores())
    if args.nice is not None:
        if not -20 <= args.nice <= 19:
            parser.error(f"argument --nice: expected -20 to 19, got {args.nice}")
        lowest = 20 - resource.getrlimit(resource.RLIMIT_NICE)[0]
        if args.nice < min(0, lowest) and os.geteuid() != 0:
            parser.error(f"argument --nice: {args.nice} needs root")
    args.systems = {}
    # MXNet's oneDNN trains only in f32.
    args.peer_precisions = {"mxnet": ("f32",), "tensorflow": ("f32", "bf16")}
    return args


def main(arguments=None):
    args = parse(arguments)
    missing = [case.model for case in args.cases if case.model in TORCH_NETS and args.also]
    if missing:
        say(f"run.py: MXNet and TensorFlow have no {missing[0]}. hint: leave out --also")
        return 2
    for name in (name for what in args.what for name in MEASURES[what]):
        if not os.access(args.programs[name], os.X_OK):
            say(f"run.py: no {args.programs[name]}. hint: cmake -B build -DTUTTI_BUILD_BENCH=ON && cmake --build build "
                "(loader and jpeg need libbenchmark-dev and libjpeg-dev)")
            return 3
    images = loaders.find_images()
    if ("input" in args.what and not images) or ("recipe" in args.what and "cifar10" not in images):
        say("run.py: no images. hint: set TUTTI_DATA to the folder of cifar-10-batches-bin (or imagenet-sample.tar, for input); "
            "bench/baselines/run.py steps needs no images")
        return 3
    try:
        pythons = {peer: environment.python_of(peer, say) for peer in ("torch", *args.also)}
    except Unavailable as e:
        print(f"SKIP: {e}")
        return 77
    if args.missing and "steps" in args.what:
        say(f"not tried, because not installed: {', '.join(args.missing)} (Debian: apt-get install libjemalloc2 libtcmalloc-minimal4)")
    given = args.timeout
    try:
        for what in args.what:
            args.systems = {}
            args.timeout = given or (4 * 3600 if what == "recipe" else 900)
            print({"steps": steps, "input": loaders.measure, "recipe": recipe.measure}[what](args, pythons), flush=True)
    except Failed as e:
        say(f"run.py: {e}")
        return 1
    return 0


def steps(args, pythons):
    """Measures whole training steps and returns the tables."""
    began = environment.load()
    for case in args.cases:
        if "best" in (args.malloc, args.optimizer, args.bf16):
            say(f"{case}: what is best for PyTorch")
        find_settings(args, pythons["torch"], case)
    for number in range(args.repeats):
        for case in args.cases:
            start = time.monotonic()
            with locked(args.lock):
                turn(args, pythons, case)
            say(f"turn {number + 1} of {args.repeats}, {case}: "
                + ", ".join(f"{c} {s.values[-1]:.1f}" for c, s in case.rates.items() if len(s))
                + f" images/s, in {time.monotonic() - start:.0f} s")
    return table(args, args.cases) + "\n" + conditions(args, args.cases, began) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
