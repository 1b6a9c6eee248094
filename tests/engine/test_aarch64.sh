#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compiles kernels for aarch64 and runs them under qemu-user, if both tools are there: the choice of the instruction set,
# rounding to bf16, 3x3 convolutions (tests/aarch64/kernels.cpp), and a big-endian target. tests/aarch64.sh runs whole
# test programs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
skip() {
  echo "SKIP: no $1 (Debian: apt-get install $2)"
  exit 77
}
fail() {
  echo "$*"
  exit 1
}
command -v aarch64-linux-gnu-g++ >/dev/null || skip aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
compile=(aarch64-linux-gnu-g++ -std=c++20 -Wall -Wextra -Werror -I "$TUTTI_SOURCE_DIR/include")

cat >kernel.cpp <<'END'
#include <bit>
#include <cstdio>
#include <exception>
#include <tutti/engine/cpu/simd.hpp>
using namespace tutti;
template <cpu::Isa I, class T>
TUTTI_INLINE void round_body(const float* x, T* y, int n) {
  for (int i = 0; i < n; i += cpu::lanes_of<I>) {
    cpu::F<I> v;
    cpu::load<I>(v, x + i);
    cpu::store<I>(y + i, v);
  }
}
TUTTI_DEFINE_DISPATCH(round, round_body);
int main() try {
  const cpu::Isa isa = cpu::detect_isa();
  int wrong = 0;
  for (std::uint32_t high = 0; high < 65536; high += 16)
    for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      float x[16];
      bf16 y[16];
      for (std::uint32_t i = 0; i < 16; ++i) x[i] = std::bit_cast<float>((high + i) << 16 | low);
      round<bf16>(isa, static_cast<const float*>(x), static_cast<bf16*>(y), 16);
      for (int i = 0; i < 16; ++i) wrong += x[i] == x[i] ? y[i].bits != bf16(x[i]).bits : float(y[i]) == float(y[i]);
    }
  std::printf("%s, %d wrong\n", cpu::name_of(isa).data(), wrong);
  return wrong != 0;
} catch (const std::exception& e) {
  std::printf("%s\n", e.what());
  return 2;
}
END
"${compile[@]}" -O2 -static kernel.cpp -o kernel

# No header of the C library for such a target is needed to see it refused.
if "${compile[@]}" -mbig-endian -E -include tutti/core/error.hpp -x c++ /dev/null >/dev/null 2>big_endian; then
  fail "a big-endian target was accepted"
fi
grep -q 'needs a little-endian processor' big_endian || fail "a big-endian target was refused with: $(head -3 big_endian)"

command -v qemu-aarch64-static >/dev/null || skip qemu-aarch64-static qemu-user-static
grep -q neoverse-n1 <<<"$(qemu-aarch64-static -cpu help)" || skip "neoverse-n1 in this QEMU" "a newer qemu-user-static"
# expect WANT CPU [NAME=VALUE]: checks what the program prints on a processor.
expect() {
  local got
  got=$(env "${3:-TUTTI_ISA=}" qemu-aarch64-static -cpu "$2" ./kernel) || true
  [[ $got == *"$1"* ]] || fail "$2 ${3:-}: expected $1, got $got"
}
expect "neon_bf16, 0 wrong" max
expect "neon, 0 wrong" max TUTTI_ISA=neon
expect "baseline, 0 wrong" max TUTTI_ISA=baseline
expect "neon, 0 wrong" neoverse-n1
known="expected an instruction set of this processor: baseline, neon"
expect "$known, neon_bf16, got 'avx2'" max TUTTI_ISA=avx2
expect "$known, got 'neon_bf16'" neoverse-n1 TUTTI_ISA=neon_bf16

"${compile[@]}" -O2 -static -Wno-psabi "$TUTTI_SOURCE_DIR/tests/aarch64/kernels.cpp" -o kernels
for cpu in max neoverse-n1; do
  qemu-aarch64-static -cpu "$cpu" ./kernels >convolutions || fail "convolutions on $cpu: $(cat convolutions)"
  grep -q '^0 wrong$' convolutions || fail "convolutions on $cpu ended without a count: $(cat convolutions)"
done
