// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/core/isa.hpp>
#include <tutti/data/images/image_colour.hpp>

// Changes the levels of RGB images, [pixels, 3] of u8, in place, with the results of PIL's ImageOps and ImageEnhance.
namespace tutti::detail {

using LevelTable = std::array<std::uint8_t, 256>;

inline void map_levels(std::span<std::uint8_t> image, const LevelTable& table) noexcept {
  for (auto& v : image) v = table[v];
}
inline void map_levels(std::span<std::uint8_t> image, const std::array<LevelTable, 3>& tables) noexcept {
  for (std::size_t i = 0; i + 2 < image.size(); i += 3)
    for (std::size_t c = 0; c < 3; ++c) image[i + c] = tables[c][image[i + c]];
}

template <class Level>
[[nodiscard]] LevelTable level_table(const Level& level) {
  LevelTable t{};
  for (int v = 0; v < 256; ++v) t[static_cast<std::size_t>(v)] = clip8(level(v));
  return t;
}

inline void invert(std::span<std::uint8_t> image) noexcept {
  for (auto& v : image) v = static_cast<std::uint8_t>(255 - v);
}

// bits: 0 to 8.
inline void posterize(std::span<std::uint8_t> image, int bits) noexcept {
  const auto mask = static_cast<std::uint8_t>(0xff << (8 - std::clamp(bits, 0, 8)));
  for (auto& v : image) v &= mask;
}

inline void solarize(std::span<std::uint8_t> image, double threshold) {
  map_levels(image, level_table([&](int v) { return v < threshold ? v : 255 - v; }));
}

inline void solarize_add(std::span<std::uint8_t> image, int add) {
  map_levels(image, level_table([&](int v) { return v < 128 ? std::min(255, v + add) : v; }));
}

using Histogram = std::array<std::uint32_t, 256>;

[[nodiscard]] inline std::array<Histogram, 3> histograms(std::span<const std::uint8_t> image) noexcept {
  std::array<Histogram, 3> h{};
  for (std::size_t i = 0; i + 2 < image.size(); i += 3)
    for (std::size_t c = 0; c < 3; ++c) ++h[c][image[i + c]];
  return h;
}

// Stretches each channel so that its lowest level becomes 0 and its highest 255.
inline void auto_contrast(std::span<std::uint8_t> image) {
  std::array<LevelTable, 3> tables;
  const auto all = histograms(image);
  for (std::size_t c = 0; c < 3; ++c) {
    int low = 0, high = 255;
    while (low < 255 && all[c][static_cast<std::size_t>(low)] == 0) ++low;
    while (high > 0 && all[c][static_cast<std::size_t>(high)] == 0) --high;
    const double scale = high > low ? 255.0 / (high - low) : 1, offset = high > low ? -low * scale : 0;
    tables[c] = level_table([&](int v) { return static_cast<int>(v * scale + offset); });
  }
  map_levels(image, tables);
}

// Maps each channel so that its levels are spread evenly.
inline void equalize(std::span<std::uint8_t> image) {
  std::array<LevelTable, 3> tables;
  const auto all = histograms(image);
  for (std::size_t c = 0; c < 3; ++c) {
    std::uint64_t sum = 0, last = 0;
    int used = 0;
    for (const std::uint32_t n : all[c]) {
      if (n == 0) continue;
      sum += n;
      last = n;
      ++used;
    }
    const std::uint64_t step = (sum - last) / 255;
    if (used <= 1 || step == 0) {
      tables[c] = level_table([](int v) { return v; });
      continue;
    }
    std::uint64_t n = step / 2;
    tables[c] = level_table([&](int v) {
      const std::uint64_t level = std::min<std::uint64_t>(255, n / step);
      n += all[c][static_cast<std::size_t>(v)];
      return static_cast<int>(level);
    });
  }
  map_levels(image, tables);
}

struct SharpenRow {
  const std::uint8_t *above, *here, *below;
  std::uint8_t* to;
  std::int64_t values;  // of the row, 3 a pixel
  std::int32_t factor;  // factor_bits fractional bits
};

// pixel -> smooth + factor * (pixel - smooth), rounded towards zero. The smooth image is PIL's filter SMOOTH: the mean
// of the 3x3 pixels around it, in which the pixel itself counts five times.
template <cpu::Isa I>
TUTTI_INLINE void sharpen_row_body(const SharpenRow* row) {
  const std::uint8_t* const a = row->above;
  const std::uint8_t* const h = row->here;
  const std::uint8_t* const b = row->below;
  std::uint8_t* const to = row->to;
  const std::int64_t last = row->values - 3;
  const std::int32_t factor = row->factor, rest = (1 << factor_bits) - factor;
  constexpr std::int32_t lost = 128;  // see blend_colour()
  TUTTI_INDEPENDENT
  for (std::int64_t i = 3; i < last; ++i) {
    const std::int32_t around = a[i - 3] + a[i] + a[i + 3] + h[i - 3] + h[i + 3] + b[i - 3] + b[i] + b[i + 3];
    const std::int32_t smooth = (2 * (around + 5 * h[i]) + 13) / 26;
    to[i] = static_cast<std::uint8_t>(std::clamp((smooth * rest + h[i] * factor + lost) >> factor_bits, 0, 255));
  }
}
TUTTI_DEFINE_DISPATCH(sharpen_row, sharpen_row_body);

// factor: 0 to 4; with 1 the image stays the same. Pixels at the border keep their values. `memory` is for a copy of
// the image.
inline void sharpen(std::span<std::uint8_t> image, int width, int height, double factor,
                    std::vector<std::uint8_t>& memory, cpu::Isa isa) {
  if (width < 3 || height < 3) return;
  memory.assign(image.begin(), image.end());
  const std::ptrdiff_t row = std::ptrdiff_t{3} * width;
  for (int y = 1; y + 1 < height; ++y) {
    const std::uint8_t* const here = memory.data() + y * row;
    const SharpenRow job{here - row, here,
                         here + row, image.data() + y * row,
                         row,        static_cast<std::int32_t>(std::lround(factor * (1 << factor_bits)))};
    sharpen_row<>(isa, &job);
  }
}

}  // namespace tutti::detail
