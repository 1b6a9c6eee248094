// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include <tutti/data/augment/pixel_options.hpp>
#include <tutti/data/dataset.hpp>

// Options for encoded images: how they are decoded, cropped, scaled and changed in colour (image_augment.hpp implements
// them).
namespace tutti {

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
  Interpolation interpolation = Interpolation::bilinear;  // of scaling: bilinear, bicubic or random
  DecodeQuality quality = DecodeQuality::accurate;
  // These are applied to training images after scaling, in this order.
  AugmentPolicy policy{};
  ColourJitter colour{};
  NormalisedJitter normalised{};
  RandomErasing erasing{};
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
