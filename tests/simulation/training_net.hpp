// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <tutti/data/loader.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

#include "tests/strategy/job_images.hpp"

// The training of training.cpp: its net, its images and options, and what it has in one process without faults.
namespace tutti::simulation {

inline constexpr std::int64_t batch = 12, steps_an_epoch = 8, samples = batch * steps_an_epoch - 5, epochs = 3;
inline constexpr std::int64_t steps = epochs * steps_an_epoch;
inline const testing::JobImages images{samples, batch, 4};

// A net of about 100 parameters.
inline Graph net() {
  Builder b(3, 4, 4);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 3, .stride = 2}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
// logical: number of logical ranks, or 0.
inline TrainerOptions trainer_options(int logical) {
  TrainerOptions o;
  o.compute = logical > 0 ? DType::f32 : DType::f64;
  o.optimizer = Sgd{0.9, true};
  o.first_bucket_bytes = 1 << 8;
  o.bucket_bytes = 1 << 9;
  o.micro_batch = 5;
  o.logical_ranks = logical;
  return o;
}
inline LoaderOptions placed(LoaderOptions o, int logical) {
  o.placement.logical_ranks = logical;
  return o;
}
// The loss of these images, as a metric: the first epoch is the best one.
inline double sum_of_losses(std::span<const float> logits, std::span<const std::int32_t> labels) {
  const std::size_t classes = logits.size() / labels.size();
  double all = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::span<const float> z = logits.subspan(i * classes, classes);
    double sum = 0;
    for (const float v : z) sum += std::exp(v);
    all += std::log(sum) - z[static_cast<std::size_t>(labels[i])];
  }
  return all;
}
// first_is_best: compares nets by their loss, and otherwise by their accuracy, which grows.
inline FitOptions fit_options(bool first_is_best) {
  FitOptions f = images.fit_options(epochs);
  f.report_every = 2;
  f.save_every_steps = 5;
  f.save_last = true;
  if (first_is_best) f.metric = sum_of_losses;
  return f;
}
inline std::vector<double> weights_of(Trainer& t) {
  const std::size_t count = t.executor().parameters().count;
  if (t.options().compute == DType::f64) {
    const auto* v = static_cast<const double*>(t.executor().parameter_data());
    return {v, v + count};
  }
  const auto* v = static_cast<const float*>(t.executor().parameter_data());
  return {v, v + count};
}

// The sources and the trainer of one process.
struct OneProcess {
  explicit OneProcess(int logical)
      : trainer(backend, solo, net(), trainer_options(logical)),
        train(images.images(samples), placed(images.train_options(0, 1), logical)),
        test(images.images(testing::JobImages::tests), placed(images.test_options(0, 1), logical)) {}
  ReferenceBackend backend;
  Solo solo;
  Trainer trainer;
  Loader train, test;
};

// Keeps the reports of a training.
class Reports : public FitListener {
 public:
  void epoch(const EpochReport& r) override { epochs.push_back(r); }
  void step(const StepReport& r) override { steps[r.step] = r; }

  std::vector<EpochReport> epochs;
  std::map<std::int64_t, StepReport> steps;
};

// What a training in one process has: its weights after each step, and its reports.
struct Quiet {
  std::vector<std::vector<double>> weights;
  Reports reports;
  // Returns the step of the best checkpoint.
  [[nodiscard]] std::int64_t best_step(bool by_loss) const {
    const auto value = [&](const EpochReport& r) { return by_loss ? *r.test->metric : r.test->top1; };
    const EpochReport* best = &reports.epochs.front();
    for (const EpochReport& r : reports.epochs)
      if (value(r) > value(*best)) best = &r;
    return best->step;
  }
};
inline Quiet train_alone(int logical) {
  OneProcess one(logical);
  FitOptions f = fit_options(true);
  f.save_every = f.save_every_steps = 0;
  f.save_last = f.save_best = false;
  Quiet found{{weights_of(one.trainer)}, {}};
  CoordinatorOptions duties;
  duties.listeners = {&found.reports};
  Coordinator coordinator(one.trainer, duties);
  f.after_step = [&](const FitStep&) { found.weights.push_back(weights_of(one.trainer)); };
  (void)fit(one.trainer, one.train, &one.test, coordinator, f);
  return found;
}
// Those of a quiet training, by its number of logical ranks.
inline std::map<int, Quiet> quiet;

}  // namespace tutti::simulation
