// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// The options of random erasing. erase.hpp implements it.
namespace tutti {

// What replaces the pixels of an erased box: the data set's mean colour, one random colour, or a random colour for each
// pixel. Random colours are normal numbers with the data set's mean and deviation. timm calls these const, rand, pixel.
enum class EraseFill : std::uint8_t { mean, colour, pixels };

// Random erasing (Zhong et al. 2017, arXiv 1708.04896): replaces boxes of a training image.
struct RandomErasing {
  double probability = 0;  // of each image; 0: off
  EraseFill fill = EraseFill::mean;
  int most_boxes = 1;  // of an image; the number is drawn from 1 to this, and the areas are divided by it
  double least_area = 0.02, most_area = 1.0 / 3;     // of all boxes together, shares of the image
  double least_aspect = 0.3, most_aspect = 1 / 0.3;  // height over width
  int side = 0;  // of a square inside the image, in place of areas and aspect ratios; 0: not a square

  // timm's --reprob, --remode and --recount.
  [[nodiscard]] static RandomErasing timm(double probability, EraseFill fill = EraseFill::mean, int most_boxes = 1) {
    RandomErasing e;
    e.probability = probability;
    e.fill = fill;
    e.most_boxes = most_boxes;
    return e;
  }
  // torchvision's RandomErasing(p); value="random" is EraseFill::pixels.
  [[nodiscard]] static RandomErasing torchvision(double probability, EraseFill fill = EraseFill::mean) {
    RandomErasing e = timm(probability, fill);
    e.most_area = 0.33;
    e.most_aspect = 3.3;
    return e;
  }
  // The cutout of airbench96: one square of the mean colour in each image, inside the image.
  [[nodiscard]] static RandomErasing cutout(int side) {
    RandomErasing e;
    e.probability = side > 0 ? 1 : 0;
    e.side = side;
    return e;
  }
  friend bool operator==(const RandomErasing&, const RandomErasing&) = default;
};

}  // namespace tutti
