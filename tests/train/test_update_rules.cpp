// SPDX-License-Identifier: MIT
// Tests clipping, weight decay, LARS and LARC in whole training steps.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/parameter_groups.hpp>
#include <tutti/train/trainer.hpp>

#include "small_trainer.hpp"

using namespace tutti;
using namespace tutti::testing;

TEST_CASE("the global norm is clipped") {
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  TrainerOptions o{.optimizer = Sgd{0, false}, .weight_decay = 0, .clip_norm = 0.01};
  Trainer t(backend, solo, small_net(true), o);
  const auto before = weights(t);
  t.step(data.view(), 12, 1.0);
  CHECK(norm_of_change(t, before) == doctest::Approx(0.01).epsilon(1e-3));
}

TEST_CASE("batch norm and biases do not decay") {
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.optimizer = Sgd{0, false}, .weight_decay = 0.5});
  auto& e = t.executor();
  auto* w = static_cast<float*>(e.parameter_data());
  for (const Slice& s : e.parameters().slices) w[s.offset] = 2;
  e.parameters_changed();
  t.step({nullptr, nullptr, 0}, 4, 0.1);  // a step without rows: all gradients are zero
  for (const Slice& s : e.parameters().slices) {
    const bool decays = s.name.find("conv") == 0 || s.name == "fc.weight";
    CHECK_MESSAGE(w[s.offset] == doctest::Approx(decays ? 2 - 0.1 * 0.5 * 2 : 2.0), s.name);
  }
}

TEST_CASE("numbers that an update rule cannot use are an error") {
  CHECK_NOTHROW(AnyOptimizer(Adam{.beta1 = 0, .beta2 = 0, .eps = 1e-30}));
  for (const double beta : {-0.1, 1.0, 1.5, std::nan("")}) {
    CHECK_THROWS_WITH_AS(AnyOptimizer(Adam{.beta1 = beta}), doctest::Contains("a beta1 in [0, 1)"), UsageError);
    CHECK_THROWS_WITH_AS(AnyOptimizer(Adamw{.beta2 = beta}), doctest::Contains("a beta2 in [0, 1)"), UsageError);
    CHECK_THROWS_WITH_AS(AnyOptimizer(Lars{.momentum = beta}), doctest::Contains("a momentum in [0, 1)"), UsageError);
  }
  for (const double eps : {0.0, -1e-8, std::nan("")})
    CHECK_THROWS_WITH_AS(AnyOptimizer(Lamb{.eps = eps}), doctest::Contains("an eps above 0"), UsageError);
  for (const double eps : {0.0, -1e-8, std::nan("")})
    CHECK_THROWS_WITH_AS(AnyOptimizer(Adam{.eps = eps}), doctest::Contains("an eps above 0"), UsageError);
}

TEST_CASE("LARS and LARC scale each tensor by its norms") {
  const SquaredNorms n{4, 16};
  CHECK(Lars{.eta = 0.01}.factor(n, 0.5) == doctest::Approx(0.01 * 2 / 4));
  CHECK(Larc{.eta = 0.01}.factor(n, 0.5) == doctest::Approx(0.01 * 2 / 4 / 0.5));
  CHECK(Larc{.eta = 100}.factor(n, 0.5) == 1);
  CHECK(Lars{}.factor({0, 16}, 0.5) == 1);
  CHECK(Larc{}.factor({4, 0}, 0.5) == 1);
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.optimizer = Lars{.momentum = 0, .eta = 0.01}, .weight_decay = 0});
  const auto& slices = t.executor().parameters().slices;
  const auto before = weights(t);
  t.step(data.view(), 12, 1.0);
  // With a learning rate of 1, each tensor moves by eta times its own norm.
  for (const Slice& s : slices) {
    double moved = 0, norm = 0;
    const auto *a = reinterpret_cast<const float*>(before.data()) + s.offset,
               *b = static_cast<const float*>(t.executor().parameter_data()) + s.offset;
    for (std::size_t i = 0; i < s.count; ++i) {
      moved += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
      norm += std::pow(static_cast<double>(a[i]), 2);
    }
    if (norm > 0) CHECK_MESSAGE(std::sqrt(moved) == doctest::Approx(0.01 * std::sqrt(norm)).epsilon(1e-3), s.name);
  }
}

TEST_CASE("MLPerf's LARS adds the norms of gradient and decay, and is SGD for biases and batch norm") {
  const Lars o{.momentum = 0, .eta = 0.01, .mlperf = true};
  CHECK(o.factor({4, 16, 0.5}, 1) == doctest::Approx(0.01 * 2 / (4 + 0.5 * 2)));
  CHECK(o.factor({0, 16, 0.5}, 1) == 1);
  CHECK(o.factor({4, 0, 0.5}, 1) == 1);
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  constexpr double decay = 0.1;
  Trainer t(backend, solo, small_net(true), {.optimizer = o, .weight_decay = decay});
  const auto before = weights(t);
  t.step(data.view(), 12, 1.0);
  for (const Slice& s : t.executor().parameters().slices) {
    CAPTURE(s.name);
    const auto *a = reinterpret_cast<const float*>(before.data()) + s.offset,
               *b = static_cast<const float*>(t.executor().parameter_data()) + s.offset,
               *g = static_cast<const float*>(t.executor().gradient_data()) + s.offset;
    double w = 0, gradient = 0;
    for (std::size_t i = 0; i < s.count; ++i) {
      w += std::pow(static_cast<double>(a[i]), 2);
      gradient += std::pow(static_cast<double>(g[i]), 2);
    }
    const bool weight = s.shape.rank() > 1;
    const double ratio = weight ? 0.01 * std::sqrt(w) / (std::sqrt(gradient) + decay * std::sqrt(w)) : 1;
    for (std::size_t i = 0; i < s.count; ++i) {
      const double x = static_cast<double>(a[i]), d = static_cast<double>(g[i]) + (weight ? decay * x : 0);
      CHECK(static_cast<double>(b[i]) == doctest::Approx(x - ratio * d).epsilon(1e-5).scale(0.1));
    }
  }
}

TEST_CASE("LAMB moves a decayed tensor by the rate times its norm, and others by the rate times Adam's direction") {
  const Data data(12);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.optimizer = Lamb{}, .weight_decay = 0.01});
  const auto before = weights(t);
  t.step(data.view(), 12, 0.1);
  bool decayed = false, plain = false;
  for (const Slice& s : t.executor().parameters().slices) {
    double moved = 0, norm = 0, largest = 0;
    const auto *a = reinterpret_cast<const float*>(before.data()) + s.offset,
               *b = static_cast<const float*>(t.executor().parameter_data()) + s.offset;
    for (std::size_t i = 0; i < s.count; ++i) {
      const double change = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      moved += change * change;
      norm += std::pow(static_cast<double>(a[i]), 2);
      largest = std::max(largest, std::abs(change));
    }
    (s.decay ? decayed : plain) = true;
    if (s.decay)
      CHECK_MESSAGE(std::sqrt(moved) == doctest::Approx(0.1 * std::sqrt(norm)).epsilon(1e-4), s.name);
    else
      CHECK_MESSAGE(largest <= 0.1 * (1 + 1e-5),
                    s.name);  // each element of the direction is at most 1 in the first step
  }
  CHECK(decayed);
  CHECK(plain);
}

TEST_CASE("LAMB limits the norm of all gradients as timm, without a constant for norms of zero") {
  UpdateRules r;
  CHECK(clip_factor(r, 1e9) == 1);
  r.max_grad_norm = 1;
  CHECK(clip_factor(r, 0.5) == 1);
  CHECK(clip_factor(r, 0) == 1);
  CHECK(clip_factor(r, 4) == 0.25);
  r.clip_norm = 2;
  CHECK(clip_factor(r, 4) == doctest::Approx(0.25));
  r.clip_norm = 0.5;
  CHECK(clip_factor(r, 4) == 0.5 / (4 + 1e-6));
}

// Computes LARC as TensorFlow and the Horovod trainer define it: a <- m a + k g; w <- w - r (k g + m a). g includes the
// gradient of the L2 term, and k = min(eta |w| / |g| / r, 1).
TEST_CASE_TEMPLATE("LARC with Nesterov momentum equals the definition computed in double precision", B,
                   ReferenceBackend, CpuBackend) {
  const Data data(12);
  B backend;
  Solo solo;
  const double momentum = 0.977, eta = 0.013, decay = 0.0005;
  Trainer t(backend, solo, small_net(true),
            {.optimizer = Larc{.momentum = momentum, .nesterov = true, .eta = eta}, .weight_decay = decay});
  const ArenaLayout& layout = t.executor().parameters();
  std::vector<double> w(layout.count), a(layout.count, 0);
  const auto now = [&](std::size_t i) {
    return static_cast<double>(static_cast<const float*>(t.executor().parameter_data())[i]);
  };
  for (std::size_t i = 0; i < layout.count; ++i) w[i] = now(i);
  bool scaled = false, whole = false;
  for (const double lr : {0.001, 0.5, 2.0, 0.0001}) {
    t.step(data.view(), 12, lr);
    const auto* g = static_cast<const float*>(t.executor().gradient_data());
    for (const Slice& s : layout.slices) {
      double ww = 0, gg = 0;
      std::vector<double> grad(s.count);
      for (std::size_t i = 0; i < s.count; ++i) {
        const double v = w[s.offset + i];
        grad[i] = static_cast<double>(g[s.offset + i]) + (s.decay ? decay * v : 0);
        ww += v * v;
        gg += grad[i] * grad[i];
      }
      const double k = std::min((ww > 0 && gg > 0 ? eta * std::sqrt(ww / gg) : 1) / lr, 1.0);
      (k < 1 ? scaled : whole) = true;
      for (std::size_t i = 0; i < s.count; ++i) {
        double &v = w[s.offset + i], &m = a[s.offset + i];
        m = momentum * m + k * grad[i];
        v -= lr * (k * grad[i] + momentum * m);
        const double got = now(s.offset + i);
        REQUIRE_MESSAGE(std::abs(got - v) <= 2e-5 * std::max(1.0, std::abs(v)), s.name, " ", i, " rate ", lr);
        v = got;  // so that rounding differences do not accumulate
      }
    }
  }
  CHECK(scaled);
  CHECK(whole);
}

TEST_CASE("early training chooses parameters as freeze() does, and refuses patterns that match none") {
  const Data data(12);
  CpuBackend backend({1});
  Solo solo;
  Trainer t(backend, solo, small_net(true), {.early = {.parameters = "*,!fc", .steps = 1}});
  std::vector<std::byte> before;
  for (int i = 0; i < 2; ++i) {
    before = weights(t);
    t.step(data.view(), 12, 0.1);
  }
  for (const Slice& s : t.executor().parameters().slices) {
    const auto *a = reinterpret_cast<const float*>(before.data()) + s.offset,
               *b = static_cast<const float*>(t.executor().parameter_data()) + s.offset;
    CHECK_MESSAGE(std::equal(a, a + s.count, b) == !s.name.starts_with("fc"), s.name);
  }
  const auto make = [&](EarlyTraining e) { Trainer(backend, solo, small_net(true), {.early = std::move(e)}); };
  CHECK_THROWS_WITH_AS(make({.parameters = "conv3", .steps = 1}), doctest::Contains("[early training]"), UsageError);
  CHECK_THROWS_WITH_AS(make({.parameters = "fc", .steps = -1}), doctest::Contains("0 steps or more"), UsageError);
  CHECK_THROWS_WITH_AS(make({.steps = 1}), doctest::Contains("patterns"), UsageError);
}

TEST_CASE("clipping and SAM leave out what a step trains no longer, as constant parameters") {
  const Data data(12);
  CpuBackend backend({1});
  Solo solo;
  for (const int logical : {0, 3}) {
    TrainerOptions o{.optimizer = Sgd{0, false}, .weight_decay = 0, .clip_norm = 0.01, .sam = {.rho = 0.3}};
    o.logical_ranks = logical;
    Graph net = small_net(true);
    (void)freeze(net, "conv1,conv2");
    Trainer constant(backend, solo, net, o);
    o.early = {.parameters = "conv1,conv2", .steps = 1};
    Trainer early(backend, solo, small_net(true), o);
    for (Trainer* t : {&constant, &early})
      for (const double lr : {0.0, 1.0}) {
        const std::vector<BatchView> ranks{data.view(0, 4), data.view(4, 8), data.view(8, 12)};
        logical > 0 ? t->step(ranks, 12, lr) : t->step(data.view(), 12, lr);
      }
    const auto value = [](Trainer& t, const Slice& s, std::size_t i) {
      const Slice* const at = t.executor().parameters().find(s.name);
      return static_cast<double>(static_cast<const float*>(t.executor().parameter_data())[at->offset + i]);
    };
    for (const Slice& s : constant.executor().parameters().slices)
      for (std::size_t i = 0; i < s.count; ++i)
        REQUIRE_MESSAGE(std::abs(value(constant, s, i) - value(early, s, i)) < 1e-6, s.name, " ", logical);
  }
}
