// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/ignored_label.hpp>
#include <tutti/core/math.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// The loss as a simple loop.
namespace tutti::reference {

// Adds to metrics [4]; writes dlogits if dlogits.data is set.
template <class T>
void softmax_cross_entropy(const op::SoftmaxCrossEntropy& o, const TensorRef& logits, const TensorRef& labels,
                           double* metrics, const TensorRef* dlogits, const StepScalars& scalars) {
  const std::int64_t classes = logits.shape[1];
  const T* z = logits.as<T>();
  const auto* label = labels.as<std::int32_t>();
  T* d = dlogits != nullptr ? dlogits->as<T>() : nullptr;
  const double smooth = static_cast<double>(o.label_smoothing), off = smooth / static_cast<double>(classes);
  for (std::int64_t n = 0; n < logits.shape[0]; ++n, z += classes) {
    const std::int32_t t = label[n];
    if (t == ignored_label) {
      metrics[3] += 1;
      if (d != nullptr) d = std::fill_n(d, classes, T{});
      continue;
    }
    if (t < 0 || t >= classes) fail<DataError>("softmax_cross_entropy", {"labels in 0..", classes - 1}, t);
    double top = -std::numeric_limits<double>::infinity();
    for (std::int64_t k = 0; k < classes; ++k) top = std::max(top, static_cast<double>(z[k]));
    double sum = 0, mean_logit = 0;
    int above = 0;
    const double zt = static_cast<double>(z[t]);
    for (std::int64_t k = 0; k < classes; ++k) {
      const double v = static_cast<double>(z[k]);
      sum += math::exp(v - top);
      mean_logit += v;
      // Ties count as errors unless the label has the lowest index, so that constant logits do not score 100 %. A NaN
      // counts as an error too.
      above += k != t && (!(v < zt) && (v != zt || k < t));
    }
    const double log_sum = top + math::log(sum);
    metrics[0] += (1 - smooth) * (log_sum - zt) + smooth * (log_sum - mean_logit / static_cast<double>(classes));
    metrics[1] += above < 1 ? 1 : 0;
    metrics[2] += above < o.top_k ? 1 : 0;
    metrics[3] += 1;
    if (d == nullptr) continue;
    const double scale = scalars.loss_scale * scalars.inv_global_batch;
    for (std::int64_t k = 0; k < classes; ++k)
      *d++ = static_cast<T>(scale * (math::exp(static_cast<double>(z[k]) - log_sum) - off - (k == t ? 1 - smooth : 0)));
  }
}

}  // namespace tutti::reference
