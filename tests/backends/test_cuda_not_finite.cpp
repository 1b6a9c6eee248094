// SPDX-License-Identifier: MIT
// Tests how an emulated GPU (cuda_emulator.hpp) handles losses and gradients that are not finite, and invalid labels.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include <tutti/backends/cuda/cuda.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "backends/emulated_cuda.hpp"
#include "backends/step_cases.hpp"
#include "engine/conformance.hpp"

using namespace tutti;

namespace {

using testing::Emulated;
CudaOptions options(bool graph = true) { return testing::emulated_options(graph); }
bool skipped() { return testing::no_emulator(); }

using testing::small_net;
using testing::weights_of;

}  // namespace

TEST_CASE("a loss scale that overflows is reduced, in the same way on the device and on the host") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  TrainerOptions o;
  o.compute = DType::f16;
  o.dynamic_loss_scale = true;
  o.ema_decay = 0.5;
  Emulated backend(options()), other(options());
  Solo solo;
  Trainer t(backend, solo, net, o), h(other, solo, net, o);
  StepTrace trace;
  h.trace(&trace);
  const auto start = weights_of(t);
  t.counters().scale_exponent = h.counters().scale_exponent = 40;
  t.step({&view, 1}, 8, 0.05);
  CHECK(t.counters().scale_exponent == 39);
  CHECK(t.loss_scale() == std::ldexp(1.0, 39));
  CHECK(weights_of(t) == start);
  h.step(view, 8, 0.05);
  for (int i = 0; i < 40; ++i) {
    t.step({&view, 1}, 8, 0.05);
    h.step(view, 8, 0.05);
  }
  CHECK(t.counters() == h.counters());
  CHECK(t.counters().scale_exponent < 39);
  CHECK(weights_of(t) != start);
  CHECK(weights_of(t) == weights_of(h));
  t.with_ema([&] { h.with_ema([&] { CHECK(weights_of(t) == weights_of(h)); }); });
  // The loss scale doubles after 2,000 steps, including steps that a restored checkpoint has counted.
  t.counters().scale_steps = 1998;
  const std::int64_t exponent = t.counters().scale_exponent = 4;
  t.step({&view, 1}, 8, 0.001);
  t.step({&view, 1}, 8, 0.001);
  CHECK(t.counters().scale_exponent == exponent + 1);
  CHECK(t.counters().scale_steps == 0);
  t.commit();
  for (int i = 0; i < 3; ++i) t.step({&view, 1}, 8, 0.001);
  t.restore();
  CHECK(t.counters().scale_steps == 0);
  t.step({&view, 1}, 8, 0.001);
  CHECK(t.counters().scale_steps == 1);
  emulator::Device::instance().graph_launches = 0;
}

namespace {

// Sets the first float of a parameter.
void set_parameter(Trainer& t, const char* name, float value) {
  auto& e = t.executor();
  const std::size_t at = e.parameters().find(name)->offset * sizeof(float);
  e.backend().memory().copy_in(static_cast<std::byte*>(e.parameter_data()) + at, &value, sizeof value);
  e.parameters_changed();
}
float get_parameter(Trainer& t, const char* name) {
  return weights_of(t)[t.executor().parameters().find(name)->offset];
}

}  // namespace

TEST_CASE("after a loss that is not finite no step changes the weights, and the error names the step") {
  if (skipped()) return;
  const Graph net = small_net();
  const auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  for (const bool graph : {false, true})
    for (const bool dynamic : {false, true}) {
      Emulated backend(options(graph));
      Solo solo;
      TrainerOptions o;
      o.dynamic_loss_scale = dynamic;
      o.ema_decay = 0.9;
      Trainer t(backend, solo, net, o);
      const auto step = [&] { t.step({&view, 1}, 8, 0.05); };
      for (int i = 0; i < 3; ++i) step();
      const float bias = get_parameter(t, "fc.bias");
      const auto before = weights_of(t);
      set_parameter(t, "fc.bias", std::numeric_limits<float>::quiet_NaN());
      step();
      set_parameter(t, "fc.bias", bias);
      step();  // the loss is finite, but the step must not change the weights
      step();
      CHECK(weights_of(t) == before);
      CHECK_THROWS_WITH_AS((void)t.take_metrics(), doctest::Contains("[step 4] expected a finite loss, got"),
                           NotFiniteError);
      CHECK(weights_of(t) == before);
      CHECK(t.counters().step == 3);
      // The averaged weights have not changed either. Training can continue after the error.
      step();
      CHECK(t.take_metrics().rows == 8);
      CHECK(weights_of(t) != before);
      CHECK(t.counters().step == 4);

      // The error is thrown even if no caller calls take_metrics().
      set_parameter(t, "fc.bias", std::numeric_limits<float>::infinity());
      const auto many = [&] {
        for (int i = 0; i < 8; ++i) step();
      };
      CHECK_THROWS_WITH_AS(many(), doctest::Contains("[step 5]"), NotFiniteError);
      set_parameter(t, "fc.bias", bias);
      step();
      t.commit();
      CHECK(t.committed().counters().step == 5);
    }
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("gradients that are not finite at a loss scale of 1 end the run") {
  if (skipped()) return;
  const Graph net = small_net();
  auto batch = testing::random_batch(net, 8, 3);
  std::fill(batch.labels.begin(), batch.labels.end(), 0);
  const BatchView view = batch.view();
  TrainerOptions o;
  o.compute = DType::f16;
  o.dynamic_loss_scale = true;
  Emulated backend(options());
  Solo solo;
  Trainer t(backend, solo, net, o);
  t.step({&view, 1}, 8, 0.01);
  // These weights make a finite loss, and a gradient that overflows in the backward pass.
  auto w = weights_of(t);
  const Slice& s = *t.executor().parameters().find("fc.weight");
  for (std::size_t i = 0; i < s.count; ++i) w[s.offset + i] = i < 8 ? -60000.0F : 60000.0F;
  const Slice& n = *t.executor().parameters().find("bn1.weight");
  for (std::size_t i = 0; i < n.count; ++i) w[n.offset + i] = 1e-7F;
  backend.copy_in(t.executor().parameter_data(), w.data(), w.size() * sizeof(float));
  t.executor().parameters_changed();
  t.counters().scale_exponent = 3;
  const auto until_it_ends = [&] {
    for (int i = 0; i < 20; ++i) t.step({&view, 1}, 1, 0.01);
    (void)t.take_metrics();
  };
  bool ended = false;
  try {
    until_it_ends();
  } catch (const NotFiniteError& e) {
    ended = true;
    CHECK(std::string(e.what()).find("finite gradients") != std::string::npos);
    CHECK(std::string(e.what()).find("[step 5]") != std::string::npos);  // after steps at the scales 8, 4, 2 and 1
    CHECK(t.counters().scale_exponent == 0);
    CHECK(weights_of(t) == w);
  }
  CHECK(ended);
  emulator::Device::instance().graph_launches = 0;
}

TEST_CASE("an invalid label changes no weights") {
  if (skipped()) return;
  const Graph net = small_net();
  auto batch = testing::random_batch(net, 8, 3);
  const BatchView view = batch.view();
  Emulated backend(options());
  Solo solo;
  Trainer t(backend, solo, net, {});
  for (int round = 0; round < 2; ++round) {
    t.step({&view, 1}, 8, 0.05);
    const auto before = weights_of(t);
    auto bad = batch;
    bad.labels[5] = 4;
    const BatchView wrong = bad.view();
    t.step({&wrong, 1}, 8, 0.05);
    t.step({&view, 1}, 8, 0.05);
    CHECK_THROWS_WITH_AS((void)t.take_metrics(), doctest::Contains("labels in 0..3, got 4"), DataError);
    CHECK(weights_of(t) == before);
    CHECK(t.counters().step == 1 + round);
  }
  emulator::Device::instance().graph_launches = 0;
}
