// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>

#include <tutti/core/pause_tolerant_timer.hpp>

namespace tutti {

// The time that an operation may take, together for all its waits. A pause of this process does not count, so a job
// whose processes were all paused continues. Pass it by reference: all waits of an operation share one limit. The time
// between two waits counts, too, but as one slice if it is long enough to be a pause (is_pause()). Only one thread at a
// time may use it, although its functions are const.
class Deadline {
 public:
  using Time = std::chrono::nanoseconds;

  // The time begins with the first call of is_over().
  explicit Deadline(Time limit) : Deadline(limit, nullptr) {}
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  // Returns whether the time is over. A thread that waits calls it before each next_wait().
  [[nodiscard]] bool is_over() const noexcept {
    if (origin_ != nullptr) static_cast<void>(origin_->is_over());
    return timer_.is_over();
  }
  // Returns how long to wait before the next call of is_over().
  [[nodiscard]] Time next_wait() const noexcept { return timer_.next_wait(); }
  // Returns the rest of the time.
  [[nodiscard]] Time left() const noexcept { return timer_.left(); }
  // Returns whether the time is over, or nearly: another rank with the same limit may have given up first.
  [[nodiscard]] bool is_nearly_over() const noexcept {
    return is_over() || left() <= std::min<Time>(PauseTolerantTimer::slice, limit_ / 10);
  }
  // Returns a deadline with the rest of the time and `more`. Waits for it count for this one, which must outlive it.
  [[nodiscard]] Deadline extended(Time more) const { return {left() + more, this}; }

 private:
  Deadline(Time limit, const Deadline* origin) : limit_(limit), timer_(limit), origin_(origin) {}

  Time limit_;
  mutable PauseTolerantTimer timer_;
  const Deadline* origin_ = nullptr;
};

}  // namespace tutti
