// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/data/images/image_augment_options.hpp>
#include <tutti/data/images/image_preparation.hpp>

namespace tutti {

// How image files of any size become the input of a net, for ImageFolder and Images.
struct ImageInput {
  std::int64_t size = 64;    // height and width of the net's input, in pixels
  double least_area = 0.35;  // training images show a random part of the image: at least this share of its area
  bool mirror = true;        // mirrors half of the training images, left to right
  Interpolation interpolation = Interpolation::bilinear;  // of all images; random: bicubic for test images
  // Random changes of the pixels of training images, after scaling.
  AugmentPolicy policy{};
  ColourJitter colour{};
  RandomErasing erasing{};
  std::int64_t eval_short_side = 0;  // of test images before their centre is cut out; 0: 9/8 of the size
  std::vector<float> mean{};         // per channel on the 0..255 scale; empty: ImageNet's
  std::vector<float> stddev{};

  // Returns how to change an image of this split: a random part of it to train on, its centre to evaluate.
  [[nodiscard]] ImageAugment augment(Split split) const {
    if (size < 1 || size > 4096) fail<UsageError>("image size", "1 to 4096 pixels", std::to_string(size));
    ImageAugment a = ImageAugment::torchvision(split);
    a.height = a.width = size;
    if (eval_short_side != 0 && (eval_short_side < size || eval_short_side > 65536))
      fail<UsageError>("short side of test images", {"0, or from the size ", size, " to 65536 pixels"},
                       eval_short_side);
    a.short_side = static_cast<int>(eval_short_side != 0 ? eval_short_side : size * 9 / 8);
    a.interpolation = interpolation;
    if (!mean.empty()) a.mean = mean;
    if (!stddev.empty()) a.stddev = stddev;
    if (split == Split::test) {
      if (interpolation == Interpolation::random) a.interpolation = Interpolation::bicubic;
      return a;
    }
    a.least_area = least_area;
    a.mirror = mirror;
    a.policy = policy;
    a.colour = colour;
    a.erasing = erasing;
    return a;
  }
};

// Returns the schema of encoded images as a net sees them. class_names: used if there is one name for each class.
[[nodiscard]] inline Schema encoded_schema(std::string name, int classes, std::int64_t block,
                                           std::vector<std::string> class_names, const ImageAugment& a) {
  Schema s;
  s.name = std::move(name);
  s.channels = 3;
  s.height = a.height;
  s.width = a.width;
  s.classes = classes;
  s.block = block;
  s.mean = a.mean.empty() ? std::vector<float>(3, 0.0F) : a.mean;
  s.stddev = a.stddev.empty() ? std::vector<float>(3, 1.0F) : a.stddev;
  if (class_names.size() == static_cast<std::size_t>(classes)) s.class_names = std::move(class_names);
  s.preparation = std::make_shared<const ImagePreparation>(preparation_of(a));
  s.check();
  return s;
}

}  // namespace tutti
