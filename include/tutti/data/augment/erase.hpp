// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/augment/erase_options.hpp>
#include <tutti/data/augment/image_box.hpp>

// Random erasing: draws boxes, and replaces their pixels.
namespace tutti {

inline constexpr int most_erase_boxes = 16;

// The boxes of one image.
struct EraseDraw {
  std::array<ImageBox, most_erase_boxes> boxes{};
  int count = 0;
  [[nodiscard]] std::span<const ImageBox> all() const& { return {boxes.data(), static_cast<std::size_t>(count)}; }
  void all() const&& = delete;  // the span would outlive the object
  friend bool operator==(const EraseDraw&, const EraseDraw&) = default;
};

// Throws UsageError for a value out of its range.
inline void check(const RandomErasing& e) {
  const auto require = [](bool ok, const char* expected, double got) {
    if (!ok) fail<UsageError>("random erasing", expected, got);
  };
  require(e.probability >= 0 && e.probability <= 1, "a probability of 0 to 1", e.probability);
  require(e.most_boxes >= 1 && e.most_boxes <= most_erase_boxes, "1 to 16 boxes", e.most_boxes);
  require(e.least_area > 0 && e.least_area <= e.most_area, "areas over 0 in rising order", e.least_area);
  require(e.most_area <= 1, "areas of at most 1", e.most_area);
  require(e.side >= 0 && e.side <= 65536, "a side of 0 to 65536 pixels", e.side);
  require(e.least_aspect > 0 && e.least_aspect <= e.most_aspect, "aspect ratios over 0 in rising order",
          e.least_aspect);
  require(e.most_aspect <= 100, "aspect ratios of at most 100", e.most_aspect);
}

// Returns the boxes for an image of this size. A pure function of its arguments. A box that fits in none of ten
// attempts is left out, as in timm and torchvision. Takes no random numbers if the probability is 0.
[[nodiscard]] inline EraseDraw draw_erasing(const RandomErasing& e, int width, int height, Rng& rng) {
  EraseDraw draw;
  if (e.probability <= 0 || rng.uniform53() >= e.probability) return draw;
  if (e.side > 0) {
    ImageBox& b = draw.boxes[static_cast<std::size_t>(draw.count++)];
    b.height = std::min(e.side, height);
    b.width = std::min(e.side, width);
    b.top = static_cast<int>(rng.below(static_cast<std::uint32_t>(height - b.height + 1)));
    b.left = static_cast<int>(rng.below(static_cast<std::uint32_t>(width - b.width + 1)));
    return draw;
  }
  const int boxes = e.most_boxes > 1 ? 1 + static_cast<int>(rng.below(static_cast<std::uint32_t>(e.most_boxes))) : 1;
  const double area = static_cast<double>(width) * height / boxes;
  const double low = std::log(e.least_aspect), high = std::log(e.most_aspect);
  for (int k = 0; k < boxes; ++k)
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double target = (e.least_area + (e.most_area - e.least_area) * rng.uniform53()) * area;
      const double aspect = std::exp(low + (high - low) * rng.uniform53());
      const double h = std::nearbyint(std::sqrt(target * aspect)), w = std::nearbyint(std::sqrt(target / aspect));
      if (h >= height || w >= width) continue;
      ImageBox& b = draw.boxes[static_cast<std::size_t>(draw.count++)];
      b.height = static_cast<int>(h);
      b.width = static_cast<int>(w);
      b.top = static_cast<int>(rng.below(static_cast<std::uint32_t>(height - b.height + 1)));
      b.left = static_cast<int>(rng.below(static_cast<std::uint32_t>(width - b.width + 1)));
      break;
    }
  return draw;
}

namespace detail {

// Turns uniform 32-bit numbers into levels 0..255 that are normally distributed, rounded, and clipped.
class NormalLevels {
 public:
  NormalLevels(double mean, double deviation) {
    std::size_t level = 0;
    for (std::size_t v = 0; v < 255; ++v) {
      const double below = 0.5 * std::erfc((mean - (static_cast<double>(v) + 0.5)) / (deviation * std::numbers::sqrt2));
      ends_[v] = static_cast<std::uint64_t>(below * 0x1p32);
    }
    ends_[255] = std::uint64_t{1} << 32;
    for (std::uint64_t part = 0; part < 256; ++part) {
      while (ends_[level] <= part << 24) ++level;
      starts_[part] = static_cast<std::uint8_t>(level);
    }
  }
  [[nodiscard]] std::uint8_t operator()(std::uint32_t random) const noexcept {
    std::size_t level = starts_[random >> 24];
    while (ends_[level] <= random) ++level;
    return static_cast<std::uint8_t>(level);
  }

 private:
  std::array<std::uint64_t, 256> ends_{};   // level v is drawn below ends_[v]
  std::array<std::uint8_t, 256> starts_{};  // the first level of each 256th of the numbers
};

}  // namespace detail

// A RandomErasing that has been checked. Immutable, so threads may share it. timm and torchvision erase normalised
// floats; here the colours are rounded to the levels 0 to 255 and clipped to them, which changes only random colours
// that no image can have.
class Eraser {
 public:
  static constexpr int most_channels = 1024;  // as in Schema

  // mean, stddev: of each channel, on the 0..255 scale; both empty: 0 and 1. Throws UsageError for a value out of its
  // range.
  Eraser(const RandomErasing& options, std::span<const float> mean, std::span<const float> stddev, int channels)
      : options_(options) {
    check(options_);
    if (channels < 1 || channels > most_channels)
      fail<UsageError>("random erasing", {"1 to ", most_channels, " channels"}, channels);
    for (int c = 0; c < channels; ++c) {
      const auto at = static_cast<std::size_t>(c);
      const double m = at < mean.size() ? mean[at] : 0, s = at < stddev.size() ? stddev[at] : 1;
      mean_.push_back(static_cast<std::uint8_t>(std::lround(std::clamp(m, 0.0, 255.0))));
      if (options_.fill != EraseFill::mean && options_.probability > 0) levels_.emplace_back(m, s);
    }
  }

  // Replaces the boxes in an image, [height, width, channels] of u8. Takes random numbers only for random colours.
  void erase(const EraseDraw& draw, Rng& rng, std::span<std::uint8_t> image, int width) const {
    const std::size_t channels = mean_.size();
    std::array<std::uint8_t, most_channels> colour{};
    for (const ImageBox& b : draw.all()) {
      for (std::size_t c = 0; c < channels; ++c)
        colour[c] = options_.fill == EraseFill::colour ? levels_[c](rng.next()) : mean_[c];
      for (int y = b.top; y < b.top + b.height; ++y) {
        std::uint8_t* to = image.data() + (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                                           static_cast<std::size_t>(b.left)) *
                                              channels;
        for (int x = 0; x < b.width; ++x)
          for (std::size_t c = 0; c < channels; ++c)
            *to++ = options_.fill == EraseFill::pixels ? levels_[c](rng.next()) : colour[c];
      }
    }
  }

  // Draws boxes and replaces them.
  void operator()(Rng& rng, std::span<std::uint8_t> image, int width, int height) const {
    const EraseDraw draw = draw_erasing(options_, width, height, rng);
    if (draw.count > 0) erase(draw, rng, image, width);
  }

 private:
  RandomErasing options_;
  std::vector<std::uint8_t> mean_;
  std::vector<detail::NormalLevels> levels_;
};

}  // namespace tutti
