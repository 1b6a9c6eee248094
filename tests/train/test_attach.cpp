// SPDX-License-Identifier: MIT
// Tests that trainers compare the facts of the job once for each group of members, also if a member is lost meanwhile.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/error.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/train/trainer.hpp>

#include "small_trainer.hpp"

using namespace tutti;

namespace {

enum class Fails : std::uint8_t { not_at_all, lost, facts };

// A member of an elastic job. Its comparison of facts fails as `fails` says.
struct Member final : ElasticMembership {
  static constexpr StrategyTraits traits{.changes_members = true};

  [[nodiscard]] Membership membership() const { return {0, 2, generation}; }
  [[nodiscard]] std::string name() const { return "member"; }
  std::span<std::byte> allocate(std::size_t) { return {}; }
  void attach(const ArenaLayout&, const JobFacts&) {
    ++comparisons;
    if (fails == Fails::lost) fail<CommunicationError>("facts of the job", "all ranks", "the loss of rank 1");
    if (fails == Fails::facts) fail<UsageError>("rank 1", "seed 1", "seed 2");
  }
  void synchronise(std::span<StateSpan>) {}
  Work reduce(const Piece&) { return {}; }
  void finish() {}
  void sum(std::span<double>) {}
  void abort(const std::string&, ExitCode) noexcept {}
  [[nodiscard]] ElasticMembership* members() noexcept { return this; }

  [[nodiscard]] bool restarts_processes() const override { return restarts; }
  [[nodiscard]] bool joining() const override { return false; }
  [[nodiscard]] Change change() override { return Change::none; }
  [[nodiscard]] bool next_generation(const LeaveReport&) override { return true; }
  [[nodiscard]] bool has_authority() const override { return true; }
  void ask_to_leave() override {}
  [[nodiscard]] bool stop_requested() const override { return false; }
  [[nodiscard]] bool may_write() const override { return true; }
  void epoch_begins(std::int64_t) override {}

  Fails fails = Fails::not_at_all;
  std::uint64_t generation = 1;
  int comparisons = 0;
  bool restarts = false;
};

}  // namespace

TEST_CASE("a trainer compares the facts once for each generation, and in each reform()") {
  CpuBackend backend;
  Member member;
  Trainer trainer(backend, member, testing::small_net(false), {});
  CHECK(member.comparisons == 1);
  trainer.attach();
  CHECK(member.comparisons == 1);
  member.generation = 2;  // a member was lost before the first step
  trainer.attach();
  trainer.attach();
  CHECK(member.comparisons == 2);
  trainer.reform();
  CHECK(member.comparisons == 3);
}

TEST_CASE("a trainer is constructed although a member is lost, and compares the facts later") {
  CpuBackend backend;
  Member member;
  member.fails = Fails::lost;
  Trainer trainer(backend, member, testing::small_net(false), {});
  CHECK_THROWS_AS(trainer.attach(), CommunicationError);
  CHECK_THROWS_AS(trainer.attach(), CommunicationError);
  CHECK(member.comparisons == 3);
  member.fails = Fails::not_at_all;
  member.generation = 2;
  trainer.attach();
  CHECK(member.comparisons == 4);
}

TEST_CASE("the constructor fails if facts differ, and if a rank of a job without changes in place is lost") {
  CpuBackend backend;
  Member member;
  member.fails = Fails::facts;
  CHECK_THROWS_AS(Trainer(backend, member, testing::small_net(false), {}), UsageError);
  member.fails = Fails::lost;
  member.restarts = true;
  CHECK_THROWS_AS(Trainer(backend, member, testing::small_net(false), {}), CommunicationError);
}
