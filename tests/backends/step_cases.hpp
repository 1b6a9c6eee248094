// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/engine/reference/reference.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "engine/conformance.hpp"

// Tests for every backend with a device that ends training steps without the host (EndsStepsOnDevice).
namespace tutti::testing {

// conv -> batch norm -> relu -> pool -> linear
inline Graph small_net(double rate = 1) {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 8}, {.relu = true});
  x = b.global_avg_pool("pool", x);
  const ValueId w = b.parameter("fc.weight", {4, 8}, {Init::normal, 0.3}, true, true, rate),
                bias = b.parameter("fc.bias", {4}, {Init::normal, 0.3}, false);
  b.softmax_cross_entropy(b.linear("fc", x, w, bias));
  return std::move(b).take();
}

template <class T>
std::vector<float> floats(T& trainer, const void* from, std::size_t count) {
  std::vector<float> v(count);
  trainer.executor().backend().memory().copy_out(v.data(), from, count * sizeof(float));
  return v;
}
template <class T>
std::vector<float> weights_of(T& t) {
  return floats(t, t.executor().parameter_data(), t.executor().parameters().count);
}
template <class T>
std::vector<float> states_of(T& t) {
  return floats(t, t.executor().state_data(), t.executor().states().count);
}
// Returns the largest difference of two vectors divided by the largest value.
inline double distance_of(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0, largest = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= most)) most = d;  // is true also for a NaN, which `most` then keeps
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return most / largest;
}

struct StepRecipe {
  const char* name;
  TrainerOptions options;
};
inline std::vector<StepRecipe> step_recipes() {
  std::vector<StepRecipe> list;
  const auto add = [&](const char* name, AnyOptimizer optimizer, auto&& change) {
    TrainerOptions o;
    o.optimizer = std::move(optimizer);
    o.weight_decay = 0.01;
    change(o);
    list.push_back({name, o});
  };
  const auto nothing = [](TrainerOptions&) {};
  add("sgd", Sgd{0.9, false}, nothing);
  add("nesterov", Sgd{0.9, true}, nothing);
  add("adamw", Adamw{}, nothing);
  add("adam", Adam{.beta2 = 0.99}, nothing);
  add("lamb", Lamb{}, nothing);
  add("muon", Muon{.rule = {.steps = 3}, .rest_rate = 0.5}, nothing);
  add("muon and adamw, clipping",
      MuonAdamw{.rule = {.nesterov = false, .steps = 2, .normalize = true}, .rest_rate = 0.1},
      [](auto& o) { o.clip_norm = 0.2; });
  add("lamb that limits gradients and ratios", Lamb{.trust_clip = true, .max_grad_norm = 0.2}, nothing);
  add("lamb for all tensors, clipping, dynamic scale", Lamb{.always_adapt = true, .max_grad_norm = 0.1}, [](auto& o) {
    o.dynamic_loss_scale = true;
    o.clip_norm = 0.2;
  });
  add("lars", Lars{.eta = 0.01}, nothing);
  add("larc", Larc{.eta = 0.01}, nothing);
  add("larc that clips its factor", Larc{.eta = 100}, nothing);
  add("clipping", Sgd{0.9, true}, [](auto& o) { o.clip_norm = 0.2; });
  add("clipping that has nothing to do", Sgd{0.9, true}, [](auto& o) { o.clip_norm = 1000; });
  add("clipping and lars", Lars{.eta = 0.01}, [](auto& o) { o.clip_norm = 0.2; });
  add("static scale", Sgd{}, [](auto& o) { o.loss_scale = 1024; });
  add("dynamic scale", Sgd{}, [](auto& o) { o.dynamic_loss_scale = true; });
  add("dynamic scale, clipping, lars", Lars{.eta = 0.01}, [](auto& o) {
    o.dynamic_loss_scale = true;
    o.clip_norm = 0.2;
  });
  add("average", Adamw{}, [](auto& o) { o.ema_decay = 0.9; });
  add("average every second step, after a copy", Sgd{}, [](auto& o) {
    o.ema_decay = 0.9;
    o.ema = {.warmup = EmaSchedule::Warmup::none, .every = 2, .copies = 3};
  });
  add("decay of all", Sgd{}, [](auto& o) { o.decay_all = true; });
  return list;
}

inline double rate_at(int step) { return 0.1 / (1 + step); }

// Checks that steps on the device give the results of the reference backend. make(): returns a backend that captures.
template <class Make>
void check_steps_beside_reference(Make&& make, double tolerance) {
  const Graph net = small_net(4);
  for (const StepRecipe& recipe : step_recipes()) {
    CAPTURE(recipe.name);
    const auto backend = make();
    ReferenceBackend reference;
    Solo solo;
    Trainer t(*backend, solo, net, recipe.options);
    Trainer r(reference, solo, net, recipe.options);
    REQUIRE(t.runs_ahead());
    CHECK(!r.runs_ahead());
    for (int i = 0; i < 8; ++i) {
      const std::int64_t rows = i % 3 == 2 ? 5 : 8;
      const auto batch = random_batch(net, rows, static_cast<std::uint64_t>(i % 2));
      const BatchView view = batch.view();
      t.step({&view, 1}, rows, rate_at(i));
      r.step({&view, 1}, rows, rate_at(i));
      if (i % 4 != 3) continue;
      const Metrics a = t.take_metrics(), b = r.take_metrics();
      CHECK(a.loss == doctest::Approx(b.loss).epsilon(tolerance));
      CHECK(a.rows == b.rows);
    }
    CHECK(t.take_metrics().rows == 0);
    CHECK(distance_of(weights_of(t), weights_of(r)) < tolerance);
    CHECK(distance_of(states_of(t), states_of(r)) < tolerance);
    CHECK(t.counters() == r.counters());
    t.commit();
    r.commit();
    const auto here = t.committed_tensors(true), there = r.committed_tensors(true);
    REQUIRE(here.size() == there.size());
    for (std::size_t k = 0; k < here.size(); ++k) {
      CAPTURE(here[k].name);
      std::vector<float> x(here[k].bytes.size() / sizeof(float)), y(x.size());
      std::memcpy(x.data(), here[k].bytes.data(), here[k].bytes.size());
      std::memcpy(y.data(), there[k].bytes.data(), there[k].bytes.size());
      CHECK(distance_of(x, y) < 3 * tolerance);
    }
  }
}

// Checks that the device decides as the host would: in a captured step, in a step that is started op by op, and with
// the host in charge. The results are equal to the bit if the sums are equal. make(graph): returns a deterministic
// backend; `graph`: whether it captures. with(backend, f): calls f(strategy).
template <class Make, class With>
void check_steps_beside_host(Make&& make, With&& with, int steps = 5) {
  const Graph net = small_net();
  for (DType type : {DType::f32, DType::f16})
    for (const StepRecipe& recipe : step_recipes()) {
      CAPTURE(recipe.name);
      const bool sums = recipe.options.clip_norm > 0 || recipe.options.optimizer.per_tensor();
      TrainerOptions o = recipe.options;
      o.compute = type;
      o.bucket_bytes = o.first_bucket_bytes = 64;  // several buckets, if ranks share them
      std::vector<std::vector<float>> ends;
      std::vector<Metrics> metrics;
      for (int way = 0; way < 3; ++way) {
        const auto backend = make(way == 0);
        with(*backend, [&](auto& strategy) {
          Trainer t(*backend, strategy, net, o);
          StepTrace trace;
          if (way == 2) t.trace(&trace);
          CHECK(t.runs_ahead() == (way != 2));
          for (int i = 0; i < steps; ++i) {
            const auto batch = random_batch(net, 6, static_cast<std::uint64_t>(i % 2));
            const BatchView view = batch.view();
            t.step({&view, 1}, 6, rate_at(i));
          }
          metrics.push_back(t.take_metrics());
          ends.push_back(weights_of(t));
          const auto s = states_of(t);
          ends.back().insert(ends.back().end(), s.begin(), s.end());
        });
      }
      CHECK(ends[0] == ends[1]);
      CHECK(metrics[0].loss == metrics[1].loss);
      if (sums) {
        CHECK(distance_of(ends[0], ends[2]) < 1e-5);
      } else {
        CHECK(ends[0] == ends[2]);
        CHECK(metrics[0].loss == metrics[2].loss);
      }
    }
}
template <class Make>
void check_steps_beside_host(Make&& make, int steps = 5) {
  check_steps_beside_host(
      make,
      [](auto&, auto&& f) {
        Solo solo;
        f(solo);
      },
      steps);
}

}  // namespace tutti::testing
