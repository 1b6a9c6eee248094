// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// The passes of batch norm (+ residual) (+ relu) over NHWC data: `pixels` pixels of `channels` channels. Strips of
// channels stay in registers over all pixels of the call; the remaining channels use a plain loop. The kernels are few
// and their flags are run-time values, because every program that includes them compiles all of them.
namespace tutti::cpu {

namespace detail {

// Calls f.template operator()<registers>(first channel, first pixel, last pixel + 1) for strips of four registers (for
// the types that gain most) and of one, which together have the channels from `first` to the last whole register. If a
// pixel has more channels than four registers, a call gets four pixels, so that all arrays are read and written nearly
// in the order of their addresses. T: the type of the data.
template <Isa I, class T, class Fn>
TUTTI_INLINE void strips(std::int64_t pixels, std::int64_t first, std::int64_t end, Fn&& f) {
  constexpr int width = lanes_of<I>;
  // With registers of 4 lanes, a strip of one would use a quarter of each cache line.
  constexpr bool narrow = has_many_registers<I> && width == 4;
  constexpr bool wide = narrow || I == Isa::avx512_bf16 || (I == Isa::avx512 && std::is_same_v<T, float>);
  const std::int64_t block = end - first > 4 * width ? 4 : pixels;
  for (std::int64_t i = 0; i < pixels; i += block) {
    const std::int64_t last = std::min(i + block, pixels);
    std::int64_t c = first;
    if constexpr (wide)
      for (; c + 4 * width <= end; c += 4 * width) f.template operator()<4>(c, i, last);
    for (; c + width <= end; c += width) f.template operator()<1>(c, i, last);
  }
}

// Adds two sums for each channel. Calls f as strips() does, with two more arguments: where it adds the sums of its
// channels, as floats. Returns the first channel that is not in a whole register.
template <Isa I, class T, class Fn>
TUTTI_INLINE std::int64_t sum_strips(std::int64_t pixels, std::int64_t channels, double* one, double* other, Fn&& f) {
  constexpr std::int64_t most = 1024;
  const std::int64_t whole = channels / lanes_of<I> * lanes_of<I>;
  alignas(64) float sums[2][most];
  for (std::int64_t first = 0; first < whole; first += most) {
    const std::int64_t end = std::min(first + most, whole);
    for (auto& some : sums) std::fill_n(static_cast<float*>(some), end - first, 0.0F);
    strips<I, T>(pixels, first, end, [&]<int N>(std::int64_t c, std::int64_t i, std::int64_t last) TUTTI_LAMBDA {
      f.template operator()<N>(c, i, last, sums[0] + (c - first), sums[1] + (c - first));
    });
    for (std::int64_t c = first; c < end; ++c) {
      one[c] += static_cast<double>(sums[0][c - first]);
      other[c] += static_cast<double>(sums[1][c - first]);
    }
  }
  return whole;
}

template <Isa I>
TUTTI_INLINE void add_to(float* sum, const F<I>& v) {
  F<I> before;
  load<I>(before, sum);
  store<I>(sum, before + v);
}

}  // namespace detail

// sum[c] += sum of (x - pivot[c]); squares[c] += sum of (x - pivot[c])^2. The pivot is near the mean, which avoids
// cancellation in the difference of squares.
template <Isa I, class T>
TUTTI_INLINE void norm_statistics_body(const T* x, std::int64_t pixels, std::int64_t channels, const float* pivot,
                                       double* sum, double* squares) {
  constexpr int width = lanes_of<I>;
  std::int64_t c = detail::sum_strips<I, T>(
      pixels, channels, sum, squares,
      [&]<int N>(std::int64_t first, std::int64_t i, std::int64_t last, float* sums, float* other) TUTTI_LAMBDA {
        // Two accumulators for each sum hide the latency of the addition.
        F<I> s[2][N], q[2][N], k[N];
        for (int j = 0; j < N; ++j) {
          s[0][j] = s[1][j] = q[0][j] = q[1][j] = F<I>{};
          load<I>(k[j], pivot + first + j * width);
        }
        const T* p = x + i * channels + first;
        const auto add = [&](int u) TUTTI_LAMBDA {
          for (int j = 0; j < N; ++j) {
            F<I> d;
            load<I>(d, p + j * width);
            d -= k[j];
            s[u][j] += d;
            q[u][j] += d * d;
          }
          p += channels;
        };
        for (; i + 2 <= last; i += 2) {
          add(0);
          add(1);
        }
        if (i < last) add(0);
        for (int j = 0; j < N; ++j) {
          detail::add_to<I>(sums + j * width, s[0][j] + s[1][j]);
          detail::add_to<I>(other + j * width, q[0][j] + q[1][j]);
        }
      });
  for (; c < channels; ++c)
    for (std::int64_t i = 0; i < pixels; ++i) {
      const double d = static_cast<double>(static_cast<float>(x[i * channels + c])) - static_cast<double>(pivot[c]);
      sum[c] += d;
      squares[c] += d * d;
    }
}
TUTTI_DEFINE_READER_DISPATCH(norm_statistics, norm_statistics_body);
TUTTI_CORE_INSTANCE(template void norm_statistics<float>(Isa, const float*, std::int64_t, std::int64_t, const float*,
                                                         double*, double*));
TUTTI_CORE_INSTANCE(template void norm_statistics<bf16>(Isa, const bf16*, std::int64_t, std::int64_t, const float*,
                                                        double*, double*));

// y = relu?(x * scale[c] + shift[c] (+ residual))
template <Isa I, class T>
TUTTI_INLINE void norm_apply_body(const T* x, const T* residual, T* y, std::int64_t pixels, std::int64_t channels,
                                  const float* scale, const float* shift, bool relu) {
  constexpr int width = lanes_of<I>;
  F<I> low;
  broadcast<I>(low, relu ? 0.0F : -std::numeric_limits<float>::infinity());
  const auto strip = [&]<int N, bool Residual>(std::int64_t first, std::int64_t i, std::int64_t last) TUTTI_LAMBDA {
    F<I> a[N], b[N];
    for (int j = 0; j < N; ++j) {
      load<I>(a[j], scale + first + j * width);
      load<I>(b[j], shift + first + j * width);
    }
    for (std::int64_t k = i * channels + first; i < last; ++i, k += channels)
      for (int j = 0; j < N; ++j) {
        F<I> v;
        load<I>(v, x + k + j * width);
        v = v * a[j] + b[j];
        if constexpr (Residual) {
          F<I> r;
          load<I>(r, residual + k + j * width);
          v += r;
        }
        // Written so that a NaN passes: relu must not hide it.
        store<I>(y + k + j * width, v < low ? low : v);
      }
  };
  detail::strips<I, T>(pixels, 0, channels,
                       [&]<int N>(std::int64_t first, std::int64_t i, std::int64_t last) TUTTI_LAMBDA {
                         if (residual != nullptr)
                           strip.template operator()<N, true>(first, i, last);
                         else
                           strip.template operator()<N, false>(first, i, last);
                       });
  for (std::int64_t c = channels / width * width; c < channels; ++c)
    for (std::int64_t i = 0; i < pixels; ++i) {
      const std::int64_t k = i * channels + c;
      float v = static_cast<float>(x[k]) * scale[c] + shift[c];
      if (residual != nullptr) v += static_cast<float>(residual[k]);
      y[k] = T(relu && v < 0 ? 0 : v);
    }
}
TUTTI_DEFINE_DISPATCH(norm_apply, norm_apply_body);
TUTTI_CORE_INSTANCE(template void norm_apply<float>(Isa, const float*, const float*, float*, std::int64_t, std::int64_t,
                                                    const float*, const float*, bool));
TUTTI_CORE_INSTANCE(template void norm_apply<bf16>(Isa, const bf16*, const bf16*, bf16*, std::int64_t, std::int64_t,
                                                   const float*, const float*, bool));

// The inputs of the two backward passes. The incoming gradient is g = dy (+ dy2), masked by relu: by y > 0 if there was
// a residual (y set), else by x * scale + shift > 0.
template <class T>
struct NormBackwardArgs {
  const T* dy = nullptr;
  const T* dy2 = nullptr;
  const T* x = nullptr;
  const T* y = nullptr;
  T* masked = nullptr;  // reduce writes g here and apply reads it, if the residual needs it
  T* dx = nullptr;
  std::int64_t pixels = 0, channels = 0;
  const float* scale = nullptr;
  const float* shift = nullptr;
  const float* mean = nullptr;
  bool relu = false;
  // apply: dx = a * g + b * x + c
  const float* a = nullptr;
  const float* b = nullptr;
  const float* c = nullptr;
};

namespace detail {

enum class Mask { none, recompute, from_y };

template <Isa I, class T, Mask M>
TUTTI_INLINE void incoming(F<I>& g, const NormBackwardArgs<T>& n, std::int64_t k, const F<I>& x, const F<I>& scale,
                           const F<I>& shift) {
  F<I> more;
  load<I>(g, n.dy + k);
  if (n.dy2 != nullptr) {
    load<I>(more, n.dy2 + k);
    g += more;
  }
  if constexpr (M == Mask::from_y) {
    load<I>(more, n.y + k);
    g = more > 0 ? g : F<I>{};
  }
  if constexpr (M == Mask::recompute) g = x * scale + shift > 0 ? g : F<I>{};
}

template <class T>
TUTTI_INLINE float incoming_scalar(const NormBackwardArgs<T>& n, std::int64_t k, std::int64_t c) {
  if (n.y != nullptr) {
    if (!(static_cast<float>(n.y[k]) > 0)) return 0;
  } else if (n.relu && !(static_cast<float>(n.x[k]) * n.scale[c] + n.shift[c] > 0)) {
    return 0;
  }
  return static_cast<float>(n.dy[k]) + (n.dy2 != nullptr ? static_cast<float>(n.dy2[k]) : 0.0F);
}

template <class T, class Fn>
TUTTI_INLINE void with_mask(const NormBackwardArgs<T>& n, Fn&& f) {
  if (n.y != nullptr)
    f.template operator()<Mask::from_y>();
  else if (n.relu)
    f.template operator()<Mask::recompute>();
  else
    f.template operator()<Mask::none>();
}

}  // namespace detail

// sum[c] += sum of g; dot[c] += sum of g * (x - mean[c]).
template <Isa I, class T>
TUTTI_INLINE void norm_backward_reduce_body(NormBackwardArgs<T> n, double* sum, double* dot) {
  constexpr int width = lanes_of<I>;
  std::int64_t c = 0;
  detail::with_mask(n, [&]<detail::Mask M>() TUTTI_LAMBDA {
    c = detail::sum_strips<I, T>(
        n.pixels, n.channels, sum, dot,
        [&]<int N>(std::int64_t first, std::int64_t i, std::int64_t last, float* sums, float* dots) TUTTI_LAMBDA {
          F<I> s[N], d[N], scale[N], shift[N], mean[N];
          for (int j = 0; j < N; ++j) {
            s[j] = d[j] = F<I>{};
            load<I>(scale[j], n.scale + first + j * width);
            load<I>(shift[j], n.shift + first + j * width);
            load<I>(mean[j], n.mean + first + j * width);
          }
          const bool keep = n.masked != nullptr;
          for (std::int64_t k = i * n.channels + first; i < last; ++i, k += n.channels)
            for (int j = 0; j < N; ++j) {
              F<I> x, g;
              load<I>(x, n.x + k + j * width);
              detail::incoming<I, T, M>(g, n, k + j * width, x, scale[j], shift[j]);
              if (keep) store<I>(n.masked + k + j * width, g);
              s[j] += g;
              d[j] += g * (x - mean[j]);
            }
          for (int j = 0; j < N; ++j) {
            detail::add_to<I>(sums + j * width, s[j]);
            detail::add_to<I>(dots + j * width, d[j]);
          }
        });
  });
  for (; c < n.channels; ++c)
    for (std::int64_t i = 0; i < n.pixels; ++i) {
      const std::int64_t k = i * n.channels + c;
      const float g = detail::incoming_scalar(n, k, c);
      if (n.masked != nullptr) n.masked[k] = T(g);
      sum[c] += static_cast<double>(g);
      dot[c] += static_cast<double>(g) * static_cast<double>(static_cast<float>(n.x[k]) - n.mean[c]);
    }
}
TUTTI_DEFINE_DISPATCH(norm_backward_reduce, norm_backward_reduce_body);
TUTTI_CORE_INSTANCE(template void norm_backward_reduce<float>(Isa, NormBackwardArgs<float>, double*, double*));
TUTTI_CORE_INSTANCE(template void norm_backward_reduce<bf16>(Isa, NormBackwardArgs<bf16>, double*, double*));

template <Isa I, class T>
TUTTI_INLINE void norm_backward_apply_body(NormBackwardArgs<T> n) {
  constexpr int width = lanes_of<I>;
  if (n.masked != nullptr) {  // the reduce pass has applied the mask
    n.dy = n.masked;
    n.dy2 = n.y = nullptr;
    n.relu = false;
  }
  detail::with_mask(n, [&]<detail::Mask M>() TUTTI_LAMBDA {
    detail::strips<I, T>(n.pixels, 0, n.channels,
                         [&]<int N>(std::int64_t first, std::int64_t i, std::int64_t last) TUTTI_LAMBDA {
                           F<I> a[N], b[N], shift_by[N], scale[N], shift[N];
                           for (int j = 0; j < N; ++j) {
                             load<I>(a[j], n.a + first + j * width);
                             load<I>(b[j], n.b + first + j * width);
                             load<I>(shift_by[j], n.c + first + j * width);
                             load<I>(scale[j], n.scale + first + j * width);
                             load<I>(shift[j], n.shift + first + j * width);
                           }
                           for (std::int64_t k = i * n.channels + first; i < last; ++i, k += n.channels)
                             for (int j = 0; j < N; ++j) {
                               F<I> x, g;
                               load<I>(x, n.x + k + j * width);
                               detail::incoming<I, T, M>(g, n, k + j * width, x, scale[j], shift[j]);
                               store<I>(n.dx + k + j * width, a[j] * g + (b[j] * x + shift_by[j]));
                             }
                         });
  });
  for (std::int64_t c = n.channels / width * width; c < n.channels; ++c)
    for (std::int64_t i = 0; i < n.pixels; ++i) {
      const std::int64_t k = i * n.channels + c;
      n.dx[k] = T(n.a[c] * detail::incoming_scalar(n, k, c) + (n.b[c] * static_cast<float>(n.x[k]) + n.c[c]));
    }
}
TUTTI_DEFINE_DISPATCH(norm_backward_apply, norm_backward_apply_body);
TUTTI_CORE_INSTANCE(template void norm_backward_apply<float>(Isa, NormBackwardArgs<float>));
TUTTI_CORE_INSTANCE(template void norm_backward_apply<bf16>(Isa, NormBackwardArgs<bf16>));

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
