// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Pooling as simple loops, NHWC.
namespace tutti::reference {

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

// Returns the number of pixels in the window of output (p, q).
[[nodiscard]] inline std::int64_t pooled(const op::Window& o, bool count_padding, const Shape& x, std::int64_t p,
                                         std::int64_t q) {
  if (count_padding) return std::int64_t{o.kernel_h} * o.kernel_w;
  const auto inside = [&](std::int64_t at, int kernel, std::int64_t extent) {
    const std::int64_t first = at * o.stride - o.padding;
    return std::min(first + kernel, extent) - std::max<std::int64_t>(first, 0);
  };
  return inside(p, o.kernel_h, x[2]) * inside(q, o.kernel_w, x[3]);
}

template <class T>
void avg_pool(const op::AvgWindow& pool, const TensorRef& x, const TensorRef& y) {
  if (pool.global()) return global_avg_pool<T>(x, y);
  const op::Window& o = pool.window;
  const T* xd = x.as<T>();
  T* yd = y.as<T>();
  const Shape &xs = x.shape, &ys = y.shape;
  for (std::int64_t n = 0; n < ys[0]; ++n)
    for (std::int64_t p = 0; p < ys[2]; ++p)
      for (std::int64_t q = 0; q < ys[3]; ++q)
        for (std::int64_t c = 0; c < ys[1]; ++c) {
          double sum = 0;
          for (int r = 0; r < o.kernel_h; ++r)
            for (int s = 0; s < o.kernel_w; ++s) {
              const std::int64_t h = p * o.stride - o.padding + r, v = q * o.stride - o.padding + s;
              if (h < 0 || v < 0 || h >= xs[2] || v >= xs[3]) continue;
              sum += static_cast<double>(xd[((n * xs[2] + h) * xs[3] + v) * xs[1] + c]);
            }
          *yd++ = static_cast<T>(sum / static_cast<double>(pooled(o, pool.count_padding, xs, p, q)));
        }
}

template <class T>
void avg_pool_backward(const op::AvgWindow& pool, const TensorRef& dy, const TensorRef& dx) {
  if (pool.global()) return global_avg_pool_backward<T>(dy, dx);
  const op::Window& o = pool.window;
  const T* dyd = dy.as<T>();
  T* dxd = dx.as<T>();
  const Shape &xs = dx.shape, &ys = dy.shape;
  for (std::int64_t n = 0; n < xs[0]; ++n)
    for (std::int64_t h = 0; h < xs[2]; ++h)
      for (std::int64_t v = 0; v < xs[3]; ++v)
        for (std::int64_t c = 0; c < xs[1]; ++c) {
          double sum = 0;
          for (int r = 0; r < o.kernel_h; ++r)
            for (int s = 0; s < o.kernel_w; ++s) {
              const std::int64_t ph = h + o.padding - r, qv = v + o.padding - s;
              if (ph < 0 || qv < 0 || ph % o.stride != 0 || qv % o.stride != 0) continue;
              const std::int64_t p = ph / o.stride, q = qv / o.stride;
              if (p >= ys[2] || q >= ys[3]) continue;
              sum += static_cast<double>(dyd[((n * ys[2] + p) * ys[3] + q) * ys[1] + c]) /
                     static_cast<double>(pooled(o, pool.count_padding, xs, p, q));
            }
          *dxd++ = static_cast<T>(sum);
        }
}

}  // namespace tutti::reference
