// SPDX-License-Identifier: MIT
// Tests the concept DistributedStrategy: a type does not compile if a function has another name, or if its traits do
// not declare a function.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/comm/thread_communicator.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/strategy/strategy.hpp>

using namespace tutti;

namespace {

struct Plain {
  static constexpr StrategyTraits traits{};
  [[nodiscard]] Membership membership() const { return {1, 3, 7}; }
  [[nodiscard]] std::string name() const { return "plain"; }
  std::span<std::byte> allocate(std::size_t) { return {}; }
  void attach(const ArenaLayout&, const JobFacts&) {}
  void synchronise(std::span<StateSpan>) {}
  Work reduce(const Piece&) { return {}; }
  void finish() {}
  void sum(std::span<double>) {}
  void abort(const std::string&, ExitCode) noexcept {}
};
struct Nameless {
  [[nodiscard]] Membership membership() const { return {}; }
};
struct Traitless : Plain {
  int traits;
};
struct Silent : Plain {  // has functions that its traits do not declare
  void begin_step(std::int64_t, bool) {}
  void settled() {}
};
struct Misspelt : Plain {
  static constexpr StrategyTraits traits{.watches_ranks = true};
  [[nodiscard]] std::chrono::milliseconds deadline() const { return usual_deadline; }
  void wait_unil(const std::function<bool()>&, const std::string&) {}
};
struct Following : Plain {
  static constexpr StrategyTraits traits{.follows_steps = true, .watches_ranks = true};
  std::int64_t step = 0;
  int waits = 0;
  void begin_step(std::int64_t s, bool) { step = s; }
  void settled() { step = -step; }
  [[nodiscard]] std::chrono::milliseconds deadline() const { return std::chrono::seconds(7); }
  void wait_until(const std::function<bool()>&, const std::string&) { ++waits; }
};
struct Timeless : Plain {  // has no time-out, which a strategy that waits for ranks needs
  static constexpr StrategyTraits traits{.watches_ranks = true};
  void wait_until(const std::function<bool()>&, const std::string&) {}
};

struct Fixed : Plain {  // declares that its members change, but has no functions for it
  static constexpr StrategyTraits traits{.changes_members = true};
};

struct Least final : ElasticMembership {  // has only the required functions
  [[nodiscard]] bool joining() const override { return joins; }
  [[nodiscard]] Change change() override { return Change::none; }
  [[nodiscard]] bool next_generation(const LeaveReport&) override { return true; }
  [[nodiscard]] bool has_authority() const override { return true; }
  void ask_to_leave() override {}
  [[nodiscard]] bool stop_requested() const override { return false; }
  [[nodiscard]] bool may_write() const override { return true; }
  void epoch_begins(std::int64_t) override {}
  bool joins = false;
};

static_assert(DistributedStrategy<Plain> && DistributedStrategy<Following> && DistributedStrategy<Solo>);
static_assert(DistributedStrategy<AllReduce<ThreadCommunicator>> && DistributedStrategy<AnyStrategy>);
static_assert(!DistributedStrategy<int> && !DistributedStrategy<Nameless> && !DistributedStrategy<Traitless>);
static_assert(!DistributedStrategy<Silent> && !DistributedStrategy<Misspelt> && !DistributedStrategy<Timeless>);
static_assert(!DistributedStrategy<Fixed>);

}  // namespace

TEST_CASE("AnyStrategy has exactly the functions that the traits of its strategy declare") {
  using namespace std::chrono_literals;
  Following s;
  AnyStrategy any = AnyStrategy::refer(s);
  any.begin_step(5, false);
  CHECK(s.step == 5);
  any.settled();
  CHECK(s.step == -5);
  any.wait_until([] { return false; }, "nothing");
  CHECK(s.waits == 1);
  CHECK(any.deadline() == 7s);
  CHECK(!any.reads_device_memory());

  Plain plain;
  any = AnyStrategy::refer(plain);
  any.begin_step(5, false);
  any.settled();
  CHECK(any.deadline() == 10min);
  int asked = 0;
  any.wait_until([&] { return ++asked == 3; }, "a step");
  CHECK(asked == 3);
  CHECK_THROWS_WITH_AS(poll([] { return false; }, 1ms, "a step"),
                       doctest::Contains("[a step] expected the end of the operation within the deadline"),
                       CommunicationError);
  CHECK(any.rank() == 1);
  CHECK(any.size() == 3);
  CHECK(any.membership().generation == 7);
}

TEST_CASE("a single process completes each request of the trainer immediately") {
  AnyStrategy any = AnyStrategy::make<Solo>();
  CHECK(any.name() == "solo");
  CHECK(any.size() == 1);
  CHECK(any.allocate(64).empty());
  any.reduce(Piece{}).wait();
  any.finish();
  std::array<double, 2> sums{1, 2};
  any.sum(sums);
  CHECK(sums == std::array<double, 2>{1, 2});
}

TEST_CASE("an elastic strategy has the default of each trait that the strategy does not declare") {
  Least least;
  ElasticMembership& m = least;
  CHECK(!m.restarts_processes());
  CHECK(m.step_assignments() == nullptr);
  CHECK(!m.lacks_state());
  least.joins = true;
  CHECK(m.lacks_state());
  CHECK(m.epoch_of_joining() == 0);
  CHECK(m.most_members() == 1);
  CHECK(m.state_memory(64).empty());
  CHECK(m.took_state());
}
