// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>

namespace tutti {

// The progress of a run before update number `step`, counted from 0.
struct SchedulePoint {
  std::int64_t step = 0;
  std::int64_t steps_per_epoch = 1;
  std::int64_t total_steps = 1;
  std::int64_t global_batch = 1;
  int world = 1;

  // Returns the epochs done so far, including the fraction of the current one.
  [[nodiscard]] double epoch() const noexcept {
    return static_cast<double>(step) / static_cast<double>(steps_per_epoch);
  }
};

// A learning rate that depends only on the progress, so that a run that resumes or changes its size needs no state for
// it.
template <class L>
concept LrSchedule = requires(const L& l, const SchedulePoint& p) {
  { l(p) } -> std::convertible_to<double>;
};

}  // namespace tutti
