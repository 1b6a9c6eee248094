// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <tutti/backends/cuda/ops/private_ops.hpp>
#include <tutti/engine/reference/loops.hpp>
#include <tutti/engine/reference/reference.hpp>

// The CUDA backend's own ops as simple loops: a reference for its kernels.
namespace tutti::testing {

namespace loops {

using namespace reference;

// relu(scale[c] * x + bias[c]), NHWC.
template <class T>
[[nodiscard]] std::vector<T> activated(const TensorRef& x, const TensorRef& scale, const TensorRef& bias) {
  const T *xd = x.as<T>(), *s = scale.as<T>(), *b = bias.as<T>();
  const std::int64_t channels = x.shape[1];
  std::vector<T> a(static_cast<std::size_t>(x.shape.numel()));
  for (std::int64_t i = 0; i < x.shape.numel(); ++i) {
    const std::int64_t c = i % channels;
    const double v = static_cast<double>(xd[i]) * static_cast<double>(s[c]) + static_cast<double>(b[c]);
    a[static_cast<std::size_t>(i)] = static_cast<T>(v < 0 ? 0 : v);  // keeps a NaN, because the comparison is false
  }
  return a;
}

// The number of channels is a multiple of 8, so a byte has 8 neighbouring channels of a pixel.
template <class T>
void write_mask(const TensorRef& y, const TensorRef& mask) {
  auto* const bits = mask.as<std::uint8_t>();
  std::fill_n(bits, mask.shape.numel(), std::uint8_t{0});
  for (std::int64_t i = 0; i < y.shape.numel(); ++i)
    if (static_cast<double>(y.as<T>()[i]) > 0) bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | 1U << i % 8);
}

template <class T, class M>
void conv2d_statistics(const cuda::Conv2dStatistics& o, const Call& call) {
  TensorRef x = call.in[0];
  std::vector<T> a;
  if (o.activate) {
    a = activated<T>(x, call.in[2], call.in[3]);
    x.data = a.data();
  }
  const TensorRef& y = call.out[0];
  conv2d<T>(o, x, call.in[1], y);
  const T* yd = y.as<T>();
  M *sum = call.out[1].as<M>(), *square_sum = call.out[2].as<M>();
  const std::int64_t channels = y.shape[1];
  for (std::int64_t c = 0; c < channels; ++c) {
    double s = 0, q = 0;
    for (std::int64_t i = c; i < y.shape.numel(); i += channels) {
      const double v = static_cast<double>(yd[i]);
      s += v;
      q += v * v;
    }
    sum[c] = static_cast<M>(s);
    square_sum[c] = static_cast<M>(q);
  }
}

template <class T, class M>
void conv2d_backward_weights_activated(const op::Window& o, const Call& call) {
  TensorRef x = call.in[0];
  std::vector<T> a = activated<T>(x, call.in[2], call.in[3]);
  x.data = a.data();
  conv2d_backward_weights<T, M>(o, x, call.in[1], call.out[0]);
}

template <class T, class M>
void batch_norm_from_sums(const cuda::BatchNormFromSums& o, const Call& call) {
  const TensorRef& x = call.in[0];
  const std::int64_t channels = x.shape[1];
  const std::int64_t count = x.shape.numel() / channels;  // per channel
  const double n = static_cast<double>(count), m = static_cast<double>(o.momentum);
  const M *gamma = call.in[1].as<M>(), *beta = call.in[2].as<M>();
  M *running_mean = call.in[3].as<M>(), *running_var = call.in[4].as<M>();
  const M *sum = call.in[5].as<M>(), *square_sum = call.in[6].as<M>();
  const std::size_t first = o.output ? 1 : 0;
  M *mean_out = call.out[first].as<M>(), *inv_std_out = call.out[first + 1].as<M>();
  for (std::int64_t c = 0; c < channels; ++c) {
    const double mean = static_cast<double>(sum[c]) / n;
    const double squares = static_cast<double>(square_sum[c]) - static_cast<double>(sum[c]) * mean;
    const double var = squares < 0 ? 0 : squares / n, unbiased = n > 1 ? var * n / (n - 1) : var;
    const double inv_std = 1 / std::sqrt(var + static_cast<double>(o.eps));
    mean_out[c] = static_cast<M>(mean);
    inv_std_out[c] = static_cast<M>(inv_std);
    running_mean[c] = static_cast<M>((1 - m) * static_cast<double>(running_mean[c]) + m * mean);
    running_var[c] = static_cast<M>((1 - m) * static_cast<double>(running_var[c]) + m * unbiased);
    if (o.output) continue;
    const T scale = static_cast<T>(static_cast<double>(gamma[c]) * inv_std);
    call.out[2].as<T>()[c] = scale;
    // The mean is exact only with the rounded scale.
    call.out[3].as<T>()[c] = static_cast<T>(static_cast<double>(beta[c]) - mean * static_cast<double>(scale));
  }
  if (!o.output) return;
  Call apply = call;
  apply.in = {x, call.in[1], call.in[2], call.out[1], call.out[2]};
  if (o.residual) apply.in[5] = call.in[7];
  batch_norm_inference<T, M>({o.eps, o.relu, o.residual, true}, apply);
  if (o.mask) write_mask<T>(call.out[0], call.out[3]);
}

template <class T, class M>
void batch_norm_with_mask(const cuda::BatchNormWithMask& o, const Call& call) {
  batch_norm<T, M>({o.eps, o.momentum, true, true}, call);
  write_mask<T>(call.out[0], call.out[3]);
}

template <class T, class M>
void batch_norm_backward_from_mask(const cuda::BatchNormBackwardFromMask& o, const Call& call) {
  const std::size_t last = o.second ? 7 : 6;
  const TensorRef& x = call.in[last - 5];
  const auto* const bits = call.in[last].as<std::uint8_t>();
  std::vector<T> y(static_cast<std::size_t>(x.shape.numel()));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<T>((bits[i / 8] >> i % 8 & 1) != 0 ? 1.0F : 0.0F);
  Call with = call;
  with.in[last] = {y.data(), x.dtype, x.shape};
  batch_norm_backward<T, M>({true, true, o.second}, with);
}

template <class T, class M>
void batch_norm_add_shortcut(const cuda::BatchNormAddShortcut& o, const Call& call) {
  std::vector<T> y(static_cast<std::size_t>(call.in[0].shape.numel()));
  Call shortcut, adding = call;
  for (std::size_t k = 0; k < 5; ++k) shortcut.in[k] = call.in[6 + k];
  adding.in[5] = shortcut.out[0] = {y.data(), call.in[0].dtype, call.in[0].shape};
  batch_norm_inference<T, M>({o.shortcut_eps, false, false, true}, shortcut);
  batch_norm_with_mask<T, M>({o.eps, o.momentum}, adding);
}

template <class T, class M>
void batch_norm_backward_add_shortcut(const cuda::BatchNormBackwardAddShortcut& o, const Call& call) {
  const std::size_t last = o.second ? 7 : 6;
  const TensorRef& x = call.in[last - 5];
  std::vector<T> g(static_cast<std::size_t>(x.shape.numel()));
  Call adding = call, shortcut;
  adding.out[3] = shortcut.in[0] = {g.data(), x.dtype, x.shape};
  batch_norm_backward_from_mask<T, M>({o.second}, adding);
  const TensorRef &gamma = call.in[last + 2], &sums = call.out[4];
  shortcut.in = {shortcut.in[0], call.in[last + 1], gamma, gamma /* not read */, call.in[last + 3], call.in[last + 4]};
  M* const dbeta = sums.as<M>();
  shortcut.out = {call.out[3], {dbeta + x.shape[1], gamma.dtype, gamma.shape}, {dbeta, gamma.dtype, gamma.shape}};
  batch_norm_backward<T, M>({}, shortcut);
}

template <class M>
void batch_norm_backward_of_shortcut(const Call& call) {
  const std::int64_t channels = call.in[2].shape[0];
  const M* const sums = call.in[6].as<M>();
  std::copy_n(sums + channels, channels, call.out[0].as<M>());
  std::copy_n(sums, channels, call.out[1].as<M>());
}

template <class T, class M>
void conv2d_backward_data_norm(const op::Window& o, const Call& call) {
  conv2d_backward_data<T>(o, call.in[0], call.in[1], call.out[0]);
  const TensorRef& x = call.in[2];
  const T* xd = x.as<T>();
  T* g = call.out[0].as<T>();
  const M *gamma = call.in[3].as<M>(), *beta = call.in[4].as<M>();
  const M *mean = call.in[5].as<M>(), *inv_std = call.in[6].as<M>();
  const std::int64_t channels = x.shape[1];
  const std::int64_t count = x.shape.numel() / channels;  // per channel
  const double n = static_cast<double>(count);
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0, dot = 0;
    const double mu = static_cast<double>(mean[c]), is = static_cast<double>(inv_std[c]);
    const double scale = static_cast<double>(gamma[c]) * is;
    for (std::int64_t i = c; i < x.shape.numel(); i += channels) {
      const double off = static_cast<double>(xd[i]) - mu;
      if (!(scale * off + static_cast<double>(beta[c]) > 0)) g[i] = T(0.0F);
      sum += static_cast<double>(g[i]);
      dot += static_cast<double>(g[i]) * off * is;
    }
    call.out[1].as<M>()[c] = static_cast<M>(dot);
    call.out[2].as<M>()[c] = static_cast<M>(sum);
    call.out[3].as<M>()[c] = static_cast<M>(scale);
    call.out[4].as<M>()[c] = static_cast<M>(-scale * is * dot / n);
    call.out[5].as<M>()[c] = static_cast<M>(scale * (mu * is * dot / n - sum / n));
  }
}

template <class T, class M>
void batch_norm_backward_apply(const Call& call) {
  const TensorRef &g = call.in[0], &x = call.in[1];
  const std::int64_t channels = x.shape[1];
  const auto per_channel = [&](std::size_t k, std::int64_t c) { return static_cast<double>(call.in[k].as<M>()[c]); };
  for (std::int64_t i = 0; i < x.shape.numel(); ++i) {
    const std::int64_t c = i % channels;
    const double v = static_cast<double>(x.as<T>()[i]);
    const bool active = per_channel(2, c) * per_channel(5, c) * (v - per_channel(4, c)) + per_channel(3, c) > 0;
    const double incoming = active ? static_cast<double>(g.as<T>()[i]) : 0;
    call.out[0].as<T>()[i] = static_cast<T>(per_channel(6, c) * incoming + per_channel(7, c) * v + per_channel(8, c));
  }
}

}  // namespace loops

struct FusedLoops : ReferenceLoops<true> {
  static void run(const cuda::Conv2dStatistics& o, Call& c) {
    types(c.out[0], c.out[1], [&](auto t, auto m) { loops::conv2d_statistics<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const cuda::Conv2dBackwardWeightsActivated& o, Call& c) {
    types(c.in[0], c.out[0],
          [&](auto t, auto m) { loops::conv2d_backward_weights_activated<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const cuda::BatchNormFromSums& o, Call& c) {
    types(c.in[0], c.in[1], [&](auto t, auto m) { loops::batch_norm_from_sums<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const cuda::Conv2dBackwardDataNorm& o, Call& c) {
    types(c.in[0], c.in[3], [&](auto t, auto m) { loops::conv2d_backward_data_norm<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const cuda::BatchNormBackwardApply&, Call& c) {
    types(c.in[0], c.in[2], [&](auto t, auto m) { loops::batch_norm_backward_apply<decltype(t), decltype(m)>(c); });
  }
  static void run(const cuda::BatchNormWithMask& o, Call& c) {
    types(c.in[0], c.in[1], [&](auto t, auto m) { loops::batch_norm_with_mask<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const cuda::BatchNormBackwardFromMask& o, Call& c) {
    types(c.out[0], c.out[1],
          [&](auto t, auto m) { loops::batch_norm_backward_from_mask<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const cuda::BatchNormOfShortcut& o, Call& c) {
    types(c.in[0], c.in[1], [&](auto t, auto m) {
      loops::batch_norm<decltype(t), decltype(m)>({o.eps, o.momentum}, c);
    });
  }
  static void run(const cuda::BatchNormAddShortcut& o, Call& c) {
    types(c.in[0], c.in[1], [&](auto t, auto m) { loops::batch_norm_add_shortcut<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const cuda::BatchNormBackwardAddShortcut& o, Call& c) {
    types(c.out[0], c.out[1],
          [&](auto t, auto m) { loops::batch_norm_backward_add_shortcut<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const cuda::BatchNormBackwardOfShortcut&, Call& c) {
    types(c.in[0], c.out[0], [&](auto, auto m) { loops::batch_norm_backward_of_shortcut<decltype(m)>(c); });
  }
};

// ReferenceBackend that runs these loops.
class FusedReference : public ReferenceBackend {
 public:
  template <class O>
  void run(const O& o, Call& c) {
    if constexpr (Ops::has<O>)
      ReferenceBackend::kernel(o, {})->run(c);
    else
      FusedLoops::run(o, c);
  }

  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override {
    return own<cuda::Conv2dStatistics, cuda::Conv2dBackwardWeightsActivated, cuda::BatchNormFromSums,
               cuda::Conv2dBackwardDataNorm, cuda::BatchNormBackwardApply, cuda::BatchNormWithMask,
               cuda::BatchNormBackwardFromMask, cuda::BatchNormOfShortcut, cuda::BatchNormAddShortcut,
               cuda::BatchNormBackwardAddShortcut, cuda::BatchNormBackwardOfShortcut>(op, desc);
  }

 private:
  template <class O, class... Others>
  [[nodiscard]] std::unique_ptr<Kernel> own(const Op& op, const NodeDesc& desc) {
    if (op_cast<O>(op) != nullptr)
      return std::make_unique<LoopKernel<true>>(op, desc,
                                                [](const Op& any, Call& c) { FusedLoops::run(*op_cast<O>(any), c); });
    if constexpr (sizeof...(Others) > 0)
      return own<Others...>(op, desc);
    else
      return ReferenceBackend::kernel(op, desc);
  }
};

}  // namespace tutti::testing
