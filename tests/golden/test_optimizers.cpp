// SPDX-License-Identifier: MIT
// Optimizers, schedules and averages against PyTorch's and timm's numbers: README.md describes the file.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/optim/ema_schedule.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/optim/update_rules.hpp>

#include "resnet8.hpp"

using namespace tutti;
using namespace tutti::golden;

namespace {

const Golden& file() {
  static const Golden g("optimizers.safetensors");
  return g;
}

// Runs the steps of a case with T's weights, and returns the weights after each.
template <class T>
Doubles run(Backend& backend, const AnyOptimizer& optimizer, double lr, const std::string& inputs,
            const std::vector<std::size_t>& split, std::size_t rows = 0) {
  const Doubles w0 = file().plain(inputs + "w0"), all = file().plain(inputs + "gradients");
  const std::size_t n = w0.size();
  std::vector<T> w(w0.begin(), w0.end()), gradients(all.begin(), all.end()), a(n), b(n);
  UpdateRules rules;
  rules.max_grad_norm = optimizer.max_grad_norm();
  Doubles history;
  for (std::size_t step = 0; step * n < gradients.size(); ++step) {
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) squares += std::pow(static_cast<double>(gradients[step * n + i]), 2);
    std::size_t at = 0;
    for (std::size_t part = 0; part < split.size(); at += split[part++]) {
      UpdateCall u;
      u.dtype = sizeof(T) == 8 ? DType::f64 : DType::f32;
      u.weights = w.data() + at;
      u.gradients = gradients.data() + step * n + at;
      u.slots = {a.data() + at, b.data() + at};
      u.count = split[part];
      u.rows = rows;
      u.cols = rows > 0 ? u.count / rows : 0;
      u.lr = lr;
      u.weight_decay = part + 1 < split.size() || split.size() == 1 ? file().number("decay") : 0;
      u.gradient_scale = clip_factor(rules, std::sqrt(squares));
      u.step = static_cast<std::int64_t>(step) + 1;
      backend.update(optimizer.update_op(), u);
    }
    history.insert(history.end(), w.begin(), w.end());
  }
  return history;
}

void check(const std::string& name, const AnyOptimizer& optimizer, double lr, const std::string& inputs = "",
           const std::vector<std::size_t>& split = {5, 4, 3}, std::size_t rows = 0) {
  ReferenceBackend reference;
  CpuBackend cpu;
  const Doubles expected = file().plain(name + ".w");
  compare(name + ", f64", run<double>(reference, optimizer, lr, inputs, split, rows), expected, 1e-10);
  compare(name + ", f32 reference", run<float>(reference, optimizer, lr, inputs, split, rows), expected, 1e-5);
  compare(name + ", f32", run<float>(cpu, optimizer, lr, inputs, split, rows), expected, 1e-5);
}

void check_rates(const std::string& name, const Schedule& schedule) {
  const Doubles expected = file().plain(name);
  Doubles got;
  for (std::size_t i = 0; i < expected.size(); ++i)
    got.push_back(schedule({static_cast<std::int64_t>(i), 6, static_cast<std::int64_t>(expected.size())}));
  compare(name, got, expected, 1e-12);
}

void check_average(const std::string& name, const EmaSchedule& schedule, double decay) {
  const Doubles weights = file().plain("ema.weights"), expected = file().plain(name);
  Doubles average(4), history;
  for (std::size_t step = 0; step * 4 < weights.size(); ++step) {
    const double keep = schedule.remaining(decay, static_cast<std::int64_t>(step) + 1);
    if (keep != 1) ReferenceBackend().average(DType::f64, average.data(), weights.data() + step * 4, 4, keep);
    history.insert(history.end(), average.begin(), average.end());
  }
  compare(name, history, expected, 1e-12);
}

}  // namespace

TEST_CASE("Adam and AdamW equal PyTorch's") {
  check("adam", Adam{}, 0.01);
  check("adam_betas", Adam{0.8, 0.95, 1e-3}, 0.01);
  check("adamw", Adamw{}, 0.01);
  check("adamw_betas", Adamw{0.8, 0.95, 1e-3}, 0.01);
}

TEST_CASE("LAMB equals timm's, with its limits") {
  check("lamb", Lamb{}, 0.01);
  check("lamb_betas", Lamb{0.8, 0.95, 1e-3}, 0.01);
  check("lamb_trust_clip", Lamb{.trust_clip = true}, 0.01);
  check("lamb_no_limit", Lamb{.max_grad_norm = 0}, 0.01);
  check("lamb_always_adapt", Lamb{.always_adapt = true, .max_grad_norm = 0.5}, 0.01);
}

TEST_CASE("Muon equals PyTorch's and airbench's") {
  for (const std::string shape : {"muon_tall", "muon_wide"}) {
    const std::size_t rows = shape == "muon_tall" ? 10 : 6;
    const MuonUpdate rule{.momentum = 0.9};
    const auto with = [&](auto change) {
      MuonUpdate o = rule;
      change(o);
      return Muon{.rule = o};
    };
    const std::string in = shape + ".";
    check(shape + "_rows", Muon{.rule = rule}, 0.02, in, {60}, rows);
    // PyTorch rounds to bf16 at the same places, but adds in another order.
    ReferenceBackend reference;
    CpuBackend cpu;
    const Muon half = with([](auto& o) { o.bf16 = true; });
    const Doubles rounded = file().plain(shape + "_bf16.w");
    compare(shape + ", bf16 reference", run<double>(reference, half, 0.02, in, {60}, rows), rounded, 5e-4);
    compare(shape + ", bf16", run<float>(cpu, half, 0.02, in, {60}, rows), rounded, 5e-4);
    check(shape + "_rms", with([](auto& o) { o.scale = MuonUpdate::Scale::rms; }), 0.02, in, {60}, rows);
    check(shape + "_plain", with([](auto& o) {
            o.nesterov = false;
            o.steps = 3;
          }),
          0.02, in, {60}, rows);
    check(shape + "_airbench", with([](auto& o) {
            o.momentum = 0.6;
            o.steps = 3;
            o.limit_eps = false;
            o.normalize = true;
            o.scale = MuonUpdate::Scale::none;
          }),
          0.24, in, {60}, rows);
  }
}

TEST_CASE("one cycle and cosines equal PyTorch's and timm's") {
  check_rates("one_cycle", schedule::OneCycle(0.5));
  check_rates("one_cycle_linear",
              schedule::OneCycle(0.5, {.pct_start = 0.4, .div_factor = 10, .final_div_factor = 100, .linear = true}));
  check_rates("one_cycle_three_phase", schedule::OneCycle(0.5, {.three_phase = true}));
  const schedule::Cosine cosine(0.5, 0.002);
  check_rates("timm_epochs", schedule::PerEpoch(schedule::WarmupWithin(1e-4, 0.5, 12, cosine)));
  check_rates("timm_epochs_prefix", schedule::PerEpoch(schedule::Warmup(1e-4, 0.5, 12, cosine)));
  check_rates("timm_updates", schedule::WarmupWithin(1e-4, 0.5, 12, cosine));
  check_rates("torchvision_epochs", schedule::PerEpoch(schedule::Warmup(0.005, 0.5, 12, schedule::Cosine(0.5))));
}

TEST_CASE("a cycle of the momentum equals PyTorch's, and so do the steps with it") {
  const auto cycle = [](const std::string& name, const AnyOptimizer& optimizer, const Schedule& momentum,
                        const Schedule& rate) {
    check_rates("cycle." + name + ".momentum", momentum);
    const Doubles gradients = file().plain("cycle.gradients"), expected = file().plain("cycle." + name + ".w");
    Doubles w{-1, -0.5, 0.25, 1}, a(4), b(4), history;
    const auto steps = static_cast<std::int64_t>(gradients.size() / 4);
    for (std::int64_t step = 0; step < steps; ++step) {
      const SchedulePoint at{step, 6, steps};
      UpdateCall u;
      u.dtype = DType::f64;
      u.weights = w.data();
      u.gradients = gradients.data() + 4 * step;
      u.slots = {a.data(), b.data()};
      u.count = 4;
      u.lr = rate(at);
      u.step = step + 1;
      ReferenceBackend().update(with_momentum(optimizer.update_op(), momentum(at)), u);
      history.insert(history.end(), w.begin(), w.end());
    }
    compare("cycle." + name + ".w", history, expected, 1e-10);
  };
  using schedule::CycledMomentum, schedule::OneCycle, schedule::OneCycleOptions;
  cycle("sgd", Sgd{}, CycledMomentum(), OneCycle(0.05));
  cycle("adamw", Adamw{}, CycledMomentum(), OneCycle(0.05));
  const OneCycleOptions line{.pct_start = 0.4, .linear = true}, three{.three_phase = true};
  cycle("linear", Sgd{}, CycledMomentum(0.7, 0.9, line), OneCycle(0.05, line));
  cycle("three_phase", Sgd{}, CycledMomentum(0.85, 0.95, three), OneCycle(0.05, three));
}

TEST_CASE("averages of weights equal timm's and torchvision's") {
  check_average("ema.timm", EmaSchedule::timm(true), 0.9);
  EmaSchedule later = EmaSchedule::timm(true, 4);
  later.min_decay = 0.5;
  check_average("ema.timm_later", later, 0.9);
  check_average("ema.torchvision", EmaSchedule::torchvision(3, 10, 10), EmaSchedule::torchvision_decay(0.99, 8, 3, 2));
}
