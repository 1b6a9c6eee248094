// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/simd.hpp>
#include <tutti/graph/ops.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Max pooling over NHWC data, a register of channels at a time.
namespace tutti::cpu {

// x [rows, h, w, channels] and y, which [rows, out_h, out_w, channels]; for the backward pass x is dx and y is dy.
// first_h: of one image only the lines first_h <= p < out_h of y and which, which begin with them (forward only).
template <class T>
struct MaxPoolArgs {
  op::Window window;
  std::int64_t rows = 0, channels = 0, h = 0, w = 0, out_h = 0, out_w = 0;
  T* x = nullptr;
  T* y = nullptr;
  std::uint8_t* which = nullptr;  // index in the window
  std::int64_t first_h = 0;
};

namespace detail {

// The range of a loop over a window's rows or columns.
struct Span {
  std::int64_t begin, end;
};
// Returns the positions of the window at output p that lie in 0..extent.
inline Span inside(std::int64_t p, int kernel, const op::Window& o, std::int64_t extent) {
  const std::int64_t at = p * o.stride - o.padding;
  return {std::max<std::int64_t>(0, -at), std::min<std::int64_t>(kernel, extent - at)};
}
// Returns the outputs with input h in their windows.
inline Span holders(std::int64_t h, int kernel, const op::Window& o, std::int64_t outputs) {
  const std::int64_t at = h + o.padding, first = at - kernel + 1;
  return {first > 0 ? (first + o.stride - 1) / o.stride : 0, std::min<std::int64_t>(at / o.stride + 1, outputs)};
}
struct Tap {
  std::int64_t from;   // offset of an output that has the input in its window
  std::int32_t place;  // position of the input in that window
};

// Processes the channels from c on, which do not fill a register, of one output with a window that begins at x. Uses no
// vector arithmetic, so that all instruction sets share the code.
template <class T>
[[gnu::noinline]] void max_pool_rest(const MaxPoolArgs<T>& a, const T* x, Span rows, Span columns, std::int64_t c, T* y,
                                     std::uint8_t* which) {
  for (; c < a.channels; ++c) {
    std::int64_t place = rows.begin * a.window.kernel_w + columns.begin;
    float best = static_cast<float>(x[(rows.begin * a.w + columns.begin) * a.channels + c]);
    for (std::int64_t i = rows.begin; i < rows.end; ++i)
      for (std::int64_t j = columns.begin; j < columns.end; ++j) {
        const float v = static_cast<float>(x[(i * a.w + j) * a.channels + c]);
        if (!(v > best) && v == v) continue;
        best = v;
        place = i * a.window.kernel_w + j;
      }
    y[c] = T(best);
    which[c] = static_cast<std::uint8_t>(place);
  }
}
// Like max_pool_rest(), for one input of the backward pass.
template <class T>
[[gnu::noinline]] void max_pool_backward_rest(const MaxPoolArgs<T>& a, const Tap* taps, int count, std::int64_t c,
                                              T* dx) {
  for (; c < a.channels; ++c) {
    float sum = 0;
    for (int t = 0; t < count; ++t)
      if (a.which[taps[t].from + c] == taps[t].place) sum += static_cast<float>(a.y[taps[t].from + c]);
    dx[c] = T(sum);
  }
}

}  // namespace detail

template <Isa I, class T>
TUTTI_INLINE void max_pool_body(MaxPoolArgs<T> a) {
  using Ints = typename Vec<I>::I;
  constexpr int width = lanes_of<I>;
  const op::Window& o = a.window;
  F<I> one;
  broadcast<I>(one, 1.0F);
  T* y = a.y;
  std::uint8_t* which = a.which;
  for (std::int64_t n = 0; n < a.rows; ++n)
    for (std::int64_t p = a.first_h; p < a.out_h; ++p)
      for (std::int64_t q = 0; q < a.out_w; ++q, y += a.channels, which += a.channels) {
        const detail::Span r = detail::inside(p, o.kernel_h, o, a.h), s = detail::inside(q, o.kernel_w, o, a.w);
        const T* x = a.x + ((n * a.h + p * o.stride - o.padding) * a.w + q * o.stride - o.padding) * a.channels;
        // start: first tap inside the image; rest: distance from the last tap of one row to the first tap of the next
        F<I> start, rest;
        broadcast<I>(start, static_cast<float>(r.begin * o.kernel_w + s.begin));
        broadcast<I>(rest, static_cast<float>(o.kernel_w - (s.end - s.begin)));
        std::int64_t c = 0;
        // A NaN wins, so that it is not lost. It is detected by the largest magnitude, as an integer. A test for it in
        // the selection would make GCC 12 combine two masks, lane by lane.
        for (; c + width <= a.channels; c += width) {
          F<I> best, place = start, here = start, v;
          Ints most = Ints{};
          load<I>(best, static_cast<const T*>(x + (r.begin * a.w + s.begin) * a.channels + c));
          for (std::int64_t i = r.begin; i < r.end; ++i, here += rest)
            for (std::int64_t j = s.begin; j < s.end; ++j, here += one) {
              load<I>(v, static_cast<const T*>(x + (i * a.w + j) * a.channels + c));
              place = v > best ? here : place;
              best = v > best ? v : best;
              const Ints magnitude = (Ints)v & 0x7fffffff;
              most = magnitude > most ? magnitude : most;
            }
          best = most > 0x7f800000 ? (F<I>)most : best;
          store_exact<I>(y + c, best);
          write(which + c, __builtin_convertvector(__builtin_convertvector(place, Ints), typename Vec<I>::Byte));
        }
        if (c < a.channels) detail::max_pool_rest(a, x, r, s, c, y, which);
      }
}
TUTTI_DEFINE_READER_DISPATCH(max_pool, max_pool_body);
TUTTI_CORE_INSTANCE(template void max_pool<float>(Isa, MaxPoolArgs<float>));
TUTTI_CORE_INSTANCE(template void max_pool<bf16>(Isa, MaxPoolArgs<bf16>));

template <Isa I, class T>
TUTTI_INLINE void max_pool_backward_body(MaxPoolArgs<T> a) {
  using Ints = typename Vec<I>::I;
  constexpr int width = lanes_of<I>;
  const op::Window& o = a.window;
  detail::Tap taps[256];  // a position is stored in one byte
  T* dx = a.x;
  for (std::int64_t n = 0; n < a.rows; ++n)
    for (std::int64_t h = 0; h < a.h; ++h) {
      const detail::Span r = detail::holders(h, o.kernel_h, o, a.out_h);
      detail::Span s{0, 0};  // the outputs whose windows contain column v
      for (std::int64_t v = 0; v < a.w; ++v, dx += a.channels) {
        while (s.end < a.out_w && s.end * o.stride <= v + o.padding) ++s.end;
        while (s.begin < s.end && s.begin * o.stride + o.kernel_w <= v + o.padding) ++s.begin;
        int count = 0;
        for (std::int64_t p = r.begin; p < r.end; ++p)
          for (std::int64_t q = s.begin; q < s.end; ++q) {
            taps[count++] = {
                ((n * a.out_h + p) * a.out_w + q) * a.channels,
                static_cast<std::int32_t>((h + o.padding - p * o.stride) * o.kernel_w + v + o.padding - q * o.stride)};
            asm("" : "+r"(count));  // GCC would vectorise this loop, which has one or two iterations
          }
        std::int64_t c = 0;
        for (; c + width <= a.channels; c += width) {
          F<I> sum = F<I>{};
          for (int t = 0; t < count; ++t) {
            Ints from;
            widen<I>(from, static_cast<const std::uint8_t*>(a.which + taps[t].from + c));
            F<I> g;
            load<I>(g, static_cast<const T*>(a.y + taps[t].from + c));
            sum += from == taps[t].place ? g : F<I>{};
          }
          store<I>(dx + c, sum);
        }
        if (c < a.channels) detail::max_pool_backward_rest(a, taps, count, c, dx);
      }
    }
}
TUTTI_DEFINE_DISPATCH(max_pool_backward, max_pool_backward_body);
TUTTI_CORE_INSTANCE(template void max_pool_backward<float>(Isa, MaxPoolArgs<float>));
TUTTI_CORE_INSTANCE(template void max_pool_backward<bf16>(Isa, MaxPoolArgs<bf16>));

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
