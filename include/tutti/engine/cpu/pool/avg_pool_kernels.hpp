// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/pool/pool_kernels.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Average pooling over NHWC data, a register of channels at a time.
namespace tutti::cpu {

// x [rows, h, w, channels] and y [rows, out_h, out_w, channels]; for the backward pass x is dx and y is dy.
template <class T>
struct AvgPoolArgs {
  op::Window window;
  bool count_padding = true;
  std::int64_t rows = 0, channels = 0, h = 0, w = 0, out_h = 0, out_w = 0;
  T* x = nullptr;
  T* y = nullptr;
};

namespace detail {

// Returns the weight of each pixel in the mean of a window with this number of rows and columns in the image.
template <class T>
[[nodiscard]] inline float share_of(const AvgPoolArgs<T>& a, std::int64_t rows, std::int64_t columns) {
  return 1.0F /
         static_cast<float>(a.count_padding ? std::int64_t{a.window.kernel_h} * a.window.kernel_w : rows * columns);
}
// The same for the window of output (p, q).
template <class T>
[[nodiscard]] inline float share_at(const AvgPoolArgs<T>& a, std::int64_t p, std::int64_t q) {
  const bool fits = a.window.padding == 0 && (a.out_h - 1) * a.window.stride + a.window.kernel_h <= a.h &&
                    (a.out_w - 1) * a.window.stride + a.window.kernel_w <= a.w;
  if (a.count_padding || fits) return share_of(a, a.window.kernel_h, a.window.kernel_w);
  const Span r = inside(p, a.window.kernel_h, a.window, a.h), s = inside(q, a.window.kernel_w, a.window, a.w);
  return share_of(a, r.end - r.begin, s.end - s.begin);
}

}  // namespace detail

template <Isa I, class T>
TUTTI_INLINE void avg_pool_body(AvgPoolArgs<T> a) {
  constexpr int width = lanes_of<I>;
  const op::Window& o = a.window;
  T* y = a.y;
  for (std::int64_t n = 0; n < a.rows; ++n)
    for (std::int64_t p = 0; p < a.out_h; ++p)
      for (std::int64_t q = 0; q < a.out_w; ++q, y += a.channels) {
        const detail::Span r = detail::inside(p, o.kernel_h, o, a.h), s = detail::inside(q, o.kernel_w, o, a.w);
        const T* x = a.x + ((n * a.h + p * o.stride - o.padding) * a.w + q * o.stride - o.padding) * a.channels;
        const float share = detail::share_of(a, r.end - r.begin, s.end - s.begin);
        std::int64_t c = 0;
        for (; c + width <= a.channels; c += width) {
          F<I> sum = F<I>{};
          for (std::int64_t i = r.begin; i < r.end; ++i)
            for (std::int64_t j = s.begin; j < s.end; ++j) {
              F<I> v;
              load<I>(v, static_cast<const T*>(x + (i * a.w + j) * a.channels + c));
              sum += v;
            }
          store<I>(y + c, sum * share);
        }
        for (; c < a.channels; ++c) {
          float sum = 0;
          for (std::int64_t i = r.begin; i < r.end; ++i)
            for (std::int64_t j = s.begin; j < s.end; ++j) sum += static_cast<float>(x[(i * a.w + j) * a.channels + c]);
          y[c] = T(sum * share);
        }
      }
}
TUTTI_DEFINE_DISPATCH(avg_pool, avg_pool_body);
TUTTI_CORE_INSTANCE(template void avg_pool<float>(Isa, AvgPoolArgs<float>));
TUTTI_CORE_INSTANCE(template void avg_pool<bf16>(Isa, AvgPoolArgs<bf16>));

template <Isa I, class T>
TUTTI_INLINE void avg_pool_backward_body(AvgPoolArgs<T> a) {
  constexpr int width = lanes_of<I>;
  const op::Window& o = a.window;
  T* dx = a.x;
  for (std::int64_t n = 0; n < a.rows; ++n)
    for (std::int64_t h = 0; h < a.h; ++h) {
      const detail::Span r = detail::holders(h, o.kernel_h, o, a.out_h);
      for (std::int64_t v = 0; v < a.w; ++v, dx += a.channels) {
        const detail::Span s = detail::holders(v, o.kernel_w, o, a.out_w);
        std::int64_t c = 0;
        for (; c + width <= a.channels; c += width) {
          F<I> sum = F<I>{};
          for (std::int64_t p = r.begin; p < r.end; ++p)
            for (std::int64_t q = s.begin; q < s.end; ++q) {
              F<I> g;
              load<I>(g, static_cast<const T*>(a.y + ((n * a.out_h + p) * a.out_w + q) * a.channels + c));
              sum += g * detail::share_at(a, p, q);
            }
          store<I>(dx + c, sum);
        }
        for (; c < a.channels; ++c) {
          float sum = 0;
          for (std::int64_t p = r.begin; p < r.end; ++p)
            for (std::int64_t q = s.begin; q < s.end; ++q)
              sum += static_cast<float>(a.y[((n * a.out_h + p) * a.out_w + q) * a.channels + c]) *
                     detail::share_at(a, p, q);
          dx[c] = T(sum);
        }
      }
    }
}
TUTTI_DEFINE_DISPATCH(avg_pool_backward, avg_pool_backward_body);
TUTTI_CORE_INSTANCE(template void avg_pool_backward<float>(Isa, AvgPoolArgs<float>));
TUTTI_CORE_INSTANCE(template void avg_pool_backward<bf16>(Isa, AvgPoolArgs<bf16>));

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
