// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdlib>

#include <tutti/core/isa.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define TUTTI_HAS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Products of bf16 matrices in the tile registers of AMX. A register holds 16 rows of 64 bytes.
namespace tutti::cpu {

// Returns whether kernels may use tile registers: the processor has them, the kernel of the system grants them to this
// process, and TUTTI_ISA names no instruction set. So TUTTI_ISA=avx512_bf16 selects the kernels without them.
[[nodiscard]] inline bool detect_amx() {
#ifdef TUTTI_HAS_AMX
  if (const char* const wanted = std::getenv("TUTTI_ISA"); wanted != nullptr && *wanted != '\0') return false;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-bf16")) return false;
  if (detect_isa() != Isa::avx512_bf16) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;  // of arch_prctl
  static const bool granted = ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return granted;
#else
  return false;
#endif
}

namespace amx {

inline constexpr std::int64_t side = 16;  // rows of a tile, and floats or pairs of bf16 in a row

}  // namespace amx

#ifdef TUTTI_HAS_AMX

namespace amx {

// While it lives, this thread's tile registers 0 to 7 are full tiles. It releases them at the end, because a switch of
// threads saves registers in use.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Registers 0 to 3 are sums [m][n], 4 and 5 are factors [m][pairs], 6 and 7 factors [pairs][n].
template <int R>
TUTTI_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(R));
}
// bytes: from a row to the next.
template <int R>
TUTTI_INLINE void load_tile(const float* from, std::int64_t bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(R), "r"(from), "r"(bytes) : "memory");
}
template <int R>
TUTTI_INLINE void store_tile(float* to, std::int64_t bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(R), "r"(to), "r"(bytes) : "memory");
}
template <int Sum, int A, int B>
TUTTI_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

// Turns a block of 16 x 16 u32 over its diagonal, in place.
template <Isa I>
TUTTI_INLINE void transpose(float* block) {
  using V = std::uint32_t __attribute__((vector_size(64)));
  V row[16];
  for (int i = 0; i < 16; ++i) read(row[i], block + i * 16);
  // Swaps the blocks off the diagonal, of 8, 4, 2 and 1 elements.
  const auto swap = [&](int distance, const V& low, const V& high) TUTTI_LAMBDA {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      if ((i & distance) == 0) {
        const V a = row[i], b = row[i + distance];
        row[i] = __builtin_shuffle(a, b, low);
        row[i + distance] = __builtin_shuffle(a, b, high);
      }
  };
  swap(8, V{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23},
       V{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
  swap(4, V{0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27},
       V{4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31});
  swap(2, V{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29},
       V{2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31});
  swap(1, V{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30},
       V{1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31});
  for (int i = 0; i < 16; ++i) write(block + i * 16, row[i]);
}

}  // namespace amx

#endif

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
