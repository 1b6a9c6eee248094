// SPDX-License-Identifier: MIT
// Tests softmax cross entropy: known losses, hits and gradients, ignored rows, and labels and logits that are not
// valid.
#include "engine/suite.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <tutti/nn/layers.hpp>

#include "engine/conformance.hpp"

namespace tutti::testing {

namespace {

// Returns the net images -> normalize -> pool -> linear -> loss. A test sets the weights to 0, so that the bias gives
// the logits.
Graph loss_only(int classes, float smoothing = 0, int top_k = 5) {
  Builder b(1, 2, 2);
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", b.normalize({0}, {1})), classes, {Init::zeros}),
                          smoothing, top_k);
  return std::move(b).take();
}

}  // namespace

void check_loss(Backend& backend) {
  const std::vector<std::uint8_t> images(10 * 4, 1);
  const auto run = [&](const Graph& g, const std::vector<float>& logits, const std::vector<std::int32_t>& labels,
                       DType t, StepScalars scalars, std::vector<double>* gradient = nullptr) {
    Executor e(backend, g, {t, true});
    const Slice& s = *e.parameters().find("fc.bias");
    auto* const at = static_cast<std::byte*>(e.parameter_data()) + s.offset * size_of(e.parameters().dtype);
    const std::vector<double> wide(logits.begin(), logits.end());
    if (t == DType::f64)
      backend.memory().copy_in(at, wide.data(), wide.size() * sizeof(double));
    else
      backend.memory().copy_in(at, logits.data(), logits.size() * sizeof(float));
    e.parameters_changed();
    const Metrics m = e.train({images.data(), labels.data(), static_cast<std::int64_t>(labels.size())}, scalars);
    if (gradient != nullptr) {
      const Graph& train = e.graph();
      *gradient =
          fetch(backend, e.value(train.nodes[static_cast<std::size_t>(train[train.metrics].producer)].outputs[1]));
    }
    return m;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (DType t : precisions(backend)) {
    // If all logits are equal, the loss is log(K), and only a row with the first class as its label is a top-1 hit.
    Metrics m = run(loss_only(4), {1, 1, 1, 1}, {0, 1, 2, 3}, t, {});
    CHECK(m.loss == doctest::Approx(4 * std::log(4.0)));
    CHECK(m.top1_hits == 1);
    CHECK(m.topk_hits == 4);
    CHECK(m.rows == 4);
    m = run(loss_only(4, 0, 2), {3, 1, 2, 0}, {0, 1, 2, 3}, t, {});
    CHECK(m.top1_hits == 1);
    CHECK(m.topk_hits == 2);
    // With label smoothing s the loss is (1 - s) (L - z_t) + s (L - mean z), where L = log sum exp z.
    std::vector<double> d;
    const StepScalars scalars{8, 0.25};
    m = run(loss_only(4, 0.25F), {2, 0, 0, 0}, {0}, t, scalars, &d);
    const double log_sum = std::log(std::exp(2.0) + 3);
    CHECK(m.loss == doctest::Approx(0.75 * (log_sum - 2) + 0.25 * (log_sum - 0.5)).epsilon(1e-6));
    REQUIRE(d.size() == 4);
    const double eps = t == DType::bf16 ? 4e-3 : t == DType::f16 ? 1e-3 : 1e-6;
    CHECK(d[0] == doctest::Approx(2 * (std::exp(2 - log_sum) - 0.75 - 0.0625)).epsilon(eps));
    CHECK(d[1] == doctest::Approx(2 * (std::exp(-log_sum) - 0.0625)).epsilon(eps));
    // Large logits do not overflow.
    m = run(loss_only(3), {1e4F, 0, -1e4F}, {0, 1}, t, {});
    CHECK(m.loss == doctest::Approx(1e4).epsilon(5e-3));
    // If a logit is NaN, the loss is NaN and the row is not a hit.
    for (std::int32_t label : {0, 1, 2}) {
      m = run(loss_only(3), {0, nan, 1}, {label}, t, {}, &d);
      CHECK(std::isnan(m.loss));
      CHECK(m.top1_hits == 0);
      CHECK(std::isnan(d[0]));
    }
    m = run(loss_only(3), {nan, nan, nan}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, t, {});
    CHECK(std::isnan(m.loss));
    CHECK(m.top1_hits == 0);
    // At any place in the batch and for any logits, an ignored row adds nothing to the loss, the hits and the gradient.
    for (const std::vector<std::int32_t>& labels :
         {std::vector<std::int32_t>{-1, 0, 2, -1}, std::vector<std::int32_t>{0, -1, -1, 2}}) {
      m = run(loss_only(4, 0.25F), {2, 0, 1, -1}, labels, t, scalars, &d);
      std::vector<double> with, zero(4, 0.0);
      const Metrics only = run(loss_only(4, 0.25F), {2, 0, 1, -1}, {0, 2}, t, scalars, &with);
      CHECK(m.loss == only.loss);
      CHECK(m.top1_hits == 1);
      CHECK(m.topk_hits == 2);
      CHECK(m.rows == 4);
      REQUIRE(d.size() == 16);
      std::size_t next = 0;
      for (std::size_t n = 0; n < 4; ++n) {
        const auto row =
            std::vector<double>(d.begin() + 4 * static_cast<long>(n), d.begin() + 4 * static_cast<long>(n + 1));
        const auto kept = with.begin() + 4 * static_cast<long>(next);
        CHECK(row == (labels[n] < 0 ? zero : std::vector<double>(kept, kept + 4)));
        next += labels[n] < 0 ? 0 : 1;
      }
    }
    m = run(loss_only(3), {nan, 0, 1}, {-1, -1, -1}, t, {}, &d);
    CHECK(m.loss == 0);
    CHECK(m.rows == 3);
    CHECK(d == std::vector<double>(9, 0.0));
    // An invalid label at any place in the batch throws a DataError. The backend can continue afterwards.
    for (std::int32_t label : {-2, 3, 255, std::numeric_limits<std::int32_t>::min()})
      for (std::size_t where : {0U, 9U}) {
        std::vector<std::int32_t> labels(10, 0);
        labels[where] = label;
        CHECK_THROWS_WITH_AS(run(loss_only(3), {0, 0, 0}, labels, t, {}), doctest::Contains("labels in 0..2"),
                             DataError);
      }
    CHECK(run(loss_only(3), {0, 0, 0}, {0}, t, {}).loss == doctest::Approx(std::log(3.0)));
  }
}

}  // namespace tutti::testing
