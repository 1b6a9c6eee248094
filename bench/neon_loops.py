#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the inner loops of the NEON kernels, as compiled for aarch64, with llvm-mca's estimate of their cycles.

Compiles the kernels with aarch64-linux-gnu-g++ (Debian: g++-aarch64-linux-gnu), finds the innermost loops that multiply, and
counts their products and their accesses to the stack. llvm-mca (Debian: llvm-19) estimates the cycles of an iteration and the
bound, which is the time of the busiest unit of the processor. These are models of processors, not
measurements. Ends with status 1 if a loop accesses the stack or takes 15 % longer than its bound on Neoverse V2."""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPUS = ("neoverse-v2", "neoverse-v1", "neoverse-n2", "neoverse-n1")
KERNELS = """
#include <tutti/engine/cpu/pairs/neon.hpp>
#include <tutti/engine/cpu/winograd/weight_gradient.hpp>
using namespace tutti::cpu;
namespace w = tutti::cpu::winograd;
namespace p = tutti::cpu::pairs::detail;
void winograd_8_tiles(std::int64_t c, const float* t, const float* g, float* y) {
  w::detail::multiply_block<Isa::neon, 8, 2, false>(c, t, g, y);
}
void winograd_4_tiles(std::int64_t c, const float* t, const float* g, float* y) {
  w::detail::multiply_block<Isa::neon, 4, 2, true>(c, t, g, y);
}
void winograd_12_tiles_4_outputs(std::int64_t c, const float* t, const float* g, float* y) {
  w::detail::multiply_block<Isa::neon, 12, 1, false>(c, t, g, y);
}
void winograd_weights(const w::WeightProductArgs& a, const w::detail::PointRun& r, const float* dy, const float* x,
                      std::int64_t n, float* to, const float* next) {
  w::detail::weight_product<Isa::neon, 8, 2>(a, r, dy, x, n, to, next);
}
void bf16_forward(p::Tile& to, const p::Pair* x, std::int64_t line, std::int64_t pairs, const std::uint32_t* g) {
  p::Tile sums;
  p::forward_tile(sums, x, line, pairs, g);
  for (int i = 0; i < 16; ++i) to[i / 8][i / 2 % 4][i % 2] = sums[i / 8][i / 2 % 4][i % 2];
}
void bf16_weights(const p::GradientSteps& l, const p::Pair* x, const std::uint32_t* dy, std::int64_t n, float* to, bool add) {
  p::gradient_quad<1>(l, x, dy, n, to, add);
}
void bf16_weights_stride_2(const p::GradientSteps& l, const p::Pair* x, const std::uint32_t* dy, std::int64_t n, float* to,
                           bool add) {
  p::gradient_quad<2>(l, x, dy, n, to, add);
}
"""


def loops(listing):
    """Yields (function, instructions) of the innermost loops of objdump's listing."""
    for function in re.split(r"\n\n", listing):
        name = re.search(r"^[0-9a-f]+ <(\w+)[(>]", function, re.M)
        code = [(int(at, 16), text.split("//")[0].strip()) for at, text in re.findall(r"^ *([0-9a-f]+):\t(.*)$", function, re.M)]
        place = {at: i for i, (at, _) in enumerate(code)}
        found = []
        for i, (_, text) in enumerate(code):
            jump = re.match(r"(?:b\.\w+|cbnz\s+\w+,)\s+([0-9a-f]+) <", text)
            if jump and place.get(int(jump.group(1), 16), len(code)) <= i:
                found.append((place[int(jump.group(1), 16)], i))
        for first, last in found:
            if not any((a, b) != (first, last) and first <= a and b <= last for a, b in found):
                yield name.group(1), [text for _, text in code[first:last + 1]]


def cycles(mca, cpu, body):
    """Returns the cycles of an iteration and their bound."""
    text = ["start:", *body[:-1], re.sub(r"[0-9a-f]+ <.*", "start", body[-1])]
    done = subprocess.run([mca, "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+bf16", "-iterations=500"], input="\n".join(text),
                          capture_output=True, text=True, check=True)
    return (int(re.search(r"Total Cycles: +(\d+)", done.stdout).group(1)) / 500,
            float(re.search(r"Block RThroughput: +([\d.]+)", done.stdout).group(1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="aarch64-linux-gnu-g++")
    parser.add_argument("--optimise", default="-O3", help="the level that the libraries of a Release build have")
    parser.add_argument("--objdump", default="aarch64-linux-gnu-objdump")
    parser.add_argument("--mca", default="llvm-mca-19")
    parser.add_argument("--least", type=int, default=16, help="smallest number of products of a printed loop")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "kernels.cpp", Path(folder) / "kernels.o"
        source.write_text(KERNELS)
        subprocess.run([o.compiler, "-std=c++20", o.optimise, "-Wno-psabi", "-DTUTTI_SEPARATE_COMPILATION", "-I", ROOT / "include", "-c",
                        source, "-o", binary], check=True)
        listing = subprocess.run([o.objdump, "-dC", "--no-show-raw-insn", binary], capture_output=True, text=True, check=True).stdout
    print("| loop | products | instructions | on the stack | " + " | ".join(CPUS) + " |")
    print("|---|---|---|---|" + "---|" * len(CPUS))
    bad = 0
    for name, body in loops(listing):
        products = sum(bool(re.match(r"(fmla|bfdot|bfmmla)\b", text)) for text in body)
        if products < o.least:
            continue
        stack = sum("[sp" in text for text in body)
        found = [cycles(o.mca, cpu, body) for cpu in CPUS]
        bad += stack > 0 or found[0][0] > 1.15 * found[0][1]
        print(f"| {name} | {products} | {len(body)} | {stack} | " + " | ".join(f"{a:.1f} of {b:g}" for a, b in found) + " |")
    if bad:
        sys.exit(f"{bad} loops access the stack or take 15 % longer than their bound on {CPUS[0]}")


if __name__ == "__main__":
    main()
