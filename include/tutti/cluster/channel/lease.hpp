// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace tutti::control {

using Time = std::chrono::nanoseconds;  // since a fixed moment; never decreases

// Returns the time of a clock that also runs while this machine is suspended, as the clocks of other hosts do.
[[nodiscard]] inline Time now() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

inline constexpr std::chrono::milliseconds heartbeat_interval{500};

// Returns whether the time between two rounds of a thread shows that its process was paused. A thread may wait for a
// processor meanwhile. limit: the silence after which another process is given up. A short pause leaves too little of
// a short limit to the messages that it delayed.
[[nodiscard]] inline bool is_pause(Time gap, Time limit) noexcept {
  return gap > std::clamp<Time>(limit / 4, std::chrono::milliseconds(250), std::chrono::seconds(1));
}

// Counts the time that a thread spends waiting, up to a limit. A pause of the process itself does not count: the thread
// calls is_over() at least once in each slice, so a pause between two calls counts as one slice.
class PauseTolerantTimer {
 public:
  static constexpr std::chrono::milliseconds slice{100};

  explicit PauseTolerantTimer(Time limit) : limit_(limit) {}

  // Call it once before each wait.
  [[nodiscard]] bool is_over(Time now) noexcept {
    if (begun_) {
      const Time gap = now - looked_;
      spent_ += is_pause(gap, limit_) ? std::min<Time>(gap, slice) : gap;
    }
    begun_ = true;
    looked_ = now;
    return spent_ >= limit_;
  }
  // Returns how long to wait before the next call of is_over().
  [[nodiscard]] std::chrono::nanoseconds next_wait() const noexcept {
    return std::min<std::chrono::nanoseconds>(slice, limit_ - spent_);
  }

 private:
  Time limit_, looked_{}, spent_{};
  bool begun_ = false;
};

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
