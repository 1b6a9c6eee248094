// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

// The operations of augmentation policies, named as in AutoAugment (Cubuk et al. 2019, arXiv 1805.09501).
namespace tutti {

// How a pixel between the pixels of an image is computed. random: bilinear or bicubic, drawn for each use.
enum class Interpolation : std::uint8_t { nearest, bilinear, bicubic, random };

[[nodiscard]] constexpr const char* name_of(Interpolation i) noexcept {  // word
  return i == Interpolation::nearest    ? "nearest"
         : i == Interpolation::bilinear ? "bilinear"
         : i == Interpolation::bicubic  ? "bicubic"
                                        : "random";
}

// An operation on an image of the net's input size. The comments say what its value is; the first four operations have
// no value.
enum class ImageOp : std::uint8_t {
  identity,
  auto_contrast,  // each channel is stretched to 0..255
  equalize,       // the histogram of each channel becomes flat
  invert,
  posterize,     // number of high bits that are kept, 0 to 8
  solarize,      // levels from this one on are inverted
  solarize_add,  // this is added to levels below 128
  colour,        // factor of the distance to grey
  contrast,      // factor of the distance to the mean grey level
  brightness,    // factor
  sharpness,     // factor of the distance to the smoothed image
  rotate,        // degrees, counter-clockwise
  shear_x,       // column x of row y shows column x + value * y
  shear_y,       // row y of column x shows row y + value * x
  translate_x,   // column x shows column x + value, in pixels
  translate_y    // row y shows row y + value, in pixels
};
inline constexpr int image_ops = 16;

[[nodiscard]] constexpr std::string_view name_of(ImageOp op) noexcept {  // word
  constexpr std::string_view names[image_ops] = {
      "identity", "auto_contrast", "equalize",  "invert", "posterize", "solarize", "solarize_add", "colour",
      "contrast", "brightness",    "sharpness", "rotate", "shear_x",   "shear_y",  "translate_x",  "translate_y"};
  return names[static_cast<int>(op)];
}

// Whether the operation moves pixels, so that it needs an interpolation and a fill colour.
[[nodiscard]] constexpr bool is_geometric(ImageOp op) noexcept { return op >= ImageOp::rotate; }

// An operation with the parameters that were drawn for one image.
struct ImageOpCall {
  ImageOp op = ImageOp::identity;
  double value = 0;
  Interpolation interpolation = Interpolation::bilinear;  // of geometric operations; not random
  friend bool operator==(const ImageOpCall&, const ImageOpCall&) = default;
};

}  // namespace tutti
