#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mutation testing of the most critical parts. Not part of ./test.sh.

  tests/mutants/run.py [--only PART[,PART...]] [--list] [--build FOLDER]

Changes the headers of a part at one place (an operator, a constant by one, a condition, a removed statement), runs the
tests of the part and prints the changes that no test notices. All changes are compiled into one program, and a run
turns one of them on; changes of constants that the compiler computes get separate programs. equivalent.txt holds the
mutants that behave like the original, each with the reason. Exits with 1 if another mutant survives, or if
equivalent.txt lists a mutant that does not exist or does not survive.
"""
import argparse
import os
import re
import resource
import subprocess
import sys
import threading
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# For each part: headers of include/tutti, and test programs of tests/.
PARTS = {
    "sampler": (["data/sampler.hpp"], ["data/test_sampler", "data/test_permutation"]),
    "arbiter": (["cluster/arbiter/arbiter.hpp", "cluster/arbiter/next_generation.hpp", "cluster/arbiter/candidate.hpp", "cluster/channel/lease.hpp",
                 "cluster/arbiter/common_facts.hpp", "cluster/channel/assignment.hpp"],
                ["cluster/test_membership", "cluster/test_membership_changes", "cluster/test_membership_joining", "cluster/test_membership_edges",
                 "cluster/test_membership_generations", "cluster/test_membership_random", "cluster/test_lease"]),
    "checkpoint": (["io/checkpoint/checkpoint.hpp", "io/checkpoint/checkpoint_load.hpp", "io/checkpoint/checkpoint_manifest.hpp",
                    "io/checkpoint/checkpoint_names.hpp"], ["io/test_checkpoint", "io/test_checkpoint_damage", "io/test_checkpoint_disk",
                                                "io/test_checkpoint_generations"]),
    "frames": (["strategy/parameter_server/wire/frames.hpp"], ["strategy/test_frames"]),
}
FLAGS = ["-std=c++20", "-w", "-fpermissive", "-O1", "-UNDEBUG", "-pthread", "-DDOCTEST_CONFIG_SUPER_FAST_ASSERTS"]
TICK = 0.05


def clang_here(build):
    """Runs this script again in an environment with the packages of requirements.txt."""
    environment = build / "venv"
    marker = environment / "requirements.txt"
    wanted = (HERE / "requirements.txt").read_text()
    if not marker.exists() or marker.read_text() != wanted:
        venv.create(environment, with_pip=True, clear=True)
        subprocess.run([environment / "bin/pip", "install", "-q", "--disable-pip-version-check", "-r",
                        HERE / "requirements.txt"], check=True, timeout=600)
        marker.write_text(wanted)
    python = environment / "bin/python"
    if Path(sys.prefix) != environment:
        os.execv(python, [str(python), *sys.argv])


class Run:
    """Runs a program with one mutant on."""

    def __init__(self, program, number, folder, reached=None, seconds=None):
        self.program, self.folder, self.seconds = program, folder, seconds
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
        self.environment |= {"TUTTI_MUTANT": str(number), "TUTTI_SOURCE_DIR": str(ROOT), "TUTTI_BUILD_DIR": str(folder)}
        if reached is not None:
            self.environment["TUTTI_MUTANTS_REACHED"] = str(reached)

    def limit(self):
        if self.seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(self.seconds) + 1,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)

    def passes(self):
        """Returns whether all test cases pass. The system ends a run that uses the CPU for too long. This script ends a
        run that waits for too long. It counts its own checks, so that a pause of the machine does not end a run."""
        process = subprocess.Popen([self.program, "--abort-after=1", "--no-colors=true"], cwd=self.folder,
                                   env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", preexec_fn=self.limit, start_new_session=True)
        turns, most = 0, None if self.seconds is None else int((self.seconds + 10) / TICK)
        said = []
        reader = threading.Thread(target=lambda: said.append(process.stdout.read()), daemon=True)
        reader.start()
        while True:
            try:
                process.wait(TICK)
                break
            except subprocess.TimeoutExpired:
                turns += 1
            if most is not None and turns > most:
                os.killpg(process.pid, 9)
                process.wait()
                return False
        reader.join(5)
        self.said = "".join(said)
        return process.returncode == 0


def compile_programs(folder, programs, constant=0):
    """Compiles the program. Returns the compiler's errors, or an empty list."""
    suffix = f"_{constant}" if constant else ""
    main = folder / "main.o"
    if not main.exists():
        subprocess.run(["g++", *FLAGS, "-c", ROOT / "tests/main.cpp", "-o", main, "-I", ROOT / "include", "-I",
                        ROOT / "tests"], check=True)
    complaints = ""
    for program in programs:
        out = folder / (Path(program).name + suffix)
        done = subprocess.run(["g++", *FLAGS, f"-DTUTTI_SOURCE_DIR=\"{ROOT}\"", f"-DTUTTI_BUILD_DIR=\"{folder}\"",
                               f"-DTUTTI_MUTANT_OF_CONSTANTS={constant}", "-I", folder / "include", "-I", HERE, "-I",
                               ROOT / "include", "-I", ROOT / "tests", "-I", ROOT, ROOT / "tests" / f"{program}.cpp",
                               main, "-o", out], capture_output=True, text=True, timeout=900)
        complaints += done.stderr if done.returncode else ""
    return complaints


def write_headers(folder, headers, without):
    from mutate import Header
    made, first = [], 1
    for name in headers:
        header = Header(ROOT, name, first, without)
        path = folder / "include" / "tutti" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(header.mutated())
        made += header.mutants
        first += len(header.mutants)
    return made


def build_all(folder, headers, programs):
    """Compiles the program without mutants that do not compile, such as a difference of a type without subtraction."""
    without = set()
    for _ in range(8):
        mutants = write_headers(folder, headers, without)
        complaints = compile_programs(folder, programs)
        if not complaints:
            return [m for m in mutants if m.number not in without]
        bad = set()
        for name, line in re.findall(r"/include/(tutti/[\w/]+\.hpp):(\d+)[:,]", complaints):
            path = folder / "include" / name
            if path.exists():
                text = path.read_text().split("\n")[int(line) - 1]
                column = [int(c) for c in re.findall(re.escape(f"{path}:{line}:") + r"(\d+): error", complaints)]
                bad |= suspects(text, column)
        if not bad - without:
            raise SystemExit("mutants: what is left does not compile:\n" + complaints[:4000])
        without |= bad
    raise SystemExit("mutants: what is left does not compile")


def suspects(text, columns):
    """Returns the mutants in a line with an error: those near the column, or all mutants of the line."""
    numbers = [(m.start(), int(m[1])) for m in re.finditer(r"on\((\d+)\)", text)]
    near = {n for c in columns for at, n in numbers if abs(at - c) < 60}
    return near or {n for _, n in numbers}


def read_equivalent():
    """Returns {(header, line, change): reason}. The file has blocks of four lines: header, line, change, reason."""
    known = {}
    path = HERE / "equivalent.txt"
    blocks = [b.strip("\n").split("\n") for b in re.split(r"\n\s*\n", path.read_text()) if b.strip()]
    for block in blocks:
        lines = [line for line in block if not line.startswith("#")]
        if not lines:
            continue
        if len(lines) < 4:
            raise SystemExit(f"mutants: {path}: expected header, line, change, reason; got {lines}")
        known[tuple(lines[:3])] = " ".join(lines[3:])
    return known


def test_part(name, build, known):
    headers, programs = PARTS[name]
    folder = build / name
    folder.mkdir(parents=True, exist_ok=True)
    mutants = build_all(folder, headers, programs)
    print(f"{name}: {len(mutants)} mutants of {', '.join(headers)}", flush=True)
    seconds, reach = {}, {}
    for program in programs:
        binary, file = folder / Path(program).name, folder / "reached"
        file.unlink(missing_ok=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = Run(binary, 0, folder, file)
        if not run.passes():
            raise SystemExit(f"mutants: {program} fails without any change:\n{run.said}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds[program] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        reach[program] = set(map(int, file.read_text().split()))
    survivors, stale = [], {k for k in known if k[0] in headers}
    order = sorted(programs, key=lambda p: seconds[p])
    for mutant in mutants:
        tests = [p for p in order if mutant.number in reach[p]]
        how = "survives" if tests else "is not reached"
        killed = False
        if mutant.constant:
            how, tests = "survives", []
            killed = bool(compile_programs(folder, programs, mutant.number))
            for program in [] if killed else order:
                binary = folder / f"{Path(program).name}_{mutant.number}"
                killed = killed or not Run(binary, mutant.number, folder, seconds=4 * seconds[program] + 2).passes()
            for program in programs:
                (folder / f"{Path(program).name}_{mutant.number}").unlink(missing_ok=True)
        for program in tests:
            if not Run(folder / Path(program).name, mutant.number, folder, seconds=4 * seconds[program] + 2).passes():
                killed = True
                break
        if killed:
            continue
        if mutant.key() in known:
            stale.discard(mutant.key())
            continue
        survivors.append(mutant)
        print(f"# line {mutant.line} {how}", *mutant.key(), "", sep="\n", flush=True)
    equivalent = sum(1 for m in mutants if m.key() in known)
    print(f"{name}: {len(mutants)} mutants, {len(survivors)} survive, {equivalent} are equivalent", flush=True)
    for key in sorted(stale):
        print(f"{name}: equivalent.txt names what does not survive or is not there: {' | '.join(key)}")
    return survivors or stale


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--list", action="store_true", help="names the mutants and runs nothing")
    parser.add_argument("--build", type=Path, default=ROOT / "build-mutants")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := [n for n in names if n not in PARTS]:
        parser.error(f"[--only] expected parts of {', '.join(PARTS)}, got {', '.join(unknown)}")
    build = args.build.resolve()
    build.mkdir(parents=True, exist_ok=True)
    clang_here(build)
    if args.list:
        for name in names:
            for m in write_headers(build / name, PARTS[name][0], ()):
                print(f"{m.header}:{m.line}: {m.change}{' (constant)' if m.constant else ''}")
        return 0
    known = read_equivalent()
    failed = [n for n in names if test_part(n, build, known)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
