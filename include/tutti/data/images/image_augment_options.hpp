// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>

// Options for encoded images: how they are decoded, cropped, scaled and changed in colour (image_augment.hpp implements
// them).
namespace tutti {

enum class ColourForm : std::uint8_t { none, yiq, blend };  // How colours are changed.

// The range of each random colour change; each is uniform in its range.
//   yiq    brightness, then saturation and hue in YIQ, then contrast about each channel's mean, clipped once at
//          the end. Distributed ImageNet trainers of 2018 call this increased augmentation.
//   blend  torchvision's ColorJitter on PIL images: brightness, contrast, saturation and hue in random order, each
//          rounded and clipped.
struct ColourJitter {
  ColourForm form = ColourForm::none;
  double brightness = 0;                   // yiq: +- levels of 0..255; blend: factor 1 +- this
  std::array<double, 2> contrast{1, 1};    // factor
  std::array<double, 2> saturation{1, 1};  // factor
  double hue = 0;                          // yiq: +- this times pi; blend: +- this times 2 pi
  double lighting = 0;                     // standard deviation of PCA lighting (AlexNet: 0.1)

  // The published defaults. Contrast and saturation range from the value to 2 minus the value.
  [[nodiscard]] static ColourJitter yiq(double brightness = 0.3, double contrast = 0.6, double saturation = 0.6,
                                        double hue = 0.13) {
    return {ColourForm::yiq, brightness, {contrast, 2 - contrast}, {saturation, 2 - saturation}, hue, 0};
  }
  [[nodiscard]] static ColourJitter torchvision(double brightness, double contrast, double saturation, double hue) {
    return {ColourForm::blend,
            brightness,
            {std::max(0.0, 1 - contrast), 1 + contrast},
            {std::max(0.0, 1 - saturation), 1 + saturation},
            hue,
            0};
  }

  // Throws UsageError for a value out of its range.
  void check() const {
    const auto require = [](bool ok, const char* expected, double got) {
      if (!ok) fail<UsageError>("colour jitter", expected, got);
    };
    require(brightness >= 0 && brightness <= 255, "a brightness of 0 to 255", brightness);
    for (const auto& r : {contrast, saturation})
      require(r[0] >= 0 && r[0] <= r[1] && r[1] <= 4, "factors from 0 to 4 in rising order", r[0]);
    require(hue >= 0 && hue <= (form == ColourForm::blend ? 0.5 : 1.0), "a hue of 0 to 1, in torchvision's form to 0.5",
            hue);
    require(lighting >= 0 && lighting <= 10, "a lighting of 0 to 10", lighting);
  }
};

// fast: an integer DCT of lower precision, chroma repeated instead of interpolated, and fewer DCT coefficients if the
// region is far larger than the requested size. For training. accurate: the slower integer DCT, chroma interpolated,
// full size.
enum class DecodeQuality : std::uint8_t { fast, accurate };

// The part of an image that is scaled to the output.
//   random          a random area and aspect ratio anywhere in the image (Szegedy et al. 2014), drawn as in torchvision
//   random_nominal  the same in a square canvas that is stretched over the image, so that the aspect ratio depends on
//                   the image's; drawn as in TensorFlow (sample_distorted_bounding_box)
//   centre          the short side scaled to `short_side`, then the output's size from the middle
//   central         the middle share of each side, for any aspect ratio
enum class CropRule : std::uint8_t { random, random_nominal, centre, central };

// How an encoded image of any size becomes an image of the output's size.
struct ImageAugment {
  std::int64_t height = 224, width = 224;  // of the output
  CropRule crop = CropRule::centre;
  double least_area = 0.08, most_area = 1;               // random: share of the image's area
  double least_aspect = 3.0 / 4, most_aspect = 4.0 / 3;  // random: width over height
  int tries = 10;            // random: number of attempts; if all fail, the centre or the whole canvas is used
  double least_covered = 0;  // random_nominal: least share of the canvas
  int canvas = 280;          // random_nominal: side of the canvas
  int short_side = 256;      // centre
  double share = 0.8;        // central
  bool mirror = false;       // mirrors half of the images, and the other half in the next epoch
  bool antialias = true;
  DecodeQuality quality = DecodeQuality::accurate;
  ColourJitter colour{};
  std::vector<float> mean{}, stddev{};  // of the schema, on the 0..255 scale

  // torchvision's reference recipe for ImageNet.
  [[nodiscard]] static ImageAugment torchvision(Split split) {
    ImageAugment a;
    a.mean = {0.485F * 255, 0.456F * 255, 0.406F * 255};
    a.stddev = {0.229F * 255, 0.224F * 255, 0.225F * 255};
    if (split == Split::train) {
      a.crop = CropRule::random;
      a.mirror = true;
      a.quality = DecodeQuality::fast;
    }
    return a;
  }
  // The recipe of the ResNet-50 trainers for TensorFlow and Horovod; `increased` adds colour jitter.
  [[nodiscard]] static ImageAugment horovod(Split split, bool increased = false) {
    ImageAugment a;
    a.mean = {121, 115, 100};
    a.stddev = {70, 68, 71};
    a.antialias = false;
    a.crop = CropRule::central;
    if (split == Split::train) {
      a.crop = CropRule::random_nominal;
      a.tries = 100;
      a.least_covered = 0.1;
      a.mirror = true;
      a.quality = DecodeQuality::fast;
      if (increased) a.colour = ColourJitter::yiq();
    }
    return a;
  }
};

}  // namespace tutti
