// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include <tutti/core/pause_tolerant_timer.hpp>

namespace tutti::control {

using Time = std::chrono::nanoseconds;  // since a fixed moment; never decreases

using tutti::is_pause;
using tutti::PauseTolerantTimer;

// Returns the time of a clock that also runs while this machine is suspended, as the clocks of other hosts do.
[[nodiscard]] inline Time now() noexcept { return time_since_boot(); }

inline constexpr std::chrono::milliseconds heartbeat_interval{500};

// The process's side of the lease, which stops a process from writing before the arbiter removes it from the job. It
// holds for three quarters of the rank time-out, counted from the time at which the last answered heartbeat was sent.
// The arbiter receives that heartbeat later and then waits for the whole time-out. So the arbiter never removes a
// process that may still write, unless the arbiter's clock is a third faster than the clock of the process.
class Lease {
 public:
  explicit Lease(Time timeout = {}) : timeout_(timeout) {}
  void set_timeout(Time timeout) noexcept { timeout_ = timeout; }
  [[nodiscard]] Time timeout() const noexcept { return timeout_; }

  // Returns the number of a heartbeat that is sent now.
  [[nodiscard]] std::uint64_t send_heartbeat(Time now) {
    sent_.emplace_back(++last_, now);
    // The answer to a heartbeat that was sent longer ago gives no lease any more.
    while (sent_.front().second + timeout_ < now) sent_.pop_front();
    return last_;
  }
  void acknowledge(std::uint64_t number) {
    while (!sent_.empty() && sent_.front().first <= number) {
      if (sent_.front().first == number) since_ = std::pair{true, sent_.front().second};
      sent_.pop_front();
    }
  }
  [[nodiscard]] bool holds(Time now) const noexcept { return since_.first && now < since_.second + timeout_ / 4 * 3; }
  void end() noexcept { since_.first = false; }

 private:
  Time timeout_;
  std::uint64_t last_ = 0;
  std::deque<std::pair<std::uint64_t, Time>> sent_;
  std::pair<bool, Time> since_{false, {}};
};

}  // namespace tutti::control
