// SPDX-License-Identifier: MIT
// Tests that trainers compare the facts of the job once for each group of members, also if a member is lost meanwhile,
// and before the ranks of the group exchange anything else.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/error.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/models/model.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/strategy/training_job.hpp>
#include <tutti/train/fit_job.hpp>
#include <tutti/train/trainer.hpp>

#include "small_trainer.hpp"

using namespace tutti;

namespace {

enum class Fails : std::uint8_t { not_at_all, lost, facts };

// A member of an elastic job. Its comparison of facts fails as `fails` says.
struct Member final : ElasticMembership {
  static constexpr StrategyTraits traits{.changes_members = true};

  [[nodiscard]] Membership membership() const { return {0, ranks, generation}; }
  [[nodiscard]] std::string name() const { return "member"; }
  std::span<std::byte> allocate(std::size_t) { return {}; }
  void attach(const ArenaLayout&, const JobFacts&) {
    ++comparisons;
    calls.push_back("compare");
    if (fails == Fails::lost) fail<CommunicationError>("facts of the job", "all ranks", "the loss of rank 1");
    if (fails == Fails::facts) fail<UsageError>("rank 1", "seed 1", "seed 2");
  }
  void synchronise(std::span<StateSpan>) {
    calls.push_back("synchronise");
    if (ends) fail<UsageError>("test", "the first exchange of state", "that");
  }
  Work reduce(const Piece&) { return {}; }
  void finish() {}
  void sum(std::span<double>) {}
  void abort(const std::string&, ExitCode) noexcept {}
  [[nodiscard]] ElasticMembership* members() noexcept { return this; }

  [[nodiscard]] bool restarts_processes() const override { return restarts; }
  [[nodiscard]] bool joining() const override { return false; }
  [[nodiscard]] Change change() override { return Change::none; }
  // The rank that is lost stays away.
  [[nodiscard]] bool next_generation(const LeaveReport&) override {
    calls.push_back("next generation");
    ++generation;
    --ranks;
    fails = Fails::not_at_all;
    return true;
  }
  [[nodiscard]] bool has_authority() const override { return true; }
  void ask_to_leave() override {}
  [[nodiscard]] bool stop_requested() const override { return false; }
  [[nodiscard]] bool may_write() const override { return true; }
  void epoch_begins(std::int64_t) override {}

  Fails fails = Fails::not_at_all;
  std::uint64_t generation = 1;
  int ranks = 2, comparisons = 0;
  bool restarts = false, ends = false;  // ends: with the first exchange of state
  std::vector<std::string> calls;
};

class JobOfMember final : public TrainingJob {
 public:
  explicit JobOfMember(Member& m) : strategy_(AnyStrategy::refer(m)) {}
  [[nodiscard]] Backend& backend() override { return backend_; }
  [[nodiscard]] const ImageDecoders& decoders() override { throw UsageError("no decoders"); }
  [[nodiscard]] AnyStrategy& join(const JoinOptions&) override { return strategy_; }

 private:
  CpuBackend backend_;
  AnyStrategy strategy_;
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

TEST_CASE("fit compares the facts of a group that was formed anew before its ranks prepare and exchange their state") {
  Member member;
  member.ranks = 3;
  member.fails = Fails::lost;
  member.ends = true;
  JobOfMember job(member);
  const Synthetic images({.size = 24, .height = 8, .width = 8, .classes = 4});
  Model net(images.schema());
  net.classifier(net.conv_bn(net.images(), {.out = 4, .stride = 2}));
  FitRecipe recipe{.train = images, .batch = 8, .epochs = 1, .progress = false};
  recipe.prepare = [&](Trainer&) { member.calls.push_back("prepare"); };
  CHECK_THROWS_AS(fit(job, net, recipe), UsageError);
  // The constructor of the trainer has compared them, too.
  CHECK(member.calls ==
        std::vector<std::string>{"compare", "compare", "next generation", "compare", "prepare", "synchronise"});
}
