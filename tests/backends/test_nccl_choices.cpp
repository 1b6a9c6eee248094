// SPDX-License-Identifier: MIT
// takes long
// Tests that ranks with different measurements take the same kernels, on emulated GPUs and over an emulated NCCL.
#define TUTTI_CUDA_LINK_LIBRARIES
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/nccl/nccl.hpp>
#include <tutti/cluster/rendezvous/tcp_rendezvous.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/models/model.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/training_job.hpp>
#include <tutti/train/fit_job.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/nccl_job.hpp"
#include "backends/step_cases.hpp"
#include "comm/conformance.hpp"

using namespace tutti;
using namespace std::chrono_literals;
using conformance::require;
using testing::Emulated;
using testing::LoopConvolutions;
using testing::NcclJob;

namespace {

constexpr std::int64_t rows = 8;

int free_port() {
  const TcpRendezvous free({"127.0.0.1", 0, "job", "a secret of the tests", 0, 2, 1s});
  return free.port();
}

struct Case {
  bool second_on_rank[2];           // whether the second kernel is faster there
  bool prepares[2] = {true, true};  // whether the rank has made its plans before it synchronises
  bool same_device = true;
};

// Runs two ranks. Returns the errors of both.
std::vector<std::string> on_two_ranks(const Case& c, bool captured,
                                      const std::function<void(int rank, Emulated& b, AnyStrategy& s)>& f) {
  const int port = free_port();
  return emulator::run_ranks(2, [&](int rank) {
    LoopConvolutions::second_is_faster = [&] { return c.second_on_rank[rank]; };
    LoopConvolutions::kind_of_device = c.same_device || rank == 0 ? "one" : "another";
    Emulated backend(testing::emulated_options(captured));
    TcpRendezvous meet({"127.0.0.1", port, "job", "a secret of the tests", rank, 2, 20s});
    AnyStrategy strategy = AnyStrategy::make<OwningAllReduce<NcclCommunicator>>(
        backend.device(), NcclOptions{.rank = rank, .size = 2, .deadline = 60s}, Rendezvous(std::ref(meet)));
    f(rank, backend, strategy);
  });
}

// Trains two ranks on equal data. Returns the errors of both. `f` gets the rank, and whether both ranks computed the
// same loss before the first step.
std::vector<std::string> train(const Case& c, bool captured,
                               const std::function<void(int rank, Trainer& t, bool equal)>& f) {
  return on_two_ranks(c, captured, [&](int rank, Emulated& backend, AnyStrategy& strategy) {
    const Graph net = testing::small_net();
    Trainer t(backend, strategy, net, TrainerOptions{});
    if (c.prepares[rank]) t.prepare(rows, rows);
    t.synchronise();
    const auto batch = testing::random_batch(net, rows, 1);
    const Metrics mine = t.evaluate(batch.view());
    const bool equal = t.reduce(mine).loss == 2 * mine.loss;
    for (int i = 0; i < 5; ++i) (void)t.step(batch.view(), 2 * rows, 0.01);
    (void)t.take_metrics();
    require(captured == (emulator::Device::instance().graph_launches > 0), "whether steps were captured");
    f(rank, t, equal);
  });
}

// The job of one rank for fit(job, net, recipe).
class RankJob final : public TrainingJob {
 public:
  RankJob(Emulated& backend, AnyStrategy& strategy) : backend_(backend), strategy_(strategy) {}
  [[nodiscard]] Backend& backend() override { return backend_; }
  [[nodiscard]] const ImageDecoders& decoders() override { throw UsageError("no decoders"); }
  [[nodiscard]] AnyStrategy& join(const JoinOptions&) override { return strategy_; }

 private:
  Emulated& backend_;
  AnyStrategy& strategy_;
};

void require_none(const std::vector<std::string>& said) {
  for (const std::string& s : said) CHECK(s == "");
}

}  // namespace

TEST_CASE("ranks that measure different times take the kernels of rank 0") {
  if (testing::no_emulator()) return;
  for (const bool captured : {false, true})
    for (const bool second : {false, true}) {
      CAPTURE(captured);
      CAPTURE(second);
      require_none(train({{second, !second}}, captured, [&](int, Trainer& t, bool equal) {
        require(LoopConvolutions::measured > 0, "kernels were not measured");
        require(equal, "the losses of equal data differ");
        require((LoopConvolutions::second_runs > 0) == second, "the kernels are not those of rank 0");
        // Each rank measures for a plan that is made later, and the next exchange makes them equal again.
        const auto batch = testing::random_batch(t.model(), rows - 1, 2);
        const std::size_t measured = LoopConvolutions::measured;
        const Metrics own = t.evaluate(batch.view());
        require(t.reduce(own).loss != 2 * own.loss, "the ranks do not measure for a later plan");
        require(LoopConvolutions::measured > measured, "a later plan was not measured");
        t.synchronise();
        const Metrics shared = t.evaluate(batch.view());
        require(t.reduce(shared).loss == 2 * shared.loss, "the losses differ after the next exchange");
      }));
    }
}

TEST_CASE("fit(job, net, recipe) makes the plans before the ranks share their choices") {
  if (testing::no_emulator()) return;
  const auto images = [](std::int64_t size, std::int64_t first) {
    return Synthetic({.size = size, .height = 8, .width = 8, .classes = 4, .learnable = true, .first = first});
  };
  for (const std::int64_t micro_batch : {0, 5})
    require_none(on_two_ranks({{true, false}}, true, [&](int rank, Emulated& backend, AnyStrategy& strategy) {
      RankJob job(backend, strategy);
      FitRecipe r{.train = images(64, 0), .test = images(32, 1000), .batch = 16, .epochs = 2, .progress = false};
      r.micro_batch = micro_batch;
      // Before the first step: all plans exist.
      std::size_t plans = 0;
      r.after_epoch = [&](const EpochReport& e) {
        if (e.epoch == 1) plans = LoopConvolutions::chosen;
      };
      Model net(r.train.schema());
      net.classifier(net.conv_bn(net.images(), {.out = 8, .stride = 2}));
      (void)fit(job, net, r);
      require(LoopConvolutions::measured > 0, "kernels were not measured");
      require(plans == LoopConvolutions::chosen, "kernels were chosen after the first epoch");
      require(LoopConvolutions::second_runs > 0, "the kernels are not those of rank 0: rank " + std::to_string(rank));
      require(LoopConvolutions::first_runs == 0, "some kernels are not those of rank 0");
    }));
}

TEST_CASE("ranks take part in the same transfers if only one of them has chosen kernels") {
  if (testing::no_emulator()) return;
  require_none(train({{true, false}, {true, false}}, true, [](int rank, Trainer&, bool equal) {
    require(equal, "the losses of equal data differ");
    require(LoopConvolutions::second_runs > 0, "the kernels are not those of rank 0");
    require((LoopConvolutions::measured > 0) == (rank == 0), "who has measured");
  }));
  // Rank 0 has made no choice, so rank 1 keeps its own.
  require_none(train({{false, true}, {false, true}}, false, [](int rank, Trainer&, bool) {
    require((LoopConvolutions::second_runs > 0) == (rank == 1), "the kernels of rank 1");
  }));
}

TEST_CASE("ranks with different devices keep their own kernels") {
  if (testing::no_emulator()) return;
  require_none(train({{true, false}, {true, true}, false}, true, [](int rank, Trainer&, bool equal) {
    require(!equal, "the losses are equal");
    require((LoopConvolutions::second_runs > 0) == (rank == 0), "the kernels of the other device");
  }));
}

TEST_CASE("a process that joins a job takes the kernels of the processes that train") {
  if (testing::no_emulator()) return;
  NcclJob job(1, [](NcclJob& j, std::size_t me, const FitStep& s) {
    if (me == 0 && s.step == 3) j.join();
  });
  job.second_is_faster = [](std::size_t me) { return me == 1; };
  CHECK(job.run() == std::vector<std::string>{"", ""});
  for (const std::size_t member : {0, 1}) {
    CAPTURE(member);
    CHECK(job.member(member).measured > 0);
    CHECK(job.member(member).first_runs > 0);  // the second member alone would never run it
  }
  CHECK(job.member(0).second_runs == 0);
  CHECK(job.member(1).steps > 3);
}
