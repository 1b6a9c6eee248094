// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/augment/apply_op.hpp>
#include <tutti/data/augment/draw_policy.hpp>
#include <tutti/data/augment/erase.hpp>
#include <tutti/data/augment/pixel_options.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/images/image_colour.hpp>

// Random changes of the pixels of an image that already has the size of the net's input.
namespace tutti {

// The factor and the offset of one image, drawn from a NormalisedJitter.
struct JitterDraw {
  double brightness = 0, contrast = 1;
};

// Returns the brightness and contrast of one image. A pure function of its arguments. Takes no random numbers if both
// are off.
[[nodiscard]] inline JitterDraw draw_jitter(const NormalisedJitter& j, Rng& rng) {
  if (!j.any()) return {};
  JitterDraw d;
  d.brightness = detail::uniform_in(rng, -j.brightness, j.brightness);
  d.contrast = detail::uniform_in(rng, 1 - j.contrast, 1 + j.contrast);
  return d;
}

// PixelChanges that have been checked. Immutable, so threads may share it.
class PixelChanger {
 public:
  // mean, stddev: of each channel, on the 0..255 scale. Throws UsageError for a value out of its range, and for a
  // policy or colour jitter if there are not three channels.
  PixelChanger(const PixelChanges& changes, std::vector<float> mean, std::vector<float> stddev, int channels)
      : changes_(changes),
        mean_(std::move(mean)),
        stddev_(std::move(stddev)),
        channels_(channels),
        eraser_(changes.erasing, mean_, stddev_, channels),
        isa_(cpu::detect_isa()) {
    check(changes_.policy);
    changes_.colour.check();
    const auto require = [](bool ok, const char* expected, double got) {
      if (!ok) fail<UsageError>("brightness and contrast", expected, got);
    };
    const NormalisedJitter& j = changes_.normalised;
    require(j.brightness >= 0 && j.brightness <= 10, "a brightness of 0 to 10 standard deviations", j.brightness);
    require(j.contrast >= 0 && j.contrast <= 1, "a contrast of 0 to 1", j.contrast);
    if (channels != 3 && changes_.needs_colour())
      fail<UsageError>("augmentation", "images with 3 channels for a policy or colour jitter", channels);
    const auto n = static_cast<std::size_t>(channels);
    mean_.resize(n, 0);
    stddev_.resize(n, 1);
  }

  [[nodiscard]] const PixelChanges& changes() const noexcept { return changes_; }

  // Memory that a thread reuses for each image.
  struct Scratch {
    std::vector<std::uint8_t> copy;
  };

  // Changes an image, [height, width, channels] of u8, in place: policy, colour jitter, brightness and contrast,
  // erasing. Takes random numbers only for what is on.
  void operator()(Rng& rng, std::span<std::uint8_t> image, int width, int height, Scratch& scratch) const {
    const PolicyDraw policy = draw_policy(changes_.policy, width, height, rng);
    for (const ImageOpCall& call : policy.all())
      apply_op(call, image, width, height, changes_.policy.fill.data(), scratch.copy, isa_);
    jitter_colour(changes_.colour, rng, image, isa_);
    if (changes_.normalised.any()) shift(draw_jitter(changes_.normalised, rng), image);
    eraser_(rng, image, width, height);
  }

 private:
  // level -> mean + contrast * (level - mean + brightness * deviation), rounded and clipped.
  void shift(const JitterDraw& d, std::span<std::uint8_t> image) const {
    const auto channels = static_cast<std::size_t>(channels_);
    for (std::size_t c = 0; c < channels; ++c) {
      const double mean = mean_[c], add = d.brightness * stddev_[c];
      const detail::LevelTable table = detail::level_table(
          [&](int v) { return static_cast<int>(std::lround(mean + d.contrast * (v - mean + add))); });
      for (std::size_t i = c; i < image.size(); i += channels) image[i] = table[image[i]];
    }
  }

  PixelChanges changes_;
  std::vector<float> mean_, stddev_;
  int channels_;
  Eraser eraser_;
  cpu::Isa isa_;
};

// A data set whose samples are changed after they are read. For images that are stored decoded; EncodedImages does the
// same itself.
template <Dataset D>
class PixelChanged {
 public:
  // seen: the schema with the mean and deviation by which the net normalises these images.
  PixelChanged(D source, const PixelChanges& changes, const Schema& seen)
      : source_(std::move(source)),
        change_(changes, seen.mean, seen.stddev, static_cast<int>(source_.schema().channels)) {}

  [[nodiscard]] std::int64_t size() const { return source_.size(); }
  [[nodiscard]] const Schema& schema() const noexcept { return source_.schema(); }

  void read(std::int64_t i, Rng& rng, Sample sample) const {
    source_.read(i, rng, sample);
    thread_local PixelChanger::Scratch scratch;
    change_(rng, sample.image, static_cast<int>(schema().width), static_cast<int>(schema().height), scratch);
  }

 private:
  D source_;
  PixelChanger change_;
};

}  // namespace tutti
