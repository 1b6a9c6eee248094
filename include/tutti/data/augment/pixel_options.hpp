// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/data/augment/erase_options.hpp>
#include <tutti/data/augment/policy_options.hpp>
#include <tutti/data/images/colour_options.hpp>

namespace tutti {

// Brightness and contrast of the normalised image, one number of each for all channels: x becomes (x + b) * (1 + c).
// The recipe of Hiverge 2025 for CIFAR-10 has 0.14 and 0.13.
struct NormalisedJitter {
  double brightness = 0;  // b is uniform in +- this, in standard deviations
  double contrast = 0;    // c is uniform in +- this
  [[nodiscard]] bool any() const noexcept { return brightness > 0 || contrast > 0; }
};

// Random changes of the pixels of a training image, in this order (pixel_changes.hpp applies them).
struct PixelChanges {
  AugmentPolicy policy{};
  ColourJitter colour{};
  NormalisedJitter normalised{};
  RandomErasing erasing{};

  [[nodiscard]] bool needs_colour() const noexcept {
    return policy.rule != PolicyRule::none || colour.form != ColourForm::none || colour.lighting > 0;
  }
  [[nodiscard]] bool any() const noexcept { return needs_colour() || normalised.any() || erasing.probability > 0; }
};

}  // namespace tutti
