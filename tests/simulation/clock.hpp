// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "random.hpp"

namespace tutti::simulation {

// Nanoseconds. A time of the simulation counts from its beginning; a process sees it through its own clocks.
using Nanos = std::int64_t;

inline constexpr Nanos never = std::numeric_limits<Nanos>::max();
inline constexpr Nanos ms = 1'000'000, second = 1'000'000'000;
// Returns the text of a time in a history.
[[nodiscard]] inline std::string lasting(Nanos time) { return " for " + std::to_string(time / ms) + " ms"; }

// The clocks of a process. They may run fast or slow, the wall clock may jump, and a suspended machine's monotonic
// clock stands still while its boot clock goes on.
class Clocks {
 public:
  // Returns what a clock of the process shows at a time of the simulation.
  [[nodiscard]] Nanos read(clockid_t clock, Nanos now) const {
    return start_ + std::llround(static_cast<double>(now) * rate_) + offset(clock);
  }
  // Returns the earliest time of the simulation at which the clock shows at least `shown`.
  [[nodiscard]] Nanos time_of(clockid_t clock, Nanos shown) const {
    if (shown == never) return never;
    const double at = static_cast<double>(shown - start_ - offset(clock)) / rate_;
    return at < 1 ? 0 : static_cast<Nanos>(std::ceil(at)) + 1;
  }
  // Call it at the beginning. The clocks then run faster or slower, by up to 0.3 %.
  void drift(Random& r) { rate_ = 1 + 1e-6 * static_cast<double>(r.between(-3000, 3000)); }
  void jump(Nanos by) { jumped_ += by; }
  void suspend(Nanos time) { suspended_ += time; }

 private:
  [[nodiscard]] Nanos offset(clockid_t clock) const {
    if (clock == CLOCK_BOOTTIME) return 0;
    if (clock == CLOCK_REALTIME) return 1'700'000'000 * second + jumped_;
    return -suspended_;
  }

  static constexpr Nanos start_ = 1000 * second;
  double rate_ = 1;
  Nanos jumped_ = 0, suspended_ = 0;
};

// A moment of a process's clock. No moment by default.
struct Moment {
  clockid_t clock = CLOCK_MONOTONIC;
  Nanos shown = never;
};

}  // namespace tutti::simulation
