// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Pooling as simple loops, NHWC.
namespace tutti::reference {

namespace detail {

// Calls f(n, h, w, c) for each element of an array of this shape, in the order of its memory.
template <class F>
void for_each_element(const Shape& s, F&& f) {
  for (std::int64_t n = 0; n < s[0]; ++n)
    for (std::int64_t h = 0; h < s[2]; ++h)
      for (std::int64_t w = 0; w < s[3]; ++w)
        for (std::int64_t c = 0; c < s[1]; ++c) f(n, h, w, c);
}

// Calls f(k, h, w) for the k-th pixel of the window of output (p, q), if the pixel (h, w) lies in an image of shape x.
template <class F>
void for_each_pixel(const op::Window& o, const Shape& x, std::int64_t p, std::int64_t q, F&& f) {
  for (int k = 0; k < o.kernel_h * o.kernel_w; ++k) {
    const std::int64_t h = p * o.stride - o.padding + k / o.kernel_w, w = q * o.stride - o.padding + k % o.kernel_w;
    if (h >= 0 && w >= 0 && h < x[2] && w < x[3]) f(k, h, w);
  }
}

// Calls f(k, p, q) for each output (p, q) of shape y whose window has the pixel (h, w) as its k-th one.
template <class F>
void for_each_window(const op::Window& o, const Shape& y, std::int64_t h, std::int64_t w, F&& f) {
  for (int k = 0; k < o.kernel_h * o.kernel_w; ++k) {
    const std::int64_t down = h + o.padding - k / o.kernel_w, right = w + o.padding - k % o.kernel_w;
    if (down < 0 || right < 0 || down % o.stride != 0 || right % o.stride != 0) continue;
    const std::int64_t p = down / o.stride, q = right / o.stride;
    if (p < y[2] && q < y[3]) f(k, p, q);
  }
}

[[nodiscard]] inline std::int64_t offset(const Shape& s, std::int64_t n, std::int64_t h, std::int64_t w,
                                         std::int64_t c) {
  return ((n * s[2] + h) * s[3] + w) * s[1] + c;
}

}  // namespace detail

template <class T>
void max_pool(const op::Window& o, const TensorRef& x, const TensorRef& y, const TensorRef& which) {
  const T* xd = x.as<T>();
  T* yd = y.as<T>();
  auto* wd = which.as<std::uint8_t>();
  detail::for_each_element(y.shape, [&](std::int64_t n, std::int64_t p, std::int64_t q, std::int64_t c) {
    T best{};
    int place = -1;
    detail::for_each_pixel(o, x.shape, p, q, [&](int k, std::int64_t h, std::int64_t w) {
      const T value = xd[detail::offset(x.shape, n, h, w, c)];
      // A NaN wins, so that it is not lost.
      if (place < 0 || value > best || value != value) {
        best = value;
        place = k;
      }
    });
    *yd++ = best;
    *wd++ = static_cast<std::uint8_t>(place);
  });
}

template <class T>
void max_pool_backward(const op::Window& o, const TensorRef& dy, const TensorRef& which, const TensorRef& dx) {
  const T* dyd = dy.as<T>();
  const auto* wd = which.as<std::uint8_t>();
  T* dxd = dx.as<T>();
  detail::for_each_element(dx.shape, [&](std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
    double sum = 0;
    detail::for_each_window(o, dy.shape, h, w, [&](int k, std::int64_t p, std::int64_t q) {
      const std::int64_t i = detail::offset(dy.shape, n, p, q, c);
      if (wd[i] == k) sum += static_cast<double>(dyd[i]);
    });
    *dxd++ = static_cast<T>(sum);
  });
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
  const T* xd = x.as<T>();
  T* yd = y.as<T>();
  detail::for_each_element(y.shape, [&](std::int64_t n, std::int64_t p, std::int64_t q, std::int64_t c) {
    double sum = 0;
    detail::for_each_pixel(pool.window, x.shape, p, q, [&](int, std::int64_t h, std::int64_t w) {
      sum += static_cast<double>(xd[detail::offset(x.shape, n, h, w, c)]);
    });
    *yd++ = static_cast<T>(sum / static_cast<double>(pooled(pool.window, pool.count_padding, x.shape, p, q)));
  });
}

template <class T>
void avg_pool_backward(const op::AvgWindow& pool, const TensorRef& dy, const TensorRef& dx) {
  if (pool.global()) return global_avg_pool_backward<T>(dy, dx);
  const T* dyd = dy.as<T>();
  T* dxd = dx.as<T>();
  detail::for_each_element(dx.shape, [&](std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
    double sum = 0;
    detail::for_each_window(pool.window, dy.shape, h, w, [&](int, std::int64_t p, std::int64_t q) {
      sum += static_cast<double>(dyd[detail::offset(dy.shape, n, p, q, c)]) /
             static_cast<double>(pooled(pool.window, pool.count_padding, dx.shape, p, q));
    });
    *dxd++ = static_cast<T>(sum);
  });
}

}  // namespace tutti::reference
