// SPDX-License-Identifier: MIT
// Tests ReferenceBackend, with which the tests compare all other backends. Compares its loops with a second set of
// loops, and its gradients with finite differences.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <tutti/engine/reference/reference.hpp>
#include <tutti/models/resnet_cifar.hpp>

#include "engine/channel_op_cases.hpp"
#include "engine/suite.hpp"

using namespace tutti;

namespace {

// Compares the gradient with central differences of the loss, for every parameter tensor (for a sample of the elements
// of large tensors). Returns the number of elements that differ.
int finite_differences(const Graph& model, std::int64_t rows) {
  ReferenceBackend reference;
  Executor e(reference, model, {DType::f64});
  testing::randomize(e, 3);
  const testing::Batch batch = testing::random_batch(model, rows, 5);
  const auto loss = [&] {
    e.parameters_changed();
    return e.train(batch.view(), {}).loss;
  };
  loss();
  const auto* g = static_cast<const double*>(e.gradient_data());
  const std::vector<double> gradient(g, g + e.parameters().count);
  auto* p = static_cast<double*>(e.parameter_data());
  int wrong = 0;
  for (const Slice& s : e.parameters().slices) {
    if (!s.trainable) continue;
    Rng r(s.offset, Purpose::user);
    double norm = 0;
    for (std::size_t i = s.offset; i < s.offset + s.count; ++i) norm = std::max(norm, std::fabs(gradient[i]));
    for (std::size_t k = 0; k < std::min<std::size_t>(s.count, 24); ++k) {
      const std::size_t i = s.offset + (s.count <= 24 ? k : r.below(static_cast<std::uint32_t>(s.count)));
      const double keep = p[i], h = 1e-7;  // so small that no relu changes between p - h and p + h
      p[i] = keep + h;
      const double up = loss();
      p[i] = keep - h;
      const double down = loss();
      p[i] = keep;
      const double numeric = (up - down) / (2 * h);
      if (std::fabs(numeric - gradient[i]) > 1e-6 * (1 + norm) + 1e-5 * std::fabs(gradient[i]) && ++wrong == 1)
        MESSAGE(s.name << " [" << i - s.offset << "]: gradient " << gradient[i] << ", difference quotient " << numeric);
    }
  }
  return wrong;
}

// Returns the net of the case, with a convolution in front of the op. Then each element of the op's data gradient
// affects the gradients of the convolution's weights.
Graph after_convolution(const testing::OpCase& c) {
  testing::OpCase d = c;
  d.record = [c](Builder& b, ValueId x) {
    return c.record(b, nn::conv(b, "pre", x, {.out = b.shape(x)[1], .kernel = 3}));
  };
  return d.graph();
}

}  // namespace

TEST_CASE("all ops give the expected results in f64, f32 and bf16") {
  ReferenceBackend reference;
  for (DType t : {DType::f64, DType::f32, DType::bf16}) {
    auto cases = testing::other_op_cases();
    for (const auto& channels : testing::channel_op_cases()) cases.push_back(channels);
    for (const auto& c : cases) {
      if (c.rows * c.channels * c.height * c.width > 100000) continue;  // too slow with one thread
      const auto r = testing::check_model(reference, c.graph(), c.rows, t);
      CHECK_MESSAGE(r.failures.empty(), c.name << " " << name_of(t) << ": " << r.text());
      CHECK(r.compared > 0);
    }
    auto convolutions = testing::odd_conv_cases();
    for (const auto& grouped : testing::grouped_conv_cases()) convolutions.push_back(grouped);
    for (const auto& conv : convolutions) {
      if (conv.flops(conv.rows) > 4e6) continue;
      const auto c = testing::op_case(conv);
      const auto r = testing::check_model(reference, c.graph(), c.rows, t);
      CHECK_MESSAGE(r.failures.empty(), c.name << " " << name_of(t) << ": " << r.text());
    }
  }
}

TEST_CASE("every op's gradients equal finite differences") {
  auto cases = testing::other_op_cases();
  for (const auto& loss : testing::loss_cases()) cases.push_back(loss);
  for (const auto& channels : testing::channel_op_cases()) cases.push_back(channels);
  for (auto c : cases) {
    if (c.channels > 17 || c.classes > 20 || c.rows > 9) continue;
    c.rows = std::min<std::int64_t>(c.rows, 3);
    CHECK_MESSAGE(finite_differences(after_convolution(c), c.rows) == 0, c.name);
  }
  auto convolutions = testing::odd_conv_cases();
  for (const auto& grouped : testing::grouped_conv_cases()) convolutions.push_back(grouped);
  for (const auto& conv : convolutions) {
    if (conv.channels > 8 || conv.height > 10) continue;
    const auto c = testing::op_case(conv);
    CHECK_MESSAGE(finite_differences(after_convolution(c), 2) == 0, c.name);
  }
}

TEST_CASE("whole nets' gradients equal finite differences") {
  for (bool preactivation : {false, true}) {
    Builder b(3, 8, 8);
    models::resnet_cifar(b, b.normalize({120, 120, 120}, {1 / 60.F, 1 / 60.F, 1 / 60.F}),
                         {.depth = 8, .classes = 3, .width = 3, .preactivation = preactivation});
    CHECK(finite_differences(b.graph(), 3) == 0);
  }
}

TEST_CASE("the loss and its gradient have the expected values") {
  ReferenceBackend reference;
  testing::check_loss(reference);
}
TEST_CASE("losses with two labels for a row, and of each class for itself, have the expected values") {
  ReferenceBackend reference;
  testing::check_mixed_loss(reference);
}
TEST_CASE("gelu is right at known values, far from zero and for NaN") {
  ReferenceBackend reference;
  testing::check_gelu(reference);
}
TEST_CASE("a NaN in the weights makes the loss NaN") {
  ReferenceBackend reference;
  testing::check_nan_is_not_lost(reference);
}
TEST_CASE("weight updates, norms, averages and accumulation give the expected results") {
  ReferenceBackend reference;
  testing::check_updates(reference);
}
TEST_CASE("two steps of every update give values computed by hand") {
  ReferenceBackend reference;
  double w = 1, g = 0.5, a = 0, v = 0;
  UpdateCall u;
  u.dtype = DType::f64;
  u.weights = &w;
  u.gradients = &g;
  u.slots = {&a, &v};
  u.count = 1;
  u.lr = 0.1;
  u.weight_decay = 0.2;
  reference.update(SgdUpdate{0.9, false}, u);
  CHECK(a == doctest::Approx(0.7));
  CHECK(w == doctest::Approx(0.93));
  reference.update(SgdUpdate{0.9, false}, u);
  CHECK(a == doctest::Approx(0.63 + 0.5 + 0.186));
  CHECK(w == doctest::Approx(0.93 - 0.1316));
  w = 1, a = 0;
  reference.update(SgdUpdate{0.9, true}, u);
  CHECK(w == doctest::Approx(1 - 0.1 * (0.7 + 0.9 * 0.7)));
  w = 1, a = v = 0;
  u.gradient_scale = 2;
  reference.update(AdamwUpdate{0.9, 0.99, 1e-8}, u);  // the first step is lr * sign, after the decay
  CHECK(w == doctest::Approx(1 * (1 - 0.02) - 0.1));
  CHECK(a == doctest::Approx(0.1));
  CHECK(v == doctest::Approx(0.01));
  u.step = 2;
  g = -0.25;  // the scaled gradient is -0.5
  reference.update(AdamwUpdate{0.9, 0.99, 1e-8}, u);
  const double m2 = 0.09 - 0.05, v2 = 0.0099 + 0.0025;
  CHECK(a == doctest::Approx(m2));
  CHECK(v == doctest::Approx(v2));
  CHECK(w == doctest::Approx(0.88 * 0.98 - 0.1 * (m2 / 0.19) / (std::sqrt(v2 / 0.0199) + 1e-8)));
  w = 2, a = v = 0, u.step = 1;
  reference.update(AdamwUpdate{0.9, 0.99, 1e-8, true}, u);  // Adam: G = -0.5 + 0.2 * 2
  CHECK(a == doctest::Approx(-0.01));
  CHECK(v == doctest::Approx(0.0001));
  CHECK(w == doctest::Approx(2 + 0.1));
  w = 3, g = 2;
  u.weight_decay = 0.5;
  const SquaredNorms n = reference.squared_norms(u);
  CHECK(n.weights == 9);
  CHECK(n.gradients == doctest::Approx((2 * 2 + 1.5) * (2 * 2 + 1.5)));
}
