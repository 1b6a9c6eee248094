// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/winograd/transforms.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Products of transformed tiles and transformed weights, point by point: sums over channels, in order, in registers. A
// block is a few tiles times one panel, which is a part of the outputs.
namespace tutti::cpu::winograd {

using Multiply = void (*)(std::int64_t channels, const float* tiles, const float* weights, float* to);

#ifdef TUTTI_HAS_WIDE_KERNELS

namespace detail {

// The products of a register of channels: each lane of a tile's register times the weights of a channel. Prefetches a
// cache line for each four registers.
template <Isa I, int Tiles, int Width, bool Streams>
TUTTI_INLINE void multiply_lanes(F<I> (&sum)[Tiles][Width], const float* tiles, const float* next, const float* weights,
                                 std::int64_t ahead) {
  constexpr int lanes = lanes_of<I>, line = 16;
  F<I> t[Tiles];
#pragma GCC unroll 12
  for (int i = 0; i < Tiles; ++i) load<I>(t[i], tiles + i * lanes);
#pragma GCC unroll 4
  for (int k = 0; k < lanes; ++k, weights += Width * lanes) {
    F<I> w[Width];
#pragma GCC unroll 2
    for (int j = 0; j < Width; ++j) load<I>(w[j], weights + j * lanes);
    if constexpr (Streams) {
      if (k * Width * lanes % line == 0) __builtin_prefetch(weights + ahead, 0, 2);
    } else if (k * line < Tiles * lanes) {
      __builtin_prefetch(next + k * line, 0, 2);
    }
#pragma GCC unroll 12
    for (int i = 0; i < Tiles; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < Width; ++j) add_lane_product<I>(sum[i][j], w[j], t[i], k);
  }
}

// to [Tiles][Width registers] = tiles [channels / lanes][Tiles][lanes] * weights [channels][Width registers]. Streams:
// prefetches the weights, which are far away in memory, and not the tiles.
template <Isa I, int Tiles, int Width, bool Streams>
TUTTI_INLINE void multiply_block(std::int64_t channels, const float* tiles, const float* weights, float* to) {
  constexpr int lanes = lanes_of<I>;
  F<I> sum[Tiles][Width];
#pragma GCC unroll 28
  for (int i = 0; i < Tiles; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < Width; ++j) sum[i][j] = F<I>{};
  // Prefetches tiles of the next block; with many channels they are far away in memory.
  constexpr std::int64_t ahead = 64 * Width * lanes;
  const float* next = tiles + channels * Tiles;
  for (std::int64_t c = 0; c < channels; c += lanes, tiles += Tiles * lanes, next += Tiles * lanes) {
    if constexpr (multiplies_lanes<I>) {
      multiply_lanes<I, Tiles, Width, Streams>(sum, tiles, next, weights, ahead);
      weights += Width * lanes * lanes;
    } else {
      for (int k = 0; k < lanes; ++k, weights += Width * lanes) {
        F<I> w[Width];
#pragma GCC unroll 2
        for (int j = 0; j < Width; ++j) {
          if constexpr (Streams) __builtin_prefetch(weights + ahead + j * lanes, 0, 2);
          load<I>(w[j], weights + j * lanes);
        }
        if constexpr (!Streams) __builtin_prefetch(next + k * lanes, 0, 2);
#pragma GCC unroll 28
        for (int i = 0; i < Tiles; ++i) {
          F<I> t;
          repeat<I>(t, tiles + i * lanes + k);
#pragma GCC unroll 2
          for (int j = 0; j < Width; ++j) sum[i][j] += t * w[j];
        }
      }
    }
  }
#pragma GCC unroll 28
  for (int i = 0; i < Tiles; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < Width; ++j) store<I>(to + (i * Width + j) * lanes, sum[i][j]);
}

#if defined(__x86_64__)
template <int Tiles, int Width, bool Streams = false>
TUTTI_TARGET_AVX512 void multiply_avx512(std::int64_t channels, const float* tiles, const float* weights, float* to) {
  multiply_block<Isa::avx512, Tiles, Width, Streams>(channels, tiles, weights, to);
}
template <int Tiles, int Width, bool Streams = false>
TUTTI_TARGET_AVX2 void multiply_avx2(std::int64_t channels, const float* tiles, const float* weights, float* to) {
  multiply_block<Isa::avx2, Tiles, Width, Streams>(channels, tiles, weights, to);
}
#else
template <int Tiles, int Width, bool Streams = false>
void multiply_neon(std::int64_t channels, const float* tiles, const float* weights, float* to) {
  multiply_block<Isa::neon, Tiles, Width, Streams>(channels, tiles, weights, to);
}
#endif

}  // namespace detail

#endif

// The least and most tiles of a block, for panels of one register or of two. The sums of the most tiles just fit the
// registers. About half as many tiles already keep both units busy. Panels of one register are rare, so they have only
// two sizes.
struct BlockRange {
  std::int64_t least, most, step;
};
[[nodiscard]] constexpr BlockRange block_range(Isa isa, std::int64_t width) {
  if (isa == Isa::avx2) return width == 1 ? BlockRange{8, 12, 4} : BlockRange{4, 6, 1};
  if (is_neon(isa)) return width == 1 ? BlockRange{8, 12, 4} : BlockRange{4, 8, 4};
  return width == 1 ? BlockRange{16, 28, 12} : BlockRange{8, 14, 2};
}

// Returns the kernel for blocks of `tiles` tiles, a size of a BlockRange, times a panel of `width` registers. streams:
// the weights are far away in memory; matters for the smallest block of a wide panel, which computes less than a
// processor can fetch meanwhile. Does not change bits.
TUTTI_CORE_FUNCTION Multiply multiply_of(Isa isa, std::int64_t tiles, std::int64_t width, bool streams = false);

#if TUTTI_CORE_DEFINITIONS
#if defined(__x86_64__)
TUTTI_CORE_FUNCTION Multiply multiply_of(Isa isa, std::int64_t tiles, std::int64_t width, bool streams) {
  using namespace detail;
  constexpr std::array<Multiply, 4> wide{multiply_avx512<8, 2>, multiply_avx512<10, 2>, multiply_avx512<12, 2>,
                                         multiply_avx512<14, 2>};
  constexpr std::array<Multiply, 2> narrow{multiply_avx512<16, 1>, multiply_avx512<28, 1>};
  constexpr std::array<Multiply, 3> wide_avx2{multiply_avx2<4, 2>, multiply_avx2<5, 2>, multiply_avx2<6, 2>};
  constexpr std::array<Multiply, 2> narrow_avx2{multiply_avx2<8, 1>, multiply_avx2<12, 1>};
  const BlockRange r = block_range(isa, width);
  if (streams && width == 2 && tiles == r.least)
    return isa == Isa::avx2 ? Multiply{multiply_avx2<4, 2, true>} : Multiply{multiply_avx512<8, 2, true>};
  const auto i = static_cast<std::size_t>((tiles - r.least) / r.step);
  if (isa == Isa::avx2) return width == 1 ? narrow_avx2[i] : wide_avx2[i];
  return width == 1 ? narrow[i] : wide[i];
}
#elif defined(TUTTI_HAS_WIDE_KERNELS)
TUTTI_CORE_FUNCTION Multiply multiply_of(Isa isa, std::int64_t tiles, std::int64_t width, bool streams) {
  using namespace detail;
  constexpr std::array<Multiply, 2> wide{multiply_neon<4, 2>, multiply_neon<8, 2>};
  constexpr std::array<Multiply, 2> narrow{multiply_neon<8, 1>, multiply_neon<12, 1>};
  const BlockRange r = block_range(isa, width);
  if (streams && width == 2 && tiles == r.least) return multiply_neon<4, 2, true>;
  const auto i = static_cast<std::size_t>((tiles - r.least) / r.step);
  return width == 1 ? narrow[i] : wide[i];
}
#else
TUTTI_CORE_FUNCTION Multiply multiply_of(Isa, std::int64_t, std::int64_t, bool) {
  fail<UsageError>("winograd", "AVX2, AVX-512 or NEON", "another processor");
}
#endif
#endif

}  // namespace tutti::cpu::winograd

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
