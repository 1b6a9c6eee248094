// SPDX-License-Identifier: MIT
// Tests the updates of every optimizer, and the sums and averages of arenas.
#include "engine/suite.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/reference/reference.hpp>

#include "engine/conformance.hpp"

namespace tutti::testing {

namespace {

void check_update(Backend& backend, const UpdateOp& o, std::size_t count, std::int64_t step, std::size_t rows = 0) {
  ReferenceBackend reference;
  Rng r(count, Purpose::user);
  std::vector<double> w64(count), g64(count), a64(count), b64(count);
  std::vector<float> w(count), g(count), a(count), b(count);
  for (std::size_t i = 0; i < count; ++i) {
    w64[i] = static_cast<double>(w[i] = static_cast<float>(r.normal()));
    g64[i] = static_cast<double>(g[i] = static_cast<float>(r.normal()));
    a64[i] = static_cast<double>(a[i] = static_cast<float>(r.normal()));
    b64[i] = static_cast<double>(b[i] = static_cast<float>(r.uniform() + 0.01F));
  }
  UpdateCall u;
  u.count = count;
  u.lr = 0.1;
  u.weight_decay = 0.02;
  u.gradient_scale = 0.25;
  u.factor = 1.5;
  u.step = step;
  u.rows = rows;
  u.cols = rows > 0 ? count / rows : 0;
  UpdateCall exact = u;
  exact.dtype = DType::f64;
  exact.weights = w64.data();
  exact.gradients = g64.data();
  exact.slots = {a64.data(), b64.data()};
  const SquaredNorms n64 = reference.squared_norms(exact);
  const Held<float> dw(backend, w), dg(backend, g), da(backend, a), db(backend, b);
  u.weights = dw.data();
  u.gradients = dg.data();
  u.slots = {da.data(), db.data()};
  const SquaredNorms n = backend.squared_norms(u);
  CHECK(n.weights == doctest::Approx(n64.weights).epsilon(1e-6));
  CHECK(n.gradients == doctest::Approx(n64.gradients).epsilon(1e-6));
  CHECK(backend.squared_norms(u).gradients == n.gradients);
  backend.update(o, u);
  reference.update(o, exact);
  w = dw.fetch();
  a = da.fetch();
  b = db.fetch();
  Comparison c;
  for (std::size_t i = 0; i < count; ++i) {
    c.value("weights", i, static_cast<double>(w[i]), w64[i], 2e-6 * (1 + std::fabs(w64[i])));
    c.value("slot 0", i, static_cast<double>(a[i]), a64[i], 1e-6 * (1 + std::fabs(a64[i])));
    c.value("slot 1", i, static_cast<double>(b[i]), b64[i], 1e-6 * (1 + std::fabs(b64[i])));
  }
  CHECK_MESSAGE(c.failures.empty(), c.text());
}

}  // namespace

void check_updates(Backend& backend) {
  for (std::size_t count : {1U, 15U, 16U, 1000U, 16384U, 16385U, 70001U})
    for (std::int64_t step : {1, 2, 1000}) {
      check_update(backend, SgdUpdate{0.9, false}, count, step);
      check_update(backend, SgdUpdate{0.9, true}, count, step);
      check_update(backend, SgdUpdate{0, false}, count, step);
      check_update(backend, AdamwUpdate{}, count, step);
      check_update(backend, AdamwUpdate{0.5, 0.75, 1e-3}, count, step);
      check_update(backend, AdamwUpdate{0.9, 0.99, 1e-8, true}, count, step);
      check_update(backend, LambUpdate{}, count, step);
      check_update(backend, LambUpdate{.beta1 = 0.5, .beta2 = 0.75, .eps = 1e-3, .trust_clip = true}, count, step);
    }
  for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{1, 1}, {3, 7}, {33, 20}, {16, 144}, {64, 27}})
    for (const bool other : {false, true}) {
      // Three steps: the polynomials amplify rounding differences of the largest singular values.
      MuonUpdate o{.steps = 3, .rest = AdamwUpdate{}};
      if (other) o = {.momentum = 0.6, .nesterov = false, .steps = 2, .limit_eps = false, .normalize = true};
      if (other) o.scale = MuonUpdate::Scale::rms;
      CAPTURE(rows);
      CAPTURE(cols);
      check_update(backend, o, rows * cols, 1, rows);
      check_update(backend, o, rows * cols, 3);
    }
  for (std::size_t count : {1U, 17U, 5000U}) {
    std::vector<float> to(count, 2), from(count);
    for (std::size_t i = 0; i < count; ++i) from[i] = static_cast<float>(i);
    const Held<float> held(backend, to), held_from(backend, from);
    backend.average(DType::f32, held.data(), held_from.data(), count, 0.75);
    CHECK(held.fetch().back() == doctest::Approx(1.5 + 0.25 * static_cast<double>(count - 1)));
    backend.accumulate(DType::f32, held.data(), held_from.data(), count);
    CHECK(held.fetch().back() == doctest::Approx(1.5 + 1.25 * static_cast<double>(count - 1)));
    std::vector<double> to64(count, 2), from64(from.begin(), from.end());
    if (backend.computes_in(DType::f64)) {
      backend.average(DType::f64, to64.data(), from64.data(), count, 0.75);
      backend.accumulate(DType::f64, to64.data(), from64.data(), count);
      CHECK(to64.back() == 1.5 + 1.25 * static_cast<double>(count - 1));
    } else {
      UpdateCall u;
      u.dtype = DType::f64;
      u.weights = to64.data();
      u.gradients = from64.data();
      u.slots[0] = to64.data();
      u.count = count;
      CHECK_THROWS_AS(backend.average(DType::f64, to64.data(), from64.data(), count, 0.75), UsageError);
      CHECK_THROWS_AS(backend.accumulate(DType::f64, to64.data(), from64.data(), count), UsageError);
      CHECK_THROWS_AS(backend.update(SgdUpdate{}, u), UsageError);
      CHECK_THROWS_AS((void)backend.squared_norms(u), UsageError);
    }
  }
}

}  // namespace tutti::testing
