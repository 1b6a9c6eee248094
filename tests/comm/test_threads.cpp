// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/comm/thread_communicator.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/xxh64.hpp>
#include <tutti/io/file.hpp>
#include <tutti/strategy/all_reduce.hpp>

#include "conformance.hpp"
#include "thread_ranks.hpp"

using namespace tutti;
using namespace std::chrono_literals;

TEST_CASE("threads: all conformance cases pass") {
  for (const int size : {1, 2, 3, 4, 7})
    for (const auto& c : conformance::cases<ThreadCommunicator>()) {
      CAPTURE(size);
      CAPTURE(c.name);
      CHECK_NOTHROW(run_ranks(size, c.run));
    }
}

TEST_CASE("threads: the error names a missing rank within the deadline") {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<bool> over{false};
  std::atomic<int> named{0};
  run_ranks(
      3,
      [&](ThreadCommunicator& c) {
        if (c.rank() == 1) {
          while (!over) std::this_thread::sleep_for(1ms);
          return;
        }
        std::vector<float> v(10);
        try {
          c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), ReduceOp::sum, "step 3 bucket 0").wait();
        } catch (const CommunicationError& e) {
          const std::string text = e.what();
          CHECK(text.find("step 3 bucket 0") != std::string::npos);
          named += text.find("rank 1") != std::string::npos;
          over = true;
        }
        over = true;
      },
      300ms);
  CHECK(named >= 1);
  CHECK(std::chrono::steady_clock::now() - start < 20s);
}

TEST_CASE("threads: different operations are an error, not a wrong sum") {
  CHECK_THROWS_AS(run_ranks(2,
                            [](ThreadCommunicator& c) {
                              std::vector<float> v(c.rank() == 0 ? 100 : 101);
                              c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), ReduceOp::sum, "x").wait();
                            }),
                  CommunicationError);
}

TEST_CASE("threads: after an error every later operation fails with the same error") {
  run_ranks(
      2,
      [](ThreadCommunicator& c) {
        if (c.rank() == 1) return;
        std::vector<float> v(4);
        const auto data = std::as_writable_bytes(std::span(v));
        CHECK_THROWS_AS(c.all_reduce(DType::f32, data, ReduceOp::sum, "first").wait(), CommunicationError);
        const Work w = c.all_reduce(DType::f32, data, ReduceOp::sum, "second");
        CHECK_THROWS_WITH_AS(Work(w).wait(), doctest::Contains("first"), CommunicationError);
      },
      200ms);
}

TEST_CASE("all_reduce strategy: if ranks differ, the error names the first fact that differs") {
  const auto differing = [](const std::string& lr, bool more) {
    return [lr, more](ThreadCommunicator& c) {
      AllReduce<ThreadCommunicator> s(c);
      JobFacts f;
      f.add("build", "0.1.0");
      f.add("--lr", c.rank() == 2 ? lr : "0.1");
      f.add("--wd", c.rank() == 2 ? "9" : "5e-4");
      if (more && c.rank() == 2) f.add("--seed", "1");
      s.attach({}, f);
    };
  };
  CHECK_THROWS_WITH_AS(
      run_ranks(3, differing("0.2", false)),
      "[rank 2] expected --lr 0.1, as rank 0 has, got 0.2. hint: start all ranks with the same program, "
      "options and data.",
      UsageError);
  CHECK_THROWS_WITH_AS(run_ranks(3, differing("0.1", true)), doctest::Contains("--wd"), UsageError);
  CHECK_NOTHROW(run_ranks(2, differing("0.2", false)));
}

TEST_CASE("all_reduce strategy: all ranks get the state of rank 0") {
  run_ranks(3, [](ThreadCommunicator& c) {
    AllReduce<ThreadCommunicator> s(c);
    std::vector<float> same(100, 3.F), other(50'000, static_cast<float>(c.rank() + 5));
    std::vector<StateSpan> state{{"same", DType::f32, {100}, std::as_writable_bytes(std::span(same))},
                                 {"other", DType::f32, {50'000}, std::as_writable_bytes(std::span(other))}};
    s.synchronise(state);
    CHECK(same == std::vector<float>(100, 3.F));
    CHECK(other == std::vector<float>(50'000, 5.F));
    double v[] = {1, static_cast<double>(c.rank())};
    s.sum(v);
    CHECK(v[0] == 3);
    CHECK(v[1] == 3);
  });
}

TEST_CASE("threads: a rank that throws does not wait for the others, and the other ranks get an error") {
  constexpr auto deadline = 60s;  // so long that a test that waits for it is noticed
  const auto start = std::chrono::steady_clock::now();
  for (const bool alone : {false, true}) {
    ThreadGroup group(2);
    std::vector<float> data[3]{std::vector<float>(10), std::vector<float>(10), std::vector<float>(10)};
    const auto bytes = [&](std::size_t i) { return std::as_writable_bytes(std::span(data[i])); };
    std::string heard;
    std::thread other([&] {
      if (alone) return;
      std::vector<float> v(10);
      try {
        ThreadCommunicator c(group, 1, deadline);
        for (int i = 0; i < 10; ++i)
          c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), ReduceOp::sum, "bucket").wait();
      } catch (const CommunicationError& e) {
        heard = e.what();
      }
    });
    const auto throwing = [&] {
      ThreadCommunicator c(group, 0, deadline);
      if (!alone) c.all_reduce(DType::f32, bytes(0), ReduceOp::sum, "bucket").wait();
      const Work second = c.all_reduce(DType::f32, bytes(1), ReduceOp::sum, "second");
      const Work third = c.all_reduce(DType::f32, bytes(2), ReduceOp::sum, "third");
      if (alone) std::this_thread::sleep_for(50ms);
      fail<DataError>("record 7", "3073 bytes", "12");
    };
    CHECK_THROWS_AS(throwing(), DataError);
    other.join();
    if (!alone) CHECK_MESSAGE(heard.find("rank 0 has aborted") != std::string::npos, heard);
  }
  CHECK_MESSAGE(std::chrono::steady_clock::now() - start < 20s, "it waited for its deadline");
}

TEST_CASE("threads: if a rank is missing, the error of a later operation names the rank too") {
  std::atomic<bool> over{false};
  std::string text;
  run_ranks(
      2,
      [&](ThreadCommunicator& c) {
        if (c.rank() == 1) {
          while (!over) std::this_thread::sleep_for(1ms);
          return;
        }
        std::vector<float> v(10), w(10);
        // The communication thread runs the first operation. The wait begins a little later.
        const Work a = c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), ReduceOp::sum, "first");
        Work b = c.all_reduce(DType::f32, std::as_writable_bytes(std::span(w)), ReduceOp::sum, "second");
        std::this_thread::sleep_for(20ms);
        try {
          b.wait();
        } catch (const CommunicationError& e) {
          text = e.what();
        }
        over = true;
      },
      200ms);
  CHECK_MESSAGE(text.find("rank 1") != std::string::npos, text);
}

TEST_CASE("threads: a barrier has a separate deadline") {
  std::atomic<bool> over{false};
  std::string text;
  const auto start = std::chrono::steady_clock::now();
  run_ranks(
      2,
      [&](ThreadCommunicator& c) {
        CHECK(c.deadline() == 600s);
        if (c.rank() == 1) {
          while (!over) std::this_thread::sleep_for(1ms);
          return;
        }
        try {
          c.barrier(100ms);
        } catch (const CommunicationError& e) {
          text = e.what();
        }
        over = true;
      },
      600s);
  CHECK_MESSAGE(
      text.find("[barrier] expected all ranks of this host within the deadline, got no message from rank 1") !=
          std::string::npos,
      text);
  CHECK(std::chrono::steady_clock::now() - start < 20s);
}

TEST_CASE("threads: an interrupt ends current and later waits without waiting for the deadline") {
  const auto start = std::chrono::steady_clock::now();
  // Way 0: this thread waits. Way 1: the communication thread waits. Way 2: the interrupt comes before the operation.
  for (const int way : {0, 1, 2}) {
    CAPTURE(way);
    const bool begun = way == 1, before = way == 2;
    ThreadGroup group(2);
    ThreadCommunicator c(group, 0, 600s), never_comes(group, 1, 600s);
    std::vector<float> v(10);
    const auto sum = [&](const std::string& name) {
      Work w = c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), ReduceOp::sum, name);
      if (begun) std::this_thread::sleep_for(50ms);
      w.wait();
    };
    if (before) c.interrupt();
    std::thread other([&] {
      std::this_thread::sleep_for(200ms);
      c.interrupt();
    });
    CHECK_THROWS_WITH_AS(sum("step 3 bucket 0"), doctest::Contains("step 3 bucket 0] expected all ranks"),
                         CommunicationError);
    other.join();
    CHECK_THROWS_WITH_AS(sum("later"), doctest::Contains("this rank has aborted"), CommunicationError);
    CHECK_THROWS_AS(c.barrier(600s), CommunicationError);
    // A rank that would wait for the interrupted rank gets an error too.
    CHECK_THROWS_AS(never_comes.barrier(600s), CommunicationError);
  }
  ThreadGroup group(1);
  ThreadCommunicator alone(group, 0);
  CHECK_NOTHROW(alone.barrier(1s));
  alone.interrupt();
  alone.interrupt();
  CHECK_THROWS_AS(alone.barrier(1s), CommunicationError);
  CHECK_MESSAGE(std::chrono::steady_clock::now() - start < 20s, "it waited for its deadline");
}

TEST_CASE("the hash of the ranks' state is XXH64 as defined, at nearly the speed of memory") {
  CHECK(xxh64("") == 0xef46db3751d8e999);
  CHECK(xxh64("a") == 0xd24ec4f1a98c6e5b);
  CHECK(xxh64("abc") == 0x44bc2cf5ad770999);
  CHECK(xxh64("Nobody inspects the spammish repetition") == 0xfbcea83c8a378bf1);
  CHECK(xxh64("xxhash") == 0x32dd38952c4bc720);
  std::string longer;
  for (int i = 0; i < 10'007; ++i) longer += static_cast<char>(i * 7 + i / 256);
  CHECK(xxh64(longer) == 0xbf560116af64ea2b);
  std::string text(101, ' ');
  for (std::size_t n = 0; n < text.size(); ++n)
    for (const int bit : {0, 7}) {
      // The hash depends on each bit, for each length.
      const auto before = xxh64(std::string_view(text).substr(0, n + 1));
      text[n] = static_cast<char>(text[n] ^ (1 << bit));
      CHECK(xxh64(std::string_view(text).substr(0, n + 1)) != before);
    }
  const std::string state(90 << 20, 'x');
  const auto best_of = [](auto&& hash) {
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      const Stopwatch watch;
      CHECK(hash() != 0);
      best = std::min(best, watch.seconds());
    }
    return best;
  };
  const double whole = best_of([&] { return xxh64(state); });
  MESSAGE("90 MiB in " << whole * 1000 << " ms");
  // FNV-1a, one byte at a time, over a tenth of the data.
  const double bytes = best_of([&] {
    std::uint64_t h = 0xcbf29ce484222325;
    for (std::size_t i = 0; i < state.size() / 10; ++i) h = (h ^ static_cast<unsigned char>(state[i])) * 0x100000001b3;
    return h;
  });
  CHECK(whole < bytes * 10 / 2);
}

TEST_CASE(
    "all_reduce strategy: errors and progress reports give the step of the job, also before a device has completed "
    "it") {
  char name[] = "/tmp/tutti-report-XXXXXX";
  const io::Path folder = mkdtemp(name);
  const auto file = ProgressFile::create(folder / "slot", "1f");
  setenv("TUTTI_REPORT", (folder / "slot").c_str(), 1);
  setenv("TUTTI_JOB", "1f", 1);
  run_ranks(1, [&](ThreadCommunicator& c) {
    AllReduce<ThreadCommunicator> s(c);
    std::vector<float> v(4);
    const auto reduce = [&](std::size_t bucket) {
      return s.reduce({Piece::Kind::gradients, bucket, DType::f32, std::as_writable_bytes(std::span(v))});
    };
    const auto at = [&] { return *file.read(); };
    s.begin_step(41, false);
    Work w = reduce(3);
    CHECK(w.name() == "step 41 bucket 3");
    CHECK(at() == RankProgress{41, 3, ProgressPhase::begin});
    w.wait();
    // A reduction of statistics is not counted as a bucket.
    Work statistics = s.reduce({Piece::Kind::statistics, 0, DType::f32, std::as_writable_bytes(std::span(v))});
    CHECK(statistics.name() == "step 41 statistics");
    statistics.wait();
    s.finish();
    CHECK(at() == RankProgress{41, 3, ProgressPhase::end});
    // finish() reports the beginning of work that a device has queued. settled() reports its end.
    s.begin_step(42, true);
    s.finish();
    CHECK(at() == RankProgress{42, 3, ProgressPhase::begin});
    s.settled();
    CHECK(at() == RankProgress{42, 3, ProgressPhase::end});
  });
  unsetenv("TUTTI_REPORT");
  unsetenv("TUTTI_JOB");
  std::filesystem::remove_all(folder);
}
