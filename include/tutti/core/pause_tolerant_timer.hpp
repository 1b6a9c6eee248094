// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>

// Waits that a pause of this process must not end: SIGSTOP, Ctrl-Z, or a suspended machine.
namespace tutti {

// Returns the time of a clock that also runs while this machine is suspended, as the clocks of other hosts do.
[[nodiscard]] inline std::chrono::nanoseconds time_since_boot() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

// Returns the time for which the calling thread has used a processor.
[[nodiscard]] inline std::chrono::nanoseconds processor_time_of_thread() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

// Returns whether the time between two rounds of a thread shows that its process was paused. A thread may wait for a
// processor meanwhile. limit: the silence after which another process is given up. A short pause leaves too little of
// a short limit to the messages that it delayed.
[[nodiscard]] inline bool is_pause(std::chrono::nanoseconds gap, std::chrono::nanoseconds limit) noexcept {
  return gap > std::clamp<std::chrono::nanoseconds>(limit / 4, std::chrono::milliseconds(250), std::chrono::seconds(1));
}

// Counts the time that a thread spends waiting, up to a limit. A pause of the process itself does not count: the thread
// calls is_over() at least once in each slice, so a pause between two calls counts as one slice.
class PauseTolerantTimer {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr std::chrono::milliseconds slice{100};

  explicit PauseTolerantTimer(Time limit) : limit_(limit) {}

  // Call it once before each wait. now: the time since a fixed moment.
  [[nodiscard]] bool is_over(Time now = time_since_boot()) noexcept {
    if (begun_) {
      const Time gap = now - looked_;
      spent_ += is_pause(gap, limit_) ? std::min<Time>(gap, slice) : gap;
    }
    begun_ = true;
    looked_ = now;
    return spent_ >= limit_;
  }
  // Returns how long to wait before the next call of is_over().
  [[nodiscard]] Time next_wait() const noexcept { return std::min<Time>(slice, limit_ - spent_); }
  // Returns how much of the limit is left.
  [[nodiscard]] Time left() const noexcept { return std::max<Time>(limit_ - spent_, Time::zero()); }

 private:
  Time limit_, looked_{}, spent_{};
  bool begun_ = false;
};

// Measures pauses of this process, for a thread whose deadlines are moments of the steady clock. That clock runs while
// a process is stopped.
class PauseMeter {
 public:
  using Time = std::chrono::nanoseconds;
  // A round that takes much longer contains a pause.
  static constexpr std::chrono::milliseconds longest_round = PauseTolerantTimer::slice;

  // Call it at the end of each round. Returns for how long the process was paused in the round, or zero. worked: the
  // processor time of the thread so far, which is no pause, however long a round is.
  [[nodiscard]] Time end_round(Time now = std::chrono::steady_clock::now().time_since_epoch(),
                               Time worked = processor_time_of_thread()) noexcept {
    const Time gap = begun_ ? now - ended_ - (worked - worked_) : Time::zero();
    begun_ = true;
    ended_ = now;
    worked_ = worked;
    return is_pause(gap, Time::zero()) ? gap - longest_round : Time::zero();
  }

 private:
  Time ended_{}, worked_{};
  bool begun_ = false;
};

}  // namespace tutti
