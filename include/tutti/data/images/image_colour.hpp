// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/images/colour_options.hpp>

// Random changes of colour, in place on RGB images of u8, in integer arithmetic.
namespace tutti {

namespace detail {

// Fractional bits of factors up to 4 and of the 3x3 matrix.
inline constexpr int factor_bits = 20, matrix_bits = 14;

inline std::uint8_t clip8(std::int32_t v) noexcept { return static_cast<std::uint8_t>(std::clamp(v, 0, 255)); }

// Returns luma as PIL computes it (ITU-R 601).
inline std::int32_t luma(const std::uint8_t* p) noexcept {
  return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16;
}

// Returns the mean, rounded to nearest.
inline std::int32_t mean_luma(std::span<const std::uint8_t> image) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + 2 < image.size(); i += 3) sum += static_cast<std::uint64_t>(luma(image.data() + i));
  const std::uint64_t n = std::max<std::uint64_t>(1, image.size() / 3);
  return static_cast<std::int32_t>((2 * sum + n) / (2 * n));
}

// pixel -> matrix * pixel + offset, rounded and clipped. matrix, offset: matrix_bits fractional bits.
struct ColourMatrix {
  std::array<std::int32_t, 9> m{};
  std::array<std::int32_t, 3> offset{};
};
template <cpu::Isa I>
TUTTI_INLINE void transform_colour_body(std::uint8_t* p, std::int64_t pixels, const ColourMatrix* by) {
  const auto m = by->m;
  const auto o = by->offset;
  constexpr std::int64_t tile = 64;
  // Values after the last pixel are computed too, and dropped.
  std::int32_t r[tile] = {}, g[tile] = {}, b[tile] = {};
  for (std::int64_t at = 0; at < pixels; at += tile) {
    const std::int64_t n = std::min(tile, pixels - at);
    std::uint8_t* q = p + at * 3;
    for (std::int64_t i = 0; i < n; ++i) {
      r[i] = q[3 * i];
      g[i] = q[3 * i + 1];
      b[i] = q[3 * i + 2];
    }
    for (std::int64_t i = 0; i < tile; ++i) {
      const std::int32_t x = r[i], y = g[i], z = b[i];
      r[i] = std::clamp((m[0] * x + m[1] * y + m[2] * z + o[0]) >> matrix_bits, 0, 255);
      g[i] = std::clamp((m[3] * x + m[4] * y + m[5] * z + o[1]) >> matrix_bits, 0, 255);
      b[i] = std::clamp((m[6] * x + m[7] * y + m[8] * z + o[2]) >> matrix_bits, 0, 255);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      q[3 * i] = static_cast<std::uint8_t>(r[i]);
      q[3 * i + 1] = static_cast<std::uint8_t>(g[i]);
      q[3 * i + 2] = static_cast<std::uint8_t>(b[i]);
    }
  }
}
TUTTI_DEFINE_DISPATCH(transform_colour, transform_colour_body);

inline std::array<double, 3> channel_means(std::span<const std::uint8_t> image) noexcept {
  std::array<std::uint64_t, 3> sum{};
  for (std::size_t i = 0; i + 2 < image.size(); i += 3)
    for (std::size_t c = 0; c < 3; ++c) sum[c] += image[i + c];
  std::array<double, 3> mean{};
  const std::size_t pixels = image.size() / 3;
  for (std::size_t c = 0; c < 3; ++c) mean[c] = static_cast<double>(sum[c]) / static_cast<double>(pixels);
  return mean;
}

using Matrix3 = std::array<std::array<double, 3>, 3>;
inline Matrix3 product(const Matrix3& a, const Matrix3& b) noexcept {
  Matrix3 c{};
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 3; ++j)
      for (std::size_t k = 0; k < 3; ++k) c[i][j] += a[i][k] * b[k][j];
  return c;
}

// Returns the matrix RGB -> RGB that rotates the hue by `angle` and scales the saturation in YIQ.
inline Matrix3 yiq_matrix(double angle, double saturation) noexcept {
  constexpr Matrix3 to{{{0.299, 0.587, 0.114}, {0.596, -0.274, -0.322}, {0.211, -0.523, 0.312}}};
  constexpr Matrix3 back{{{1, 0.956, 0.621}, {1, -0.272, -0.647}, {1, -1.107, 1.704}}};
  const double c = saturation * std::cos(angle), s = saturation * std::sin(angle);
  const Matrix3 turn{{{1, 0, 0}, {0, c, -s}, {0, s, c}}};
  return product(back, product(turn, to));
}

// pixel -> other + factor * (pixel - other), rounded towards zero. `other` is a constant, or each pixel's luma if it is
// negative.
inline void blend_colour(std::span<std::uint8_t> image, double factor, std::int32_t other) noexcept {
  const auto a = static_cast<std::int32_t>(std::lround(factor * (1 << factor_bits)));
  const std::int32_t rest = (1 << factor_bits) - a;
  // The error that rounding the factor may subtract from a result that is a whole number.
  constexpr std::int32_t lost = 128;
  if (other >= 0) {
    std::array<std::uint8_t, 256> table{};
    for (std::int32_t v = 0; v < 256; ++v)
      table[static_cast<std::size_t>(v)] = clip8((other * rest + v * a + lost) >> factor_bits);
    for (auto& v : image) v = table[v];
    return;
  }
  for (std::size_t i = 0; i + 2 < image.size(); i += 3) {
    std::uint8_t* p = image.data() + i;
    const std::int32_t grey = luma(p) * rest + lost;
    for (int c = 0; c < 3; ++c) p[c] = clip8((grey + p[c] * a) >> factor_bits);
  }
}

// Adds `turn` / 256 of a full rotation to the hue of PIL's 8-bit HSV.
inline void turn_hue(std::span<std::uint8_t> image, std::uint8_t turn) noexcept {
  for (std::size_t i = 0; i + 2 < image.size(); i += 3) {
    std::uint8_t* p = image.data() + i;
    const int r = p[0], g = p[1], b = p[2];
    const int high = std::max({r, g, b}), low = std::min({r, g, b});
    if (high == low) continue;
    const auto range = static_cast<float>(high - low);
    const auto from_high = [&](int v) { return static_cast<float>(high - v) / range; };
    float h = r == high   ? from_high(b) - from_high(g)
              : g == high ? 2.0F + from_high(r) - from_high(b)
                          : 4.0F + from_high(g) - from_high(r);
    h = h / 6.0F + 1.0F;
    h -= std::floor(h);
    const auto hue = static_cast<std::uint8_t>(static_cast<std::uint8_t>(clip8(static_cast<int>(h * 255.0F))) + turn);
    const auto saturation = clip8(static_cast<int>(range / static_cast<float>(high) * 255.0F));
    const float sixth = static_cast<float>(hue) * 6.0F / 255.0F, whole = std::floor(sixth), f = sixth - whole;
    const float s = static_cast<float>(saturation) / 255.0F, v = static_cast<float>(high);
    const auto level = [&](float x) { return clip8(static_cast<int>(std::lround(x))); };
    const std::uint8_t top = static_cast<std::uint8_t>(high), down = level(v * (1 - s)),
                       falling = level(v * (1 - s * f)), rising = level(v * (1 - s * (1 - f)));
    const std::array<std::array<std::uint8_t, 3>, 6> sectors{{{top, rising, down},
                                                              {falling, top, down},
                                                              {down, top, rising},
                                                              {down, falling, top},
                                                              {rising, down, top},
                                                              {top, down, falling}}};
    const auto& to = sectors[static_cast<std::size_t>(whole) % 6];
    for (std::size_t c = 0; c < 3; ++c) p[c] = to[c];
  }
}

inline double uniform_in(Rng& rng, double low, double high) noexcept { return low + (high - low) * rng.uniform53(); }

// Returns what PCA lighting adds to the channels: Krizhevsky et al. 2012, with the eigenvectors of ImageNet on the
// 0..255 scale.
inline std::array<double, 3> lighting_of(double deviation, Rng& rng) noexcept {
  constexpr Matrix3 vectors{{{-0.5675, 0.7192, 0.4009}, {-0.5808, -0.0045, -0.8140}, {-0.5836, -0.6948, 0.4203}}};
  constexpr std::array<double, 3> values{55.46, 4.794, 1.148};
  std::array<double, 3> add{};
  for (std::size_t k = 0; k < 3; ++k) {
    const double alpha = deviation * rng.normal() * values[k];
    for (std::size_t c = 0; c < 3; ++c) add[c] += vectors[c][k] * alpha;
  }
  return add;
}

inline void apply(const Matrix3& matrix, const std::array<double, 3>& offset, std::span<std::uint8_t> image,
                  cpu::Isa isa) {
  ColourMatrix by;
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j)
      by.m[3 * i + j] = static_cast<std::int32_t>(std::lround(matrix[i][j] * (1 << matrix_bits)));
    by.offset[i] =
        static_cast<std::int32_t>(std::lround((std::clamp(offset[i], -4096.0, 4096.0) + 0.5) * (1 << matrix_bits)));
  }
  transform_colour<>(isa, image.data(), static_cast<std::int64_t>(image.size() / 3),
                     static_cast<const ColourMatrix*>(&by));
}

}  // namespace detail

// Changes the colours of an image, [pixels, 3], by random amounts from `rng` only. Takes no random numbers if the
// jitter is off.
inline void jitter_colour(const ColourJitter& jitter, Rng& rng, std::span<std::uint8_t> image,
                          cpu::Isa isa = cpu::detect_isa()) {
  using namespace detail;
  Matrix3 matrix{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
  std::array<double, 3> offset{};
  bool linear = false;
  if (jitter.form == ColourForm::yiq) {
    const double brightness = uniform_in(rng, -jitter.brightness, jitter.brightness);
    const double hue = uniform_in(rng, -jitter.hue, jitter.hue) * std::numbers::pi;
    const double saturation = uniform_in(rng, jitter.saturation[0], jitter.saturation[1]);
    const double contrast = uniform_in(rng, jitter.contrast[0], jitter.contrast[1]);
    const Matrix3 yiq = yiq_matrix(hue, saturation);
    const auto mean = channel_means(image);
    // contrast * (y - mean of y) + mean of y with y = yiq * (x + brightness): one matrix and one offset.
    for (std::size_t i = 0; i < 3; ++i) {
      double y_mean = 0, y_brightness = 0;
      for (std::size_t j = 0; j < 3; ++j) {
        matrix[i][j] = contrast * yiq[i][j];
        y_mean += yiq[i][j] * (mean[j] + brightness);
        y_brightness += yiq[i][j] * brightness;
      }
      offset[i] = contrast * y_brightness + (1 - contrast) * y_mean;
    }
    linear = true;
  } else if (jitter.form == ColourForm::blend) {
    std::array<int, 4> order{0, 1, 2, 3};
    for (std::uint32_t i = 3; i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);
    const double brightness = uniform_in(rng, std::max(0.0, 1 - jitter.brightness), 1 + jitter.brightness);
    const double contrast = uniform_in(rng, jitter.contrast[0], jitter.contrast[1]);
    const double saturation = uniform_in(rng, jitter.saturation[0], jitter.saturation[1]);
    const double hue = uniform_in(rng, -jitter.hue, jitter.hue);
    for (const int what : order) {
      if (what == 0 && jitter.brightness > 0) blend_colour(image, brightness, 0);
      if (what == 1 && jitter.contrast[0] < jitter.contrast[1]) blend_colour(image, contrast, mean_luma(image));
      if (what == 2 && jitter.saturation[0] < jitter.saturation[1]) blend_colour(image, saturation, -1);
      if (what == 3 && jitter.hue > 0)
        turn_hue(image, static_cast<std::uint8_t>(static_cast<std::int32_t>(hue * 255.0)));
    }
  }
  if (jitter.lighting > 0) {
    const auto add = lighting_of(jitter.lighting, rng);
    for (std::size_t c = 0; c < 3; ++c) offset[c] += add[c];
    linear = true;
  }
  if (linear && image.size() >= 3) apply(matrix, offset, image, isa);
}

}  // namespace tutti
