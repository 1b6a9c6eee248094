// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <tutti/core/math.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Element-wise ops as simple loops, NHWC.
namespace tutti::reference {

template <class T>
void normalize(const op::Normalize& o, const TensorRef& image, const TensorRef& x) {
  const auto channels = static_cast<std::size_t>(image.shape[1]);
  const auto in = image.view<std::uint8_t>();
  const auto out = x.view<T>();
  for (std::size_t i = 0; i < in.size(); ++i)
    out[i] = static_cast<T>((static_cast<float>(in[i]) - o.mean[i % channels]) * o.inv_std[i % channels]);
}

// Far from zero the factors become exactly 0 and 1 before they are multiplied by x, which may be infinite.
template <class T>
void gelu(const TensorRef& x, const TensorRef& y) {
  const auto in = x.view<T>(), out = y.view<T>();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto v = static_cast<double>(in[i]);
    out[i] = static_cast<T>(v < -40 ? 0.0 : v * math::erfc(-v * math::sqrt(0.5)) / 2);
  }
}
template <class T>
void gelu_backward(const TensorRef& dy, const TensorRef& x, const TensorRef& dx) {
  const auto d = dy.view<T>(), in = x.view<T>(), out = dx.view<T>();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto v = static_cast<double>(in[i]);
    const double below = math::erfc(-v * math::sqrt(0.5)) / 2, density = 0.3989422804014327 * math::exp(-v * v / 2);
    out[i] = static_cast<T>(static_cast<double>(d[i]) * (math::fabs(v) > 40 ? below : below + v * density));
  }
}

[[nodiscard]] inline double sigmoid(double x) { return 1 / (1 + math::exp(-x)); }
template <class T>
void activation(op::ActivationKind kind, const TensorRef& x, const TensorRef& y) {
  if (kind == op::ActivationKind::gelu) return gelu<T>(x, y);
  const auto in = x.view<T>(), out = y.view<T>();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto v = static_cast<double>(in[i]);
    // A NaN fails every comparison and stays.
    const double shifted = v + 3 < 0 ? 0 : v + 3 > 6 ? 6 : v + 3;
    out[i] = static_cast<T>(kind == op::ActivationKind::sigmoid ? sigmoid(v)
                            : kind == op::ActivationKind::silu  ? v / (1 + math::exp(-v))
                            : kind == op::ActivationKind::relu6 ? (v < 0   ? 0
                                                                   : v > 6 ? 6
                                                                           : v)
                                                                : v * shifted / 6);
  }
}
// x: of sigmoid its result.
template <class T>
void activation_backward(op::ActivationKind kind, const TensorRef& dy, const TensorRef& x, const TensorRef& dx) {
  if (kind == op::ActivationKind::gelu) return gelu_backward<T>(dy, x, dx);
  const auto d = dy.view<T>(), in = x.view<T>(), out = dx.view<T>();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto v = static_cast<double>(in[i]);
    const double slope = kind == op::ActivationKind::sigmoid ? v * (1 - v)
                         : kind == op::ActivationKind::relu6 ? (v <= 0 || v >= 6 ? 0 : 1)
                         : kind == op::ActivationKind::silu  ? sigmoid(v) * (1 + v * sigmoid(-v))
                         : v <= -3                           ? 0
                         : v >= 3                            ? 1
                                                             : v / 3 + 0.5;
    out[i] = static_cast<T>(static_cast<double>(d[i]) * slope);
  }
}

}  // namespace tutti::reference
