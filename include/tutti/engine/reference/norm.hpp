// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/core/math.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Batch norm as simple loops, NHWC.
namespace tutti::reference {

template <class T, class M>
void batch_norm(const op::BatchNorm& o, const Call& call) {
  const TensorRef& x = call.in[0];
  const std::int64_t channels = x.shape[1], count = x.shape.numel() / channels;
  const T* xd = x.as<T>();
  const M *gamma = call.in[1].as<M>(), *beta = call.in[2].as<M>();
  M *running_mean = call.in[3].as<M>(), *running_var = call.in[4].as<M>();
  const T* residual = o.residual ? call.in[5].as<T>() : nullptr;
  T* y = call.out[0].as<T>();
  M *mean_out = call.out[1].as<M>(), *inv_std_out = call.out[2].as<M>();
  // Computes the statistics of a channel and updates the running ones.
  const auto statistics = [&](std::int64_t c) {
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(xd[i * channels + c]);
    const double mean = sum / static_cast<double>(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const double d = static_cast<double>(xd[i * channels + c]) - mean;
      squares += d * d;
    }
    const double var = squares / static_cast<double>(count), m = static_cast<double>(o.momentum);
    const double unbiased = count > 1 ? squares / static_cast<double>(count - 1) : var;
    running_mean[c] = static_cast<M>((1 - m) * static_cast<double>(running_mean[c]) + m * mean);
    running_var[c] = static_cast<M>((1 - m) * static_cast<double>(running_var[c]) + m * unbiased);
    return std::pair(mean, var);
  };
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto [mean, var] =
        o.frozen ? std::pair(static_cast<double>(running_mean[c]), static_cast<double>(running_var[c])) : statistics(c);
    const double inv_std = 1 / math::sqrt(var + static_cast<double>(o.eps));
    mean_out[c] = static_cast<M>(mean);
    inv_std_out[c] = static_cast<M>(inv_std);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t k = i * channels + c;
      double v =
          static_cast<double>(gamma[c]) * (static_cast<double>(xd[k]) - mean) * inv_std + static_cast<double>(beta[c]);
      if (residual != nullptr) v += static_cast<double>(residual[k]);
      y[k] = static_cast<T>(o.relu && v < 0 ? 0 : v);
    }
  }
}

template <class T, class M>
void batch_norm_inference(const op::BatchNormInference& o, const Call& call) {
  const TensorRef& x = call.in[0];
  const std::int64_t channels = x.shape[1], count = x.shape.numel();
  const T* xd = x.as<T>();
  const M *gamma = call.in[1].as<M>(), *beta = call.in[2].as<M>();
  const M *mean = call.in[3].as<M>(), *var = call.in[4].as<M>();
  const T* residual = o.residual ? call.in[5].as<T>() : nullptr;
  T* y = call.out[0].as<T>();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t c = i % channels;
    const double inv_std = o.saved_inv_std ? static_cast<double>(var[c])
                                           : 1 / math::sqrt(static_cast<double>(var[c]) + static_cast<double>(o.eps));
    double v = static_cast<double>(gamma[c]) * (static_cast<double>(xd[i]) - static_cast<double>(mean[c])) * inv_std +
               static_cast<double>(beta[c]);
    if (residual != nullptr) v += static_cast<double>(residual[i]);
    y[i] = static_cast<T>(o.relu && v < 0 ? 0 : v);
  }
}

template <class T, class M>
void batch_norm_backward(const op::BatchNormBackward& o, const Call& call) {
  int k = 0;
  const T* dy = call.in[static_cast<std::size_t>(k++)].as<T>();
  const T* dy2 = o.second ? call.in[static_cast<std::size_t>(k++)].as<T>() : nullptr;
  const TensorRef& x = call.in[static_cast<std::size_t>(k++)];
  const M* gamma = call.in[static_cast<std::size_t>(k++)].as<M>();
  const M* beta = call.in[static_cast<std::size_t>(k++)].as<M>();
  const M* mean = call.in[static_cast<std::size_t>(k++)].as<M>();
  const M* inv_std = call.in[static_cast<std::size_t>(k++)].as<M>();
  const T* y = o.relu && o.residual ? call.in[static_cast<std::size_t>(k)].as<T>() : nullptr;
  const T* xd = x.as<T>();
  T* dx = call.out[0].as<T>();
  M *dgamma = call.out[1].as<M>(), *dbeta = call.out[2].as<M>();
  T* dresidual = o.residual ? call.out[3].as<T>() : nullptr;
  const std::int64_t channels = x.shape[1], count = x.shape.numel() / channels;
  const auto normalised = [&](std::int64_t i, std::int64_t c) {
    return (static_cast<double>(xd[i]) - static_cast<double>(mean[c])) * static_cast<double>(inv_std[c]);
  };
  const auto incoming = [&](std::int64_t i, std::int64_t c) {
    if (o.relu) {
      const bool active = y != nullptr
                              ? static_cast<double>(y[i]) > 0
                              : static_cast<double>(gamma[c]) * normalised(i, c) + static_cast<double>(beta[c]) > 0;
      if (!active) return 0.0;
    }
    double g = static_cast<double>(dy[i]);
    if (dy2 != nullptr) g += static_cast<double>(dy2[i]);
    return g;
  };
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0, dot = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t i = j * channels + c;
      const double g = incoming(i, c);
      sum += g;
      dot += g * normalised(i, c);
    }
    dgamma[c] = static_cast<M>(dot);
    dbeta[c] = static_cast<M>(sum);
    const double n = static_cast<double>(count);
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t i = j * channels + c;
      const double g = incoming(i, c), xhat = normalised(i, c);
      if (dresidual != nullptr) dresidual[i] = static_cast<T>(g);
      dx[i] = static_cast<T>(static_cast<double>(gamma[c]) * static_cast<double>(inv_std[c]) *
                             (o.frozen ? g : g - sum / n - xhat * dot / n));
    }
  }
}

}  // namespace tutti::reference
