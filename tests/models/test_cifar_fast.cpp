// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

using namespace tutti;

namespace {

std::vector<float> some_whitening() {
  std::vector<float> w(24 * 12);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 100.0F;
  return w;
}

Graph net(double output_scale = 1.0 / 9, double beta_lr_scale = 64) {
  Builder b(3, 16, 16);
  models::CifarFastOptions o;
  o.classes = 4;
  o.widths = {8, 8, 16};
  o.whitening = some_whitening();
  o.output_scale = output_scale;
  o.beta_lr_scale = beta_lr_scale;
  models::cifar_fast(b, b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F}), o);
  return std::move(b).take();
}

struct Images {
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> labels;
  explicit Images(std::int64_t rows) {
    Rng rng(3, Purpose::user);
    for (std::int64_t n = 0; n < rows; ++n) {
      labels.push_back(static_cast<std::int32_t>(n % 4));
      for (int i = 0; i < 16 * 16 * 3; ++i)
        pixels.push_back(static_cast<std::uint8_t>(rng.below(128) + static_cast<std::uint32_t>(i / 192 == n % 4) * 96));
    }
  }
  [[nodiscard]] BatchView view() const {
    return {pixels.data(), labels.data(), static_cast<std::int64_t>(labels.size())};
  }
};

template <class T, class Trainer>
std::vector<T> tensor(Trainer& t, const std::string& name) {
  const Slice* s = t.executor().parameters().find(name);
  REQUIRE(s != nullptr);
  const T* at = static_cast<const T*>(t.executor().parameter_data()) + s->offset;
  return {at, at + s->count};
}

}  // namespace

TEST_CASE("dirac: the first outputs of a convolution equal the inputs") {
  for (const auto& [out, kernel] : {std::pair<std::int64_t, int>{7, 3}, {5, 3}, {3, 3}, {6, 5}, {6, 1}}) {
    Builder b(5, 6, 6);
    const ValueId x = b.normalize({0, 0, 0, 0, 0}, {1, 1, 1, 1, 1});
    const ValueId y = nn::conv(b, "conv", x, {.out = out, .kernel = kernel, .init = {Init::dirac, 0.5}});
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", y), 2, {Init::he_normal, 1}));
    ReferenceBackend backend;
    std::vector<std::uint8_t> pixels(2 * 6 * 6 * 5);
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 73 % 251);
    const std::vector<std::int32_t> labels{0, 1};
    Executor e(backend, b.graph(), {DType::f64, true});
    std::vector<double> w;
    for (const Value& v : e.graph().values) {
      if (v.storage != Storage::parameter) continue;
      auto* const to = static_cast<double*>(e.parameter_data()) + e.parameters().find(v.name)->offset;
      initialize(to, v.shape, v.init, 1, v.name);
      if (v.name == "conv.weight") w.assign(to, to + v.shape.numel());
    }
    e.parameters_changed();
    e.evaluate({pixels.data(), labels.data(), 2});
    const TensorRef z = e.value(y);
    const auto* at = static_cast<const double*>(z.data);
    for (std::int64_t p = 0; p < 2 * 6 * 6; ++p)
      for (std::int64_t c = 0; c < std::min<std::int64_t>(out, 5); ++c)
        CHECK(at[p * out + c] == static_cast<double>(pixels[static_cast<std::size_t>(p * 5 + c)]));
    // The other outputs have random weights.
    double squares = 0;
    const auto each = static_cast<std::size_t>(5 * kernel * kernel);
    for (std::size_t i = 5 * each; i < w.size(); ++i) squares += w[i] * w[i];
    if (out > 5)
      CHECK(squares / static_cast<double>((static_cast<std::size_t>(out) - 5) * each) ==
            doctest::Approx(0.25 * 2 / static_cast<double>(each)).epsilon(0.6));
  }
  std::vector<float> v(12);
  CHECK_THROWS_AS(initialize(v.data(), Shape{3, 4}, {Init::dirac, 1}, 1, "w"), ShapeError);
}

TEST_CASE("initial values that the caller gives are used") {
  std::vector<float> v(6);
  const auto given = std::make_shared<const std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  initialize(v.data(), Shape{2, 3}, {Init::values, 1, given}, 1, "w");
  CHECK(v == *given);
  CHECK_THROWS_WITH_AS(initialize(v.data(), Shape{2, 2}, {Init::values, 1, given}, 1, "conv.weight"),
                       doctest::Contains("[conv.weight] expected 4 values"), ShapeError);
  CHECK_THROWS_AS(initialize(v.data(), Shape{2, 2}, {Init::values, 1}, 1, "w"), ShapeError);
}

TEST_CASE("the first layer trains only its biases, and all other layers train fully") {
  const Images images(12);
  CpuBackend backend;
  Solo solo;
  Trainer t(backend, solo, net(), {.optimizer = Sgd{0.85, true}, .weight_decay = 1e-3, .ema_decay = 0.5});
  std::vector<std::byte> before(t.executor().parameters().bytes());
  std::memcpy(before.data(), t.executor().parameter_data(), before.size());
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    last = t.step(images.view(), 12, 0.05).wait().metrics.mean_loss();
    if (i == 0) first = last;
  }
  CHECK(last < 0.9 * first);
  CHECK(tensor<float>(t, "whitening.weight") == some_whitening());
  t.with_ema([&] {
    const auto averaged = tensor<float>(t, "whitening.weight"), given = some_whitening();
    for (std::size_t i = 0; i < given.size(); ++i) CHECK(averaged[i] == doctest::Approx(given[i]).epsilon(1e-6));
  });
  for (const Slice& s : t.executor().parameters().slices) {
    CAPTURE(s.name);
    const auto* old = reinterpret_cast<const float*>(before.data()) + s.offset;
    const bool same = tensor<float>(t, s.name) == std::vector<float>(old, old + s.count);
    CHECK(same == !s.trainable);
    CHECK(s.trainable == (s.name != "whitening.weight" && s.name != "fc.bias" &&
                          !(s.name.find(".bn") != std::string::npos && s.name.ends_with("weight"))));
  }
}

TEST_CASE("a parameter's rate multiplies the learning rate and leaves the amount of weight decay unchanged") {
  // Expects the update w -= lr * rate * (g + decay / rate * w).
  const Images images(8);
  ReferenceBackend backend;
  Solo solo;
  const auto moved = [&](double beta_lr_scale, double decay) {
    Trainer t(backend, solo, net(1, beta_lr_scale),
              {.compute = DType::f64, .optimizer = Sgd{0, false}, .weight_decay = decay});
    // The biases start at 0, at which weight decay has no effect.
    auto* w = static_cast<double*>(t.executor().parameter_data());
    const Slice* s = t.executor().parameters().find("layer2.bn1.bias");
    for (std::size_t i = 0; i < s->count; ++i) w[s->offset + i] = 0.5;
    t.executor().parameters_changed();
    t.step(images.view(), 8, 0.01);
    auto v = tensor<double>(t, "layer2.bn1.bias");
    for (double& e : v) e -= 0.5;
    return v;
  };
  const auto plain = moved(1, 0), fast = moved(8, 0), decayed = moved(8, 0.1);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CHECK(fast[i] == doctest::Approx(8 * plain[i]));
    CHECK(decayed[i] == doctest::Approx(fast[i] - 0.01 * 0.1 * 0.5));
  }
}

TEST_CASE("the linear layer trains as if the scale were a separate operation after the layer") {
  // Layer y = s W x: computes one step of W by hand, from the gradient of the layer's weights s W.
  const Images images(8);
  ReferenceBackend backend;
  Solo solo;
  constexpr double scale = 0.5, lr = 0.05, decay = 0.1, momentum = 0.9;
  Trainer t(backend, solo, net(scale),
            {.compute = DType::f64, .optimizer = Sgd{momentum, true}, .weight_decay = decay});
  const Slice* s = t.executor().parameters().find("fc.weight");
  const auto before = tensor<double>(t, "fc.weight");
  t.step(images.view(), 8, lr);
  const auto after = tensor<double>(t, "fc.weight");
  const auto* g = static_cast<const double*>(t.executor().gradient_data()) + s->offset;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double gradient = scale * g[i] + decay * before[i] / scale;
    CHECK(after[i] / scale == doctest::Approx(before[i] / scale - lr * (1 + momentum) * gradient).epsilon(1e-9));
  }
}

TEST_CASE("parameters have the expected number and shapes") {
  Builder b(3, 32, 32);
  models::cifar_fast(b, b.normalize({0, 0, 0}, {1, 1, 1}));
  std::int64_t learned = 0, all = 0;
  for (const Value& v : b.graph().values) {
    if (v.storage != Storage::parameter) continue;
    all += v.shape.numel();
    if (v.trainable) learned += v.shape.numel();
  }
  const std::int64_t convolutions = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256), biases = 2 * (64 + 256 + 256);
  CHECK(learned == convolutions + 24 + biases + 2560);
  CHECK(all == learned + 24 * 12 + biases + 10);
  CHECK(b.shape(b.graph().logits) == Shape{1, 10});

  const auto record = [](std::int64_t side, const models::CifarFastOptions& o) {
    Builder small(3, side, side);
    models::cifar_fast(small, small.normalize({0, 0, 0}, {1, 1, 1}), o);
  };
  record(28, {});
  record(15, {});
  CHECK_THROWS_AS(record(8, {}), ShapeError);
  CHECK_THROWS_AS(record(32, {.classes = 1}), UsageError);
  CHECK_THROWS_AS(record(32, {.widths = {8, 0, 8}}), UsageError);
  CHECK_THROWS_AS(record(32, {.output_scale = 0}), UsageError);
  CHECK_THROWS_AS(record(32, {.whitening = std::vector<float>(7)}), ShapeError);
  Builder bad(3, 8, 8);
  CHECK_THROWS_AS(bad.parameter("w", Shape{3}, {}, true, true, 0), UsageError);
}
