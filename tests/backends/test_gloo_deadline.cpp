// SPDX-License-Identifier: MIT
// The thread that ends the waits of Gloo at a deadline.
#include <doctest/doctest.h>

#include <chrono>
#include <latch>
#include <optional>
#include <thread>

#include <tutti/backends/gloo/deadline_watcher.hpp>

using namespace tutti;
using namespace std::chrono_literals;

TEST_CASE("the watcher ends each operation whose deadline passes, once, and no other") {
  std::optional<std::latch> expired;
  int count = 0;
  DeadlineWatcher watcher([&] {
    ++count;
    expired->count_down();
  });
  for (const auto limit : {0ms, 1ms, 30ms}) {
    expired.emplace(1);
    const Deadline deadline(limit);
    const DeadlineWatcher::Operation operation(watcher, deadline);
    expired->wait();
  }
  CHECK(count == 3);
  for (int i = 0; i < 1000; ++i) {
    const Deadline deadline(1h);
    const DeadlineWatcher::Operation operation(watcher, deadline);
  }
  expired.emplace(1);
  {
    const Deadline deadline(1ms);
    const DeadlineWatcher::Operation operation(watcher, deadline);
    expired->wait();
  }
  CHECK(count == 4);
}

TEST_CASE("a watcher ends while it sleeps, and right after an operation") {
  {
    DeadlineWatcher idle([] {});
  }
  DeadlineWatcher watcher([] {});
  const Deadline deadline(1h);
  const DeadlineWatcher::Operation operation(watcher, deadline);
}
