// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

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

// sums[i] += a * v[i]
template <class T>
void add_product(double* sums, double a, const T* v, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sums[i] += a * static_cast<double>(v[i]);
}

// Returns memory of this thread for n numbers, which the next call uses again.
[[nodiscard]] inline double* scratch(std::int64_t n) {
  thread_local std::vector<double> memory;
  if (memory.size() < static_cast<std::size_t>(n)) memory.resize(static_cast<std::size_t>(n));
  return memory.data();
}

// y[n,o,p,q] = sum over i, r, s of x[n, first + i, p*stride - padding + r, q*stride - padding + s] * w[o,i,r,s], with
// the first channel of o's group. Each sum is added up in the order of i, r, s. So that the innermost loop runs over
// adjacent numbers, the sums of all outputs grow together.
template <class T>
void conv2d(const op::Window& o, const TensorRef& x, const TensorRef& w, const TensorRef& y, int groups = 1) {
  const T* xd = x.as<T>();
  const T* wd = w.as<T>();
  T* yd = y.as<T>();
  const Shape &xs = x.shape, &ys = y.shape;
  const std::int64_t inputs = xs[1] / groups, outputs = ys[1] / groups;  // of a group
  const std::int64_t taps = inputs * o.kernel_h * o.kernel_w;
  double* const sums = scratch(ys[1] * (taps + 1));
  double* const turned = sums + ys[1];  // the weights as group, i, r, s, output of the group
  for (std::int64_t k = 0; k < ys[1]; ++k)
    for (std::int64_t t = 0; t < taps; ++t)
      turned[(k / outputs * taps + t) * outputs + k % outputs] = static_cast<double>(wd[k * taps + t]);
  for (std::int64_t n = 0; n < ys[0]; ++n)
    for (std::int64_t p = 0; p < ys[2]; ++p)
      for (std::int64_t q = 0; q < ys[3]; ++q) {
        std::fill(sums, turned, 0.0);
        const double* weights = turned;
        for (int g = 0; g < groups; ++g)
          for (std::int64_t c = g * inputs; c < (g + 1) * inputs; ++c)
            for (int r = 0; r < o.kernel_h; ++r)
              for (int s = 0; s < o.kernel_w; ++s, weights += outputs)
                add_product(sums + g * outputs,
                            at(xd, xs, n, c, p * o.stride - o.padding + r, q * o.stride - o.padding + s), weights,
                            outputs);
        for (std::int64_t k = 0; k < ys[1]; ++k) *yd++ = static_cast<T>(sums[k]);
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
  double* const sums = scratch(xs[1] + ys[1] * taps * inputs);
  double* const turned = sums + xs[1];  // the weights as output, r, s, i
  for (std::int64_t k = 0; k < ys[1]; ++k)
    for (std::int64_t c = 0; c < inputs; ++c)
      for (std::int64_t t = 0; t < taps; ++t)
        turned[(k * taps + t) * inputs + c] = static_cast<double>(wd[(k * inputs + c) * taps + t]);
  for (std::int64_t n = 0; n < xs[0]; ++n)
    for (std::int64_t h = 0; h < xs[2]; ++h)
      for (std::int64_t v = 0; v < xs[3]; ++v) {
        std::fill(sums, turned, 0.0);
        for (int r = 0; r < o.kernel_h; ++r)
          for (int s = 0; s < o.kernel_w; ++s) {
            const std::int64_t p = h + o.padding - r, q = v + o.padding - s;
            if (p < 0 || q < 0 || p % o.stride != 0 || q % o.stride != 0) continue;
            for (std::int64_t k = 0; k < ys[1]; ++k)
              add_product(sums + k / outputs * inputs, at(dyd, ys, n, k, p / o.stride, q / o.stride),
                          turned + (k * taps + r * o.kernel_w + s) * inputs, inputs);
          }
        for (std::int64_t c = 0; c < xs[1]; ++c) *dxd++ = static_cast<T>(sums[c]);
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
  double* const sums = scratch(2 * inputs);
  const double* const outside = sums + inputs;  // the pixels around an image
  std::fill(sums + inputs, sums + 2 * inputs, 0.0);
  for (std::int64_t k = 0; k < ys[1]; ++k)
    for (int r = 0; r < o.kernel_h; ++r)
      for (int s = 0; s < o.kernel_w; ++s) {
        std::fill(sums, sums + inputs, 0.0);
        for (std::int64_t n = 0; n < ys[0]; ++n)
          for (std::int64_t p = 0; p < ys[2]; ++p)
            for (std::int64_t q = 0; q < ys[3]; ++q) {
              const std::int64_t h = p * o.stride - o.padding + r, v = q * o.stride - o.padding + s;
              const double d = at(dyd, ys, n, k, p, q);
              if (h < 0 || v < 0 || h >= xs[2] || v >= xs[3])
                add_product(sums, d, outside, inputs);
              else
                add_product(sums, d, xd + ((n * xs[2] + h) * xs[3] + v) * xs[1] + k / outputs * inputs, inputs);
            }
        for (std::int64_t c = 0; c < inputs; ++c)
          dwd[(k * inputs + c) * taps + r * o.kernel_w + s] = static_cast<M>(sums[c]);
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
