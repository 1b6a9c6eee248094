// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Convolution and linear layers as simple loops. Activations are NHWC in memory, convolution weights OIHW. Sums are
// kept in f64, so that the result is correctly rounded except for the last bit.
namespace tutti::reference {

template <class T>
[[nodiscard]] double at(const T* x, const Shape& s, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  if (h < 0 || w < 0 || h >= s[2] || w >= s[3]) return 0;
  return static_cast<double>(x[((n * s[2] + h) * s[3] + w) * s[1] + c]);
}

// The number of sums that grow together, so that the innermost loop runs over independent numbers.
inline constexpr std::int64_t sums_at_once = 64;

// sums[i] += a * v[i * stride]
template <class T>
void add_products(double* sums, double a, const T* v, std::int64_t stride, std::int64_t count) {
  if (stride == 1)
    for (std::int64_t i = 0; i < count; ++i) sums[i] += a * static_cast<double>(v[i]);
  else
    for (std::int64_t i = 0; i < count; ++i) sums[i] += a * static_cast<double>(v[i * stride]);
}

// y[n,o,p,q] = sum over i, r, s of x[n, first + i, p*stride - padding + r, q*stride - padding + s] * w[o,i,r,s], with
// the first channel of o's group. Each sum is added up in the order of i, r, s.
template <class T>
void conv2d(const op::Window& o, const TensorRef& x, const TensorRef& w, const TensorRef& y, int groups = 1) {
  const T* xd = x.as<T>();
  const T* wd = w.as<T>();
  T* yd = y.as<T>();
  const Shape &xs = x.shape, &ys = y.shape;
  const std::int64_t inputs = xs[1] / groups, outputs = ys[1] / groups;  // of a group
  const std::int64_t taps = inputs * o.kernel_h * o.kernel_w;
  for (std::int64_t n = 0; n < ys[0]; ++n)
    for (std::int64_t p = 0; p < ys[2]; ++p)
      for (std::int64_t q = 0; q < ys[3]; ++q)
        for (std::int64_t k = 0, count = 0; k < ys[1]; k += count) {
          std::array<double, sums_at_once> sums{};
          const std::int64_t first = k / outputs * inputs;
          count = std::min(sums_at_once, outputs - k % outputs);
          const T* weights = wd + k * taps;
          for (std::int64_t c = first; c < first + inputs; ++c)
            for (int r = 0; r < o.kernel_h; ++r)
              for (int s = 0; s < o.kernel_w; ++s)
                add_products(sums.data(), at(xd, xs, n, c, p * o.stride - o.padding + r, q * o.stride - o.padding + s),
                             weights++, taps, count);
          for (std::int64_t i = 0; i < count; ++i) *yd++ = static_cast<T>(sums[static_cast<std::size_t>(i)]);
        }
}

// The transpose of conv2d in x. Each sum is added up in the order of r, s, o.
template <class T>
void conv2d_backward_data(const op::Window& o, const TensorRef& dy, const TensorRef& w, const TensorRef& dx,
                          int groups = 1) {
  const T* dyd = dy.as<T>();
  const T* wd = w.as<T>();
  T* dxd = dx.as<T>();
  const Shape &xs = dx.shape, &ys = dy.shape;
  const std::int64_t inputs = xs[1] / groups, outputs = ys[1] / groups, taps = std::int64_t{o.kernel_h} * o.kernel_w;
  for (std::int64_t n = 0; n < xs[0]; ++n)
    for (std::int64_t h = 0; h < xs[2]; ++h)
      for (std::int64_t v = 0; v < xs[3]; ++v)
        for (std::int64_t c = 0, count = 0; c < xs[1]; c += count) {
          std::array<double, sums_at_once> sums{};
          const std::int64_t first = c / inputs * outputs;
          count = std::min(sums_at_once, inputs - c % inputs);
          for (int r = 0; r < o.kernel_h; ++r)
            for (int s = 0; s < o.kernel_w; ++s) {
              const std::int64_t p = h + o.padding - r, q = v + o.padding - s;
              if (p < 0 || q < 0 || p % o.stride != 0 || q % o.stride != 0) continue;
              for (std::int64_t k = first; k < first + outputs; ++k)
                add_products(sums.data(), at(dyd, ys, n, k, p / o.stride, q / o.stride),
                             wd + (k * inputs + c % inputs) * taps + r * o.kernel_w + s, taps, count);
            }
          for (std::int64_t i = 0; i < count; ++i) *dxd++ = static_cast<T>(sums[static_cast<std::size_t>(i)]);
        }
}

// The transpose of conv2d in w. Each sum is added up in the order of n, p, q.
template <class T, class M>
void conv2d_backward_weights(const op::Window& o, const TensorRef& x, const TensorRef& dy, const TensorRef& dw,
                             int groups = 1) {
  const T* xd = x.as<T>();
  const T* dyd = dy.as<T>();
  M* dwd = dw.as<M>();
  const Shape &xs = x.shape, &ys = dy.shape;
  const std::int64_t inputs = xs[1] / groups, outputs = ys[1] / groups, taps = std::int64_t{o.kernel_h} * o.kernel_w;
  constexpr std::array<double, sums_at_once> outside{};  // the pixels around an image
  for (std::int64_t k = 0; k < ys[1]; ++k)
    for (std::int64_t c = 0, count = 0; c < inputs; c += count)
      for (int r = 0; r < o.kernel_h; ++r)
        for (int s = 0; s < o.kernel_w; ++s) {
          std::array<double, sums_at_once> sums{};
          count = std::min(sums_at_once, inputs - c);
          for (std::int64_t n = 0; n < ys[0]; ++n)
            for (std::int64_t p = 0; p < ys[2]; ++p)
              for (std::int64_t q = 0; q < ys[3]; ++q) {
                const std::int64_t h = p * o.stride - o.padding + r, v = q * o.stride - o.padding + s;
                const double d = at(dyd, ys, n, k, p, q);
                if (h < 0 || v < 0 || h >= xs[2] || v >= xs[3])
                  add_products(sums.data(), d, outside.data(), 1, count);
                else
                  add_products(sums.data(), d, xd + ((n * xs[2] + h) * xs[3] + v) * xs[1] + k / outputs * inputs + c, 1,
                               count);
              }
          for (std::int64_t i = 0; i < count; ++i)
            dwd[(k * inputs + c + i) * taps + r * o.kernel_w + s] = static_cast<M>(sums[static_cast<std::size_t>(i)]);
        }
}

// y[n,o] = b[o] + sum over i of x[n,i] * w[o,i]
template <class T, class M>
void linear(const TensorRef& x, const TensorRef& w, const TensorRef& b, const TensorRef& y) {
  const T* xd = x.as<T>();
  const T* wd = w.as<T>();
  const M* bd = b.as<M>();
  T* yd = y.as<T>();
  const std::int64_t in = x.shape.row_numel(), out = y.shape.row_numel();
  for (std::int64_t n = 0; n < y.shape[0]; ++n)
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = static_cast<double>(bd[o]);
      for (std::int64_t i = 0; i < in; ++i)
        sum += static_cast<double>(xd[n * in + i]) * static_cast<double>(wd[o * in + i]);
      yd[n * out + o] = static_cast<T>(sum);
    }
}

template <class T>
void linear_backward_data(const TensorRef& dy, const TensorRef& w, const TensorRef& dx) {
  const T* dyd = dy.as<T>();
  const T* wd = w.as<T>();
  T* dxd = dx.as<T>();
  const std::int64_t in = dx.shape.row_numel(), out = dy.shape.row_numel();
  for (std::int64_t n = 0; n < dx.shape[0]; ++n)
    for (std::int64_t i = 0; i < in; ++i) {
      double sum = 0;
      for (std::int64_t o = 0; o < out; ++o)
        sum += static_cast<double>(dyd[n * out + o]) * static_cast<double>(wd[o * in + i]);
      dxd[n * in + i] = static_cast<T>(sum);
    }
}

template <class T, class M>
void linear_backward_weights(const TensorRef& x, const TensorRef& dy, const TensorRef& dw, const TensorRef& db) {
  const T* xd = x.as<T>();
  const T* dyd = dy.as<T>();
  M* dwd = dw.as<M>();
  M* dbd = db.as<M>();
  const std::int64_t in = x.shape.row_numel(), out = dy.shape.row_numel(), rows = x.shape[0];
  for (std::int64_t o = 0; o < out; ++o) {
    double bias = 0;
    for (std::int64_t n = 0; n < rows; ++n) bias += static_cast<double>(dyd[n * out + o]);
    dbd[o] = static_cast<M>(bias);
    for (std::int64_t i = 0; i < in; ++i) {
      double sum = 0;
      for (std::int64_t n = 0; n < rows; ++n)
        sum += static_cast<double>(dyd[n * out + o]) * static_cast<double>(xd[n * in + i]);
      dwd[o * in + i] = static_cast<M>(sum);
    }
  }
}

}  // namespace tutti::reference
