// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <tutti/core/threads.hpp>
#include <tutti/engine/cpu/gelu_kernels.hpp>
#include <tutti/engine/cpu/isa.hpp>
#include <tutti/engine/cpu/norm_kernels.hpp>
#include <tutti/engine/cpu/pool_kernels.hpp>
#include <tutti/engine/cpu/row_kernels.hpp>
#include <tutti/engine/cpu/update_kernels.hpp>
#include <tutti/engine/reference/reference.hpp>

namespace tutti {

struct CpuOptions {
  int threads = 0;  // 0: one per core this process may use
};

// What the CPU backends share: threads, lanes and our own vector kernels for everything but convolutions and products
// of matrices, in f32 and bf16.
class CpuOps : public ReferenceOps<false> {
 public:
  explicit CpuOps(CpuOptions o = {}, std::function<void()> on_thread_start = {})
      : pool_(std::make_unique<ThreadPool>(o.threads > 0 ? o.threads : usable_cores(), std::move(on_thread_start))),
        isa_(cpu::detect_isa()) {}

  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;
  [[nodiscard]] int threads() const override { return pool_->threads(); }
  // Fixed shares of a batch with a partial sum each: more than threads, so that a slow core gets fewer; the same for
  // all small numbers of threads, so that their results are the same bits.
  [[nodiscard]] int lanes() const override { return threads() <= 4 ? 8 : 2 * threads(); }
  [[nodiscard]] cpu::Isa isa() const noexcept { return isa_; }

  void parallel(int tasks, FunctionRef<void(int, int)> f) override { pool_->run(tasks, f); }

  using ReferenceOps::partition;
  using ReferenceOps::prepare;
  using ReferenceOps::run;

  // Row ops.
  [[nodiscard]] Partition partition(const op::Normalize&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::Relu&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::ReluBackward&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::Gelu&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::GeluBackward&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::Add&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::Bias&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::MaxPool&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::MaxPoolBackward&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::GlobalAvgPool&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::GlobalAvgPoolBackward&, const NodeDesc&) const {
    return {Division::rows};
  }
  [[nodiscard]] Partition partition(const op::Linear&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::LinearBackwardData&, const NodeDesc&) const { return {Division::rows}; }
  [[nodiscard]] Partition partition(const op::BatchNormInference&, const NodeDesc&) const { return {Division::rows}; }
  // Ops that sum over rows.
  [[nodiscard]] Partition partition(const op::SoftmaxCrossEntropy&, const NodeDesc&) const {
    return {Division::reduce, 1, 4 * sizeof(double)};
  }
  [[nodiscard]] Partition partition(const op::LinearBackwardWeights&, const NodeDesc& d) const {
    // A partial sum per lane of large weights would take more memory and time than it saves.
    if (d.out[0].shape.numel() >= 64 * 1024) return {Division::whole, linear_tasks(d.out[0].shape[0])};
    return {Division::reduce, 1, d.out[0].bytes() + d.out[1].bytes()};
  }
  [[nodiscard]] Partition partition(const op::BatchNorm&, const NodeDesc& d) const { return two_pass(d, d.in[0]); }
  [[nodiscard]] Partition partition(const op::BatchNormBackward&, const NodeDesc& d) const {
    return two_pass(d, d.out[0]);
  }

  [[nodiscard]] std::shared_ptr<void> prepare(const op::BatchNorm&, const PrepareInfo& i) {
    need_factors(i.desc.out[0]);
    return {};
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::BatchNormInference&, const PrepareInfo& i) {
    need_factors(i.desc.out[0]);
    return {};
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const op::BatchNormBackward&, const PrepareInfo& i) {
    need_factors(i.desc.out[0]);
    return {};
  }

  void run(const op::BatchNorm& o, Call& c) {
    float_type(c.in[0].dtype, [&](auto t) { batch_norm<decltype(t)>(o, c); });
  }
  void run(const op::BatchNormInference& o, Call& c) {
    float_type(c.in[0].dtype, [&](auto t) { batch_norm_inference<decltype(t)>(o, c); });
  }
  void run(const op::BatchNormBackward& o, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) { batch_norm_backward<decltype(t)>(o, c); });
  }
  void run(const op::Gelu&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::gelu<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<T*>(c.out[0].data), c.out[0].shape.numel());
    });
  }
  void run(const op::GeluBackward&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::gelu_backward<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<const T*>(c.in[1].data),
                            static_cast<T*>(c.out[0].data), c.out[0].shape.numel());
    });
  }
  void run(const op::Add&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::add<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<const T*>(c.in[1].data),
                  static_cast<T*>(c.out[0].data), c.out[0].shape.numel());
    });
  }
  void run(const op::Normalize& o, Call& c) {
    const TensorRef& x = c.in[0];
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::normalize<T>(isa_, static_cast<const std::uint8_t*>(x.data), static_cast<T*>(c.out[0].data), x.shape.numel(),
                        x.shape[1], o.mean.data(), o.inv_std.data());
    });
  }
  void run(const op::MaxPool& o, Call& c) {
    float_type(c.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::max_pool<T>(isa_, pool_args<T>(o, c.in[0], c.out[0], c.out[1]));
    });
  }
  void run(const op::MaxPoolBackward& o, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::max_pool_backward<T>(isa_, pool_args<T>(o, c.out[0], c.in[0], c.in[1]));
    });
  }
  void run(const op::GlobalAvgPool&, Call& c) {
    const Shape& s = c.in[0].shape;
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::global_avg_pool<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<T*>(c.out[0].data), s[0],
                              s[2] * s[3], s[1]);
    });
  }
  void run(const op::GlobalAvgPoolBackward&, Call& c) {
    const Shape& s = c.out[0].shape;
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::global_avg_pool_backward<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<T*>(c.out[0].data), s[0],
                                       s[2] * s[3], s[1]);
    });
  }
  void run(const op::SoftmaxCrossEntropy& o, Call& c) {
    if (c.phase == Phase::finish) {
      auto* metrics = c.out[0].as<double>();
      for (int k = 0; k < 4; ++k) {
        metrics[k] = 0;
        for (int l = 0; l < c.lanes; ++l) metrics[k] += reinterpret_cast<double*>(c.partial_of(l))[k];
      }
      return;
    }
    auto* mine = reinterpret_cast<double*>(c.partial);
    if (c.first_chunk) std::fill_n(mine, 4, 0.0);
    float_type(c.in[0].dtype, [&](auto t) {
      reference::softmax_cross_entropy<decltype(t)>(o, c.in[0], c.in[1], mine, o.backward ? &c.out[1] : nullptr,
                                                    *c.scalars);
    });
  }
  void run(const op::LinearBackwardWeights&, Call& c) {
    const std::int64_t in = c.in[0].shape.row_numel(), out = c.in[1].shape.row_numel();
    if (c.phase == Phase::whole) {
      const std::int64_t first = out * c.task / c.tasks, mine = out * (c.task + 1) / c.tasks - first;
      float *dw = static_cast<float*>(c.out[0].data) + first * in, *db = static_cast<float*>(c.out[1].data) + first;
      std::fill_n(dw, mine * in, 0.0F);
      std::fill_n(db, mine, 0.0F);
      return linear_backward_weights(c, first, mine, dw, db);
    }
    if (c.phase == Phase::finish) {
      cpu::sum_lanes<2>(c, {static_cast<float*>(c.out[0].data), static_cast<float*>(c.out[1].data)},
                        {static_cast<std::size_t>(in * out), static_cast<std::size_t>(out)});
      return;
    }
    auto* dw = reinterpret_cast<float*>(c.partial);
    auto* db = dw + in * out;
    if (c.first_chunk) std::fill_n(dw, in * out + out, 0.0F);
    linear_backward_weights(c, 0, out, dw, db);
  }

  void update(const UpdateOp& any, const UpdateCall& u) override {
    if (const auto* sgd = std::get_if<SgdUpdate>(&any))
      return blocks(u, [&](const UpdateCall& part) { cpu::sgd(isa_, *sgd, part); });
    const auto& adamw = std::get<AdamwUpdate>(any);
    blocks(u, [&](const UpdateCall& part) { cpu::adamw(isa_, adamw, part); });
  }
  // Summed over fixed blocks in order, whoever computed them.
  [[nodiscard]] SquaredNorms squared_norms(const UpdateCall& u) override {
    norms_.resize(std::max(norms_.size(), (u.count + block - 1) / block));
    blocks(u, [&](const UpdateCall& part) {
      const auto offset =
          static_cast<std::size_t>(static_cast<const float*>(part.gradients) - static_cast<const float*>(u.gradients));
      norms_[offset / block] = reference::squared_norms<float>(part);
    });
    SquaredNorms sum;
    for (std::size_t i = 0; i * block < u.count; ++i) {
      sum.weights += norms_[i].weights;
      sum.gradients += norms_[i].gradients;
    }
    return sum;
  }
  void average(DType t, void* to, const void* from, std::size_t n, double decay) override {
    only_f32(t);
    cpu::average(isa_, static_cast<float*>(to), static_cast<const float*>(from), n, static_cast<float>(decay));
  }
  void accumulate(DType t, void* to, const void* from, std::size_t n) override {
    only_f32(t);
    cpu::accumulate(isa_, static_cast<float*>(to), static_cast<const float*>(from), n);
  }

 protected:
  static constexpr std::size_t block = 16 * 1024;

  // Parts that a large fully connected layer is cut into: the same for any number of threads.
  [[nodiscard]] static int linear_tasks(std::int64_t extent) {
    return static_cast<int>(std::clamp<std::int64_t>(extent / 32, 1, 16));
  }

  // Master weights are f32 whatever the activations are.
  static void only_f32(DType t) {
    if (t != DType::f32) fail<UsageError>("cpu", "arenas of f32", std::string(tutti::name_of(t)));
  }

  template <class F>
  void blocks(const UpdateCall& u, F&& f) {
    only_f32(u.dtype);
    const auto tasks = static_cast<int>((u.count + block - 1) / block);
    parallel(tasks, [&](int t, int) {
      const std::size_t begin = static_cast<std::size_t>(t) * block;
      UpdateCall part = u;
      part.count = std::min(block, u.count - begin);
      part.weights = static_cast<float*>(u.weights) + begin;
      part.gradients = static_cast<const float*>(u.gradients) + begin;
      for (auto& s : part.slots)
        if (s != nullptr) s = static_cast<float*>(s) + begin;
      f(part);
    });
  }

 private:
  [[nodiscard]] static Partition two_pass(const NodeDesc&, const TensorDesc& x) {
    return {Division::two_pass, 1, static_cast<std::size_t>(x.shape[1]) * 2 * sizeof(double)};
  }
  [[nodiscard]] static std::int64_t pixels(const TensorRef& x) { return x.shape.numel() / x.shape[1]; }

  template <class T>
  static cpu::MaxPoolArgs<T> pool_args(const op::Window& o, const TensorRef& x, const TensorRef& y,
                                       const TensorRef& which) {
    return {o,
            x.shape[0],
            x.shape[1],
            x.shape[2],
            x.shape[3],
            y.shape[2],
            y.shape[3],
            static_cast<T*>(x.data),
            static_cast<T*>(y.data),
            which.as<std::uint8_t>()};
  }

  // Adds the part of outputs [first, first + count) to dw [count, in] and db [count].
  void linear_backward_weights(const Call& c, std::int64_t first, std::int64_t count, float* dw, float* db) {
    float_type(c.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::linear_backward_weights<T>(isa_, static_cast<const T*>(c.in[0].data),
                                      static_cast<const T*>(c.in[1].data) + first, dw, db, c.in[0].shape[0],
                                      c.in[0].shape.row_numel(), count, c.in[1].shape.row_numel());
    });
  }

  // A worker's room for per-channel factors.
  static constexpr std::size_t factor_rows = 5;
  [[nodiscard]] float* factors(const Call& c, std::size_t k) {
    return factors_.data() + (static_cast<std::size_t>(c.worker) * factor_rows + k) * factor_channels_;
  }
  // Made when the plan is, so that a step allocates nothing.
  void need_factors(const TensorDesc& x) {
    const auto channels = (static_cast<std::size_t>(x.shape[1]) + 15) / 16 * 16;
    if (channels <= factor_channels_) return;
    factor_channels_ = channels;
    factors_.assign(static_cast<std::size_t>(threads()) * factor_rows * channels, 0.0F);
  }

  // Adds the lanes' pairs of sums, in order.
  static void sum_pairs(const Call& c, std::int64_t channel, std::int64_t channels, double& a, double& b) {
    a = b = 0;
    for (int l = 0; l < c.lanes; ++l) {
      const auto* p = reinterpret_cast<const double*>(c.partial_of(l));
      a += p[channel];
      b += p[channels + channel];
    }
  }

  template <class T>
  void batch_norm(const op::BatchNorm& o, Call& c) {
    const TensorRef& x = c.in[0];
    const std::int64_t channels = x.shape[1];
    const float *gamma = c.in[1].as<float>(), *beta = c.in[2].as<float>();
    float *running_mean = c.in[3].as<float>(), *running_var = c.in[4].as<float>();
    float *mean = c.out[1].as<float>(), *inv_std = c.out[2].as<float>();
    if (c.phase == Phase::reduce) {
      auto* sums = reinterpret_cast<double*>(c.partial);
      if (c.first_chunk) std::fill_n(sums, 2 * channels, 0.0);
      cpu::norm_statistics<T>(isa_, static_cast<const T*>(x.data), pixels(x), channels,
                              static_cast<const float*>(running_mean), sums, sums + channels);
    } else if (c.phase == Phase::finish) {
      const auto count = static_cast<double>(pixels(x));
      const auto m = static_cast<double>(o.momentum);
      for (std::int64_t k = 0; k < channels; ++k) {
        double s = 0, q = 0;
        sum_pairs(c, k, channels, s, q);
        const double pivot = static_cast<double>(running_mean[k]), off = s / count;
        const double squares = std::max(q - off * s, 0.0), batch_mean = pivot + off;
        mean[k] = static_cast<float>(batch_mean);
        inv_std[k] = static_cast<float>(1 / std::sqrt(squares / count + static_cast<double>(o.eps)));
        const double unbiased = count > 1 ? squares / (count - 1) : squares;
        running_mean[k] = static_cast<float>((1 - m) * pivot + m * batch_mean);
        running_var[k] = static_cast<float>((1 - m) * static_cast<double>(running_var[k]) + m * unbiased);
      }
    } else {
      float *scale = factors(c, 0), *shift = factors(c, 1);
      scale_and_shift(gamma, beta, mean, inv_std, channels, scale, shift);
      cpu::norm_apply<T>(isa_, static_cast<const T*>(x.data),
                         o.residual ? static_cast<const T*>(c.in[5].data) : nullptr, static_cast<T*>(c.out[0].data),
                         pixels(x), channels, static_cast<const float*>(scale), static_cast<const float*>(shift),
                         o.relu);
    }
  }
  static void scale_and_shift(const float* gamma, const float* beta, const float* mean, const float* inv_std,
                              std::int64_t channels, float* scale, float* shift) {
    for (std::int64_t k = 0; k < channels; ++k) {
      scale[k] = gamma[k] * inv_std[k];
      shift[k] = beta[k] - mean[k] * scale[k];
    }
  }

  template <class T>
  void batch_norm_inference(const op::BatchNormInference& o, Call& c) {
    const TensorRef& x = c.in[0];
    const std::int64_t channels = x.shape[1];
    const float *gamma = c.in[1].as<float>(), *beta = c.in[2].as<float>();
    const float *mean = c.in[3].as<float>(), *var = c.in[4].as<float>();
    float *scale = factors(c, 0), *shift = factors(c, 1);
    for (std::int64_t k = 0; k < channels; ++k) {
      scale[k] = gamma[k] * (o.saved_inv_std ? var[k] : 1 / std::sqrt(var[k] + o.eps));
      shift[k] = beta[k] - mean[k] * scale[k];
    }
    cpu::norm_apply<T>(isa_, static_cast<const T*>(x.data), o.residual ? static_cast<const T*>(c.in[5].data) : nullptr,
                       static_cast<T*>(c.out[0].data), pixels(x), channels, static_cast<const float*>(scale),
                       static_cast<const float*>(shift), o.relu);
  }

  template <class T>
  void batch_norm_backward(const op::BatchNormBackward& o, Call& c) {
    std::size_t k = 0;
    cpu::NormBackwardArgs<T> n;
    n.dy = static_cast<const T*>(c.in[k++].data);
    if (o.second) n.dy2 = static_cast<const T*>(c.in[k++].data);
    const TensorRef& x = c.in[k++];
    n.x = static_cast<const T*>(x.data);
    const float* gamma = c.in[k++].as<float>();
    const float* beta = c.in[k++].as<float>();
    const float* mean = c.in[k++].as<float>();
    const float* inv_std = c.in[k++].as<float>();
    if (o.relu && o.residual) n.y = static_cast<const T*>(c.in[k].data);
    n.relu = o.relu;
    if (o.residual) n.masked = static_cast<T*>(c.out[3].data);
    n.dx = static_cast<T*>(c.out[0].data);
    n.channels = x.shape[1];
    n.pixels = pixels(x);
    n.mean = mean;
    float *dgamma = c.out[1].as<float>(), *dbeta = c.out[2].as<float>();
    if (c.phase == Phase::finish) {
      for (std::int64_t j = 0; j < n.channels; ++j) {
        double sum = 0, dot = 0;
        sum_pairs(c, j, n.channels, sum, dot);
        dbeta[j] = static_cast<float>(sum);
        dgamma[j] = static_cast<float>(dot * static_cast<double>(inv_std[j]));
      }
      return;
    }
    float *scale = factors(c, 0), *shift = factors(c, 1);
    scale_and_shift(gamma, beta, mean, inv_std, n.channels, scale, shift);
    n.scale = scale;
    n.shift = shift;
    if (c.phase == Phase::reduce) {
      auto* sums = reinterpret_cast<double*>(c.partial);
      if (c.first_chunk) std::fill_n(sums, 2 * n.channels, 0.0);
      cpu::norm_backward_reduce<T>(isa_, n, sums, sums + n.channels);
      return;
    }
    // dx = gamma * inv_std * (g - dbeta / m - xhat * dgamma / m), as a * g + b * x + c. m: pixels of the whole batch.
    const double m = static_cast<double>(c.count_rows) * static_cast<double>(x.shape[2] * x.shape[3]);
    float *fa = factors(c, 2), *fb = factors(c, 3), *fc = factors(c, 4);
    for (std::int64_t j = 0; j < n.channels; ++j) {
      const double a = static_cast<double>(gamma[j]) * static_cast<double>(inv_std[j]);
      const double b = -a * static_cast<double>(inv_std[j]) * static_cast<double>(dgamma[j]) / m;
      fa[j] = static_cast<float>(a);
      fb[j] = static_cast<float>(b);
      fc[j] = static_cast<float>(-a * static_cast<double>(dbeta[j]) / m - b * static_cast<double>(mean[j]));
    }
    n.a = fa;
    n.b = fb;
    n.c = fc;
    cpu::norm_backward_apply<T>(isa_, n);
  }

  std::unique_ptr<ThreadPool> pool_;
  std::vector<float> factors_;  // [worker][factor_rows][factor_channels_]
  std::size_t factor_channels_ = 0;
  std::vector<SquaredNorms> norms_;  // per block
  cpu::Isa isa_;
};

#if TUTTI_CORE_DEFINITIONS
// All but convolutions and products of matrices. What has no function here, such as relu and biases, runs by the
// reference loops.
TUTTI_CORE_FUNCTION std::unique_ptr<Kernel> CpuOps::kernel(const Op& op, const NodeDesc& desc) {
  if (auto k = custom_kernel(op)) return k;
  return kernel_of_others<op::Conv2d, op::Conv2dBackwardData, op::Conv2dBackwardWeights, op::Linear,
                          op::LinearBackwardData>(*this, op, desc);
}
#endif

}  // namespace tutti
