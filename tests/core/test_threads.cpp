// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/threads/threads.hpp>

#include "core/sanitizers.hpp"
#include "core/startable.hpp"

using namespace tutti;

namespace {

// Generations are far slower with a sanitizer.
#if defined(TUTTI_TEST_TSAN) || defined(TUTTI_TEST_ASAN)
constexpr int generations = 3000;
#else
constexpr int generations = 60000;
#endif

}  // namespace

TEST_CASE(
    "every task runs exactly once, with fewer and more tasks than threads, and run() returns after the last task") {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    Rng rng(1, Purpose::user, 0, static_cast<std::uint64_t>(threads));
    std::vector<int> runs;  // not atomic: tsan reports a task that runs twice, or after run() has returned
    long wrong = 0;
    for (int g = 0; g < generations; ++g) {
      // Few tasks alternate with many: a thread that is still in the previous generation must not take a task of the
      // next one.
      const int tasks = g % 2 == 0 ? static_cast<int>(rng.below(4)) : static_cast<int>(rng.below(64));
      runs.assign(static_cast<std::size_t>(tasks), 0);
      std::atomic<int> bad_worker{0};
      pool.run(tasks, [&](int t, int worker) {
        ++runs[static_cast<std::size_t>(t)];
        if (worker < 0 || worker >= threads) ++bad_worker;
      });
      for (int r : runs) wrong += r != 1;
      wrong += bad_worker;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("consecutive loops: no task begins before the last task of the previous loop has ended") {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    Rng rng(2, Purpose::user, 0, static_cast<std::uint64_t>(threads));
    long wrong = 0;
    for (int g = 0; g < generations / 30; ++g) {
      std::vector<int> loops(rng.below(12));
      for (int& tasks : loops) tasks = static_cast<int>(rng.below(3) == 0 ? rng.below(2) : rng.below(10));
      std::vector<std::vector<int>> runs;  // not atomic: tsan reports tasks that overlap
      for (const int tasks : loops) runs.emplace_back(static_cast<std::size_t>(tasks));
      std::atomic<long> bad{0};
      pool.run_loops(loops, [&](int loop, int task, int worker) {
        const auto l = static_cast<std::size_t>(loop);
        if (l > 0)
          for (const int r : runs[l - 1]) bad += r != 1;
        ++runs[l][static_cast<std::size_t>(task)];
        if (worker < 0 || worker >= threads) ++bad;
      });
      for (const auto& of : runs)
        for (const int r : of) wrong += r != 1;
      wrong += bad;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("after an exception the loop runs to its end and no further loop begins") {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int g = 0; g < 200; ++g) {
      std::atomic<int> first{0}, later{0};
      const int loops[] = {6, 1, 0, 6, 5};
      const int bad = g % 2 == 0 ? 0 : 1;
      CHECK_THROWS_AS(pool.run_loops(loops,
                                     [&](int loop, int task, int) {
                                       if (loop > bad) ++later;
                                       if (loop == 0) ++first;
                                       if (loop == bad && task == 0) throw std::runtime_error("x");
                                     }),
                      std::runtime_error);
      CHECK(later == 0);
      CHECK((threads == 1 || first == 6));
    }
  }
}

TEST_CASE("more threads than cores run tasks of very different length") {
  ThreadPool pool(2 * usable_cores() + 3);
  for (int g = 0; g < generations / 100; ++g) {
    std::vector<std::atomic<int>> runs(17);
    pool.run(17, [&](int t, int) {
      if (t % 5 == 0) std::this_thread::yield();
      if (t == 3) std::this_thread::sleep_for(std::chrono::microseconds(50));
      ++runs[static_cast<std::size_t>(t)];
    });
    int wrong = 0;
    for (auto& r : runs) wrong += r != 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("sleeping threads wake up") {
  ThreadPool pool(3);
  for (int g = 0; g < 50; ++g) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the threads have stopped spinning
    std::atomic<int> runs{0};
    pool.run(5, [&](int, int) { ++runs; });
    CHECK(runs == 5);
  }
}

TEST_CASE("an exception is rethrown, and the pool continues") {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int g = 0; g < 200; ++g) {
      try {
        pool.run(20, [&](int t, int) {
          if (t == g % 20) fail<DataError>("task", "none", std::to_string(t));
        });
        FAIL("no exception");
      } catch (const DataError& e) {
        CHECK(std::string(e.what()) == "[task] expected none, got " + std::to_string(g % 20) + ".");
      }
      std::atomic<int> runs{0};
      pool.run(20, [&](int, int) { ++runs; });
      REQUIRE(runs == 20);
    }
    // Every task throws. run() throws one of these exceptions.
    CHECK_THROWS_AS(pool.run(8, [](int, int) { throw std::runtime_error("x"); }), std::runtime_error);
  }
}

TEST_CASE("a task of one pool may run a loop in another pool") {
  ThreadPool outer(2);
  std::vector<std::unique_ptr<ThreadPool>> inner;
  for (int i = 0; i < 2; ++i) inner.push_back(std::make_unique<ThreadPool>(2));
  for (int g = 0; g < 200; ++g) {
    std::atomic<int> runs{0};
    outer.run(6, [&](int, int worker) { inner[static_cast<std::size_t>(worker)]->run(5, [&](int, int) { ++runs; }); });
    REQUIRE(runs == 30);
  }
}

TEST_CASE("on_start runs once in every worker thread, not in the caller") {
  std::atomic<int> started{0};
  static thread_local bool mine = false;
  {
    ThreadPool pool(4, [&] {
      ++started;
      mine = true;
    });
    std::atomic<int> unprepared{0};
    pool.run(100, [&](int, int worker) { unprepared += worker != 0 && !mine; });
    CHECK(unprepared == 0);
  }
  CHECK(started == 3);
  CHECK(!mine);
}

TEST_CASE("loops without tasks, pools without threads and pools that are never used are valid") {
  ThreadPool pool(2);
  pool.run(0, [](int, int) { FAIL("a task of none"); });
  pool.run(-1, [](int, int) { FAIL("a task of none"); });
  CHECK_THROWS_AS(ThreadPool(0), UsageError);
  for (int i = 0; i < 50; ++i) ThreadPool(3);
  CHECK(usable_cores() >= 1);
}

TEST_CASE("if a thread pool cannot start, the error says so, and no thread is left") {
  static std::atomic<int> alive{0};
  struct Life {
    Life() { ++alive; }
    ~Life() { --alive; }
    Life(const Life&) = delete;
    Life& operator=(const Life&) = delete;
  };
  for (int n = 0; n < 7; ++n) {
    const testing::Startable limit(n);
    std::atomic<int> started{0};
    try {
      ThreadPool pool(8, [&] {
        static thread_local const Life life;
        ++started;
      });
      FAIL("a pool without its threads");
    } catch (const DeviceError& e) {
      CHECK(e.exit_code() == 4);
      const std::string text = e.what();
      CHECK(text.starts_with("[ThreadPool, thread " + std::to_string(n + 2) + " of 8] expected "));
      CHECK(text.find("ulimit -u") != std::string::npos);
    }
    CHECK(started == n);
    CHECK(alive == 0);  // all threads have ended and destroyed their objects
  }
  const testing::Startable limit(7);
  CHECK(ThreadPool(8).threads() == 8);
}

TEST_CASE("a thread that cannot be started is an error") {
  int runs = 0;
  start_thread("it", [&] { ++runs; }).join();
  CHECK(runs == 1);
  const testing::Startable limit(0);
  CHECK_THROWS_AS(static_cast<void>(start_thread("it", [&] { ++runs; })), DeviceError);
  CHECK(runs == 1);
}
