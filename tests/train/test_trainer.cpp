// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/train/trainer.hpp>

#include "small_trainer.hpp"

using namespace tutti;
using namespace tutti::testing;

TEST_CASE_TEMPLATE("training lowers the loss, and the same seed gives the same bits", B, ReferenceBackend, CpuBackend) {
  const Data data(12);
  const auto run = [&](std::uint64_t seed) {
    B backend;
    Solo solo;
    Trainer t(backend, solo, small_net(true), {.seed = seed});
    double first = 0, last = 0;
    for (int i = 0; i < 12; ++i) {
      last = t.step(data.view(), 12, 0.1).wait().metrics.mean_loss();
      if (i == 0) first = last;
    }
    CHECK(last < first * 0.9);
    return weights(t);
  };
  const auto a = run(3);
  CHECK(a == run(3));
  CHECK(a != run(4));
}

TEST_CASE_TEMPLATE("on the host, a step is complete when its start returns; the metrics are kept until they are taken",
                   B, ReferenceBackend, CpuBackend) {
  const Data data(12);
  B backend;
  Solo solo;
  Trainer a(backend, solo, small_net(true), {}), b(backend, solo, small_net(true), {.micro_batch = 7});
  CHECK(!a.runs_ahead());
  Metrics sum;
  // Rows 0 to 5 and 6 to 11: the smallest number of equal micro-batches with at most 7 rows each.
  const std::size_t pixels = data.images.size() / 12;
  Batch batch;
  batch.images = data.images;
  batch.labels = data.labels;
  batch.count = batch.global_count = 12;
  const std::vector<BatchView> parts{data.view(0, 6), data.view(6, 12)};
  CHECK(parts[1].images == data.images.data() + 6 * pixels);
  for (int i = 0; i < 3; ++i) {
    auto pending = a.step(parts, 12, 0.1, step_flag::stop);
    CHECK(pending.flags() == step_flag::stop);
    CHECK(a.counters().step == i + 1);
    sum += pending.wait().metrics;
    CHECK(b.step(batch, 0.1, step_flag::save).flags() == step_flag::save);
  }
  const Metrics taken = a.take_metrics();
  CHECK(taken.loss == sum.loss);
  CHECK(taken.rows == 36);
  CHECK(b.take_metrics().loss == sum.loss);
  CHECK(a.take_metrics().rows == 0);
  CHECK(weights(a) == weights(b));
  CHECK(a.counters() == b.counters());
  CHECK(a.counters().samples == 36);
  CHECK(a.counters().batches == 6);
  CHECK_THROWS_AS(a.step(std::span<const BatchView>{}, 12, 0.1), UsageError);
  // The result of a step stays available while the next three steps run.
  auto first = a.step(parts, 12, 0.1);
  for (int i = 0; i < 3; ++i) a.step(parts, 12, 0.1);
  CHECK(first.wait().metrics.rows == 12);
  a.step(parts, 12, 0.1);
  CHECK_THROWS_AS((void)first.wait(), UsageError);
  // When a step trace is set, the trainer uses a different step finisher, which does not know the earlier steps.
  auto before = a.step(parts, 12, 0.1);
  StepTrace trace;
  a.trace(&trace);
  CHECK_THROWS_AS((void)before.wait(), UsageError);
  CHECK(a.step(parts, 12, 0.1).wait().metrics.rows == 12);
  CHECK(a.take_metrics().rows > 12);
}

TEST_CASE("gradient accumulation gives the same result as one large batch") {
  const Data data(12);
  const auto run = [&](std::vector<std::int64_t> cuts) {
    ReferenceBackend backend;
    Solo solo;
    Trainer t(backend, solo, small_net(false), {.compute = DType::f64});
    for (int i = 0; i < 3; ++i) {
      std::vector<BatchView> parts;
      for (std::size_t k = 0; k + 1 < cuts.size(); ++k) parts.push_back(data.view(cuts[k], cuts[k + 1]));
      t.step(parts, 12, 0.1);
    }
    const auto w = weights(t);
    std::vector<double> v(w.size() / sizeof(double));
    std::memcpy(v.data(), w.data(), w.size());
    return v;
  };
  const auto whole = run({0, 12}), parts = run({0, 5, 9, 12});
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(parts[i] == doctest::Approx(whole[i]).epsilon(1e-12));
}

TEST_CASE("the committed copy restores the whole state, including the counters") {
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.ema_decay = 0.9});
  t.step(data.view(), 12, 0.1);
  t.commit();
  const auto committed = weights(t);
  const auto next = [&] {
    t.step(data.view(), 12, 0.1);
    return weights(t);
  };
  const auto one = next();
  next();
  CHECK(t.counters().step == 3);
  t.restore();
  CHECK(weights(t) == committed);
  CHECK(t.counters().step == 1);
  CHECK(t.counters().samples == 12);
  // restore() also restores momentum and running statistics: the next step gives the same bits.
  CHECK(next() == one);
}

TEST_CASE("committed tensors have names") {
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.ema_decay = 0.9});
  t.commit();
  const auto has = [](const std::vector<StateSpan>& list, const std::string& name) {
    for (const auto& s : list)
      if (s.name == name) return true;
    return false;
  };
  const auto model = t.committed_tensors(false), optimizer = t.committed_tensors(true);
  for (const char* n : {"conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var", "fc.bias"})
    CHECK_MESSAGE(has(model, n), n);
  for (const char* n : {"momentum.conv1.weight", "ema.bn2.bias", "ema.bn2.running_var"})
    CHECK_MESSAGE(has(optimizer, n), n);
  CHECK(!has(model, "momentum.conv1.weight"));
}

TEST_CASE("a loss scale changes only values that overflow") {
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  const auto trained = [&](const TrainerOptions& o) {
    Trainer t(backend, solo, small_net(true), o);
    for (int i = 0; i < 3; ++i) t.step(data.view(), 12, 0.1);
    return weights(t);
  };
  const auto plain = trained({});
  TrainerOptions o;
  o.loss_scale = 1024;
  CHECK(trained(o) == plain);
  o.dynamic_loss_scale = true;
  CHECK(trained(o) == plain);

  // Each step with a scale that overflows halves the scale and changes no weights. When the scale fits, the trainer
  // trains.
  Trainer t(backend, solo, small_net(true), o);
  auto* w = static_cast<float*>(t.executor().parameter_data());
  for (const Slice& s : t.executor().parameters().slices)
    if (s.name == "fc.weight")
      for (std::size_t i = 0; i < s.count; ++i) w[s.offset + i] *= 1024;  // makes the gradients large
  t.executor().parameters_changed();
  const auto large = weights(t);
  t.counters().scale_exponent = 126;
  t.counters().scale_steps = 7;
  t.step(data.view(), 12, 0.001);
  CHECK(weights(t) == large);
  CHECK(t.counters().scale_exponent == 125);
  CHECK(t.counters().scale_steps == 0);
  CHECK(t.counters().step == 1);
  int skipped = 1;
  while (weights(t) == large && skipped < 100) {
    t.step(data.view(), 12, 0.001);
    ++skipped;
  }
  CHECK(skipped < 40);
  CHECK(t.counters().scale_steps == 1);
  t.counters().scale_steps = 1999;
  const auto exponent = t.counters().scale_exponent;
  t.step(data.view(), 12, 0.001);
  CHECK(t.counters().scale_exponent == exponent + 1);
  CHECK(t.counters().scale_steps == 0);
}

TEST_CASE("gradients that are not finite at any scale stop the run") {
  const Data data(4);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(false), {.dynamic_loss_scale = true});
  t.counters().scale_exponent = 0;
  // f32 can represent the product of the weights of all layers, and so the loss. It cannot represent the product of all
  // weights except the first layer's, and so not the gradient of the first layer.
  auto* w = static_cast<float*>(t.executor().parameter_data());
  for (const Slice& s : t.executor().parameters().slices)
    for (std::size_t i = 0; i < s.count; ++i)
      w[s.offset + i] *= s.name == "conv1.weight" ? 1e-30F : s.name == "conv2.weight" ? 1e20F : 1e25F;
  t.executor().parameters_changed();
  const auto before = weights(t);
  CHECK_THROWS_WITH_AS(t.step(data.view(), 4, 0.1), doctest::Contains("[step 1] expected finite gradients"),
                       NotFiniteError);
  CHECK(weights(t) == before);
  CHECK(t.counters() == Counters{.scale_exponent = 0});
}

TEST_CASE("a loss that is not finite stops the run before the weights change") {
  const Data data(4);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {});
  auto& e = t.executor();
  static_cast<float*>(e.parameter_data())[e.parameters().find("fc.bias")->offset] =
      std::numeric_limits<float>::quiet_NaN();
  e.parameters_changed();
  const auto before = weights(t);
  try {
    t.step(data.view(), 4, 0.1);
    FAIL("no error");
  } catch (const NotFiniteError& error) {
    CHECK(error.exit_code() == 6);
    CHECK(std::string(error.what()).find("[step 1]") != std::string::npos);
  }
  CHECK(weights(t) == before);
}

TEST_CASE("the weight average follows the weights and can be evaluated") {
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.ema_decay = 0.5});
  const auto start = weights(t);
  t.step(data.view(), 12, 0.1);
  const auto trained = weights(t);
  t.with_ema([&] {
    const auto average = weights(t);
    const double d = 2.0 / 11;  // (1 + t) / (10 + t) with t = 1, which is below 0.5
    const auto *a = reinterpret_cast<const float*>(average.data()), *s = reinterpret_cast<const float*>(start.data()),
               *w = reinterpret_cast<const float*>(trained.data());
    for (std::size_t i = 0; i < average.size() / sizeof(float); ++i)
      CHECK(static_cast<double>(a[i]) ==
            doctest::Approx(d * static_cast<double>(s[i]) + (1 - d) * static_cast<double>(w[i])).epsilon(1e-5));
    t.evaluate(data.view());
  });
  CHECK(weights(t) == trained);
  Trainer none(backend, solo, small_net(true), {});
  CHECK_THROWS_AS(none.with_ema([] {}), UsageError);
}

TEST_CASE("lookahead without an average is refused") {
  CpuBackend backend({1});
  Solo solo;
  const TrainerOptions o{.ema = EmaSchedule::airbench(5, 20)};
  CHECK_THROWS_WITH_AS(Trainer(backend, solo, small_net(true), o), doctest::Contains("an average of the weights"),
                       UsageError);
}

TEST_CASE("a batch without rows takes part in the step") {
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.optimizer = Sgd{0, false}, .weight_decay = 0});
  const auto before = weights(t);
  t.step({nullptr, nullptr, 0}, 12, 0.1);
  CHECK(weights(t) == before);
  CHECK(t.counters().step == 1);
}

TEST_CASE("the memory that training needs is known before the plans are made") {
  CpuBackend backend({1});
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.optimizer = Adamw{}, .ema_decay = 0.9, .micro_batch = 64});
  const MemoryEstimate of_four = t.memory(4, 4), before = t.memory(48, 16);
  CHECK(before.activations == 12 * of_four.activations);
  CHECK(before.parameters > 0);
  CHECK(before.optimizer == 3 * before.parameters + before.states);
  CHECK(before.committed == before.parameters + before.states + before.optimizer);
  CHECK(t.memory(128, 4).gradients == 2 * before.gradients);  // space to sum the gradients of the micro-batches
  CHECK(t.memory(128, 4).activations == t.memory(64, 4).activations);
  const MemoryEstimate made = t.prepare(48, 16);
  CHECK(made.parameters == before.parameters);
  CHECK(made.activations > of_four.activations);
  CHECK(made.activations <= before.activations);
}

TEST_CASE("the plans that are prepared are those of the micro-batches of a step") {
  CpuBackend backend({1});
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.micro_batch = 8});
  (void)t.prepare(9, 0);
  CHECK(t.executor().plans() == 2);
  CHECK(t.executor().has_plan(4, true));
  CHECK(t.executor().has_plan(5, true));
  (void)t.prepare(24, 3);
  CHECK(t.executor().has_plan(8, true));
  CHECK(t.executor().has_plan(3, false));
  const std::size_t plans = t.executor().plans();
  CHECK_FALSE(t.plan_ahead(9));
  CHECK(t.memory(9, 0).activations == t.memory(5, 0).activations);
  CHECK(t.executor().plans() == plans);
}
