// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/engine/cpu/winograd/transforms.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Tiles of NHWC images, of 4x4 pixels each, from top to bottom and from left to right: read with what lies around them
// and transformed, or transformed and written. At uneven edges what is outside counts as zeros and is not written.
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
template <bool Write, class T>
TUTTI_INLINE void fetch_ahead(const T* from, const Images& s, std::int64_t offset, std::int64_t c) {
  if (c * sizeof(T) % 64 != 0) return;
#pragma GCC unroll 4
  for (int i = 0; i < tile; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < tile; ++j) {
      const T* const p = from + (offset + (i * s.w + j) * s.channels + c);
#if defined(__x86_64__)
      if constexpr (Write)
        asm volatile("prefetchw %0" : : "m"(*p));  // by the builtin it would need a target of its own
      else
#endif
        __builtin_prefetch(p);
    }
}

// N x N pixels of tile t, from `border` pixels above and left of it, transformed to 36 points.
template <Isa I, int N, int Border, class T, class Transform, class Place>
TUTTI_INLINE void read_tile(const T* x, const Images& s, std::int64_t t, Transform transform, Place place) {
  using V = F<I>;
  constexpr std::int64_t lanes = lanes_of<I>;
  static constexpr T zeros[16] = {};
  const TilePlace at = place_of(s, t), next = place_of(s, std::min(t + 2, s.tiles() - 1));
  const std::int64_t ahead = offset_of(s, next, N - tile - Border, N - tile - Border);
  const std::int64_t first = offset_of(s, at, -Border, -Border), line = s.w * s.channels;
  std::int64_t c = 0;
  if (at.y >= Border && at.x >= Border && at.y - Border + N <= s.h && at.x - Border + N <= s.w) {
    const T* const p = x + first;
    for (; c + lanes <= s.channels; c += lanes) {
      fetch_ahead<false>(x, s, ahead, c);
      in_two_dimensions<V, N, patch>(
          transform, [&](V& v, int i, int j) TUTTI_LAMBDA { load<I>(v, p + i * line + j * s.channels + c); },
          [&](const V& v, int i, int j) TUTTI_LAMBDA { store<I>(place(i * patch + j, c), v); });
    }
    if (c >= s.channels) return;
  }
  // A pointer for each pixel. Those outside read the same zeros again and again.
  const T* from[N][N];
  std::int64_t mask[N][N];
  for (int i = 0; i < N; ++i)
    for (int j = 0; j < N; ++j) {
      const std::int64_t h = at.y - Border + i, w = at.x - Border + j;
      const bool inside = h >= 0 && w >= 0 && h < s.h && w < s.w;
      from[i][j] = inside ? x + (first + i * line + j * s.channels) : static_cast<const T*>(zeros);
      mask[i][j] = inside ? -1 : 0;
    }
  T rest[N][N][lanes];  // the last channels, which fill no register
  for (; c < s.channels; c += lanes) {
    if (const std::int64_t left = s.channels - c; left < lanes)
      for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j) {
          for (std::int64_t k = 0; k < lanes; ++k)
            rest[i][j][k] = k < left ? from[i][j][(c + k) & mask[i][j]] : T(0.0F);
          from[i][j] = static_cast<const T*>(rest[i][j]);
          mask[i][j] = 0;
        }
    fetch_ahead<false>(x, s, ahead, c);
    in_two_dimensions<V, N, patch>(
        transform, [&](V& v, int i, int j) TUTTI_LAMBDA { load<I>(v, from[i][j] + (c & mask[i][j])); },
        [&](const V& v, int i, int j) TUTTI_LAMBDA { store<I>(place(i * patch + j, c), v); });
  }
}

}  // namespace detail

// B' x B of tile t of inputs x, with a border of one pixel. place(point, c): where as many floats as a register has go,
// those of channels from c on; channels behind the last one are zeros.
template <Isa I, class T, class Place>
TUTTI_INLINE void input_tile(const T* x, const Images& s, std::int64_t t, Place place) {
  detail::read_tile<I, patch, 1>(
      x, s, t, [](F<I>* d) TUTTI_LAMBDA { input_1d(d); }, place);
}
// A dy A' of tile t of gradients dy of outputs.
template <Isa I, class T, class Place>
TUTTI_INLINE void gradient_tile(const T* dy, const Images& s, std::int64_t t, Place place) {
  detail::read_tile<I, tile, 0>(
      dy, s, t, [](F<I>* d) TUTTI_LAMBDA { gradient_1d(d); }, place);
}

// y = A' m A of tile t for the channels of one register from c on. from(V&, point): their products m.
template <Isa I, class T, class From>
TUTTI_INLINE void output_tile(T* y, const Images& s, std::int64_t t, std::int64_t c, From from) {
  using V = F<I>;
  constexpr std::int64_t lanes = lanes_of<I>;
  const detail::TilePlace at = detail::place_of(s, t), next = detail::place_of(s, std::min(t + 2, s.tiles() - 1));
  T* const p = y + detail::offset_of(s, at, 0, 0) + c;
  const std::int64_t line = s.w * s.channels, left = s.channels - c;
  const auto transform = [](V* m) TUTTI_LAMBDA { output_1d(m); };
  const auto product = [&](V& v, int i, int j) TUTTI_LAMBDA { from(v, i * patch + j); };
  detail::fetch_ahead<true>(static_cast<const T*>(y), s, detail::offset_of(s, next, 0, 0), c);
  if (at.y + tile <= s.h && at.x + tile <= s.w && left >= lanes)
    return in_two_dimensions<V, patch, tile>(
        transform, product, [&](const V& v, int i, int j) TUTTI_LAMBDA { store<I>(p + i * line + j * s.channels, v); });
  in_two_dimensions<V, patch, tile>(transform, product, [&](const V& v, int i, int j) TUTTI_LAMBDA {
    if (at.y + i >= s.h || at.x + j >= s.w) return;
    T* const to = p + i * line + j * s.channels;
    if (left >= lanes) return store<I>(to, v);
    T rest[lanes];
    store<I>(static_cast<T*>(rest), v);
    for (std::int64_t k = 0; k < left; ++k) to[k] = rest[k];
  });
}

}  // namespace tutti::cpu::winograd

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
