// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/winograd/transforms.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Tiles of NHWC images, of 4x4 pixels each, from top to bottom and from left to right: read with what lies around them
// and transformed, or transformed and written. At uneven edges what is outside counts as zeros and is not written.
//
// All types share one copy of the arithmetic for each instruction set, because every program that includes this
// compiles it: what is not f32, or does not lie inside, goes through a small buffer.
namespace tutti::cpu::winograd {

struct Images {
  std::int64_t rows = 0, h = 0, w = 0, channels = 0;

  [[nodiscard]] std::int64_t tiles_h() const { return (h + tile - 1) / tile; }
  [[nodiscard]] std::int64_t tiles_w() const { return (w + tile - 1) / tile; }
  [[nodiscard]] std::int64_t tiles_per_row() const { return tiles_h() * tiles_w(); }
  [[nodiscard]] std::int64_t tiles() const { return rows * tiles_per_row(); }
};

// The distance of planes of so many floats: an odd number of cache lines, because 36 streams would else share a few
// sets of the first cache.
[[nodiscard]] inline std::int64_t plane_stride(std::int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

// Transformed channels come in whole registers, of so many floats; those behind the last channel are zeros.
[[nodiscard]] constexpr std::int64_t lanes_at(Isa isa) { return isa == Isa::avx2 ? 8 : 16; }
[[nodiscard]] constexpr std::int64_t whole_registers(Isa isa, std::int64_t channels) {
  return (channels + lanes_at(isa) - 1) / lanes_at(isa) * lanes_at(isa);
}

// [point][register of channels][tile][channel of the register]
struct TransformedTiles {
  float* data = nullptr;
  std::int64_t tiles = 0;  // that there is room for
  std::int64_t plane = 0;  // floats from a point to the next
};

struct ReadTiles {
  const void* from = nullptr;  // floats or bf16
  bool bf16 = false;
  Images images;
  std::int64_t first = 0, count = 0;  // tiles of the images
  TransformedTiles to;
  std::int64_t at = 0;  // the place of the first there
};

struct WriteTiles {
  void* to = nullptr;  // floats or bf16
  bool bf16 = false;
  Images images;
  std::int64_t first = 0, count = 0;                // tiles of the images
  std::int64_t first_channel = 0, end_channel = 0;  // in whole registers
  const float* from = nullptr;                      // [point][tile][channel], with steps:
  std::int64_t plane = 0, tile = 0;
};

#if defined(__x86_64__)

namespace detail {

// Of the pixel at the upper left of a tile.
struct TilePlace {
  std::int64_t row, y, x;
};
[[nodiscard]] inline TilePlace place_of(const Images& s, std::int64_t t) {
  const auto across = static_cast<std::uint32_t>(s.tiles_w()), per_row = static_cast<std::uint32_t>(s.tiles_per_row());
  const auto n = static_cast<std::uint32_t>(t), in_row = n % per_row;
  return {n / per_row, in_row / across * tile, in_row % across * tile};
}
[[nodiscard]] inline std::int64_t offset_of(const Images& s, const TilePlace& at, std::int64_t dy, std::int64_t dx) {
  return ((at.row * s.h + at.y + dy) * s.w + at.x + dx) * s.channels;
}

// Asks for pixels, 4x4 of them, that the tile after next will be the first to touch: the hardware's prefetchers do not
// follow tiles of NHWC. At an edge some lie behind it; that a prefetch may.
template <bool Write>
TUTTI_INLINE void fetch_ahead(const std::byte* p, std::int64_t line, std::int64_t pixel) {
#pragma GCC unroll 4
  for (int i = 0; i < tile; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < tile; ++j) {
      const std::byte* const at = p + i * line + j * pixel;
      if constexpr (Write)
        asm volatile("prefetchw %0" : : "m"(*at));  // by the builtin it would need a target of its own
      else
        __builtin_prefetch(at);
    }
}

// N x N pixels of each tile, from `Border` pixels above and left of it, transformed to 36 points.
template <Isa I, class T, int N, int Border, class Transform>
TUTTI_INLINE void read_tiles(const ReadTiles& a) {
  using V = F<I>;
  constexpr std::int64_t lanes = lanes_of<I>, unit = sizeof(T);
  alignas(64) static constexpr T zeros[lanes] = {};
  const Images& s = a.images;
  const std::int64_t line = s.w * s.channels, plane = a.to.plane;
  const auto* const pixels = static_cast<const T*>(a.from);
  const T* const outside = zeros;
  alignas(64) T buffer[N][N][lanes];
  const Transform transform;
  for (std::int64_t k = 0; k < a.count; ++k) {
    const TilePlace at = place_of(s, a.first + k), next = place_of(s, std::min(a.first + k + 2, s.tiles() - 1));
    const auto* const ahead =
        reinterpret_cast<const std::byte*>(pixels + offset_of(s, next, N - tile - Border, N - tile - Border));
    const std::int64_t first = offset_of(s, at, -Border, -Border);
    // The pixels that exist: [top, bottom) x [left, right).
    const std::int64_t top = std::max<std::int64_t>(0, Border - at.y), left = std::max<std::int64_t>(0, Border - at.x);
    const std::int64_t bottom = std::min<std::int64_t>(N, s.h + Border - at.y);
    const std::int64_t right = std::min<std::int64_t>(N, s.w + Border - at.x);
    for (std::int64_t c = 0; c < s.channels; c += lanes) {
      if (c * unit % 64 == 0) fetch_ahead<false>(ahead + c * unit, line * unit, s.channels * unit);
      const T* from = pixels + (first + c);
      std::int64_t down = line, along = s.channels;
      if (s.channels - c < lanes) {  // the last channels, and zeros behind them
        for (std::int64_t i = top; i < bottom; ++i)
          for (std::int64_t j = left; j < right; ++j)
            std::fill(std::copy_n(from + i * line + j * s.channels, s.channels - c, static_cast<T*>(buffer[i][j])),
                      buffer[i][j] + lanes, T{});
        from = static_cast<const T*>(buffer[0][0]);
        down = N * lanes;
        along = lanes;
      }
      // From row to row, of which those that are outside are one pixel of zeros.
      const T* row[N];
      std::int64_t step[N];
#pragma GCC unroll 6
      for (int i = 0; i < N; ++i) {
        const bool exists = i >= top && i < bottom;
        row[i] = exists ? from + i * down : outside;
        step[i] = exists ? along : 0;
      }
      float* to = a.to.data + (a.at + k) * lanes + c * a.to.tiles;
      in_two_dimensions<V, N, patch>(
          transform,
          [&](V& v, int i, int j) TUTTI_LAMBDA {
            load<I>(v, j >= left && j < right ? row[i] : outside);
            row[i] += step[i];
          },
          [&](const V& v, int, int) TUTTI_LAMBDA {
            store<I>(to, v);
            to += plane;
          });
    }
  }
}
template <Isa I>
TUTTI_INLINE void read_inputs_body(const ReadTiles& a) {
  a.bf16 ? read_tiles<I, bf16, patch, 1, InputTransform<F<I>>>(a)
         : read_tiles<I, float, patch, 1, InputTransform<F<I>>>(a);
}
template <Isa I>
TUTTI_INLINE void read_gradients_body(const ReadTiles& a) {
  a.bf16 ? read_tiles<I, bf16, tile, 0, GradientTransform<F<I>>>(a)
         : read_tiles<I, float, tile, 0, GradientTransform<F<I>>>(a);
}

// `J`: the instruction set that rounds.
template <Isa I, Isa J, class T>
TUTTI_INLINE void write_outputs_body(const WriteTiles& a) {
  using V = F<I>;
  constexpr std::int64_t lanes = lanes_of<I>, unit = sizeof(T);
  const Images& s = a.images;
  const std::int64_t line = s.w * s.channels, plane = a.plane;
  auto* const pixels = static_cast<T*>(a.to);
  alignas(64) T buffer[tile][tile][lanes];
  const OutputTransform<V> transform;
  for (std::int64_t k = 0; k < a.count; ++k) {
    const TilePlace at = place_of(s, a.first + k), next = place_of(s, std::min(a.first + k + 2, s.tiles() - 1));
    const auto* const ahead = reinterpret_cast<const std::byte*>(pixels + offset_of(s, next, 0, 0));
    const std::int64_t first = offset_of(s, at, 0, 0), bottom = std::min<std::int64_t>(tile, s.h - at.y),
                       right = std::min<std::int64_t>(tile, s.w - at.x);
    for (std::int64_t c = a.first_channel; c < std::min(a.end_channel, s.channels); c += lanes) {
      if (c == a.first_channel || c * unit % 64 == 0)
        fetch_ahead<true>(ahead + c * unit, line * unit, s.channels * unit);
      const std::int64_t count = std::min(lanes, s.channels - c);
      const bool inside = bottom == tile && right == tile && count == lanes;
      T* const to = inside ? pixels + (first + c) : static_cast<T*>(buffer[0][0]);
      const std::int64_t down = inside ? line : tile * lanes, along = inside ? s.channels : lanes;
      const float* const from = a.from + k * a.tile + (c - a.first_channel);
      in_two_dimensions<V, patch, tile>(
          transform, [&](V& v, int i, int j) TUTTI_LAMBDA { load<I>(v, from + (i * patch + j) * plane); },
          [&](const V& v, int i, int j) TUTTI_LAMBDA { store<J>(to + i * down + j * along, v); });
      if (inside) continue;
      for (std::int64_t i = 0; i < bottom; ++i)
        for (std::int64_t j = 0; j < right; ++j)
          std::copy_n(static_cast<const T*>(buffer[i][j]), count, pixels + (first + i * line + j * s.channels + c));
    }
  }
}

TUTTI_TARGET_AVX512 inline void read_inputs_avx512(const ReadTiles& a) { read_inputs_body<Isa::avx512>(a); }
TUTTI_TARGET_AVX2 inline void read_inputs_avx2(const ReadTiles& a) { read_inputs_body<Isa::avx2>(a); }
TUTTI_TARGET_AVX512 inline void read_gradients_avx512(const ReadTiles& a) { read_gradients_body<Isa::avx512>(a); }
TUTTI_TARGET_AVX2 inline void read_gradients_avx2(const ReadTiles& a) { read_gradients_body<Isa::avx2>(a); }
TUTTI_TARGET_AVX512 inline void write_outputs_avx512(const WriteTiles& a, bool rounds) {
  if (!a.bf16) return write_outputs_body<Isa::avx512, Isa::avx512, float>(a);
  rounds ? write_outputs_body<Isa::avx512, Isa::avx512_bf16, bf16>(a)
         : write_outputs_body<Isa::avx512, Isa::avx512, bf16>(a);
}
TUTTI_TARGET_AVX2 inline void write_outputs_avx2(const WriteTiles& a) {
  a.bf16 ? write_outputs_body<Isa::avx2, Isa::avx2, bf16>(a) : write_outputs_body<Isa::avx2, Isa::avx2, float>(a);
}

}  // namespace detail

#endif

// B' x B of tiles of inputs with a border of one pixel, A dy A' of tiles of gradients of outputs, and y = A' m A. For
// AVX2 and AVX-512.
TUTTI_CORE_FUNCTION void read_inputs(Isa isa, const ReadTiles& a);
TUTTI_CORE_FUNCTION void read_gradients(Isa isa, const ReadTiles& a);
TUTTI_CORE_FUNCTION void write_outputs(Isa isa, const WriteTiles& a);

#if TUTTI_CORE_DEFINITIONS
#if defined(__x86_64__)
TUTTI_CORE_FUNCTION void read_inputs(Isa isa, const ReadTiles& a) {
  isa == Isa::avx2 ? detail::read_inputs_avx2(a) : detail::read_inputs_avx512(a);
}
TUTTI_CORE_FUNCTION void read_gradients(Isa isa, const ReadTiles& a) {
  isa == Isa::avx2 ? detail::read_gradients_avx2(a) : detail::read_gradients_avx512(a);
}
TUTTI_CORE_FUNCTION void write_outputs(Isa isa, const WriteTiles& a) {
  isa == Isa::avx2 ? detail::write_outputs_avx2(a) : detail::write_outputs_avx512(a, isa == Isa::avx512_bf16);
}
#else
TUTTI_CORE_FUNCTION void read_inputs(Isa, const ReadTiles&) {
  fail<UsageError>("winograd", "AVX2 or AVX-512", "another processor");
}
TUTTI_CORE_FUNCTION void read_gradients(Isa, const ReadTiles&) {
  fail<UsageError>("winograd", "AVX2 or AVX-512", "another processor");
}
TUTTI_CORE_FUNCTION void write_outputs(Isa, const WriteTiles&) {
  fail<UsageError>("winograd", "AVX2 or AVX-512", "another processor");
}
#endif
#endif

}  // namespace tutti::cpu::winograd

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
