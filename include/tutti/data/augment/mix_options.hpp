// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// The options of mixup and cutmix, which mix.hpp implements.
namespace tutti {

// Which image of a batch each image is mixed with: the one at the same distance from the other end, as in timm, or the
// one before it, as in torchvision.
enum class MixPairs : std::uint8_t { reversed, previous };

// Mixup (Zhang et al. 2017, arXiv 1710.09412) and cutmix (Yun et al. 2019, arXiv 1905.04899) of a whole batch: one of
// them is drawn for a batch, with one share for all its images.
struct BatchMix {
  double mixup_alpha = 0;     // parameter of the Beta distribution of the share; 0: no mixup
  double cutmix_alpha = 0;    // the same for cutmix
  double probability = 1;     // of mixing a batch
  double cutmix_share = 0.5;  // probability of cutmix if both are on
  MixPairs pairs = MixPairs::reversed;

  [[nodiscard]] bool any() const noexcept { return probability > 0 && (mixup_alpha > 0 || cutmix_alpha > 0); }
  friend bool operator==(const BatchMix&, const BatchMix&) = default;
};

}  // namespace tutti
