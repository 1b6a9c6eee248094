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

// One register of channels to or from the buffer, `count` of which exist.
template <Isa I, class T>
TUTTI_INLINE void copy_in(float* to, const T* from, std::int64_t count) {
  if (count >= lanes_of<I>) {
    F<I> v;
    load<I>(v, from);
    return store<I>(to, v);
  }
  for (std::int64_t k = 0; k < count; ++k) to[k] = static_cast<float>(from[k]);
}
template <Isa I, class T>
TUTTI_INLINE void copy_out(T* to, const float* from, std::int64_t count) {
  if (count >= lanes_of<I>) {
    F<I> v;
    load<I>(v, from);
    return store<I>(to, v);
  }
  for (std::int64_t k = 0; k < count; ++k) to[k] = T(from[k]);
}

// N x N pixels of each tile, from `Border` pixels above and left of it, transformed to 36 points.
template <Isa I, int N, int Border, class Transform>
TUTTI_INLINE void read_tiles(const ReadTiles& a, Transform transform) {
  using V = F<I>;
  constexpr std::int64_t lanes = lanes_of<I>;
  const Images& s = a.images;
  const std::int64_t unit = a.bf16 ? 2 : 4, line = s.w * s.channels;
  const auto* const bytes = static_cast<const std::byte*>(a.from);
  for (std::int64_t k = 0; k < a.count; ++k) {
    const TilePlace at = place_of(s, a.first + k), next = place_of(s, std::min(a.first + k + 2, s.tiles() - 1));
    const std::byte* const ahead = bytes + offset_of(s, next, N - tile - Border, N - tile - Border) * unit;
    const std::int64_t first = offset_of(s, at, -Border, -Border);
    // The pixels that exist: [top, bottom) x [left, right).
    const std::int64_t top = std::max<std::int64_t>(0, Border - at.y), left = std::max<std::int64_t>(0, Border - at.x);
    const std::int64_t bottom = std::min<std::int64_t>(N, s.h + Border - at.y);
    const std::int64_t right = std::min<std::int64_t>(N, s.w + Border - at.x);
    const bool inside = top == 0 && left == 0 && bottom == N && right == N;
    alignas(64) float buffer[N][N][lanes];
    if (!inside)
      for (auto& pixels : buffer)
        for (auto& pixel : pixels) store<I>(static_cast<float*>(pixel), V{});
    for (std::int64_t c = 0; c < s.channels; c += lanes) {
      if (c * unit % 64 == 0) fetch_ahead<false>(ahead + c * unit, line * unit, s.channels * unit);
      const float* from = static_cast<const float*>(buffer[0][0]);
      std::int64_t down = N * lanes, along = lanes;
      const auto gather = [&](const auto* pixels) TUTTI_LAMBDA {
        for (std::int64_t i = top; i < bottom; ++i)
          for (std::int64_t j = left; j < right; ++j)
            copy_in<I>(static_cast<float*>(buffer[i][j]), pixels + (first + i * line + j * s.channels + c),
                       s.channels - c);
      };
      if (const std::int64_t rest = s.channels - c;
          rest < lanes)  // what is behind the last channel is of the one before
        for (auto& pixels : buffer)
          for (auto& pixel : pixels) store<I>(static_cast<float*>(pixel), V{});
      if (a.bf16) {
        gather(static_cast<const bf16*>(a.from));
      } else if (!inside || c + lanes > s.channels) {
        gather(static_cast<const float*>(a.from));
      } else {
        from = static_cast<const float*>(a.from) + first + c;
        down = line;
        along = s.channels;
      }
      float* const to = a.to.data + (a.at + k) * lanes + c * a.to.tiles;
      in_two_dimensions<V, N, patch>(
          transform, [&](V& v, int i, int j) TUTTI_LAMBDA { load<I>(v, from + i * down + j * along); },
          [&](const V& v, int i, int j) TUTTI_LAMBDA { store<I>(to + (i * patch + j) * a.to.plane, v); });
    }
  }
}
template <Isa I>
TUTTI_INLINE void read_inputs_body(const ReadTiles& a) {
  read_tiles<I, patch, 1>(a, [](F<I>* d) TUTTI_LAMBDA { input_1d(d); });
}
template <Isa I>
TUTTI_INLINE void read_gradients_body(const ReadTiles& a) {
  read_tiles<I, tile, 0>(a, [](F<I>* d) TUTTI_LAMBDA { gradient_1d(d); });
}

template <Isa I>
TUTTI_INLINE void write_outputs_body(const WriteTiles& a, bool rounds) {
  using V = F<I>;
  constexpr std::int64_t lanes = lanes_of<I>;
  const Images& s = a.images;
  const std::int64_t unit = a.bf16 ? 2 : 4, line = s.w * s.channels;
  auto* const bytes = static_cast<std::byte*>(a.to);
  for (std::int64_t k = 0; k < a.count; ++k) {
    const TilePlace at = place_of(s, a.first + k), next = place_of(s, std::min(a.first + k + 2, s.tiles() - 1));
    const std::byte* const ahead = bytes + offset_of(s, next, 0, 0) * unit;
    const std::int64_t first = offset_of(s, at, 0, 0), bottom = std::min<std::int64_t>(tile, s.h - at.y),
                       right = std::min<std::int64_t>(tile, s.w - at.x);
    const bool inside = bottom == tile && right == tile && !a.bf16;
    alignas(64) float buffer[tile][tile][lanes];
    for (std::int64_t c = a.first_channel; c < std::min(a.end_channel, s.channels); c += lanes) {
      if (c == a.first_channel || c * unit % 64 == 0)
        fetch_ahead<true>(ahead + c * unit, line * unit, s.channels * unit);
      const float* const from = a.from + k * a.tile + (c - a.first_channel);
      const bool direct = inside && c + lanes <= s.channels;
      float* const to = direct ? static_cast<float*>(a.to) + first + c : static_cast<float*>(buffer[0][0]);
      const std::int64_t down = direct ? line : tile * lanes, along = direct ? s.channels : lanes;
      in_two_dimensions<V, patch, tile>(
          [](V* m) TUTTI_LAMBDA { output_1d(m); },
          [&](V& v, int i, int j) TUTTI_LAMBDA { load<I>(v, from + (i * patch + j) * a.plane); },
          [&](const V& v, int i, int j) TUTTI_LAMBDA { store<I>(to + i * down + j * along, v); });
      if (direct) continue;
      const auto scatter = [&]<Isa J>(auto* pixels) TUTTI_LAMBDA {
        for (std::int64_t i = 0; i < bottom; ++i)
          for (std::int64_t j = 0; j < right; ++j)
            copy_out<J>(pixels + (first + i * line + j * s.channels + c), static_cast<const float*>(buffer[i][j]),
                        s.channels - c);
      };
      if (!a.bf16) {
        scatter.template operator()<I>(static_cast<float*>(a.to));
        continue;
      }
      auto* const to_bf16 = static_cast<bf16*>(a.to);
      if constexpr (lanes == 16)
        rounds ? scatter.template operator()<Isa::avx512_bf16>(to_bf16) : scatter.template operator()<I>(to_bf16);
      else
        scatter.template operator()<I>(to_bf16);
    }
  }
}

TUTTI_TARGET_AVX512 inline void read_inputs_avx512(const ReadTiles& a) { read_inputs_body<Isa::avx512>(a); }
TUTTI_TARGET_AVX2 inline void read_inputs_avx2(const ReadTiles& a) { read_inputs_body<Isa::avx2>(a); }
TUTTI_TARGET_AVX512 inline void read_gradients_avx512(const ReadTiles& a) { read_gradients_body<Isa::avx512>(a); }
TUTTI_TARGET_AVX2 inline void read_gradients_avx2(const ReadTiles& a) { read_gradients_body<Isa::avx2>(a); }
TUTTI_TARGET_AVX512 inline void write_outputs_avx512(const WriteTiles& a, bool rounds) {
  write_outputs_body<Isa::avx512>(a, rounds);
}
TUTTI_TARGET_AVX2 inline void write_outputs_avx2(const WriteTiles& a) { write_outputs_body<Isa::avx2>(a, false); }

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
