// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/dataset.hpp>

namespace tutti {

struct SyntheticOptions {  // the look of made-up images
  std::int64_t size = 50000;
  std::int64_t channels = 3, height = 32, width = 32;
  int classes = 10;
  std::uint64_t seed = 0;
  // false: pixels are noise, from which a net cannot learn. true: each class has a pattern of large patches under the
  // noise, so that a net learns the classes.
  bool learnable = false;
  // Sets with the same seed and separate ranges [first, first + size) have the same classes and share no image.
  std::int64_t first = 0;
};

// Makes images on demand. An image is a pure function of (seed, first + index). Labels repeat: 0, 1, 2, ...
class Synthetic {
 public:
  static constexpr bool fixed = true;  // satisfies the concept FixedDataset
  explicit Synthetic(const SyntheticOptions& options) : options_(options) {
    schema_.name = "synthetic";
    schema_.channels = options.channels;
    schema_.height = options.height;
    schema_.width = options.width;
    schema_.classes = options.classes;
    const auto c = static_cast<std::size_t>(std::clamp<std::int64_t>(options.channels, 0, 1024));
    schema_.mean.assign(c, 127.5F);
    schema_.stddev.assign(c, options.learnable ? 52.0F : 73.9F);
    schema_.check();
    if (options.size < 1 || options.first < 0 ||
        options.first > std::numeric_limits<std::int64_t>::max() - options.size)
      fail<UsageError>("synthetic", "a size of 1 or more and a first index of 0 or more",
                       {options.size, " and ", options.first});
    if (!options.learnable) return;
    if (options.classes > 1 << 20) fail<UsageError>("synthetic", "at most 2^20 learnable classes", options.classes);
    patches_.resize(static_cast<std::size_t>(options.classes) * grid * grid * c);
    for (std::size_t k = 0; k < patches_.size(); k += grid * grid * c) {
      Rng rng(options.seed, Purpose::synthetic, pattern_epoch, k);
      for (std::size_t i = 0; i < grid * grid * c; ++i)
        patches_[k + i] = static_cast<std::uint8_t>(64 + rng.below(128));
    }
  }

  [[nodiscard]] std::int64_t size() const noexcept { return options_.size; }
  [[nodiscard]] const Schema& schema() const noexcept { return schema_; }
  void read(std::int64_t index, Rng&, Sample sample) const {
    check_read(schema_, size(), index, sample);
    const std::int64_t global = options_.first + index;
    sample.label = static_cast<std::int32_t>(global % options_.classes);
    Rng rng(options_.seed, Purpose::synthetic, 0, static_cast<std::uint64_t>(global));
    noise(rng.next64(), sample.image);
    if (options_.learnable) add_pattern(sample);
  }

 private:
  static constexpr std::size_t grid = 4;  // patches per side
  static constexpr std::uint64_t pattern_epoch = 1;

  // Fills `out` with uniform bytes from a SplitMix64 (Steele, Lea, Flood 2014) that starts at `state`.
  static void noise(std::uint64_t state, std::span<std::uint8_t> out) noexcept {
    for (std::size_t i = 0; i < out.size();) {
      std::uint64_t z = state += 0x9E3779B97F4A7C15U;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
      z ^= z >> 31;
      for (const std::size_t end = std::min(i + 8, out.size()); i < end; ++i, z >>= 8)
        out[i] = static_cast<std::uint8_t>(z);
    }
  }

  // Adds the patch values, 64..191, to half of the noise around 0: -64..63.
  void add_pattern(Sample sample) const noexcept {
    const auto c = static_cast<std::size_t>(schema_.channels), h = static_cast<std::size_t>(schema_.height),
               w = static_cast<std::size_t>(schema_.width);
    const std::uint8_t* pattern = patches_.data() + static_cast<std::size_t>(sample.label) * grid * grid * c;
    std::uint8_t* p = sample.image.data();
    for (std::size_t y = 0; y < h; ++y)
      for (std::size_t x = 0; x < w; ++x) {
        const std::uint8_t* patch = pattern + (y * grid / h * grid + x * grid / w) * c;
        for (std::size_t k = 0; k < c; ++k, ++p) *p = static_cast<std::uint8_t>(patch[k] + *p / 2 - 64);
      }
  }

  SyntheticOptions options_;
  Schema schema_;
  std::vector<std::uint8_t> patches_;  // [classes, grid, grid, channels]
};

}  // namespace tutti
