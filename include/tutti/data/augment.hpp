// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/image_window.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/data/augment_options.hpp>
#include <tutti/data/dataset.hpp>
#if TUTTI_CORE_DEFINITIONS
#include <tutti/data/images/image_preparation.hpp>
#endif

namespace tutti {

enum class PixelLayout { hwc, chw };  // Order of an image's numbers.

// An Augment that has been checked against the images it will get. Immutable, so threads may share it.
class Augmenter {
 public:
  // Throws UsageError if the window is larger than the padded image, if the image is not larger than a reflecting
  // padding, or if `fill` has the wrong length.
  Augmenter(const Augment& augment, const Schema& source);

  [[nodiscard]] const Schema& output() const noexcept { return output_; }

  // Returns the part of an image that the output shows. Draws a row and a column if the crop is random.
  [[nodiscard]] ImageWindow window(Rng& rng) const noexcept;
  [[nodiscard]] PadMode pad_mode() const noexcept { return pad_mode_; }
  // Returns the value of constant padding for each channel.
  [[nodiscard]] std::span<const std::uint8_t> fill() const noexcept { return span_of(fill_); }

  // src: one image in `layout`; dst: output().image_bytes() bytes, [height, width, channels]. Draws the same numbers as
  // window().
  void operator()(const std::uint8_t* src, PixelLayout layout, Rng& rng, std::uint8_t* dst) const noexcept;

 private:
  void pad(std::uint8_t* dst, std::int64_t pixels) const noexcept;

  // Fills columns [from, to) of the window in one row of the output. They are columns left + from to left + to of the
  // source; those outside of it are reflected at its border.
  void reflect_columns(const std::uint8_t* src, PixelLayout layout, std::int64_t sy, std::int64_t left,
                       std::int64_t from, std::int64_t to, bool mirror, std::uint8_t* row) const noexcept;

  void from_planes(const std::uint8_t* src, std::int64_t pixels, bool mirror, std::uint8_t* dst) const noexcept;

  // Channels is a std::int64_t or a constant, which lets the compiler unroll the copy of one pixel.
  template <class Channels>
  static void mirror_pixels(Channels channels, const std::uint8_t* src, std::int64_t pixels,
                            std::uint8_t* dst) noexcept {
    const std::int64_t c = channels;
    const std::uint8_t* from = src + (pixels - 1) * c;
    std::int64_t i = 0;
    if constexpr (std::is_same_v<Channels, std::integral_constant<std::int64_t, 3>>) {
      // Copies four bytes at a time; the next pixel overwrites the fourth one. The first read and the last write of a
      // row use three bytes, because the fourth byte may lie outside the memory.
      if (pixels > 1) {
        std::memcpy(dst, from, 3);
        for (i = 1, from -= 3, dst += 3; i < pixels - 1; ++i, from -= 3, dst += 3) std::memcpy(dst, from, 4);
      }
    }
    for (; i < pixels; ++i, from -= c, dst += c)
      for (std::int64_t k = 0; k < c; ++k) dst[k] = from[k];
  }

  Schema output_;
  std::int64_t h_, w_, pad_, room_y_ = 0, room_x_ = 0;
  PadMode pad_mode_;
  std::vector<std::uint8_t> fill_;
  bool one_fill_ = true, random_crop_;
  std::uint64_t crop_epochs_;
  bool mirror_;
};

// A data set that passes its images through an Augment. Images in memory are augmented directly into the sample; other
// images pass through a buffer for each thread.
template <Dataset D>
class Augmented {
 public:
  Augmented(D source, const Augment& augment) : source_(std::move(source)), augmenter_(augment, source_.schema()) {}

  [[nodiscard]] std::int64_t size() const { return source_.size(); }
  [[nodiscard]] const Schema& schema() const noexcept { return augmenter_.output(); }

  // The stored images of which the samples are windows (the concept WindowedDataset).
  [[nodiscard]] const Schema& stored() const requires FixedDataset<D> { return source_.schema(); }
  void read_stored(std::int64_t i, Sample sample) const requires FixedDataset<D> {
    Rng none(0, Purpose::user);
    source_.read(i, none, sample);
  }
  [[nodiscard]] ImageWindow window(Rng& rng) const noexcept { return augmenter_.window(rng); }
  [[nodiscard]] PadMode pad_mode() const noexcept { return augmenter_.pad_mode(); }
  [[nodiscard]] std::span<const std::uint8_t> fill() const noexcept { return augmenter_.fill(); }

  void read(std::int64_t i, Rng& rng, Sample sample) const {
    check_read(schema(), size(), i, sample);
    if constexpr (InMemoryDataset<D>) {
      augmenter_(source_.image(i).data(), PixelLayout::hwc, rng, sample.image.data());
      sample.label = source_.label(i);
    } else {
      thread_local std::vector<std::uint8_t> image;
      image.resize(static_cast<std::size_t>(source_.schema().image_bytes()));
      source_.read(i, rng, Sample{image, sample.label});
      augmenter_(image.data(), PixelLayout::hwc, rng, sample.image.data());
    }
  }

 private:
  D source_;
  Augmenter augmenter_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION Augmenter::Augmenter(const Augment& augment, const Schema& source)
    : output_(source),
      h_(source.height),
      w_(source.width),
      pad_(augment.pad),
      pad_mode_(augment.pad_mode),
      fill_(augment.fill),
      random_crop_(augment.random_crop),
      crop_epochs_(augment.crop_epochs < 0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(augment.crop_epochs)),
      mirror_(augment.mirror) {
  source.check();
  if (pad_ < 0 || pad_ > 65536) fail<UsageError>("Augment", "a padding of 0 to 65536 pixels", pad_);
  if (augment.height != 0) output_.height = augment.height;
  if (augment.width != 0) output_.width = augment.width;
  output_.check();
  if (pad_mode_ == PadMode::reflect && pad_ >= std::min(h_, w_))
    fail<UsageError>("Augment",
                     {"a padding of less than the ", std::min(h_, w_), " pixels of ", source.name, ", to reflect them"},
                     pad_, "use a smaller padding, or a constant one");
  room_y_ = h_ + 2 * pad_ - output_.height;
  room_x_ = w_ + 2 * pad_ - output_.width;
  if (room_y_ < 0 || room_x_ < 0)
    fail<UsageError>("Augment",
                     {"an output of at most ", h_ + 2 * pad_, "x", w_ + 2 * pad_, ", the padded size of ", source.name},
                     {output_.height, "x", output_.width}, "use a larger padding");
  if (fill_.empty()) fill_ = {0};
  if (fill_.size() == 1) fill_.resize(static_cast<std::size_t>(source.channels), fill_[0]);
  if (fill_.size() != static_cast<std::size_t>(source.channels))
    fail<UsageError>("Augment", {"no fill value, one, or one per channel (", source.channels, ")"}, fill_.size());
  for (const auto f : fill_) one_fill_ = one_fill_ && f == fill_[0];
  output_.preparation = preparation_of(source, output_, augment);
}
TUTTI_CORE_FUNCTION ImageWindow Augmenter::window(Rng& rng) const noexcept {
  std::int64_t top = room_y_ / 2 - pad_, left = room_x_ / 2 - pad_;
  if (random_crop_ && rng.epoch() < crop_epochs_) {
    top = rng.below(static_cast<std::uint32_t>(room_y_ + 1)) - pad_;
    left = rng.below(static_cast<std::uint32_t>(room_x_ + 1)) - pad_;
  }
  ImageWindow w;
  w.top = static_cast<std::int32_t>(top);
  w.left = static_cast<std::int32_t>(left);
  w.mirror = mirror_ && rng.alternating_coin() ? 1 : 0;
  return w;
}
TUTTI_CORE_FUNCTION void Augmenter::operator()(const std::uint8_t* src, PixelLayout layout, Rng& rng,
                                               std::uint8_t* dst) const noexcept {
  const ImageWindow window = this->window(rng);
  const std::int64_t top = window.top, left = window.left;
  const bool mirror = window.mirror != 0;
  const bool reflect = pad_mode_ == PadMode::reflect;
  const std::int64_t c = output_.channels, width = output_.width, row_bytes = width * c;
  // Columns [begin, end) of the window come from the source, the others are padding.
  const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, width);
  const std::int64_t end = std::clamp<std::int64_t>(w_ - left, begin, width);
  const std::int64_t before = mirror ? width - end : begin, inside = end - begin;
  for (std::int64_t y = 0; y < output_.height; ++y, dst += row_bytes) {
    const std::int64_t sy = reflect ? reflected(top + y, h_) : top + y, sx = left + begin;
    if (reflect) {
      reflect_columns(src, layout, sy, left, 0, begin, mirror, dst);
      reflect_columns(src, layout, sy, left, end, width, mirror, dst);
      if (inside == 0) continue;
    } else if (sy < 0 || sy >= h_ || inside == 0) {
      pad(dst, width);
      continue;
    } else {
      pad(dst, before);
      pad(dst + (before + inside) * c, width - before - inside);
    }
    std::uint8_t* to = dst + before * c;
    if (layout == PixelLayout::chw) {
      from_planes(src + sy * w_ + sx, inside, mirror, to);
    } else if (const std::uint8_t* from = src + (sy * w_ + sx) * c; mirror) {
      if (c == 3)
        mirror_pixels(std::integral_constant<std::int64_t, 3>{}, from, inside, to);
      else if (c == 1)
        mirror_pixels(std::integral_constant<std::int64_t, 1>{}, from, inside, to);
      else
        mirror_pixels(c, from, inside, to);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(inside * c));
    }
  }
}
TUTTI_CORE_FUNCTION void Augmenter::pad(std::uint8_t* dst, std::int64_t pixels) const noexcept {
  const std::size_t c = fill_.size();
  if (one_fill_) {
    std::memset(dst, fill_[0], static_cast<std::size_t>(pixels) * c);
  } else {
    for (std::int64_t i = 0; i < pixels; ++i, dst += c) std::memcpy(dst, fill_.data(), c);
  }
}
TUTTI_CORE_FUNCTION void Augmenter::reflect_columns(const std::uint8_t* src, PixelLayout layout, std::int64_t sy,
                                                    std::int64_t left, std::int64_t from, std::int64_t to, bool mirror,
                                                    std::uint8_t* row) const noexcept {
  const std::int64_t c = output_.channels, pixel = layout == PixelLayout::hwc ? c : 1,
                     channel = layout == PixelLayout::hwc ? 1 : h_ * w_;
  for (std::int64_t x = from; x < to; ++x) {
    const std::uint8_t* at = src + (sy * w_ + reflected(left + x, w_)) * pixel;
    std::uint8_t* dst = row + (mirror ? output_.width - 1 - x : x) * c;
    for (std::int64_t k = 0; k < c; ++k) dst[k] = at[k * channel];
  }
}
TUTTI_CORE_FUNCTION void Augmenter::from_planes(const std::uint8_t* src, std::int64_t pixels, bool mirror,
                                                std::uint8_t* dst) const noexcept {
  const std::int64_t c = output_.channels;
  for (std::int64_t k = 0; k < c; ++k, src += h_ * w_) {
    if (mirror) {
      for (std::int64_t i = 0; i < pixels; ++i) dst[i * c + k] = src[pixels - 1 - i];
    } else {
      for (std::int64_t i = 0; i < pixels; ++i) dst[i * c + k] = src[i];
    }
  }
}
#endif

}  // namespace tutti
