// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <tutti/core/error.hpp>

// The options of colour jitter. image_colour.hpp implements it.
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

}  // namespace tutti
