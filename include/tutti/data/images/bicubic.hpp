// SPDX-License-Identifier: MIT
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/data/images/resize.hpp>

// Bicubic scaling of RGB images.
namespace tutti {

namespace detail {

// The cubic of Keys 1981 with the parameter a; 0 from a distance of 2 on.
[[nodiscard]] inline double cubic(double x, double a) noexcept {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

// Sets the weights of one axis, with the arguments of ResizeAxis::set(). With antialiasing, the cubic has the parameter
// -0.5 and the support of PIL's resize. Without, it has -0.75 and reads four pixels, of which those outside the bounds
// are copies of the border, as in PyTorch's interpolate().
inline void set_cubic(ResizeAxis& axis, double from, double length, int low, int high, int outputs, bool antialias,
                      bool reversed) {
  const double scale = length / outputs, width = antialias ? 2 * std::max(scale, 1.0) : 2, per_width = 2 / width;
  struct Taps {
    double centre;
    int begin, end;
  };
  const auto taps_of = [&](int i) {
    const double centre = from + (i + 0.5) * scale;
    if (!antialias) {
      const int first = static_cast<int>(std::floor(centre - 0.5)) - 1;
      const int begin = std::clamp(first, low, high - 1);
      return Taps{centre, begin, std::clamp(first + 4, begin + 1, high)};
    }
    const double half = 0.5;
    const int begin = std::clamp(static_cast<int>(centre - width + half), low, high - 1);
    return Taps{centre, begin, std::clamp(static_cast<int>(centre + width + half), begin + 1, high)};
  };
  int most = 1;
  for (int i = 0; i < outputs; ++i) most = std::max(most, taps_of(i).end - taps_of(i).begin);
  axis.taps = most + most % 2;
  const auto n = static_cast<std::size_t>(axis.taps);
  axis.first.resize(static_cast<std::size_t>(outputs));
  axis.weights.assign(static_cast<std::size_t>(outputs) * n, 0);
  for (int i = 0; i < outputs; ++i) {
    const Taps t = taps_of(i);
    axis.exact.assign(n, 0);
    if (antialias) {
      for (int k = t.begin; k < t.end; ++k)
        axis.exact[static_cast<std::size_t>(k - t.begin)] = cubic((k + 0.5 - t.centre) * per_width, -0.5);
    } else {
      const int first = static_cast<int>(std::floor(t.centre - 0.5)) - 1;
      for (int k = first; k < first + 4; ++k)
        axis.exact[static_cast<std::size_t>(std::clamp(k, t.begin, t.end - 1) - t.begin)] +=
            cubic(k + 0.5 - t.centre, -0.75);
    }
    double sum = 0;
    for (const double w : axis.exact) sum += w;
    const auto row = static_cast<std::size_t>(reversed ? outputs - 1 - i : i);
    std::int16_t* const to = axis.weights.data() + row * n;
    axis.first[row] = t.begin;
    int left = ResizeAxis::one;
    std::size_t largest = 0;
    for (std::size_t k = 0; k < n; ++k) {
      to[k] = static_cast<std::int16_t>(std::lround(axis.exact[k] / sum * ResizeAxis::one));
      left -= to[k];
      if (to[k] > to[largest]) largest = k;
    }
    to[largest] = static_cast<std::int16_t>(to[largest] + left);
  }
}

inline constexpr int cubic_shift = 14;

[[nodiscard]] inline std::uint8_t cubic_level(std::int32_t sum) noexcept {
  return static_cast<std::uint8_t>(std::clamp((sum + (1 << (cubic_shift - 1))) >> cubic_shift, 0, 255));
}

// One output pixel of a row: the sum of `taps` pixels from p on.
inline void cubic_pixel(const std::uint8_t* p, const std::int16_t* weights, int taps, std::uint8_t* to) {
  for (int c = 0; c < 3; ++c) {
    std::int32_t sum = 0;
    for (int t = 0; t < taps; ++t) sum += weights[t] * p[3 * t + c];
    to[c] = cubic_level(sum);
  }
}

// `n` values of an output row, the sums of the same values of `taps` rows.
inline void cubic_rows(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, int from, int n,
                       std::uint8_t* to) {
  for (int i = from; i < n; ++i) {
    std::int32_t sum = 0;
    for (int t = 0; t < taps; ++t) sum += weights[t] * rows[t][i];
    to[i] = cubic_level(sum);
  }
}

#if defined(__x86_64__)
// Reads up to 2 bytes after the last tap, and writes 4 bytes.
TUTTI_TARGET_AVX2 inline void cubic_pixel_avx2(const std::uint8_t* p, const std::int16_t* weights, int taps,
                                               std::uint8_t* to) {
  const __m128i pairs = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
  __m128i sum = _mm_set1_epi32(1 << (cubic_shift - 1));
  for (int t = 0; t < taps; t += 2, p += 6) {
    std::int32_t pair;
    std::memcpy(&pair, weights + t, 4);
    const __m128i v = _mm_shuffle_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), pairs);
    sum = _mm_add_epi32(sum, _mm_madd_epi16(v, _mm_set1_epi32(pair)));
  }
  const __m128i words = _mm_packs_epi32(_mm_srai_epi32(sum, cubic_shift), _mm_setzero_si128());
  const std::int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  std::memcpy(to, &bytes, 4);
}

TUTTI_TARGET_AVX2 inline void cubic_rows_avx2(const std::uint8_t* const* rows, const std::int16_t* weights, int taps,
                                              int n, std::uint8_t* to) {
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    __m256i low = _mm256_set1_epi32(1 << (cubic_shift - 1)), high = low;
    for (int t = 0; t < taps; t += 2) {
      std::int32_t pair;
      std::memcpy(&pair, weights + t, 4);
      const __m256i w = _mm256_set1_epi32(pair);
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[t] + i));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[t + 1] + i));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)), w));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)), w));
    }
    // [0-3 8-11 | 4-7 12-15], then 16 bytes in order.
    const __m256i words = _mm256_packs_epi32(_mm256_srai_epi32(low, cubic_shift), _mm256_srai_epi32(high, cubic_shift));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
  }
  cubic_rows(rows, weights, taps, i, n, to);
}
#endif

}  // namespace detail

// Scales parts of images with a cubic, and keeps its buffers. Use one for each thread.
class BicubicResizer {
 public:
  explicit BicubicResizer(cpu::Isa isa = cpu::detect_isa()) : isa_(isa) {}

  // Like Resizer::operator(). Columns first, rounded and clipped to 0..255, then rows: with antialiasing the result is
  // that of PIL's Image.resize(BICUBIC), without it that of PyTorch's interpolate(mode="bicubic") for bytes, each
  // within one level. The same on every instruction set.
  void operator()(const RgbView& image, const ResizeBox& box, const ResizeBox& bounds, int out_width, int out_height,
                  bool antialias, bool mirror, std::uint8_t* to) {
    const detail::ResizeLimits limits = detail::resize_limits(image, box, bounds, out_width, out_height);
    detail::set_cubic(columns_, box.x, box.width, limits.left, limits.right, out_width, antialias, mirror);
    detail::set_cubic(rows_, box.y, box.height, limits.top, limits.bottom, out_height, antialias, false);
    int top = limits.bottom, bottom = limits.top, begin = limits.right, end = limits.left;
    for (const int f : rows_.first) {
      top = std::min(top, f);
      bottom = std::max(bottom, std::min(f + rows_.taps, limits.bottom));
    }
    for (const int f : columns_.first) {
      begin = std::min(begin, f);
      end = std::max(end, std::min(f + columns_.taps, limits.right));
    }
    // Zeros after the last column, because taps of weight 0 may lie there and whole vectors are read.
    const auto line = static_cast<std::size_t>(end - begin) * 3;
    line_.assign(line + static_cast<std::size_t>(columns_.taps) * 3 + 16, 0);
    const std::size_t row = static_cast<std::size_t>(out_width) * 3;
    scaled_.resize(static_cast<std::size_t>(bottom - top) * row + 16);
    for (int y = top; y < bottom; ++y) {
      const std::ptrdiff_t at = std::ptrdiff_t{y} * image.width + begin;
      std::memcpy(line_.data(), image.pixels + at * 3, line);
      scale_line(begin, out_width, scaled_.data() + static_cast<std::size_t>(y - top) * row);
    }
    lines_.resize(static_cast<std::size_t>(rows_.taps));
    for (int y = 0; y < out_height; ++y, to += row) {
      // Taps after the last row have weight 0 and may use any row.
      for (int t = 0; t < rows_.taps; ++t) {
        const int at = std::min(rows_.first[static_cast<std::size_t>(y)] + t, bottom - 1) - top;
        lines_[static_cast<std::size_t>(t)] = scaled_.data() + static_cast<std::size_t>(at) * row;
      }
      const std::int16_t* const weights = rows_.weights.data() + std::ptrdiff_t{y} * rows_.taps;
#if defined(__x86_64__)
      if (isa_ != cpu::Isa::baseline) {
        detail::cubic_rows_avx2(lines_.data(), weights, rows_.taps, out_width * 3, to);
        continue;
      }
#endif
      detail::cubic_rows(lines_.data(), weights, rows_.taps, 0, out_width * 3, to);
    }
  }

 private:
  void scale_line(int begin, int outputs, std::uint8_t* to) const {
    const std::int16_t* weights = columns_.weights.data();
    for (int i = 0; i < outputs; ++i, to += 3, weights += columns_.taps) {
      const std::uint8_t* const p =
          line_.data() + std::ptrdiff_t{3} * (columns_.first[static_cast<std::size_t>(i)] - begin);
#if defined(__x86_64__)
      // The fourth byte is overwritten by the next pixel, or belongs to the next line or the slack after the last one.
      if (isa_ != cpu::Isa::baseline) {
        detail::cubic_pixel_avx2(p, weights, columns_.taps, to);
        continue;
      }
#endif
      detail::cubic_pixel(p, weights, columns_.taps, to);
    }
  }

  cpu::Isa isa_;
  detail::ResizeAxis columns_, rows_;
  std::vector<std::uint8_t> line_, scaled_;
  std::vector<const std::uint8_t*> lines_;
};

}  // namespace tutti
