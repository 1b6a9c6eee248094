// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/core/mixed_label.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/nn/losses.hpp>

#include "engine/suite.hpp"

namespace tutti::testing {
namespace {

using End = std::function<void(Builder&, ValueId)>;

// Runs one training step of a net whose logits are `logits` for every row. Returns the sums, and the gradient in f64.
std::pair<Metrics, std::vector<double>> run(Backend& backend, DType t, const std::vector<float>& logits,
                                            const std::vector<MixedLabel>& labels, const End& end) {
  Builder b(1, 1, 1);
  const auto classes = static_cast<std::int64_t>(logits.size());
  const ValueId w = b.parameter("w", Shape{classes, 1}, {Init::zeros}),
                bias = b.parameter("b", Shape{classes}, {Init::zeros}, false);
  b.mix_labels();
  end(b, b.linear("fc", b.global_avg_pool("pool", b.normalize({0}, {1})), w, bias));
  Executor e(backend, b.graph(), {t, true});
  const std::size_t count = e.parameters().count, first = e.parameters().find("b")->offset;
  std::vector<double> wide(count, 0.0);
  std::copy(logits.begin(), logits.end(), wide.begin() + static_cast<std::ptrdiff_t>(first));
  const std::vector<float> narrow(wide.begin(), wide.end());
  if (t == DType::f64)
    backend.memory().copy_in(e.parameter_data(), wide.data(), count * sizeof(double));
  else
    backend.memory().copy_in(e.parameter_data(), narrow.data(), count * sizeof(float));
  e.parameters_changed();
  const std::vector<std::uint8_t> images(labels.size(), 1);
  const auto rows = static_cast<std::int64_t>(labels.size());
  const Metrics m = e.train({images.data(), &labels[0].first, rows}, {8, 0.25});
  const Graph& train = e.graph();
  return {m, fetch(backend, e.value(train.nodes[static_cast<std::size_t>(train[train.metrics].producer)].outputs[1]))};
}

}  // namespace

void check_mixed_loss(Backend& backend) {
  const End softmax = [](Builder& b, ValueId z) { b.softmax_cross_entropy(z); };
  const auto binary = [](nn::BinaryCrossEntropyOptions o) {
    return [o](Builder& b, ValueId z) { nn::binary_cross_entropy(b, z, o); };
  };
  for (const DType t : precisions(backend)) {
    const double eps = t == DType::bf16 ? 4e-3 : 1e-6;
    const auto near = [&](double v) { return doctest::Approx(v).epsilon(eps); };
    // Softmax: share * (L - z_a) + (1 - share) * (L - z_b); hits are those of the first label.
    const double log_sum = std::log(std::exp(2.0) + 3);
    auto [m, d] = run(backend, t, {2, 0, 0, 0}, {{0, 1, 0.75F}, {1, 0, 0.75F}}, softmax);
    CHECK(m.loss == near(0.75 * (log_sum - 2) + 0.25 * log_sum + 0.75 * log_sum + 0.25 * (log_sum - 2)));
    CHECK(m.top1_hits == 1);
    CHECK(m.rows == 2);
    CHECK(d[0] == near(2 * (std::exp(2 - log_sum) - 0.75)));
    CHECK(d[1] == near(2 * (std::exp(-log_sum) - 0.25)));
    CHECK(d[2] == near(2 * std::exp(-log_sum)));
    // The whole share for one label is the loss of that label alone, also if both are the same.
    for (const MixedLabel& alone : {MixedLabel{0, 3, 1}, MixedLabel{3, 0, 0}, MixedLabel{0, 0, 0.25F}})
      CHECK(run(backend, t, {2, 0, 0, 0}, {alone}, softmax).first.loss == near(log_sum - 2));
    // Binary: the mean over classes of max(z, 0) - z t + log(1 + exp(-|z|)), with the target share for a class.
    const double soft = std::log(1 + std::exp(-2.0)), half = std::log(2.0);
    std::tie(m, d) = run(backend, t, {2, -2, 0, 0}, {{0, 1, 0.75F}}, binary({}));
    CHECK(m.loss == near((2 - 2 * 0.75 + soft + 2 * 0.25 + soft + 2 * half) / 4));
    CHECK(d[0] == near(0.5 * (1 / (1 + std::exp(-2.0)) - 0.75)));
    CHECK(d[2] == near(0.5 * 0.5));
    CHECK(m.top1_hits == 1);
    CHECK(run(backend, t, {2, -2, 0, 0}, {{0, 1, 0.75F}}, binary({.sum_classes = true})).first.loss ==
          near(4 * m.loss));
    // Above the threshold, a target is 1: 0.75 and 0.25 are, 0.25 is not above itself.
    const double both = (2 - 2 + soft + 2 + soft + 2 * half) / 4, first = (2 - 2 + soft + soft + 2 * half) / 4;
    CHECK(run(backend, t, {2, -2, 0, 0}, {{0, 1, 0.75F}}, binary({.threshold = 0.2F})).first.loss == near(both));
    CHECK(run(backend, t, {2, -2, 0, 0}, {{0, 1, 0.75F}}, binary({.threshold = 0.25F})).first.loss == near(first));
    // Smoothing: a share s / K for all classes.
    m = run(backend, t, {2, -2, 0, 0}, {{0, 0, 1}}, binary({.label_smoothing = 0.4F})).first;
    CHECK(m.loss == near((2 - 2 * 0.7 + soft + 2 * 0.1 + soft + 2 * half) / 4));
    // Bad labels and shares.
    for (const MixedLabel& bad : {MixedLabel{0, 4, 0.5F}, MixedLabel{0, -1, 0.5F}, MixedLabel{-2, 0, 0.5F}})
      CHECK_THROWS_WITH_AS(run(backend, t, {2, 0, 0, 0}, {bad}, softmax), doctest::Contains("labels in 0..3"),
                           DataError);
    for (const float share : {-0.1F, 1.5F, std::nanf("")})
      CHECK_THROWS_WITH_AS(run(backend, t, {2, 0, 0, 0}, {{0, 1, share}}, binary({})), doctest::Contains("a share"),
                           DataError);
    // An ignored row.
    std::tie(m, d) = run(backend, t, {2, 0, 0, 0}, {{-1, 1, 0.5F}}, binary({}));
    CHECK(m.loss == 0);
    CHECK(d == std::vector<double>(4, 0.0));
  }
}

}  // namespace tutti::testing
