// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>

#include <tutti/data/images/image_preparation.hpp>
#include <tutti/io/json/json.hpp>

// The preparation of images, as JSON; image_preparation.hpp reads it.
namespace tutti::interchange {

using tutti::ImagePreparation;  // data/images/image_preparation.hpp

[[nodiscard]] inline io::Json json_of(const ImagePreparation& p) {
  io::Json::Array fill;
  for (const std::uint8_t f : p.window.fill) fill.emplace_back(f);
  io::Json json = io::Json::object({{"height", p.height},
                                    {"width", p.width},
                                    {"scaled", io::Json::array({p.scale.height, p.scale.width})},
                                    {"crop", p.scale.crop == CropRule::central ? "central" : "centre"},
                                    {"short_side", p.scale.short_side},
                                    {"share", p.scale.share},
                                    {"antialias", p.scale.antialias},
                                    {"fast", p.scale.quality == DecodeQuality::fast},
                                    {"stored", p.stored},
                                    {"pad", p.window.pad},
                                    {"pad_mode", p.window.pad_mode == PadMode::reflect ? "reflect" : "constant"},
                                    {"fill", std::move(fill)}});
  if (p.scale.interpolation == Interpolation::bicubic) json.set("interpolation", "bicubic");  // else bilinear
  return json;
}

}  // namespace tutti::interchange
