// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/math.hpp>

namespace tutti {

// A dynamic loss scale (Micikevicius et al. 2018): a power of two that is halved when gradients overflow, and doubled
// after many steps without overflow. Devices that decide this themselves use the same rule
// (backends/cuda/kernels/step.hpp).
struct LossScale {
  static constexpr std::int64_t steps_until_doubled = 2000, largest_exponent = 126;

  std::int64_t exponent = 16, steps = 0;  // steps: since it changed

  [[nodiscard]] double value() const { return math::ldexp(1.0, static_cast<int>(exponent)); }

  // Call this after each step. finite: whether its gradients were finite. Returns false if there is no smaller scale.
  [[nodiscard]] bool after_step(bool finite) {
    if (finite) {
      if (++steps >= steps_until_doubled) {
        exponent = std::min(exponent + 1, largest_exponent);
        steps = 0;
      }
      return true;
    }
    if (exponent == 0) return false;
    exponent -= 1;
    steps = 0;
    return true;
  }
};

}  // namespace tutti
