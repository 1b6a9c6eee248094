// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/grouped/problem.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Convolutions in groups, a register of output channels at a time.
namespace tutti::cpu::grouped {

namespace detail {

// Copies the channels of a pixel to each plane, each number once for each output of its group.
template <class T>
[[gnu::noinline]] void repeat_channels(const Problem& g, const T* x, float* to) {
  using Four = float __attribute__((vector_size(16)));
  for (std::int64_t i = 0; i < g.planes; ++i, to += g.plane()) {
    float* at = to;
    for (std::int64_t c = i; c < g.channels; c += g.planes) {
      const float v = static_cast<float>(x[c]);
      std::int64_t k = 0;
      for (; k + 4 <= g.per_group; k += 4, at += 4) write(at, v - Four{});
      for (; k < g.per_group; ++k) *at++ = v;
    }
  }
}

}  // namespace detail

// Converts a line of the image, [in_w, channels].
template <Isa I, class T>
TUTTI_INLINE void fill_line_body(const Problem* problem, const T* x, float* line) {
  const Problem& g = *problem;
  constexpr int width = lanes_of<I>;
  const bool repeats = g.copies() && (g.planes > 1 || g.per_group > 1);
  // Neighbouring pixels without gaps are one.
  const bool dense =
      !repeats && g.spread == 1 && g.pixel() == g.channels && g.left >= 0 && g.in_w + g.left <= g.width();
  const std::int64_t pixels = dense ? 1 : g.in_w, channels = dense ? g.in_w * g.channels : g.channels;
  for (std::int64_t u = 0; u < pixels; ++u, x += channels) {
    const std::int64_t j = u * g.spread + g.left;
    if (j < 0 || j >= g.width()) continue;
    float* const to = line + j * g.pixel();
    if (repeats) {
      detail::repeat_channels(g, x, to);
      continue;
    }
    std::int64_t c = 0;
    for (; c + width <= channels; c += width) {
      F<I> v;
      load<I>(v, x + c);
      store<I>(to + c, v);
    }
    for (; c < channels; ++c) to[c] = static_cast<float>(x[c]);
  }
}
TUTTI_DEFINE_READER_DISPATCH(fill_line, fill_line_body);
TUTTI_CORE_INSTANCE(template void fill_line<float>(Isa, const Problem*, const float*, float*));
TUTTI_CORE_INSTANCE(template void fill_line<bf16>(Isa, const Problem*, const bf16*, float*));

// The lines that an output line reads, the weights, and the output line [out_w, outputs]: y, or y16 in bf16.
struct RowArgs {
  const Problem* problem = nullptr;
  const Line* lines = nullptr;
  int count = 0;
  const float* weights = nullptr;
  float* y = nullptr;
  bf16* y16 = nullptr;
};

namespace detail {

constexpr int most_pixels = 14;  // of a block

// Copies the sums of n pixels. count: the outputs of a pixel, of which there may be less than a register holds.
template <Isa I, class From, class To>
TUTTI_INLINE void store_pixels(const From* sums, std::int64_t n, To* y, std::int64_t outputs, std::int64_t count) {
  constexpr int width = lanes_of<I>;
  if (count < width) {
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t e = 0; e < count; ++e)
        y[j * outputs + e] = static_cast<To>(static_cast<float>(sums[j * width + e]));
    return;
  }
#pragma GCC unroll 4
  for (std::int64_t j = 0; j < n; ++j) {
    F<I> v;
    load<I>(v, sums + j * width);
    store<I>(y + j * outputs, v);
  }
}

// The channels of a register of inputs that the lanes of a register of outputs read from plane i.
template <Isa I>
TUTTI_INLINE void set_permutation(typename Vec<I>::I& from, const Problem& g, std::int64_t i) {
  for (int e = 0; e < lanes_of<I>; ++e) from[e] = e;
  from = (from & static_cast<std::int32_t>(-g.per_group)) + static_cast<std::int32_t>(i);
}
// sum += x * factor
template <Isa I, Reads R>
TUTTI_INLINE void add_product(F<I>& sum, const float* x, const F<I>& factor, const typename Vec<I>::I& from) {
  if constexpr (R == Reads::one) {
    sum += *x * factor;
    return;
  }
  F<I> v;
  load<I>(v, x);
  if constexpr (R == Reads::permuted) {
#if defined(__clang__)
    const F<I> all = v;
    for (int e = 0; e < lanes_of<I>; ++e) v[e] = all[from[e]];
#else
    v = __builtin_shuffle(v, from);
#endif
  }
  sum += v * factor;
}

// N pixels from q and a register of outputs from c, which are stored to y, `next_y` apart. One register of sums for
// each pixel: many sums hide the latency of the products, and each weight is read once for all of them.
template <Isa I, Reads R, int N, class T>
TUTTI_INLINE void correlate_pixels(const RowArgs& a, std::int64_t c, std::int64_t q, T* y, std::int64_t next_y) {
  const Problem& g = *a.problem;
  const std::int64_t pixel = g.pixel(), plane = g.plane(), next = g.step * pixel;
  const float* const weights = a.weights + c / 16 * g.block() + c % 16;
  const std::int64_t from = q * next + (R == Reads::one ? c / g.per_group * g.planes : c);
  F<I> sum[N];
#pragma GCC unroll 14
  for (int j = 0; j < N; ++j) sum[j] = F<I>{};
  typename Vec<I>::I lanes{};
  for (std::int64_t i = 0; i < g.planes; ++i) {
    if constexpr (R == Reads::permuted) set_permutation<I>(lanes, g, i);
    for (int l = 0; l < a.count; ++l) {
      const float* x = a.lines[l].x + i * plane + from;
      const float* w = weights + (i * g.kernel_h + a.lines[l].row) * g.kernel_w * 16;
      for (int s = 0; s < g.kernel_w; ++s, x += pixel, w += 16) {
        F<I> factor;
        load<I>(factor, w);
#pragma GCC unroll 14
        for (int j = 0; j < N; ++j) add_product<I, R>(sum[j], x + j * next, factor, lanes);
      }
    }
  }
#pragma GCC unroll 14
  for (int j = 0; j < N; ++j) store<I>(y + j * next_y, sum[j]);
}

// Calls of `n` pixels with a constant number.
template <Isa I, Reads R, class T>
TUTTI_INLINE void correlate_block(std::int64_t n, const RowArgs& a, std::int64_t c, std::int64_t q, T* y,
                                  std::int64_t next_y) {
  if (n == most_pixels)
    correlate_pixels<I, R, most_pixels>(a, c, q, y, next_y);
  else if (n == 7)
    correlate_pixels<I, R, 7>(a, c, q, y, next_y);
  else if (n == 4)
    correlate_pixels<I, R, 4>(a, c, q, y, next_y);
  else
    correlate_pixels<I, R, 1>(a, c, q, y, next_y);
}

template <class T>
TUTTI_INLINE T* line_of(const RowArgs& a) {
  if constexpr (std::is_same_v<T, bf16>)
    return a.y16;
  else
    return a.y;
}

// Computes a line in blocks of 14, 7, 4 or 1 pixels: most lines of nets for 224x224 have a multiple of 7. The last
// pixels of a line may be computed together with some that are there already. T: bf16 if an instruction rounds the
// sums; otherwise f32, and sums that are rounded, or fewer than a register holds, are stored in between.
template <Isa I, Reads R, class T>
TUTTI_INLINE void correlate_row(const RowArgs& a) {
  constexpr int width = lanes_of<I>;
  const Problem& g = *a.problem;
  std::int64_t c = 0, q = 0;
  for (;;) {
    const std::int64_t rest = g.out_w - q;
    const std::int64_t n = rest >= most_pixels ? most_pixels : rest >= 7 ? 7 : g.out_w >= 4 ? 4 : 1;
    const std::int64_t at = std::min(q, g.out_w - n), to = at * g.outputs + c;
    const bool whole = c + width <= g.outputs;
    T sums[most_pixels * width];
    T* const y = line_of<T>(a) == nullptr ? nullptr : line_of<T>(a) + to;
    const bool direct = whole && y != nullptr;
    correlate_block<I, R>(n, a, c, at, direct ? y : sums, direct ? g.outputs : width);
    if (y == nullptr)
      store_pixels<I>(sums, n, a.y16 + to, g.outputs, g.outputs - c);
    else if (!whole)
      store_pixels<I>(sums, n, y, g.outputs, g.outputs - c);
    // Few weights stay in the cache; many are read once for all pixels.
    const bool more_outputs = c + width < g.outputs, more_pixels = at + n < g.out_w;
    if (!more_outputs && !more_pixels) return;
    if (g.planes == 1 ? more_outputs : !more_pixels) {
      c += width;
      if (g.planes > 1) q = 0;
    } else {
      q = at + n;
      if (g.planes == 1) c = 0;
    }
  }
}

// Does nothing for bf16 if the instruction set does not round to it.
template <Isa I, class T>
TUTTI_INLINE void correlate_rows_body(RowArgs a) {
  if constexpr (!std::is_same_v<T, bf16> || has_bf16(I)) {
    switch (a.problem->reads) {
      case Reads::copies:
        return correlate_row<I, Reads::copies, T>(a);
      case Reads::one:
        return correlate_row<I, Reads::one, T>(a);
      case Reads::permuted:
        if constexpr (lanes_of < I >> 4) correlate_row<I, Reads::permuted, T>(a);
    }
  }
}
TUTTI_DEFINE_DISPATCH(correlate_rows, correlate_rows_body);
TUTTI_CORE_INSTANCE(template void correlate_rows<float>(Isa, RowArgs));
TUTTI_CORE_INSTANCE(template void correlate_rows<bf16>(Isa, RowArgs));

}  // namespace detail

inline void correlate(Isa isa, const RowArgs& a) {
  if (a.y16 != nullptr && has_bf16(isa))
    detail::correlate_rows<bf16>(isa, a);
  else
    detail::correlate_rows<float>(isa, a);
}

// The lines that an output line reads, its gradient [out_w, output_pixel()], and the gradient of the weights, to which
// the products are added.
struct GradientArgs {
  const Problem* problem = nullptr;
  const Line* lines = nullptr;
  int count = 0;
  const float* dy = nullptr;
  float* dw = nullptr;
};

namespace detail {

// Adds the sums of n products for N neighbouring positions of the window. Two sums each hide the latency.
template <Isa I, Reads R, int N>
TUTTI_INLINE void gradient_taps(const float* x, std::int64_t pixel, std::int64_t next, const float* dy,
                                std::int64_t outputs, std::int64_t n, const typename Vec<I>::I& lanes, float* dw) {
  F<I> sum[2][N] = {};
  for (std::int64_t q = 0; q < n; q += 2)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      if (q + h == n) break;
      F<I> d;
      load<I>(d, dy + (q + h) * outputs);
#pragma GCC unroll 7
      for (int k = 0; k < N; ++k) add_product<I, R>(sum[h][k], x + (q + h) * next + k * pixel, d, lanes);
    }
#pragma GCC unroll 7  // NOLINT(readability-misleading-indentation)
  for (int k = 0; k < N; ++k) {
    F<I> before;
    load<I>(before, static_cast<const float*>(dw + 16 * k));
    store<I>(dw + 16 * k, before + (sum[0][k] + sum[1][k]));
  }
}

template <Isa I, Reads R>
TUTTI_INLINE void gradient_row(const GradientArgs& a) {
  const Problem& g = *a.problem;
  const std::int64_t pixel = g.pixel(), next = g.step * pixel;
  typename Vec<I>::I lanes{};
  for (std::int64_t c = 0; c < g.outputs; c += lanes_of<I>)
    for (std::int64_t i = 0; i < g.planes; ++i) {
      if constexpr (R == Reads::permuted) set_permutation<I>(lanes, g, i);
      for (int l = 0; l < a.count; ++l) {
        const float* x = a.lines[l].x + i * g.plane() + (R == Reads::one ? c / g.per_group * g.planes : c);
        float* dw = a.dw + c / 16 * g.block() + c % 16 + (i * g.kernel_h + a.lines[l].row) * g.kernel_w * 16;
        int s = 0;
        if constexpr (R == Reads::copies)
          for (; s + 7 <= g.kernel_w; s += 7, x += 7 * pixel, dw += std::int64_t{7} * 16)
            gradient_taps<I, R, 7>(x, pixel, next, a.dy + c, g.output_pixel(), g.out_w, lanes, dw);
        for (; s + 3 <= g.kernel_w; s += 3, x += 3 * pixel, dw += std::int64_t{3} * 16)
          gradient_taps<I, R, 3>(x, pixel, next, a.dy + c, g.output_pixel(), g.out_w, lanes, dw);
        for (; s < g.kernel_w; ++s, x += pixel, dw += 16)
          gradient_taps<I, R, 1>(x, pixel, next, a.dy + c, g.output_pixel(), g.out_w, lanes, dw);
      }
    }
}

}  // namespace detail

template <Isa I>
TUTTI_INLINE void gradient_body(GradientArgs a) {
  switch (a.problem->reads) {
    case Reads::copies:
      return detail::gradient_row<I, Reads::copies>(a);
    case Reads::one:
      return detail::gradient_row<I, Reads::one>(a);
    case Reads::permuted:
      if constexpr (lanes_of < I >> 4) detail::gradient_row<I, Reads::permuted>(a);
  }
}
TUTTI_DEFINE_READER_DISPATCH(gradient, gradient_body);
TUTTI_CORE_INSTANCE(template void gradient<>(Isa, GradientArgs));

}  // namespace tutti::cpu::grouped

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
