// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

#include <tutti/data/augment/image_op.hpp>

// The options of augmentation policies. draw_policy.hpp draws operations from them, parse_policy.hpp reads their texts.
namespace tutti {

enum class PolicyRule : std::uint8_t { none, trivial_wide, rand_torchvision, rand_timm };  // How operations are drawn.

// A random choice of operations for each training image.
//   trivial_wide      one operation of 14, with a magnitude of `bins`: TrivialAugmentWide (Müller and Hutter 2021) as
//                     in torchvision
//   rand_torchvision  `operations` of 14, all with bin `magnitude` of `bins`: torchvision's RandAugment
//   rand_timm         `operations` of 15, each applied with `probability` and a magnitude of 0 to `most`: timm's
//                     RandAugment (Cubuk et al. 2019)
struct AugmentPolicy {
  PolicyRule rule = PolicyRule::none;
  int operations = 2;        // of one image, 1 to 16
  double magnitude = 9;      // torchvision: a bin, from 0; timm: 10 is the strongest, unless `most` is larger
  int bins = 31;             // torchvision
  double deviation = 0;      // timm: standard deviation of the magnitude; above 100: uniform from 0 to `magnitude`
  double most = 10;          // timm: largest magnitude
  double probability = 0.5;  // timm: of each operation
  bool increasing = false;   // timm: a larger magnitude always changes the image more
  Interpolation interpolation = Interpolation::bilinear;
  std::array<std::uint8_t, 3> fill{};  // colour of pixels outside the image

  [[nodiscard]] static AugmentPolicy trivial_wide() {
    AugmentPolicy p;
    p.rule = PolicyRule::trivial_wide;
    return p;
  }
  [[nodiscard]] static AugmentPolicy torchvision(int operations = 2, int magnitude = 9) {
    AugmentPolicy p;
    p.rule = PolicyRule::rand_torchvision;
    p.operations = operations;
    p.magnitude = magnitude;
    return p;
  }
  // As timm's text rand-m<magnitude>-mstd<deviation>-inc1.
  [[nodiscard]] static AugmentPolicy timm(double magnitude, double deviation = 0, bool increasing = true) {
    AugmentPolicy p;
    p.rule = PolicyRule::rand_timm;
    p.magnitude = magnitude;
    p.deviation = deviation;
    p.increasing = increasing;
    p.interpolation = Interpolation::random;
    p.fill = {124, 116, 104};  // ImageNet's mean, as timm's loader sets it
    return p;
  }
  friend bool operator==(const AugmentPolicy&, const AugmentPolicy&) = default;
};

}  // namespace tutti
