// SPDX-License-Identifier: MIT
// Tests that a program written for earlier versions, before fit(job, net, ...), Model and run_main, compiles and
// trains.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include <tutti/backends/make.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/train/progress.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/server_weights.hpp>
#include <tutti/tutti.hpp>

#include "data/temp_folder.hpp"

using namespace tutti;

namespace {

void small_net(Builder& b) {
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  x = nn::conv_bn(b, "conv2", "bn2", x, {16, 3, 2, -1, false, {Init::he_normal, 1}}, {.relu = true});
  x = b.global_avg_pool("pool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, 4, {Init::xavier_normal, 1}));
}

}  // namespace

TEST_CASE("a program written for the previous version compiles, trains, saves, continues and prints") {
  const test::TempFolder folder;
  const std::string run = (folder.path() / "run").string();
  const auto backend = make_backend();
  Builder net(3, 16, 16);
  small_net(net);
  const Synthetic images({.size = 128, .height = 16, .width = 16, .classes = 4, .learnable = true});
  const Synthetic held_out({.size = 64, .height = 16, .width = 16, .classes = 4, .learnable = true, .first = 512});
  const TrainerOptions options{.optimizer = Sgd{0.9, true}, .weight_decay = 5e-4};
  FitOptions how{.epochs = 2, .global_batch = 32, .schedule = schedule::Cosine(0.1)};
  auto strategy = make_strategy(
      "solo",
      {.backend = backend.get(), .make_weights = server_weights(*backend, net.graph(), options, how, images.size())});
  Loader test(held_out, {.placement = {.global_batch = 64}, .shuffle = false, .one_pass = true});
  double top1 = 0;
  how.after_epoch = [&](const EpochReport& r) { top1 = r.test->top1; };
  for (const int epochs : {2, 3}) {
    Trainer trainer(*backend, strategy, net.graph(), options);
    Loader training(images,
                    {.placement = {.global_batch = 32, .rank = strategy.rank(), .world = strategy.size()}, .seed = 1});
    Checkpoints checkpoints(run);
    CHECK(checkpoints.resume(trainer) == (epochs == 3));
    how.epochs = epochs;
    const FitResult result = fit(trainer, training, test, checkpoints, how);
    REQUIRE(result.last);
    CHECK(result.last->test->top1 == top1);
    CHECK(result.counters.step == 4 * epochs);
    const std::optional<EvaluationReport> copy = result.last->test;
    CHECK(copy.has_value());
  }

  Trainer trainer(*backend, strategy, net.graph(), options);
  Loader training(images, {.placement = {.global_batch = 32}, .seed = 1});
  fit(trainer, training, nullptr, how);
  ProgressDisplay progress;
  RunLog log(folder.path(), 5, [](const std::string&) {});
  Coordinator coordinator(trainer, {.listeners = {&progress, &log}});
  how.epochs = 4;
  CHECK(fit(trainer, training, &test, coordinator, how).last->epoch == 4);
  const EpochReport by_hand{.epoch = 1, .test = EvaluationReport{0.5, 0.75, 1, 10, 20}, .test_ema = {}};
  CHECK(by_hand.test->top1 == 0.75);
}
