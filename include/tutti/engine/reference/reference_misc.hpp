// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <tutti/core/ignored_label.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>
#include <tutti/optim/update.hpp>

// Element-wise ops, pooling, the loss and the optimizers as obvious loops, NHWC.
namespace tutti::reference {

template <class T>
void normalize(const op::Normalize& o, const TensorRef& image, const TensorRef& x) {
  const auto channels = static_cast<std::size_t>(image.shape[1]);
  const auto in = image.view<std::uint8_t>();
  const auto out = x.view<T>();
  for (std::size_t i = 0; i < in.size(); ++i)
    out[i] = static_cast<T>((static_cast<float>(in[i]) - o.mean[i % channels]) * o.inv_std[i % channels]);
}

// Far from zero the factors are 0 and 1 before they are multiplied by x, which may be infinite.
template <class T>
void gelu(const TensorRef& x, const TensorRef& y) {
  const auto in = x.view<T>(), out = y.view<T>();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto v = static_cast<double>(in[i]);
    out[i] = static_cast<T>(v < -40 ? 0.0 : v * std::erfc(-v * std::sqrt(0.5)) / 2);
  }
}
template <class T>
void gelu_backward(const TensorRef& dy, const TensorRef& x, const TensorRef& dx) {
  const auto d = dy.view<T>(), in = x.view<T>(), out = dx.view<T>();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto v = static_cast<double>(in[i]);
    const double below = std::erfc(-v * std::sqrt(0.5)) / 2, density = 0.3989422804014327 * std::exp(-v * v / 2);
    out[i] = static_cast<T>(static_cast<double>(d[i]) * (std::fabs(v) > 40 ? below : below + v * density));
  }
}

template <class T>
void max_pool(const op::Window& o, const TensorRef& x, const TensorRef& y, const TensorRef& which) {
  const T* xd = x.as<T>();
  T* yd = y.as<T>();
  auto* wd = which.as<std::uint8_t>();
  const Shape &xs = x.shape, &ys = y.shape;
  for (std::int64_t n = 0; n < ys[0]; ++n)
    for (std::int64_t p = 0; p < ys[2]; ++p)
      for (std::int64_t q = 0; q < ys[3]; ++q)
        for (std::int64_t c = 0; c < ys[1]; ++c) {
          T best{};
          int place = -1;
          for (int k = 0; k < o.kernel_h * o.kernel_w; ++k) {
            const std::int64_t h = p * o.stride - o.padding + k / o.kernel_w,
                               v = q * o.stride - o.padding + k % o.kernel_w;
            if (h < 0 || v < 0 || h >= xs[2] || v >= xs[3]) continue;
            const T value = xd[((n * xs[2] + h) * xs[3] + v) * xs[1] + c];
            // A NaN wins, so that it is not lost.
            if (place < 0 || value > best || value != value) {
              best = value;
              place = k;
            }
          }
          *yd++ = best;
          *wd++ = static_cast<std::uint8_t>(place);
        }
}

template <class T>
void max_pool_backward(const op::Window& o, const TensorRef& dy, const TensorRef& which, const TensorRef& dx) {
  const T* dyd = dy.as<T>();
  const auto* wd = which.as<std::uint8_t>();
  T* dxd = dx.as<T>();
  const Shape &xs = dx.shape, &ys = dy.shape;
  for (std::int64_t n = 0; n < xs[0]; ++n)
    for (std::int64_t h = 0; h < xs[2]; ++h)
      for (std::int64_t v = 0; v < xs[3]; ++v)
        for (std::int64_t c = 0; c < xs[1]; ++c) {
          double sum = 0;
          for (int k = 0; k < o.kernel_h * o.kernel_w; ++k) {
            const std::int64_t ph = h + o.padding - k / o.kernel_w, qv = v + o.padding - k % o.kernel_w;
            if (ph < 0 || qv < 0 || ph % o.stride != 0 || qv % o.stride != 0) continue;
            const std::int64_t p = ph / o.stride, q = qv / o.stride;
            if (p >= ys[2] || q >= ys[3]) continue;
            const std::int64_t i = ((n * ys[2] + p) * ys[3] + q) * ys[1] + c;
            if (wd[i] == k) sum += static_cast<double>(dyd[i]);
          }
          *dxd++ = static_cast<T>(sum);
        }
}

template <class T>
void global_avg_pool(const TensorRef& x, const TensorRef& y) {
  const T* xd = x.as<T>();
  T* yd = y.as<T>();
  const std::int64_t channels = x.shape[1], pixels = x.shape[2] * x.shape[3];
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::int64_t i = 0; i < pixels; ++i) sum += static_cast<double>(xd[(n * pixels + i) * channels + c]);
      yd[n * channels + c] = static_cast<T>(sum / static_cast<double>(pixels));
    }
}

template <class T>
void global_avg_pool_backward(const TensorRef& dy, const TensorRef& dx) {
  const T* dyd = dy.as<T>();
  T* dxd = dx.as<T>();
  const std::int64_t channels = dx.shape[1], pixels = dx.shape[2] * dx.shape[3];
  for (std::int64_t i = 0; i < dx.shape.numel(); ++i) {
    const std::int64_t n = i / (channels * pixels), c = i % channels;
    dxd[i] = static_cast<T>(static_cast<double>(dyd[n * channels + c]) / static_cast<double>(pixels));
  }
}

// Adds to metrics [4]; writes dlogits where dlogits.data is set.
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
    if (t < 0 || t >= classes)
      fail<DataError>("softmax_cross_entropy", "labels in 0.." + std::to_string(classes - 1), std::to_string(t));
    double top = -std::numeric_limits<double>::infinity();
    for (std::int64_t k = 0; k < classes; ++k) top = std::max(top, static_cast<double>(z[k]));
    double sum = 0, mean_logit = 0;
    int above = 0;
    const double zt = static_cast<double>(z[t]);
    for (std::int64_t k = 0; k < classes; ++k) {
      const double v = static_cast<double>(z[k]);
      sum += std::exp(v - top);
      mean_logit += v;
      // Ties count against the lower index, so that constant logits do not score 100 %; so does a NaN.
      above += k != t && (!(v < zt) && (v != zt || k < t));
    }
    const double log_sum = top + std::log(sum);
    metrics[0] += (1 - smooth) * (log_sum - zt) + smooth * (log_sum - mean_logit / static_cast<double>(classes));
    metrics[1] += above < 1 ? 1 : 0;
    metrics[2] += above < o.top_k ? 1 : 0;
    metrics[3] += 1;
    if (d == nullptr) continue;
    const double scale = scalars.loss_scale * scalars.inv_global_batch;
    for (std::int64_t k = 0; k < classes; ++k)
      *d++ = static_cast<T>(scale * (std::exp(static_cast<double>(z[k]) - log_sum) - off - (k == t ? 1 - smooth : 0)));
  }
}

template <class M>
void update(const SgdUpdate& o, const UpdateCall& u) {
  M* w = static_cast<M*>(u.weights);
  const M* g = static_cast<const M*>(u.gradients);
  M* a = static_cast<M*>(u.slots[0]);
  for (std::size_t i = 0; i < u.count; ++i) {
    const double wi = static_cast<double>(w[i]);
    const double grad = u.factor * (u.gradient_scale * static_cast<double>(g[i]) + u.weight_decay * wi);
    const double acc = o.momentum * static_cast<double>(a[i]) + grad;
    a[i] = static_cast<M>(acc);
    w[i] = static_cast<M>(wi - u.lr * (o.nesterov ? grad + o.momentum * acc : acc));
  }
}

template <class M>
void update(const AdamwUpdate& o, const UpdateCall& u) {
  M* w = static_cast<M*>(u.weights);
  const M* g = static_cast<const M*>(u.gradients);
  M *m = static_cast<M*>(u.slots[0]), *v = static_cast<M*>(u.slots[1]);
  const double c1 = 1 - std::pow(o.beta1, static_cast<double>(u.step)),
               c2 = 1 - std::pow(o.beta2, static_cast<double>(u.step));
  for (std::size_t i = 0; i < u.count; ++i) {
    const double grad = u.factor * u.gradient_scale * static_cast<double>(g[i]);
    const double mi = o.beta1 * static_cast<double>(m[i]) + (1 - o.beta1) * grad;
    const double vi = o.beta2 * static_cast<double>(v[i]) + (1 - o.beta2) * grad * grad;
    m[i] = static_cast<M>(mi);
    v[i] = static_cast<M>(vi);
    const double wi = static_cast<double>(w[i]) * (1 - u.lr * u.weight_decay);
    w[i] = static_cast<M>(wi - u.lr * (mi / c1) / (std::sqrt(vi / c2) + o.eps));
  }
}

template <class M>
SquaredNorms squared_norms(const UpdateCall& u) {
  const M* w = static_cast<const M*>(u.weights);
  const M* g = static_cast<const M*>(u.gradients);
  SquaredNorms r;
  for (std::size_t i = 0; i < u.count; ++i) {
    const double wi = static_cast<double>(w[i]);
    const double grad = u.gradient_scale * static_cast<double>(g[i]) + u.weight_decay * wi;
    r.weights += wi * wi;
    r.gradients += grad * grad;
  }
  return r;
}

}  // namespace tutti::reference
