// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/ignored_label.hpp>
#include <tutti/core/math.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// The losses as simple loops.
namespace tutti::reference {

// A row's two classes, of which the first has this share. The second is the first if the label is not mixed.
struct Target {
  std::int32_t first, second;
  double share;
};
[[nodiscard]] inline Target target_of(const TensorRef& labels, std::int64_t row, std::int64_t classes) {
  const auto* at = labels.as<std::int32_t>();
  Target t{};
  if (labels.shape.rank() == 2) {
    at += 3 * row;
    t = {at[0], at[1], static_cast<double>(std::bit_cast<float>(at[2]))};
  } else {
    t = {at[row], at[row], 1};
  }
  if (t.first == ignored_label) return t;
  for (const std::int32_t label : {t.first, t.second})
    if (label < 0 || label >= classes) fail<DataError>("softmax_cross_entropy", {"labels in 0..", classes - 1}, label);
  if (!(t.share >= 0 && t.share <= 1))
    fail<DataError>("softmax_cross_entropy", "a share of the first class in 0..1", t.share);
  return t;
}

// Returns the number of logits above that of the label. Ties count as errors unless the label has the lowest index, so
// that constant logits do not score 100 %. A NaN counts as an error too.
template <class T>
[[nodiscard]] int rank_of(const T* z, std::int64_t classes, std::int32_t label) {
  const double own = static_cast<double>(z[label]);
  int above = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    const double v = static_cast<double>(z[k]);
    above += k != label && (!(v < own) && (v != own || k < label));
  }
  return above;
}

// Calls row(z, d, target) for each row with its logits and the place of their gradient, which may be null. It returns
// the loss, which is added to metrics [4].
template <class T, class O, class Row>
void each_row(const O& o, const TensorRef& logits, const TensorRef& labels, double* metrics, const TensorRef* dlogits,
              Row&& row) {
  const std::int64_t classes = logits.shape[1];
  const T* z = logits.as<T>();
  T* d = dlogits != nullptr ? dlogits->as<T>() : nullptr;
  for (std::int64_t n = 0; n < logits.shape[0]; ++n, z += classes) {
    const Target t = target_of(labels, n, classes);
    metrics[3] += 1;
    if (t.first == ignored_label) {
      if (d != nullptr) d = std::fill_n(d, classes, T{});
      continue;
    }
    metrics[0] += row(z, d, t);
    const int above = rank_of(z, classes, t.first);
    metrics[1] += above < 1 ? 1 : 0;
    metrics[2] += above < o.top_k ? 1 : 0;
    if (d != nullptr) d += classes;
  }
}

template <class T>
void binary_cross_entropy(const op::SoftmaxCrossEntropy& o, const TensorRef& logits, const TensorRef& labels,
                          double* metrics, const TensorRef* dlogits, const StepScalars& scalars) {
  const std::int64_t classes = logits.shape[1];
  const double smooth = static_cast<double>(o.label_smoothing), off = smooth / static_cast<double>(classes);
  const double each = o.sum_classes ? 1 : 1 / static_cast<double>(classes);
  each_row<T>(o, logits, labels, metrics, dlogits, [&](const T* z, T* d, const Target& t) {
    double sum = 0;
    const double scale = scalars.loss_scale * scalars.inv_global_batch * each;
    for (std::int64_t k = 0; k < classes; ++k) {
      double target = off + (1 - smooth) * ((k == t.first ? t.share : 0) + (k == t.second ? 1 - t.share : 0));
      if (o.threshold >= 0) target = target > static_cast<double>(o.threshold) ? 1 : 0;
      const double v = static_cast<double>(z[k]), e = math::exp(-math::fabs(v));
      sum += (v > 0 ? v : 0) - v * target + math::log(1 + e);
      if (d != nullptr) *d++ = static_cast<T>(scale * ((v < 0 ? e : 1) / (1 + e) - target));
    }
    return sum * each;
  });
}

// Adds to metrics [4]; writes dlogits if dlogits.data is set.
template <class T>
void softmax_cross_entropy(const op::SoftmaxCrossEntropy& o, const TensorRef& logits, const TensorRef& labels,
                           double* metrics, const TensorRef* dlogits, const StepScalars& scalars) {
  if (o.binary) return binary_cross_entropy<T>(o, logits, labels, metrics, dlogits, scalars);
  const std::int64_t classes = logits.shape[1];
  const double smooth = static_cast<double>(o.label_smoothing), off = smooth / static_cast<double>(classes);
  each_row<T>(o, logits, labels, metrics, dlogits, [&](const T* z, T* d, const Target& t) {
    double top = -std::numeric_limits<double>::infinity();
    for (std::int64_t k = 0; k < classes; ++k) top = std::max(top, static_cast<double>(z[k]));
    double sum = 0, mean_logit = 0;
    for (std::int64_t k = 0; k < classes; ++k) {
      const double v = static_cast<double>(z[k]);
      sum += math::exp(v - top);
      mean_logit += v;
    }
    const double log_sum = top + math::log(sum);
    double own = log_sum - static_cast<double>(z[t.first]);
    if (t.share < 1) own = t.share * own + (1 - t.share) * (log_sum - static_cast<double>(z[t.second]));
    const double scale = scalars.loss_scale * scalars.inv_global_batch;
    for (std::int64_t k = 0; d != nullptr && k < classes; ++k) {
      const double target = (k == t.first ? t.share : 0) + (k == t.second ? 1 - t.share : 0);
      *d++ = static_cast<T>(
          scale * (math::exp(static_cast<double>(z[k]) - log_sum) - off - (target > 0 ? target * (1 - smooth) : 0)));
    }
    return (1 - smooth) * own + smooth * (log_sum - mean_logit / static_cast<double>(classes));
  });
}

}  // namespace tutti::reference
