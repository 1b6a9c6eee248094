// SPDX-License-Identifier: MIT
// Tests training with frozen parameters and statistics, weights of classes, early stopping and scores of classes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/parameter_groups.hpp>
#include <tutti/nn/class_weights.hpp>
#include <tutti/nn/frozen_statistics.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/train/class_scores.hpp>

#include "comm/thread_ranks.hpp"
#include "fit_run.hpp"
#include "small_trainer.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

struct Job {
  explicit Job(const Graph& g, TrainerOptions o = {.optimizer = Sgd{0.9, true}, .weight_decay = 0.01, .seed = 3},
               int threads = 2)
      : backend(CpuOptions{threads}), trainer(backend, solo, g, std::move(o)) {}
  CpuBackend backend;
  Solo solo;
  Trainer trainer;
  void steps(int n, std::int64_t rows = 12) {
    const Data data(rows);
    for (int i = 0; i < n; ++i) trainer.step(data.view(), rows, 0.1).wait();
  }
  [[nodiscard]] std::vector<float> tensor(const std::string& name) {
    const Tensor<float> t = trainer.parameter(name);
    return {t.data(), t.data() + t.shape().numel()};
  }
  // Returns the gradient of a parameter in the last step.
  [[nodiscard]] std::vector<float> gradient(const std::string& name) {
    const Slice* const s = trainer.executor().parameters().find(name);
    const auto* const g = static_cast<const float*>(trainer.executor().gradient_data()) + s->offset;
    return {g, g + s->count};
  }
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

}  // namespace

TEST_CASE("frozen parameters keep their bits, and the gradients of the others are as without freezing") {
  Job plain(small_net(true));
  Graph g = small_net(true);
  freeze(g, "conv1,bn1");
  Job frozen(g);
  const auto conv1 = frozen.tensor("conv1.weight"), bn1 = frozen.tensor("bn1.bias");
  plain.steps(1);
  frozen.steps(1);
  CHECK(frozen.gradient("conv2.weight") == plain.gradient("conv2.weight"));
  frozen.steps(4);
  CHECK(frozen.tensor("conv1.weight") == conv1);
  CHECK(frozen.tensor("bn1.bias") == bn1);
  CHECK(frozen.tensor("conv2.weight") != plain.tensor("conv2.weight"));
  CHECK(plain.tensor("conv1.weight") != conv1);
}

TEST_CASE("a layer below frozen ones still learns") {
  Graph g = small_net(true);
  freeze(g, "conv2,bn2,fc");
  Job plain(small_net(true)), frozen(g);
  plain.steps(1);
  frozen.steps(1);
  CHECK(frozen.gradient("conv1.weight") == plain.gradient("conv1.weight"));
  CHECK(frozen.tensor("conv1.weight") == plain.tensor("conv1.weight"));
}

TEST_CASE("frozen statistics stay, and the net computes in training what it computes in an evaluation") {
  Job first(small_net(true));
  first.steps(5);
  Graph g = small_net(true);
  CHECK(freeze_statistics(g) == 2);
  Job frozen(g, {.optimizer = Sgd{0, false}, .weight_decay = 0, .seed = 3});
  // The statistics of the first job, for which the frozen ones are not 0 and 1.
  first.trainer.commit();
  frozen.trainer.commit();
  const auto from = first.trainer.committed_tensors(false), to = frozen.trainer.committed_tensors(false);
  REQUIRE(from.size() == to.size());
  for (const StateSpan& t : to)
    for (const StateSpan& f : from)
      if (f.name == t.name) std::copy(f.bytes.begin(), f.bytes.end(), t.bytes.begin());
  frozen.trainer.restore();
  const Data data(12);
  const Metrics evaluated = first.trainer.evaluate(data.view());
  const auto mean = frozen.tensor("bn1.running_mean");
  const StepResult r = frozen.trainer.step(data.view(), 12, 0).wait();
  CHECK(r.metrics.loss == doctest::Approx(evaluated.loss).epsilon(1e-5));
  // Gradients by differences of the loss.
  for (const char* const name : {"bn1.weight", "bn1.bias", "conv1.weight", "bn2.weight"}) {
    CAPTURE(name);
    const float gradient = frozen.gradient(name)[1];
    const Slice* const s = frozen.trainer.executor().parameters().find(name);
    auto* const w = static_cast<float*>(frozen.trainer.executor().parameter_data()) + s->offset + 1;
    const float was = *w;
    const auto loss_at = [&](float v) {
      *w = v;
      frozen.trainer.executor().parameters_changed();
      return frozen.trainer.evaluate(data.view()).loss / 12;
    };
    const double h = 1e-2, slope = (loss_at(was + 1e-2F) - loss_at(was - 1e-2F)) / (2 * h);
    *w = was;
    frozen.trainer.executor().parameters_changed();
    CHECK(static_cast<double>(gradient) == doctest::Approx(slope).epsilon(0.05).scale(0.05));
  }
  frozen.steps(3);
  CHECK(frozen.tensor("bn1.running_mean") == mean);
}

TEST_CASE("frozen statistics keep their bits on three ranks, whose sum rounds") {
  Graph g = small_net(true);
  (void)freeze_statistics(g);
  run_ranks(3, [&](ThreadCommunicator& c) {
    CpuBackend backend({1});
    AllReduce strategy(c);
    Trainer t(backend, strategy, g, {.optimizer = Sgd{0.9, true}, .seed = 3});
    auto* const states = static_cast<float*>(t.executor().state_data());
    const std::vector<Slice>& slices = t.executor().states().slices;
    for (const Slice& s : slices)
      for (std::size_t i = 0; i < s.count; ++i) states[s.offset + i] = 0.1F + 0.37F * static_cast<float>(i);
    const Data data(12);
    for (int i = 0; i < 3; ++i) t.step(data.view(4 * c.rank(), 4 * c.rank() + 4), 12, 0.1).wait();
    for (const Slice& s : slices)
      for (std::size_t i = 0; i < s.count; ++i) CHECK(states[s.offset + i] == 0.1F + 0.37F * static_cast<float>(i));
  });
}

TEST_CASE("frozen statistics are kernels of the backend on all threads, with the same bits") {
  Graph g = small_net(true);
  (void)freeze_statistics(g);
  CHECK(std::none_of(g.nodes.begin(), g.nodes.end(),
                     [](const Node& n) { return std::holds_alternative<op::Custom>(n.op); }));
  Job one(g, {.optimizer = Sgd{0.9, true}, .seed = 3}, 1), four(g, {.optimizer = Sgd{0.9, true}, .seed = 3}, 4);
  ReferenceBackend reference;
  Solo solo;
  Trainer other(reference, solo, g, {.optimizer = Sgd{0.9, true}, .seed = 3});
  one.steps(3, 40);
  four.steps(3, 40);
  const Data data(40);
  for (int i = 0; i < 3; ++i) other.step(data.view(), 40, 0.1).wait();
  for (const char* const name : {"conv1.weight", "bn1.weight", "bn1.bias", "bn2.weight"}) {
    CAPTURE(name);
    CHECK(one.tensor(name) == four.tensor(name));
    const Tensor<float> t = other.parameter(name);
    CHECK(largest_difference(one.tensor(name), std::vector<float>(t.data(), t.data() + t.shape().numel())) < 1e-5);
  }
}

TEST_CASE("a factor of the rate leaves the trust ratios of LARS, LARC and LAMB as they are") {
  const auto change = [](AnyOptimizer with, double factor) {
    Graph g = small_net(true);
    scale_rate(g, "fc", factor);
    Job job(g, {.optimizer = std::move(with), .weight_decay = 0.5, .seed = 3});
    const auto before = job.tensor("fc.weight");
    job.steps(1);
    auto after = job.tensor("fc.weight");
    for (std::size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
    return after;
  };
  // LARC's rate is that of its ratio, which is below the rate of the schedule here.
  for (const auto& [optimizer, times] : {std::pair<AnyOptimizer, float>{Lars{}, 4.F}, {Larc{}, 1.F}, {Lamb{}, 4.F}}) {
    auto once = change(optimizer, 1);
    for (float& v : once) v *= times;
    CHECK(largest_difference(once, std::vector<float>(once.size())) > 1e-5);
    CHECK(largest_difference(change(optimizer, 4), once) < 2e-6);
  }
}

TEST_CASE("class weights multiply the gradient of the images of a class, and not the reported loss") {
  Job plain(small_net(false)), weighted([] {
    Graph g = small_net(false);
    weigh_classes(g, {2, 2, 2, 2});
    return g;
  }());
  const Data data(12);
  const double loss = plain.trainer.step(data.view(), 12, 0).wait().metrics.loss;
  CHECK(weighted.trainer.step(data.view(), 12, 0).wait().metrics.loss == doctest::Approx(loss).epsilon(1e-6));
  auto twice = plain.gradient("fc.weight");
  for (float& v : twice) v *= 2;
  CHECK(largest_difference(weighted.gradient("fc.weight"), twice) < 1e-6);

  // With weight 0 for three classes, only images of the fourth count.
  Graph g = small_net(false);
  weigh_classes(g, {0, 0, 0, 1});
  Job one(g), sum(small_net(false));
  one.trainer.step(data.view(), 12, 0).wait();
  Data of_class(0);
  for (std::size_t i = 0; i < data.labels.size(); ++i) {
    if (data.labels[i] != 3) continue;
    of_class.labels.push_back(3);
    const auto bytes = static_cast<std::ptrdiff_t>(3 * testing::size * testing::size);
    const auto begin = data.images.begin() + static_cast<std::ptrdiff_t>(i) * bytes;
    of_class.images.insert(of_class.images.end(), begin, begin + bytes);
  }
  REQUIRE(!of_class.labels.empty());
  sum.trainer.step(of_class.view(), 12, 0).wait();
  CHECK(largest_difference(one.gradient("fc.weight"), sum.gradient("fc.weight")) < 1e-6);
  CHECK_THROWS_AS(weigh_classes(g, {1, 2}), UsageError);
}

TEST_CASE("a run ends after evaluations that are not better, and a resumed run counts on") {
  Folder folder;
  int calls = 0;
  // Better once, then worse.
  const BatchMetric metric = [&](std::span<const float>, std::span<const std::int32_t> labels) {
    ++calls;
    return static_cast<double>(labels.size()) * (calls <= 16 ? 0.5 : 0.25);
  };
  FitOptions o{.epochs = 20, .metric = metric};
  o.patience = 3;
  {
    Checkpoints checkpoints(folder.path);
    Run first;
    FitOptions cut = o;
    cut.max_steps = 10;  // two epochs
    const FitResult r = first.go(&checkpoints, cut);
    CHECK(!r.stale);
    CHECK(r.counters.evaluated_step == 10);
    CHECK(r.counters.best_value == 0.5);
    CHECK(r.counters.evaluations_since_best == 1);
  }
  Checkpoints checkpoints(folder.path);
  Run second;
  REQUIRE(checkpoints.resume(second.trainer));
  CHECK(second.trainer.counters().evaluations_since_best == 1);
  const FitResult r = second.go(&checkpoints, o);
  CHECK(r.stale);
  CHECK(!r.interrupted);
  CHECK(r.counters.epoch == 4);
  // Nothing is left for a third process.
  Checkpoints again(folder.path);
  Run third;
  REQUIRE(again.resume(third.trainer));
  CHECK(third.go(&again, o).counters.step == r.counters.step);
}

TEST_CASE("the scores of classes follow from the confusion matrix") {
  Mistakes m;
  m.classes = 3;
  m.confusion = {8, 2, 0, 4, 6, 0, 0, 0, 0};
  const auto scores = class_scores(m);
  REQUIRE(scores.size() == 3);
  CHECK(scores[0].precision == doctest::Approx(8.0 / 12));
  CHECK(scores[0].recall == doctest::Approx(0.8));
  CHECK(scores[0].f1 == doctest::Approx(16.0 / 22));
  CHECK(scores[1].images == 10);
  CHECK(scores[2].f1 == 0);
  CHECK(mean_f1(scores) == doctest::Approx((16.0 / 22 + 12.0 / 18) / 2));
  CHECK(class_scores({}).empty());
}
