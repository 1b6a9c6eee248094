// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <cstddef>
#include <span>
#include <string_view>

#include <tutti/comm/deadline.hpp>
#include <tutti/comm/queued_communicator.hpp>
#include <tutti/comm/reduce_op.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/dtype.hpp>

// Communicators that count what their sums cost. bench/scaling uses them.
namespace tutti::bench {

// Returns seconds of processor time: CLOCK_THREAD_CPUTIME_ID or CLOCK_PROCESS_CPUTIME_ID.
inline double processor_time(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct SumCosts {
  double seconds = 0, processor = 0;  // of the thread that runs the sums
  double bytes = 0;                   // that were summed
};

template <class Engine>
class CountedEngine : public Engine {
 public:
  using Engine::Engine;

  void all_reduce(DType t, std::span<std::byte> data, ReduceOp op, const Deadline& deadline, std::string_view what) {
    const Stopwatch watch;
    const double before = processor_time(CLOCK_THREAD_CPUTIME_ID);
    Engine::all_reduce(t, data, op, deadline, what);
    costs_.processor += processor_time(CLOCK_THREAD_CPUTIME_ID) - before;
    costs_.seconds += watch.seconds();
    costs_.bytes += static_cast<double>(data.size());
  }
  // Call when no operation runs.
  [[nodiscard]] const SumCosts& costs() const noexcept { return costs_; }

 private:
  SumCosts costs_;
};

template <class Engine>
using CountedCommunicator = QueuedCommunicator<CountedEngine<Engine>>;

}  // namespace tutti::bench
