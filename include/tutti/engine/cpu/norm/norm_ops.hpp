// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

#include <tutti/core/math.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/norm/norm_kernels.hpp>

// Batch norm.
namespace tutti::cpu {

class NormKernel : public NativeKernel {
 public:
  NormKernel(const Op& op, Shared& b, const NodeDesc& d)
      : NativeKernel(op, b, d), factors_(b.factors), channels_(d.out[0].shape[1]), shards_(d.shards) {}
  void prepare(const PrepareInfo& i) override { factors_.reserve(i.workers, channels_); }

 protected:
  // Two sums for each channel. They are read one by one, so adding them takes as long as adding 32 floats.
  [[nodiscard]] Partition two_pass() const {
    return {Division::two_pass, sum_tasks(32 * channels_, shards_, (channels_ + 15) / 16),
            static_cast<std::size_t>(channels_) * 2 * sizeof(double)};
  }

  // y = relu?(x * scale[c] + shift[c] (+ residual)). The residual is the sixth input.
  template <class T>
  void apply(const Call& c, const float* scale, const float* shift, bool residual, bool relu) const {
    const TensorRef& x = c.in[0];
    norm_apply<T>(isa_, static_cast<const T*>(x.data), residual ? static_cast<const T*>(c.in[5].data) : nullptr,
                  static_cast<T*>(c.out[0].data), pixels(x), x.shape[1], scale, shift, relu);
  }

  ChannelFactors& factors_;
  std::int64_t channels_;
  int shards_;
};

// Training with frozen statistics and an evaluation compute the same bits.
[[nodiscard]] inline float inverse_deviation(float variance, float eps) { return 1 / math::sqrt(variance + eps); }

inline void scale_and_shift(const float* gamma, const float* beta, const float* mean, const float* inv_std,
                            std::int64_t channels, float* scale, float* shift) {
  for (std::int64_t k = 0; k < channels; ++k) {
    scale[k] = gamma[k] * inv_std[k];
    shift[k] = beta[k] - mean[k] * scale[k];
  }
}

class BatchNorm final : public NormKernel {
 public:
  using For = op::BatchNorm;
  using NormKernel::NormKernel;
  [[nodiscard]] Partition cut() override { return two_pass(); }
  void run(Call& c) override {
    if (c.phase == Phase::finish) return finish(c);
    float_type(c.in[0].dtype, [&](auto t) { run_as<decltype(t)>(c); });
  }

 private:
  template <class T>
  void run_as(Call& c) {
    const TensorRef& x = c.in[0];
    const std::int64_t channels = x.shape[1];
    if (c.phase == Phase::reduce) {
      if (o_.frozen) return;
      auto* sums = reinterpret_cast<double*>(c.partial);
      if (c.first_chunk) std::fill_n(sums, 2 * channels, 0.0);
      norm_statistics<T>(isa_, static_cast<const T*>(x.data), pixels(x), channels,
                         static_cast<const float*>(c.in[3].as<float>()), sums, sums + channels);
    } else {
      float *scale = factors_.of(c.worker, 0), *shift = factors_.of(c.worker, 1);
      scale_and_shift(c.in[1].as<float>(), c.in[2].as<float>(), c.out[1].as<float>(), c.out[2].as<float>(), channels,
                      scale, shift);
      apply<T>(c, scale, shift, o_.residual, o_.relu);
    }
  }

  void finish(Call& c) const {
    const TensorRef& x = c.in[0];
    const std::int64_t channels = x.shape[1];
    float *running_mean = c.in[3].as<float>(), *running_var = c.in[4].as<float>();
    float *mean = c.out[1].as<float>(), *inv_std = c.out[2].as<float>();
    const auto count = static_cast<double>(pixels(x));
    const auto m = static_cast<double>(o_.momentum);
    for (std::int64_t k = channels * c.task / c.tasks; k < channels * (c.task + 1) / c.tasks; ++k) {
      if (o_.frozen) {
        mean[k] = running_mean[k];
        inv_std[k] = inverse_deviation(running_var[k], o_.eps);
        continue;
      }
      double s = 0, q = 0;
      sum_pairs(c, k, channels, s, q);
      const double pivot = static_cast<double>(running_mean[k]), off = s / count;
      const double squares = std::max(q - off * s, 0.0), batch_mean = pivot + off;
      mean[k] = static_cast<float>(batch_mean);
      inv_std[k] = static_cast<float>(1 / math::sqrt(squares / count + static_cast<double>(o_.eps)));
      const double unbiased = count > 1 ? squares / (count - 1) : squares;
      running_mean[k] = static_cast<float>((1 - m) * pivot + m * batch_mean);
      running_var[k] = static_cast<float>((1 - m) * static_cast<double>(running_var[k]) + m * unbiased);
    }
  }

  const For& o_ = *std::get_if<For>(&op_);
};

class BatchNormInference : public NormKernel {
 public:
  using For = op::BatchNormInference;
  using NormKernel::NormKernel;
  [[nodiscard]] Partition cut() override { return {Division::rows}; }
  void run(Call& c) override {
    float_type(c.in[0].dtype, [&](auto t) { run_as<decltype(t)>(c); });
  }

 private:
  template <class T>
  void run_as(Call& c) {
    const std::int64_t channels = c.in[0].shape[1];
    const float *gamma = c.in[1].as<float>(), *beta = c.in[2].as<float>();
    const float *mean = c.in[3].as<float>(), *var = c.in[4].as<float>();
    float *scale = factors_.of(c.worker, 0), *shift = factors_.of(c.worker, 1);
    for (std::int64_t k = 0; k < channels; ++k) {
      scale[k] = gamma[k] * (o_.saved_inv_std ? var[k] : inverse_deviation(var[k], o_.eps));
      shift[k] = beta[k] - mean[k] * scale[k];
    }
    apply<T>(c, scale, shift, o_.residual, o_.relu);
  }

  const For& o_ = *std::get_if<For>(&op_);
};

class BatchNormBackward final : public NormKernel {
 public:
  using For = op::BatchNormBackward;
  using NormKernel::NormKernel;
  [[nodiscard]] Partition cut() override { return two_pass(); }
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) { run_as<decltype(t)>(c); });
  }

 private:
  template <class T>
  void run_as(Call& c) {
    std::size_t k = 0;
    NormBackwardArgs<T> n;
    n.dy = static_cast<const T*>(c.in[k++].data);
    if (o_.second) n.dy2 = static_cast<const T*>(c.in[k++].data);
    const TensorRef& x = c.in[k++];
    n.x = static_cast<const T*>(x.data);
    const float* gamma = c.in[k++].as<float>();
    const float* beta = c.in[k++].as<float>();
    const float* mean = c.in[k++].as<float>();
    const float* inv_std = c.in[k++].as<float>();
    if (o_.relu && o_.residual) n.y = static_cast<const T*>(c.in[k].data);
    n.relu = o_.relu;
    if (o_.residual) n.masked = static_cast<T*>(c.out[3].data);
    n.dx = static_cast<T*>(c.out[0].data);
    n.channels = x.shape[1];
    n.pixels = pixels(x);
    n.mean = mean;
    float *dgamma = c.out[1].as<float>(), *dbeta = c.out[2].as<float>();
    if (c.phase == Phase::finish) {
      for (std::int64_t j = n.channels * c.task / c.tasks; j < n.channels * (c.task + 1) / c.tasks; ++j) {
        double sum = 0, dot = 0;
        sum_pairs(c, j, n.channels, sum, dot);
        dbeta[j] = static_cast<float>(sum);
        dgamma[j] = static_cast<float>(dot * static_cast<double>(inv_std[j]));
      }
      return;
    }
    float *scale = factors_.of(c.worker, 0), *shift = factors_.of(c.worker, 1);
    scale_and_shift(gamma, beta, mean, inv_std, n.channels, scale, shift);
    n.scale = scale;
    n.shift = shift;
    if (c.phase == Phase::reduce) {
      auto* sums = reinterpret_cast<double*>(c.partial);
      if (c.first_chunk) std::fill_n(sums, 2 * n.channels, 0.0);
      norm_backward_reduce<T>(isa_, n, sums, sums + n.channels);
      return;
    }
    // dx = gamma * inv_std * (g - dbeta / m - xhat * dgamma / m), as a * g + b * x + c. m: pixels of the whole batch.
    const double m = static_cast<double>(c.count_rows) * static_cast<double>(x.shape[2] * x.shape[3]);
    float *fa = factors_.of(c.worker, 2), *fb = factors_.of(c.worker, 3), *fc = factors_.of(c.worker, 4);
    for (std::int64_t j = 0; j < n.channels; ++j) {
      const double a = static_cast<double>(gamma[j]) * static_cast<double>(inv_std[j]);
      fa[j] = static_cast<float>(a);
      fb[j] = fc[j] = 0;
      if (o_.frozen) continue;
      const double b = -a * static_cast<double>(inv_std[j]) * static_cast<double>(dgamma[j]) / m;
      fb[j] = static_cast<float>(b);
      fc[j] = static_cast<float>(-a * static_cast<double>(dbeta[j]) / m - b * static_cast<double>(mean[j]));
    }
    n.a = fa;
    n.b = fb;
    n.c = fc;
    norm_backward_apply<T>(isa_, n);
  }

  const For& o_ = *std::get_if<For>(&op_);
};

}  // namespace tutti::cpu
