// SPDX-License-Identifier: MIT
// Tests an elastic Gloo job: the gradients of a process stay in the same window when members change.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/gloo/elastic.hpp>
#include <tutti/comm/windows/process_windows.hpp>
#include <tutti/core/error.hpp>

#include "gloo_ranks.hpp"
#include "tests/cluster/arbiter_harness.hpp"

using namespace tutti;

namespace {

constexpr std::size_t floats = 50'000;

std::span<float> values(std::span<std::byte> bytes) { return {reinterpret_cast<float*>(bytes.data()), floats}; }
// Returns true if reduce() turns every element `mine` into the sum of all ranks' numbers.
template <class Reduce>
bool sums(std::span<std::byte> bytes, float mine, float of_all, Reduce&& reduce) {
  std::ranges::fill(values(bytes), mine);
  reduce();
  return std::ranges::all_of(values(bytes), [&](float v) { return v == of_all; });
}

}  // namespace

TEST_CASE("windows that outlive their groups are summed in place if all ranks have a window") {
  constexpr std::size_t size = 3;
  std::vector<std::shared_ptr<HostWindow>> windows(size);
  std::string why;
  for (auto& w : windows) w = ProcessWindows::of_process().make(floats * sizeof(float), why);
  REQUIRE_MESSAGE(windows[2] != nullptr, why);
  for (const bool all : {true, false, true}) {
    CAPTURE(all);
    for (const std::vector<std::string>& hosts : {std::vector<std::string>{"a", "a", "a"}, {"a", "a", "b"}}) {
      std::vector<int> shared(size), right(size);
      run_gloo({"windows", hosts}, [&](GlooCommunicator& c) {
        const auto r = static_cast<std::size_t>(c.rank());
        shared[r] = c.share(all || r != 1 ? windows[r] : nullptr) ? 1 : 0;
        right[r] =
            sums(windows[r]->bytes(), static_cast<float>(r + 1), 6,
                 [&] {
                   c.all_reduce(DType::f32, std::as_writable_bytes(values(windows[r]->bytes())), ReduceOp::sum, "sum")
                       .wait();
                 })
                ? 1
                : 0;
      });
      for (std::size_t r = 0; r < size; ++r) {
        CHECK(shared[r] == (all ? 1 : 0));
        CHECK(right[r] == 1);
      }
    }
  }
}

TEST_CASE(
    "an elastic process keeps its window while others join and leave, and gets new memory at the same address after a "
    "loss") {
  control::ArbiterOptions o;
  o.workers = 2;
  o.elastic = true;
  testing::ArbiterHarness harness(o);
  std::vector<std::string> errors(4);
  std::vector<std::unique_ptr<ControlChannel>> channels;
  for (int i = 0; i < 4; ++i) channels.push_back(harness.channel());
  std::latch began(2), left(2);
  std::atomic<bool> failed{false};
  const auto member = [&](std::size_t me) {
    const auto require = [](bool good, const char* what) {
      if (!good) fail<Error>("test", what, "otherwise");
    };
    ElasticOptions how;
    how.start.rank = static_cast<int>(me);
    how.start.host = "localhost";
    how.start.new_worker = me >= 2;
    ElasticGloo s(std::move(channels[me]), how, GlooGroupFactory{});
    const std::span<std::byte> bytes = s.allocate(floats * sizeof(float));
    require(!bytes.empty(), "a window");
    const auto sum_is = [&](float of_all) {
      s.attach({}, {});
      return sums(bytes, 1, of_all, [&] {
        s.reduce({Piece::Kind::gradients, 0, DType::f32, std::as_writable_bytes(values(bytes)), 0}).wait();
      });
    };
    const auto change_is_known = [&s](bool broken) {
      using Change = ElasticMembership::Change;
      while (broken ? s.change() != Change::broken : s.change() == Change::none)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    if (me >= 2) {
      while (!(me == 2 ? began : left).try_wait() && !failed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      require(s.next_generation({}), "a generation with it");
      require(sum_is(3), "the sum of three");
      if (me == 3) return harness.ended(me);  // as if it were killed
      s.ask_to_leave();
      change_is_known(false);
      require(!s.next_generation({2, false, false}), "a release");
      return;
    }
    require(sum_is(2), "the sum of two");
    for (std::latch* const next : {&began, &left}) {
      next->count_down();
      change_is_known(false);
      require(s.next_generation({1, false, false}), "a generation with one more");
      require(values(bytes)[7] == 2, "the previous memory");
      require(sum_is(3), "the sum of three");
      const bool killed = next == &left;
      change_is_known(killed);
      require(s.next_generation({2, killed, false}), "a generation with one fewer");
      require(values(bytes)[7] == (killed ? 0 : 3), killed ? "new memory at the same address" : "the previous memory");
      require(sum_is(2), "the sum of two");
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t me = 0; me < 4; ++me)
    threads.emplace_back([&, me] {
      try {
        member(me);
      } catch (const std::exception& e) {
        errors[me] = e.what();
        failed = true;
        for (std::size_t all = 0; all < 4; ++all) harness.ended(all);
      }
    });
  for (auto& t : threads) t.join();
  for (const std::string& e : errors) CHECK(e == "");
}
