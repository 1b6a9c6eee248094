#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Errors that would break the promise of logical ranks, made one at a time. Not part of ./test.sh.

  tests/mutants/logical_ranks.py [--only NAME[,NAME...]] [--list] [--build FOLDER]

Writes a copy of a header with the error, compiles a test program with it and checks that the program fails. Without an
error, each program must pass. Exits with 1 if a program passes with an error, or if a text to change is not found.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLAGS = ["-std=c++20", "-w", "-O1", "-UNDEBUG", "-pthread", "-DDOCTEST_CONFIG_SUPER_FAST_ASSERTS"]

SUITE = [f"engine/suite/{path.stem}" for path in sorted((ROOT / "tests" / "engine" / "suite").glob("*.cpp"))]
# The source files of each program of tests/, and the test cases that it runs.
PROGRAMS = {
    "sums": (["engine/test_integer_sums"], ""),
    "cpu": (["engine/test_cpu", *SUITE], "*fixed division*,*conversions of sums*"),
    "trainer": (["train/test_logical_ranks"], ""),
}

DEFINITIONS = "include/tutti/engine/step/integer_sums_definitions.hpp"
BLOCK = "include/tutti/engine/step/integer_block.hpp"
LOOPS = "include/tutti/engine/reference/integer_loops.hpp"
KERNELS = "include/tutti/engine/cpu/integer_kernels.hpp"
# name, program, file, text, text with the error
MUTANTS = [
    ("an overflow is skipped", "sums", DEFINITIONS,
     "if (!provisional && bound <= integer_level::greatest_sum) return false;", "if (!provisional) return false;"),
    ("the maxima are ignored", "sums", DEFINITIONS,
     "integer_sums::units(host_maxima_[i], blocks_[i].exponent)", "0"),
    ("the maxima of the earlier parts are ignored", "sums", DEFINITIONS,
     "if (first == 0) collect_maxima();\n  if (earlier_", "if (earlier_"),
    ("a level is not shared: each process has that of its own maxima", "sums", DEFINITIONS,
     "  return tail_;\n}", "  static std::vector<std::int64_t> own;\n  own = tail_;\n  return own;\n}"),
    ("levels that came from outside are ignored", "sums", DEFINITIONS,
     "b_.memory().copy_out(host_levels_.data(), levels_.data(), layout_.bytes());", ""),
    ("the statistics of another logical rank", "sums", DEFINITIONS,
     "b_.memory().copy_out(host_states_.data(), states, states_ * sizeof(float));",
     "if (tail_[1 + blocks_.size()] == 0) b_.memory().copy_out(host_states_.data(), states, states_ * sizeof(float));"),
    ("statistics lose their second limb", "sums", DEFINITIONS,
     "limbs[2 * i + 1] += math::llround(rest * integer_sums::fine);", ""),
    ("a gradient that is not finite is skipped", "sums", DEFINITIONS,
     "if (host_maxima_[i] >= 0x7f800000U)\n      ++tail_[0];", "if (host_maxima_[i] >= 0x7f800000U)\n      ;"),
    ("levels of blocks that fit fall in each repetition", "sums", DEFINITIONS,
     "  if (repeats) {\n", "  for (auto& level : host_levels_)\n    if (repeats && level > 3) level -= 2;\n  if (repeats) {\n"),
    ("the sums of earlier parts are those of the attempt before", "sums", DEFINITIONS,
     "sums, added_ ? sums : nullptr,", "sums, attempts_ > 1 || added_ ? sums : nullptr,"),
    ("the earlier parts of a process are lost", "sums", DEFINITIONS,
     "added_ ? static_cast<const std::int32_t*>(earlier_.data()) : nullptr,", "nullptr,"),
    ("a process adds its parts in f32", "sums", DEFINITIONS,
     "  const std::size_t begin = first_block_[first], end = first_block_[last];\n"
     "  b_.to_integers({static_cast<const IntegerBlock*>(units_.data()) + begin, end - begin,\n"
     "                  static_cast<const float*>(gradients), static_cast<std::int32_t*>(gradients),",
     "  const std::size_t begin = first_block_[first], end = first_block_[last];\n"
     "  for (std::size_t i = begin; added_ && i < end; ++i) {\n"
     "    auto* const sum = static_cast<float*>(earlier_.data());\n"
     "    b_.from_integers({static_cast<const IntegerBlock*>(units_.data()) + i, 1,\n"
     "                      static_cast<const std::int32_t*>(earlier_.data()), sum});\n"
     "    b_.accumulate(DType::f32, static_cast<float*>(gradients) + blocks_[i].begin, sum + blocks_[i].begin,\n"
     "                  blocks_[i].count);\n"
     "  }\n"
     "  if (last + 1 == first_block_.size()) added_ = false;\n"
     "  const bool added_ = false;\n"
     "  b_.to_integers({static_cast<const IntegerBlock*>(units_.data()) + begin, end - begin,\n"
     "                  static_cast<const float*>(gradients), static_cast<std::int32_t*>(gradients),"),
    ("sums saturate instead of wrapping", "sums", LOOPS,
     "const std::uint32_t sum = static_cast<std::uint32_t>(integer_of(g, b.exponent)) + earlier;",
     "const auto sum = static_cast<std::uint32_t>(std::clamp<std::int64_t>(std::int64_t{integer_of(g, b.exponent)} + "
     "static_cast<std::int32_t>(earlier), -2147483647, 2147483647));"),
    ("blocks cross tensors", "sums", BLOCK, "std::min(IntegerBlock::elements, s.count - at)",
     "std::min(IntegerBlock::elements, layout.count - s.offset - at)"),
    ("no room above the expected bound", "sums", BLOCK, "room = 96;", "room = 8;"),
    ("halves are rounded up", "cpu", KERNELS, "const F<I> rounded = x + shift - shift;",
     "const F<I> rounded = x + shift * 0.5F - shift * 0.5F;"),
    ("a logical rank begins with the statistics of the one before it", "trainer",
     "include/tutti/engine/step/host_step_finisher.hpp",
     "if (copied_ == last_ + 1) b_.memory().copy(m_.states, before_.data(), state_bytes());\n  }\n  // Returns whether",
     "}\n  // Returns whether"),
    ("losses are added without rounding", "trainer", "include/tutti/engine/step/host_step_finisher.hpp",
     "of_part[0] = round_to_2_24(of_part[0]);", "of_part[0] *= 1;"),
    ("shards by threads, in the trainer", "trainer", "include/tutti/train/detail/trainer/logical_ranks.hpp",
     "  backend.fix_division();\n", ""),
    ("shards by threads", "cpu", "include/tutti/engine/cpu/cpu_ops.hpp", "return fixed_ ? 4 : threads();",
     "return threads();"),
]


def compile_program(folder, program, overlay):
    sources, _ = PROGRAMS[program]
    out = folder / program
    objects, jobs = [], []
    for source in [*sources, "main"]:
        at = folder / (f"{program}-{source.replace('/', '-')}.o" if source != "main" else "main.o")
        objects.append(at)
        if source in ("main", *SUITE) and at.exists():  # includes none of the changed headers
            continue
        jobs.append(subprocess.Popen(
            ["g++", *FLAGS, f"-DTUTTI_SOURCE_DIR=\"{ROOT}\"", f"-DTUTTI_BUILD_DIR=\"{folder}\"", "-I", overlay / "include",
             "-I", ROOT / "include", "-I", folder / "linked", "-I", ROOT / "tests", "-I", ROOT, "-c", ROOT / "tests" / f"{source}.cpp", "-o", at],
            stderr=subprocess.PIPE, text=True))
        if len(jobs) >= max(1, (os.cpu_count() or 1)):
            finish(jobs)
    finish(jobs)
    subprocess.run(["g++", "-pthread", *objects, "-o", out], check=True)
    return out


def finish(jobs):
    for job in jobs:
        said = job.communicate()[1]
        if job.returncode != 0:
            raise SystemExit("mutants: a program does not compile:\n" + said[:4000])
    jobs.clear()


def passes(binary, program):
    cases = PROGRAMS[program][1]
    options = [f"--test-case={cases}"] if cases else []
    done = subprocess.run([binary, "--abort-after=1", "--no-colors=true", *options], capture_output=True, text=True,
                          errors="replace", timeout=1200)
    return done.returncode == 0, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of errors, or parts of them")
    parser.add_argument("--list", action="store_true", help="names the errors and runs nothing")
    parser.add_argument("--build", type=Path, default=ROOT / "build-mutants" / "logical_ranks")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if not args.only or any(n in m[0] for n in args.only.split(","))]
    if args.list:
        print("\n".join(m[0] for m in chosen))
        return 0
    build = args.build.resolve()
    (build / "linked" / "tutti").mkdir(parents=True, exist_ok=True)
    backends = build / "linked" / "tutti" / "backends"
    if not backends.is_symlink():
        backends.symlink_to(ROOT / "backends")
    for program in sorted({m[1] for m in chosen}):
        good, said = passes(compile_program(build, program, build / "none"), program)
        if not good:
            raise SystemExit(f"mutants: {program} fails without an error:\n{said}")
    survivors = []
    for name, program, file, text, changed in chosen:
        before = (ROOT / file).read_text()
        if before.count(text) != 1:
            raise SystemExit(f"mutants: {file}: expected this text once, got it {before.count(text)} times: {text}")
        overlay = build / "overlay"
        for old in overlay.rglob("*.hpp"):
            old.unlink()
        at = overlay / file
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(before.replace(text, changed))
        noticed = not passes(compile_program(build, program, overlay), program)[0]
        print(f"{'noticed ' if noticed else 'SURVIVES'} {name}", flush=True)
        if not noticed:
            survivors.append(name)
    print(f"{len(chosen)} errors, {len(survivors)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
