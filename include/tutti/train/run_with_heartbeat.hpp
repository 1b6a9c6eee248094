// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/pause_tolerant_timer.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/core/threads/threads.hpp>
#include <tutti/strategy/strategy.hpp>

// Lets ranks wait for work of another rank that takes longer than a reduction's deadline. A rank that works reports
// every quarter of the deadline. A rank that has finished receives these reports until all ranks have finished.
namespace tutti {

// Runs f, which may be empty, on each rank, and returns when all ranks have finished: a collective call. It may take
// ten times the strategy's deadline. f must use neither the strategy nor a device, because it runs in a separate
// thread. An error of f is thrown on its rank. After that time all ranks throw a CommunicationError, which contains
// `what` and the ranks that have not finished.
template <WatchesRanks S>
void run_with_heartbeat(S& strategy, const std::string& what, const std::function<void()>& f) {
  using namespace std::chrono;
  if (strategy.size() == 1) {
    if (f) f();
    return;
  }
  struct {
    std::mutex mutex;
    std::condition_variable over;
    bool done = false;
    std::exception_ptr error;
  } work;
  struct Joined {
    std::thread thread;
    ~Joined() {
      if (thread.joinable()) thread.join();
    }
  } worker;
  work.done = !f;
  if (f)
    worker.thread = start_thread(what, [&] {
      std::exception_ptr error;
      try {
        f();
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(work.mutex);
      work.error = error;
      work.done = true;
      work.over.notify_all();
    });
  constexpr int most = 10;
  const milliseconds deadline = strategy.deadline();
  const auto start = steady_clock::now();
  PauseTolerantTimer patience(most * deadline);
  for (;;) {
    double word[] = {0, 0};  // working ranks, and those that are too late; the sums decide on all ranks
    {
      std::unique_lock lock(work.mutex);
      bool late = false;
      for (PauseTolerantTimer turn(deadline / 4); !work.done;) {
        const auto now = time_since_boot();
        late = patience.is_over(now);
        if (turn.is_over(now)) break;
        work.over.wait_for(lock, turn.next_wait());
      }
      word[0] = work.done ? 0 : 1;
      word[1] = !work.done && late ? 1 : 0;
    }
    const bool at_work = word[0] > 0;
    strategy.sum(word);
    if (word[0] == 0) break;
    if (word[1] == 0) continue;
    std::vector<double> ranks(static_cast<std::size_t>(strategy.size()));
    ranks[static_cast<std::size_t>(strategy.rank())] = at_work ? 1 : 0;
    strategy.sum(span_of(ranks));
    std::string who;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      if (ranks[r] > 0) who += (who.empty() ? "rank " : ", rank ") + std::to_string(r);
    fail<CommunicationError>(who, {"the end of ", what, " within ", most, " times the deadline"},
                             {"no end after ", duration_cast<seconds>(steady_clock::now() - start).count(), " s"},
                             "check the disk of its run folder, or raise --comm-deadline");
  }
  if (worker.thread.joinable()) worker.thread.join();
  if (work.error) std::rethrow_exception(work.error);
}

// For work in pieces, each of which may take half of the deadline, in the thread that calls the strategy. One rank may
// have more pieces than another.
template <WatchesRanks S>
class HeartbeatScope {
 public:
  // A collective call: all ranks begin here.
  explicit HeartbeatScope(S& strategy) : s_(strategy) {}

  // Call it between two pieces.
  void go_on() {
    if (s_.size() > 1 && clock::now() - heard_ >= s_.deadline() / 4) all_done(false);
  }
  // Returns when all ranks have called it.
  void end() {
    while (s_.size() > 1 && !all_done(true)) {
    }
  }

 private:
  using clock = std::chrono::steady_clock;

  bool all_done(bool mine) {
    double at_work = mine ? 0 : 1;
    s_.sum({&at_work, 1});
    heard_ = clock::now();
    return at_work == 0;
  }

  S& s_;
  clock::time_point heard_ = clock::now();
};

}  // namespace tutti
