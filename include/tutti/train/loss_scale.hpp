// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <tutti/train/state.hpp>

// A dynamic loss scale (Micikevicius et al. 2018): a power of two that halves where gradients overflow, and doubles
// after many steps without. Devices that decide themselves follow the same rule (backends/cuda/kernels/step.hpp).
namespace tutti::loss_scale {

inline constexpr std::int64_t steps_until_doubled = 2000, largest_exponent = 126;

[[nodiscard]] inline double value(const Counters& c) { return std::ldexp(1.0, static_cast<int>(c.scale_exponent)); }

// After a step whose gradients were finite, or not. False: there is no smaller scale.
[[nodiscard]] inline bool move(Counters& c, bool finite) {
  if (finite) {
    if (++c.scale_steps >= steps_until_doubled) {
      c.scale_exponent = std::min(c.scale_exponent + 1, largest_exponent);
      c.scale_steps = 0;
    }
    return true;
  }
  if (c.scale_exponent == 0) return false;
  c.scale_exponent -= 1;
  c.scale_steps = 0;
  return true;
}

}  // namespace tutti::loss_scale
