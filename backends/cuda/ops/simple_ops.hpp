// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Ops that read one element or one window at a time, by tutti's kernels.
namespace tutti::cuda {

// Returns the number of values that a thread processes at once: a vector of 16 bytes if it divides the channels,
// otherwise 1.
[[nodiscard]] inline int channel_vector(DType t, std::int64_t channels) {
  return channels % vector_of(t) == 0 ? vector_of(t) : 1;
}
[[nodiscard]] inline OpKernel by_channels(DType t, std::int64_t channels, Forms<OpKernel> k) {
  return k.of(channel_vector(t, channels) > 1);
}

// Computes `out` element by element. pointers: the operands.
template <class... P>
void run_map(Launcher& l, OpKernel k, const TensorRef& out, P... pointers) {
  const std::int64_t n = out.shape.numel();
  l.op(out.dtype, k, l.blocks(n / vector_of(out.dtype)), Launcher::block, pointers..., out.data, n);
}

[[nodiscard]] constexpr OpKernel kernel_of_activation(op::ActivationKind kind, bool backward) {
  switch (kind) {
    case op::ActivationKind::gelu:
      return backward ? OpKernel::gelu_backward : OpKernel::gelu_forward;
    case op::ActivationKind::sigmoid:
      return backward ? OpKernel::sigmoid_backward : OpKernel::sigmoid_forward;
    case op::ActivationKind::silu:
      return backward ? OpKernel::silu_backward : OpKernel::silu_forward;
    default:
      return backward ? OpKernel::hard_swish_backward : OpKernel::hard_swish_forward;
  }
}

inline void run_bias(Launcher& l, const Call& c) {
  const TensorRef& y = c.out[0];
  const std::int64_t channels = y.shape[1], n = y.shape.numel();
  l.op(y.dtype, by_channels(y.dtype, channels, forms::bias_forward), l.blocks(n / channel_vector(y.dtype, channels)),
       Launcher::block, c.in[0].data, c.in[1].data, y.data, static_cast<int>(channels), n);
}

// The struct of kernels/pool.hpp.
struct Pool {
  int height, width, channels, out_h, out_w, kernel_h, kernel_w, stride, padding;

  Pool(const op::Window& o, const Shape& x, const Shape& y)
      : height(static_cast<int>(x[2])),
        width(static_cast<int>(x[3])),
        channels(static_cast<int>(x[1])),
        out_h(static_cast<int>(y[2])),
        out_w(static_cast<int>(y[3])),
        kernel_h(o.kernel_h),
        kernel_w(o.kernel_w),
        stride(o.stride),
        padding(o.padding) {}
};

inline void run_max_pool(Launcher& l, const op::MaxPool& o, const Call& c) {
  const TensorRef& y = c.out[0];
  const std::int64_t channels = y.shape[1], vectors = y.shape.numel() / channel_vector(y.dtype, channels);
  l.op(y.dtype, by_channels(y.dtype, channels, forms::max_pool), l.blocks(vectors), Launcher::block, c.in[0].data,
       y.data, c.out[1].data, Pool(o, c.in[0].shape, y.shape), vectors);
}
inline void run_max_pool_backward(Launcher& l, const op::MaxPoolBackward& o, const Call& c) {
  const TensorRef& dx = c.out[0];
  const std::int64_t channels = dx.shape[1], vectors = dx.shape.numel() / channel_vector(dx.dtype, channels);
  l.op(dx.dtype, by_channels(dx.dtype, channels, forms::max_pool_backward), l.blocks(vectors), Launcher::block,
       c.in[0].data, c.in[1].data, dx.data, Pool(o, dx.shape, c.in[0].shape), vectors);
}

// k: window_average or window_average_backward. x, y: shapes of the forward pass.
inline void run_window_average(Launcher& l, Forms<OpKernel> k, const op::AvgWindow& o, const Shape& x, const Shape& y,
                               const Call& c) {
  const TensorRef& out = c.out[0];
  const std::int64_t channels = x[1], vectors = out.shape.numel() / channel_vector(out.dtype, channels);
  l.op(out.dtype, by_channels(out.dtype, channels, k), l.blocks(vectors), Launcher::block, c.in[0].data, out.data,
       Pool(o.window, x, y), static_cast<int>(o.count_padding), vectors);
}

// k: average_pool or average_pool_backward. large: the shape with the pixels, which is x or dx.
inline void run_average_pool(Launcher& l, Forms<OpKernel> k, const Shape& large, const Call& c) {
  const TensorRef& out = c.out[0];
  const std::int64_t channels = large[1], vectors = out.shape.numel() / channel_vector(out.dtype, channels);
  l.op(out.dtype, by_channels(out.dtype, channels, k), l.blocks(vectors), Launcher::block, c.in[0].data, out.data,
       static_cast<int>(channels), static_cast<int>(large[2] * large[3]), vectors);
}

}  // namespace tutti::cuda
