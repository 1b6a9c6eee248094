// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/span.hpp>
#include <tutti/data/augment/pixel_changes.hpp>
#include <tutti/data/images/bicubic.hpp>
#include <tutti/data/images/image_augment_options.hpp>
#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/images/resize.hpp>

namespace tutti {

// The part of one image to use: `box` is scaled to the output, and only pixels inside `bounds` are read.
struct ImageCrop {
  ResizeBox box, bounds;
  bool mirror = false;
  bool bicubic = false;  // else bilinear
};

// An ImageAugment that has been checked. Immutable, so threads may share it.
class ImageAugmenter {
 public:
  // Memory that a thread reuses for each image.
  struct Scratch {
    DecodedImage image;
    Resizer resizer;
    BicubicResizer bicubic;
    PixelChanger::Scratch change;
  };

  // Throws UsageError for a value out of its range.
  explicit ImageAugmenter(ImageAugment augment)
      : a_(std::move(augment)), change_({a_.policy, a_.colour, a_.normalised, a_.erasing}, a_.mean, a_.stddev, 3) {
    const auto require = [](bool ok, const char* expected, const std::string& got) {
      if (!ok) fail<UsageError>("image augmentation", expected, got);
    };
    for (const auto d : {a_.height, a_.width})
      require(d > 0 && d <= 65536, "an output of 1 to 65536 pixels", std::to_string(d));
    require(a_.least_area > 0 && a_.least_area <= a_.most_area && a_.most_area <= 1,
            "areas over 0 to 1, in rising order",
            std::to_string(a_.least_area) + " to " + std::to_string(a_.most_area));
    require(a_.least_aspect > 0 && a_.least_aspect <= a_.most_aspect && a_.most_aspect <= 100,
            "aspect ratios over 0 to 100, in rising order",
            std::to_string(a_.least_aspect) + " to " + std::to_string(a_.most_aspect));
    require(a_.tries >= 1 && a_.tries <= 10000, "1 to 10000 tries", std::to_string(a_.tries));
    require(a_.least_covered >= 0 && a_.least_covered <= 1, "a covered share of 0 to 1",
            std::to_string(a_.least_covered));
    require(a_.canvas > 0 && a_.canvas <= 65536, "a canvas of 1 to 65536 pixels", std::to_string(a_.canvas));
    require(a_.share > 0 && a_.share <= 1, "a central share over 0 to 1", std::to_string(a_.share));
    if (a_.crop == CropRule::centre)
      require(a_.short_side >= std::max(a_.height, a_.width) && a_.short_side <= 65536,
              "a short side from the output's size to 65536", std::to_string(a_.short_side));
    require(a_.interpolation != Interpolation::nearest, "bilinear, bicubic or random interpolation", "nearest");
  }

  [[nodiscard]] const ImageAugment& augment() const noexcept { return a_; }

  // Draws the crop of an image. Takes no random numbers if the options have no random part.
  [[nodiscard]] ImageCrop draw(int width, int height, Rng& rng) const {
    const double w = width, h = height;
    ImageCrop c;
    switch (a_.crop) {
      case CropRule::random:
        c.box = random_box(width, height, rng);
        c.bounds = c.box;
        break;
      case CropRule::random_nominal:
        c.box = nominal_box(w, h, rng);
        c.bounds = c.box;
        break;
      case CropRule::central: {
        const auto offset = [this](double side) { return std::floor((side - side * a_.share) / 2 + 1e-9); };
        c.box = {offset(w), offset(h), w - 2 * offset(w), h - 2 * offset(h)};
        c.bounds = c.box;
        break;
      }
      case CropRule::centre: {
        // The long side is rounded down, the margins to the nearest even number, as torchvision does.
        const double s = a_.short_side, least = std::min(w, h);
        const double scaled_w = w <= h ? s : std::floor(s * w / least),
                     scaled_h = w <= h ? std::floor(s * h / least) : s;
        const auto out_w = static_cast<double>(a_.width), out_h = static_cast<double>(a_.height);
        c.box = {std::nearbyint((scaled_w - out_w) / 2) * w / scaled_w,
                 std::nearbyint((scaled_h - out_h) / 2) * h / scaled_h, out_w * w / scaled_w, out_h * h / scaled_h};
        c.bounds = {0, 0, w, h};
        break;
      }
    }
    c.mirror = a_.mirror && rng.alternating_coin();
    c.bicubic = detail::drawn(a_.interpolation, rng) == Interpolation::bicubic;
    return c;
  }

  // Returns the pixels that scaling the crop reads.
  [[nodiscard]] DecodeRequest request_of(const ImageCrop& c, const ImageHeader& header) const {
    const auto axis = [&](double from, double length, double low, double size, std::int64_t outputs, int most) {
      const double scale = length / static_cast<double>(outputs);
      const double reach = (a_.antialias ? std::max(scale, 1.0) : 1.0) * (c.bicubic ? 2 : 1) + 1;
      const double begin = std::max(low, from - reach), end = std::min(low + size, from + length + reach);
      const int first = std::clamp(static_cast<int>(std::floor(begin + 1e-6)), 0, most - 1);
      const int last = std::clamp(static_cast<int>(std::ceil(end - 1e-6)), first + 1, most);
      return std::pair{first, last - first};
    };
    const auto [x, width] = axis(c.box.x, c.box.width, c.bounds.x, c.bounds.width, a_.width, header.width);
    const auto [y, height] = axis(c.box.y, c.box.height, c.bounds.y, c.bounds.height, a_.height, header.height);
    return {{x, y, width, height}, static_cast<int>(a_.width), static_cast<int>(a_.height), a_.quality};
  }

  // Encoded image -> [height, width, 3] of u8 at `out`. Throws DataError with `where` for a damaged image.
  void operator()(const ImageDecoders& decoders, std::span<const std::uint8_t> bytes, std::string_view where, Rng& rng,
                  Scratch& scratch, std::span<std::uint8_t> out) const {
    const ImageHeader header = decoders.header(bytes, where);
    const ImageCrop crop = draw(header.width, header.height, rng);
    const DecodeRequest request = request_of(crop, header);
    {
      const Span span(Lane::data, "decode", {}, -1, detail_watcher);
      decoders.decode(bytes, header, request, where, scratch.image);
    }
    const Span span(Lane::data, "augment", {}, -1, detail_watcher);
    const DecodedImage& image = scratch.image;
    const int width = static_cast<int>(a_.width), height = static_cast<int>(a_.height);
    const auto scale = [&](auto& resizer) {
      resizer({image.pixels.data(), image.width, image.height}, on(image, crop.box), on(image, crop.bounds), width,
              height, a_.antialias, crop.mirror, out.data());
    };
    crop.bicubic ? scale(scratch.bicubic) : scale(scratch.resizer);
    change_(rng, out, width, height, scratch.change);
  }

 private:
  // Returns a box of the source in the coordinates of the decoded pixels, clipped to them.
  static ResizeBox on(const DecodedImage& image, const ResizeBox& box) {
    const auto axis = [&](double from, double length, int origin, int size) {
      const double begin = std::clamp((from - origin) / image.reduction, 0.0, size - 1e-3);
      const double end =
          std::clamp((from + length - origin) / image.reduction, begin + 1e-3, static_cast<double>(size));
      return std::pair{begin, end - begin};
    };
    const auto [x, width] = axis(box.x, box.width, image.x, image.width);
    const auto [y, height] = axis(box.y, box.height, image.y, image.height);
    return {x, y, width, height};
  }

  [[nodiscard]] ResizeBox random_box(int width, int height, Rng& rng) const {
    const double w = width, h = height;
    for (int t = 0; t < a_.tries; ++t) {
      const double area = detail::uniform_in(rng, a_.least_area, a_.most_area) * w * h;
      const double aspect = std::exp(detail::uniform_in(rng, std::log(a_.least_aspect), std::log(a_.most_aspect)));
      const double cw = std::nearbyint(std::sqrt(area * aspect)), ch = std::nearbyint(std::sqrt(area / aspect));
      if (cw < 1 || ch < 1 || cw > w || ch > h) continue;
      const double y = rng.below(static_cast<std::uint32_t>(h - ch) + 1);
      const double x = rng.below(static_cast<std::uint32_t>(w - cw) + 1);
      return {x, y, cw, ch};
    }
    // Returns the largest centred box with an allowed aspect ratio.
    double cw = w, ch = h;
    if (w / h < a_.least_aspect) ch = std::clamp(std::nearbyint(w / a_.least_aspect), 1.0, h);
    if (w / h > a_.most_aspect) cw = std::clamp(std::nearbyint(h * a_.most_aspect), 1.0, w);
    return {std::floor((w - cw) / 2), std::floor((h - ch) / 2), cw, ch};
  }

  // Draws an aspect ratio and then a height, both uniform, so small areas are drawn more often than by random_box.
  [[nodiscard]] ResizeBox nominal_box(double width, double height, Rng& rng) const {
    const double side = a_.canvas, least = std::max(a_.least_area, a_.least_covered) * side * side;
    for (int t = 0; t < a_.tries; ++t) {
      const double aspect = detail::uniform_in(rng, a_.least_aspect, a_.most_aspect);
      const double most_height = std::min({std::nearbyint(std::sqrt(a_.most_area * side * side / aspect)),
                                           std::floor((side + 0.5 - 1e-7) / aspect), side});
      const double least_height =
          std::min(std::nearbyint(std::sqrt(a_.least_area * side * side / aspect)), most_height);
      const double ch = least_height + rng.below(static_cast<std::uint32_t>(most_height - least_height) + 1);
      const double cw = std::min(std::nearbyint(ch * aspect), side);
      if (cw < 1 || ch < 1 || cw * ch < least || cw * ch > a_.most_area * side * side) continue;
      const double y = rng.below(static_cast<std::uint32_t>(side - ch) + 1);
      const double x = rng.below(static_cast<std::uint32_t>(side - cw) + 1);
      return {x / side * width, y / side * height, cw / side * width, ch / side * height};
    }
    return {0, 0, width, height};
  }

  ImageAugment a_;
  PixelChanger change_;
};

}  // namespace tutti
