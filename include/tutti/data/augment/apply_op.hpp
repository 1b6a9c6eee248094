// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <tutti/core/isa.hpp>
#include <tutti/data/augment/image_op.hpp>
#include <tutti/data/augment/tone.hpp>
#include <tutti/data/augment/warp.hpp>
#include <tutti/data/images/image_colour.hpp>

namespace tutti {

// Applies an operation to an image, [height, width, 3] of u8, in place. fill: three bytes, for pixels outside the
// image. `memory` is for a copy of the image. The result is PIL's within one level, and the same on every instruction
// set.
inline void apply_op(const ImageOpCall& call, std::span<std::uint8_t> image, int width, int height,
                     const std::uint8_t* fill, std::vector<std::uint8_t>& memory, cpu::Isa isa) {
  switch (call.op) {
    case ImageOp::identity:
      return;
    case ImageOp::auto_contrast:
      return detail::auto_contrast(image);
    case ImageOp::equalize:
      return detail::equalize(image);
    case ImageOp::invert:
      return detail::invert(image);
    case ImageOp::posterize:
      return detail::posterize(image, static_cast<int>(call.value));
    case ImageOp::solarize:
      return detail::solarize(image, call.value);
    case ImageOp::solarize_add:
      return detail::solarize_add(image, static_cast<int>(call.value));
    case ImageOp::colour:
      return detail::blend_colour(image, call.value, -1);
    case ImageOp::contrast:
      return detail::blend_colour(image, call.value, detail::mean_luma(image));
    case ImageOp::brightness:
      return detail::blend_colour(image, call.value, 0);
    case ImageOp::sharpness:
      return detail::sharpen(image, width, height, call.value, memory, isa);
    case ImageOp::rotate:
    case ImageOp::shear_x:
    case ImageOp::shear_y:
    case ImageOp::translate_x:
    case ImageOp::translate_y:
      return warp(affine_map_of(call.op, call.value, width, height), call.interpolation, fill, image.data(), width,
                  height, memory, isa);
  }
}

}  // namespace tutti
