// SPDX-License-Identifier: MIT
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <vector>

#include <tutti/core/isa.hpp>
#include <tutti/data/augment/image_op.hpp>

// Rotates, shears and shifts RGB images, with the positions and the border of PIL's Image.transform.
namespace tutti {

// The position of the input that an output pixel shows: x' = a x + b y + c, y' = d x + e y + f. Pixel (0, 0) extends
// from 0 to 1, so its centre is at (0.5, 0.5).
struct AffineMap {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};

// Returns the map of a geometric operation on an image of this size.
[[nodiscard]] inline AffineMap affine_map_of(ImageOp op, double value, int width, int height) {
  AffineMap m;
  if (op == ImageOp::shear_x) m.b = value;
  if (op == ImageOp::shear_y) m.d = value;
  if (op == ImageOp::translate_x) m.c = value;
  if (op == ImageOp::translate_y) m.f = value;
  if (op == ImageOp::rotate) {
    // PIL rounds to 15 digits, so that right angles are exact.
    const auto rounded = [](double v) { return std::nearbyint(v * 1e15) / 1e15; };
    const double turned = std::fmod(value, 360.0),
                 angle = -(turned < 0 ? turned + 360 : turned) * std::numbers::pi / 180;
    const double cos = rounded(std::cos(angle)), sin = rounded(std::sin(angle)), x = width / 2.0, y = height / 2.0;
    m = {cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y};
  }
  return m;
}

namespace detail {

// Weights have 12 fractional bits, values between the two passes have 6.
inline constexpr int warp_bits = 12, warp_middle_shift = 6, warp_last_shift = 2 * warp_bits - warp_middle_shift;
inline constexpr int warp_phases = 1 << 10;

using WarpWeights = std::array<std::int16_t, 4>;

// Returns the weights of the pixels at -1, 0, 1 and 2 for each phase between 0 and 1. The cubic is that of PIL's
// Image.transform, with the parameter -1 (its resize has -0.5). The weights of a phase sum to exactly one.
[[nodiscard]] inline const std::array<WarpWeights, warp_phases + 1>& cubic_weights() {
  static const auto table = [] {
    std::array<WarpWeights, warp_phases + 1> t{};
    for (int i = 0; i <= warp_phases; ++i) {
      const double d = static_cast<double>(i) / warp_phases, d2 = d * d, d3 = d2 * d;
      const std::array<double, 4> exact{-d + 2 * d2 - d3, 1 - 2 * d2 + d3, d + d2 - d3, -d2 + d3};
      int rest = 1 << warp_bits;
      WarpWeights& w = t[static_cast<std::size_t>(i)];
      for (std::size_t k = 0; k < 4; ++k) {
        w[k] = static_cast<std::int16_t>(std::lround(exact[k] * (1 << warp_bits)));
        rest -= w[k];
      }
      w[d < 0.5 ? 1 : 2] = static_cast<std::int16_t>(w[d < 0.5 ? 1 : 2] + rest);
    }
    return t;
  }();
  return table;
}

// An image with two more pixels on each side, copies of the border, and bytes after the end that vectors may read.
struct WarpSource {
  static constexpr int margin = 2;
  const std::uint8_t* pixels = nullptr;  // of pixel (0, 0)
  std::ptrdiff_t row = 0;                // bytes
  int width = 0, height = 0;
  [[nodiscard]] const std::uint8_t* at(int x, int y) const {
    return pixels + std::clamp(y, 0, height - 1) * row + x * 3;
  }
};

inline WarpSource padded(const std::uint8_t* image, int width, int height, std::vector<std::uint8_t>& memory) {
  constexpr int m = WarpSource::margin;
  const std::ptrdiff_t row = std::ptrdiff_t{3} * (width + 2 * m);
  memory.resize(static_cast<std::size_t>(row * height + 16));
  for (int y = 0; y < height; ++y) {
    const std::uint8_t* from = image + std::ptrdiff_t{3} * y * width;
    std::uint8_t* to = memory.data() + y * row;
    for (int k = 0; k < m; ++k) std::memcpy(to + 3 * k, from, 3);
    std::memcpy(to + 3 * m, from, 3 * static_cast<std::size_t>(width));
    for (int k = 0; k < m; ++k) std::memcpy(to + 3 * (m + width + k), from + 3 * (width - 1), 3);
  }
  return {memory.data() + 3 * m, row, width, height};
}

// The weights of one output pixel: of the columns from x - 1 on, and of the rows from y - 1 on.
struct WarpPoint {
  int x, y;
  WarpWeights columns, rows;
};

// Computes one pixel from the rows y - 1 to y + 2, or from rows y and y + 1 if the weights are linear. Truncates as PIL
// does. A constant image keeps its value.
template <bool Cubic>
inline void warp_pixel(const WarpSource& s, const WarpPoint& p, std::uint8_t* to) {
  constexpr int first = Cubic ? 0 : 1, last = Cubic ? 4 : 3;
  std::int32_t sum[3] = {};
  for (int j = first; j < last; ++j) {
    const std::uint8_t* q = s.at(p.x - 1, p.y - 1 + j);
    for (int c = 0; c < 3; ++c) {
      std::int32_t line = 0;
      for (int i = first; i < last; ++i) line += p.columns[static_cast<std::size_t>(i)] * q[3 * i + c];
      sum[c] += p.rows[static_cast<std::size_t>(j)] * (line >> warp_middle_shift);
    }
  }
  for (int c = 0; c < 3; ++c) to[c] = static_cast<std::uint8_t>(std::clamp(sum[c] >> warp_last_shift, 0, 255));
}

#if defined(__x86_64__)
// The same with vectors: pairs of adjacent pixels, then pairs of rows. Writes 4 bytes.
template <bool Cubic>
TUTTI_TARGET_AVX2 inline void warp_pixel_avx2(const WarpSource& s, const WarpPoint& p, std::uint8_t* to) {
  const __m128i left = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1),
                right = _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const auto pair = [](std::int16_t a, std::int16_t b) {
    return _mm_set1_epi32(static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint16_t>(a)) |
                                                    static_cast<std::uint32_t>(static_cast<std::uint16_t>(b)) << 16));
  };
  __m128i sum;
  if constexpr (Cubic) {
    const __m128i w01 = pair(p.columns[0], p.columns[1]), w23 = pair(p.columns[2], p.columns[3]);
    __m128i lines[4];
    for (int j = 0; j < 4; ++j) {
      const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s.at(p.x - 1, p.y - 1 + j)));
      lines[j] = _mm_srai_epi32(_mm_add_epi32(_mm_madd_epi16(_mm_shuffle_epi8(v, left), w01),
                                              _mm_madd_epi16(_mm_shuffle_epi8(v, right), w23)),
                                warp_middle_shift);
    }
    const __m128i low = _mm_packs_epi32(lines[0], lines[1]), high = _mm_packs_epi32(lines[2], lines[3]);
    sum = _mm_add_epi32(_mm_madd_epi16(_mm_unpacklo_epi16(low, _mm_srli_si128(low, 8)), pair(p.rows[0], p.rows[1])),
                        _mm_madd_epi16(_mm_unpacklo_epi16(high, _mm_srli_si128(high, 8)), pair(p.rows[2], p.rows[3])));
  } else {
    const __m128i w = pair(p.columns[1], p.columns[2]);
    __m128i lines[2];
    for (int j = 0; j < 2; ++j) {
      const __m128i v = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(s.at(p.x, p.y + j)));
      lines[j] = _mm_srai_epi32(_mm_madd_epi16(_mm_shuffle_epi8(v, left), w), warp_middle_shift);
    }
    const __m128i both = _mm_packs_epi32(lines[0], lines[1]);
    sum = _mm_madd_epi16(_mm_unpacklo_epi16(both, _mm_srli_si128(both, 8)), pair(p.rows[1], p.rows[2]));
  }
  const __m128i words = _mm_packs_epi32(_mm_srai_epi32(sum, warp_last_shift), _mm_setzero_si128());
  const std::int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  std::memcpy(to, &bytes, 4);
}
#endif

// Positions have 32 fractional bits.
inline std::int64_t fixed_position(double v) { return static_cast<std::int64_t>(std::floor(v * 0x1p32 + 0.5)); }

struct WarpJob {
  WarpSource source;
  AffineMap map;
  const std::uint8_t* fill;
  std::uint8_t* to;  // [source.height, source.width, 3]
};

// Calls pixel(point, to) for each output pixel whose centre is inside the input, and fills the others.
template <bool Cubic, class Pixel>
TUTTI_INLINE void for_each_warped(const WarpJob& job, const Pixel& pixel) {
  const WarpSource& s = job.source;
  const AffineMap& m = job.map;
  const std::int64_t step_x = fixed_position(m.a), step_y = fixed_position(m.d), half = std::int64_t{1} << 31;
  const auto wide = static_cast<std::uint64_t>(s.width) << 32, high = static_cast<std::uint64_t>(s.height) << 32;
  const auto* const cubic = cubic_weights().data();
  std::uint8_t* to = job.to;
  for (int y = 0; y < s.height; ++y) {
    std::int64_t px = fixed_position(m.a * 0.5 + m.b * (y + 0.5) + m.c),
                 py = fixed_position(m.d * 0.5 + m.e * (y + 0.5) + m.f);
    for (int x = 0; x < s.width; ++x, to += 3, px += step_x, py += step_y) {
      if (static_cast<std::uint64_t>(px) >= wide || static_cast<std::uint64_t>(py) >= high) {
        std::memcpy(to, job.fill, 3);
        continue;
      }
      const std::int64_t qx = px - half, qy = py - half;
      WarpPoint p{static_cast<int>(qx >> 32), static_cast<int>(qy >> 32), {}, {}};
      const auto fx = static_cast<std::uint32_t>(qx), fy = static_cast<std::uint32_t>(qy);
      if constexpr (Cubic) {
        constexpr int shift = 22;  // to phases
        p.columns = cubic[(std::uint64_t{fx} + (1U << (shift - 1))) >> shift];
        p.rows = cubic[(std::uint64_t{fy} + (1U << (shift - 1))) >> shift];
      } else {
        constexpr int shift = 32 - warp_bits, one = 1 << warp_bits;
        const int wx = static_cast<int>(fx >> shift), wy = static_cast<int>(fy >> shift);
        p.columns = {0, static_cast<std::int16_t>(one - wx), static_cast<std::int16_t>(wx), 0};
        p.rows = {0, static_cast<std::int16_t>(one - wy), static_cast<std::int16_t>(wy), 0};
      }
      pixel(p, to, x + 1 == s.width && y + 1 == s.height);
    }
  }
}

template <bool Cubic>
inline void warp_baseline(const WarpJob& job) {
  for_each_warped<Cubic>(
      job, [&](const WarpPoint& p, std::uint8_t* to, bool) TUTTI_LAMBDA { warp_pixel<Cubic>(job.source, p, to); });
}
#if defined(__x86_64__)
template <bool Cubic>
TUTTI_TARGET_AVX2 inline void warp_avx2(const WarpJob& job) {
  // The fourth byte of a pixel is overwritten by the next one. The last pixel has no such byte.
  for_each_warped<Cubic>(job, [&](const WarpPoint& p, std::uint8_t* to, bool last) TUTTI_LAMBDA {
    if (last)
      warp_pixel<Cubic>(job.source, p, to);
    else
      warp_pixel_avx2<Cubic>(job.source, p, to);
  });
}
#endif

// Copies the nearest pixels with PIL's arithmetic: 16 fractional bits, or 0 for a shift.
inline void warp_nearest(const WarpJob& job) {
  const WarpSource& s = job.source;
  const AffineMap& m = job.map;
  const auto fixed = [](double v) { return static_cast<std::int64_t>(std::floor(v * 65536 + 0.5)); };
  const bool shift = m.b == 0 && m.d == 0;
  const auto whole = [](double v) { return v < 0 ? std::int64_t{-1} : static_cast<std::int64_t>(v); };
  std::uint8_t* to = job.to;
  for (int y = 0; y < s.height; ++y) {
    std::int64_t px = fixed(m.c + m.a * 0.5 + m.b * 0.5) + y * fixed(m.b),
                 py = fixed(m.f + m.d * 0.5 + m.e * 0.5) + y * fixed(m.e);
    for (int x = 0; x < s.width; ++x, to += 3, px += fixed(m.a), py += fixed(m.d)) {
      const std::int64_t ix = shift ? whole(m.c + m.a * (x + 0.5)) : px >> 16,
                         iy = shift ? whole(m.f + m.e * (y + 0.5)) : py >> 16;
      const bool inside = ix >= 0 && ix < s.width && iy >= 0 && iy < s.height;
      std::memcpy(to, inside ? s.at(static_cast<int>(ix), static_cast<int>(iy)) : job.fill, 3);
    }
  }
}

}  // namespace detail

// Replaces an image, [height, width, 3], by its map. Pixels outside the image become `fill`, three bytes. `memory` is
// for a copy of the image. Integer arithmetic: the result is the same on every instruction set, and differs from PIL's
// by at most one level.
inline void warp(const AffineMap& map, Interpolation interpolation, const std::uint8_t* fill, std::uint8_t* image,
                 int width, int height, std::vector<std::uint8_t>& memory, cpu::Isa isa) {
  const detail::WarpJob job{detail::padded(image, width, height, memory), map, fill, image};
  if (interpolation == Interpolation::nearest) return detail::warp_nearest(job);
  const bool cubic = interpolation == Interpolation::bicubic;
#if defined(__x86_64__)
  if (isa != cpu::Isa::baseline) return cubic ? detail::warp_avx2<true>(job) : detail::warp_avx2<false>(job);
#endif
  (void)isa;
  cubic ? detail::warp_baseline<true>(job) : detail::warp_baseline<false>(job);
}

}  // namespace tutti
