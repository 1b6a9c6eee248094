// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <tutti/dist/all_reduce.hpp>
#include <tutti/dist/threads.hpp>

#include "conformance.hpp"

using namespace tutti;
using namespace std::chrono_literals;

namespace {

// Runs f(rank's communicator) in `size` threads; the first exception is thrown here.
void run_ranks(int size, const std::function<void(ThreadCommunicator&)>& f, std::chrono::milliseconds deadline = 60s) {
  ThreadGroup group(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      ThreadCommunicator c(group, r, deadline);
      try {
        f(c);
      } catch (...) {
        errors[static_cast<std::size_t>(r)] = std::current_exception();
        c.abort("test failed", ExitCode::internal);
      }
    });
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

}  // namespace

TEST_CASE("threads: conformance") {
  for (const int size : {1, 2, 3, 4, 7})
    for (const auto& c : conformance::cases<ThreadCommunicator>()) {
      CAPTURE(size);
      CAPTURE(c.name);
      CHECK_NOTHROW(run_ranks(size, c.run));
    }
}

TEST_CASE("threads: a rank that does not come is named within the deadline") {
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
          c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), Combine::sum, nullptr, "step 3 bucket 0")
              .wait_host(60s);
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
  CHECK_THROWS_AS(
      run_ranks(
          2,
          [](ThreadCommunicator& c) {
            std::vector<float> v(c.rank() == 0 ? 100 : 101);
            c.all_reduce(DType::f32, std::as_writable_bytes(std::span(v)), Combine::sum, nullptr, "x").wait_host(10s);
          }),
      CommunicationError);
}

TEST_CASE("threads: after an error every later operation fails with it") {
  run_ranks(
      2,
      [](ThreadCommunicator& c) {
        if (c.rank() == 1) return;
        std::vector<float> v(4);
        const auto data = std::as_writable_bytes(std::span(v));
        CHECK_THROWS_AS(c.all_reduce(DType::f32, data, Combine::sum, nullptr, "first").wait_host(60s),
                        CommunicationError);
        const Work w = c.all_reduce(DType::f32, data, Combine::sum, nullptr, "second");
        CHECK_THROWS_WITH_AS(Work(w).wait_host(60s), doctest::Contains("first"), CommunicationError);
      },
      200ms);
}

TEST_CASE("all_reduce strategy: the first fact that differs is named") {
  const auto differing = [](const std::string& lr, bool more) {
    return [lr, more](ThreadCommunicator& c) {
      AllReduce<ThreadCommunicator> s(c);
      Fingerprint f;
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

TEST_CASE("all_reduce strategy: everyone takes rank 0's state") {
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
