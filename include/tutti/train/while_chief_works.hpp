// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/core/threads.hpp>
#include <tutti/dist/strategy.hpp>

namespace tutti {

// Runs f on rank 0 while the others wait for it, for up to ten times `deadline`, that of a reduction, which must not
// pass meanwhile: rank 0 says four times in it that it is still at work. A collective call; f touches neither the
// strategy nor a device, because it runs in a thread of its own. What it throws is thrown on rank 0; CommunicationError
// on all ranks, which names `what`, where it takes longer.
template <DistributedStrategy S, class F>
void while_chief_works(S& strategy, std::chrono::milliseconds deadline, const std::string& what, F&& f) {
  using namespace std::chrono;
  const bool chief = strategy.rank() == 0;
  if (strategy.size() == 1) {
    std::forward<F>(f)();
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
  if (chief)
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
  const auto start = steady_clock::now();
  for (;;) {
    double word[] = {0, 0};  // done, too late: rank 0's word, so that all decide alike
    if (chief) {
      std::unique_lock lock(work.mutex);
      const bool done = work.over.wait_for(lock, deadline / 4, [&] { return work.done; });
      word[0] = done ? 1 : 0;
      word[1] = !done && steady_clock::now() - start > most * deadline ? 1 : 0;
    }
    strategy.sum(word);
    if (word[0] > 0) break;
    if (word[1] > 0)
      fail<CommunicationError>(
          "rank 0", "the end of " + what + " within " + std::to_string(most) + " times the deadline",
          "none after " + std::to_string(duration_cast<seconds>(steady_clock::now() - start).count()) + " s",
          "look at the disk of its run folder, or raise --comm-deadline");
  }
  if (worker.thread.joinable()) worker.thread.join();
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace tutti
