// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include <tutti/core/pause_tolerant_timer.hpp>

namespace tutti {

// The time that an operation may take, together for all its waits. A pause of this process does not count, so a job
// whose processes were all paused continues. Its operation passes it on by reference, because each wait counts. Only
// one thread at a time may use it.
class Deadline {
 public:
  using Time = std::chrono::nanoseconds;

  // The time begins with the first call of is_over().
  explicit Deadline(Time limit) : timer_(limit) {}
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  // Returns whether the time is over. A thread that waits calls it before each next_wait().
  [[nodiscard]] bool is_over() const noexcept { return timer_.is_over(); }
  // Returns how long to wait before the next call of is_over().
  [[nodiscard]] Time next_wait() const noexcept { return timer_.next_wait(); }
  // Returns the rest of the time.
  [[nodiscard]] Time left() const noexcept { return timer_.left(); }
  // Returns a new deadline with the rest of the time and `more`.
  [[nodiscard]] Deadline extended(Time more) const { return Deadline(left() + more); }

 private:
  mutable PauseTolerantTimer timer_;
};

}  // namespace tutti
