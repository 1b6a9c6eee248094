// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/backend/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// The passes of batch norm (+ residual) (+ relu) over NHWC data: `pixels` pixels of `channels` channels. Strips of up
// to 64 channels are held in registers over all pixels of the call; channels that are no multiple of 16 take a plain
// loop.
namespace tutti::cpu {

namespace detail {

// Calls f.template operator()<blocks>(first channel) for strips of 64, 32 and 16 channels; returns the first channel
// left.
template <class F>
TUTTI_INLINE std::int64_t strips(std::int64_t channels, F&& f) {
  std::int64_t c = 0;
  for (; c + 4 * width <= channels; c += 4 * width) f.template operator()<4>(c);
  for (; c + 2 * width <= channels; c += 2 * width) f.template operator()<2>(c);
  for (; c + width <= channels; c += width) f.template operator()<1>(c);
  return c;
}

}  // namespace detail

// sum[c] += sum of (x - pivot[c]); squares[c] += sum of (x - pivot[c])^2. The pivot, near the mean, keeps the
// difference of squares from cancelling.
template <Isa I, class T>
TUTTI_INLINE void norm_statistics_body(const T* x, std::int64_t pixels, std::int64_t channels, const float* pivot,
                                       double* sum, double* squares) {
  std::int64_t c = detail::strips(channels, [&]<int N>(std::int64_t first) TUTTI_LAMBDA {
    // Two accumulators each, for the latency of the addition.
    F16Value s[2][N], q[2][N], k[N];
    for (int j = 0; j < N; ++j) {
      s[0][j] = s[1][j] = q[0][j] = q[1][j] = broadcast(0);
      k[j] = load<I>(pivot + first + j * width);
    }
    const T* p = x + first;
    std::int64_t i = 0;
    for (; i + 2 <= pixels; i += 2)
      for (int u = 0; u < 2; ++u, p += channels)
        for (int j = 0; j < N; ++j) {
          const F16Value d = load<I>(p + j * width) - k[j];
          s[u][j] += d;
          q[u][j] += d * d;
        }
    if (i < pixels)
      for (int j = 0; j < N; ++j) {
        const F16Value d = load<I>(p + j * width) - k[j];
        s[0][j] += d;
        q[0][j] += d * d;
      }
    for (int j = 0; j < N; ++j)
      for (int e = 0; e < width; ++e) {
        sum[first + j * width + e] += static_cast<double>(s[0][j][e]) + static_cast<double>(s[1][j][e]);
        squares[first + j * width + e] += static_cast<double>(q[0][j][e]) + static_cast<double>(q[1][j][e]);
      }
  });
  for (; c < channels; ++c)
    for (std::int64_t i = 0; i < pixels; ++i) {
      const double d = static_cast<double>(static_cast<float>(x[i * channels + c])) - static_cast<double>(pivot[c]);
      sum[c] += d;
      squares[c] += d * d;
    }
}
TUTTI_DEFINE_DISPATCH(norm_statistics, norm_statistics_body);

// y = relu?(x * scale[c] + shift[c] (+ residual))
template <Isa I, class T>
TUTTI_INLINE void norm_apply_body(const T* x, const T* residual, T* y, std::int64_t pixels, std::int64_t channels,
                                  const float* scale, const float* shift, bool relu) {
  const auto strip = [&]<int N, bool Residual, bool Relu>(std::int64_t first) TUTTI_LAMBDA {
    F16Value a[N], b[N];
    for (int j = 0; j < N; ++j) {
      a[j] = load<I>(scale + first + j * width);
      b[j] = load<I>(shift + first + j * width);
    }
    for (std::int64_t i = 0, k = first; i < pixels; ++i, k += channels)
      for (int j = 0; j < N; ++j) {
        F16Value v = load<I>(x + k + j * width) * a[j] + b[j];
        if constexpr (Residual) v += load<I>(residual + k + j * width);
        if constexpr (Relu) v = max0(v);
        store<I>(y + k + j * width, v);
      }
  };
  std::int64_t c = detail::strips(channels, [&]<int N>(std::int64_t first) TUTTI_LAMBDA {
    if (residual != nullptr)
      relu ? strip.template operator()<N, true, true>(first) : strip.template operator()<N, true, false>(first);
    else
      relu ? strip.template operator()<N, false, true>(first) : strip.template operator()<N, false, false>(first);
  });
  for (; c < channels; ++c)
    for (std::int64_t i = 0; i < pixels; ++i) {
      const std::int64_t k = i * channels + c;
      float v = static_cast<float>(x[k]) * scale[c] + shift[c];
      if (residual != nullptr) v += static_cast<float>(residual[k]);
      y[k] = T(relu && v < 0 ? 0 : v);
    }
}
TUTTI_DEFINE_DISPATCH(norm_apply, norm_apply_body);

// What the two backward passes read. The incoming gradient is g = dy (+ dy2), masked by relu: by y > 0 where there was
// a residual (y set), else by x * scale + shift > 0.
template <class T>
struct NormBackwardArgs {
  const T* dy = nullptr;
  const T* dy2 = nullptr;
  const T* x = nullptr;
  const T* y = nullptr;
  T* masked = nullptr;  // where g goes (reduce) and comes from (apply), when the residual needs it
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

template <Isa I, class T, bool Second, bool Relu, bool MaskY>
TUTTI_INLINE F16Value incoming(const NormBackwardArgs<T>& n, std::int64_t k, F16Value x, F16Value scale,
                               F16Value shift) {
  F16Value g = load<I>(n.dy + k);
  if constexpr (Second) g += load<I>(n.dy2 + k);
  if constexpr (MaskY)
    g = keep_where_positive(load<I>(n.y + k), g);
  else if constexpr (Relu)
    g = keep_where_positive(x * scale + shift, g);
  return g;
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

// Calls f with the flags as constants.
template <class T, class F>
TUTTI_INLINE void with_flags(const NormBackwardArgs<T>& n, F&& f) {
  if (n.dy2 != nullptr) {
    if (n.y != nullptr)
      f.template operator()<true, true, true>();
    else if (n.relu)
      f.template operator()<true, true, false>();
    else
      f.template operator()<true, false, false>();
  } else {
    if (n.y != nullptr)
      f.template operator()<false, true, true>();
    else if (n.relu)
      f.template operator()<false, true, false>();
    else
      f.template operator()<false, false, false>();
  }
}

}  // namespace detail

// sum[c] += sum of g; dot[c] += sum of g * (x - mean[c]).
template <Isa I, class T>
TUTTI_INLINE void norm_backward_reduce_body(NormBackwardArgs<T> n, double* sum, double* dot) {
  std::int64_t c = detail::strips(n.channels, [&]<int N>(std::int64_t first) TUTTI_LAMBDA {
    detail::with_flags(n, [&]<bool Second, bool Relu, bool MaskY>() TUTTI_LAMBDA {
      F16Value s[N], d[N], scale[N], shift[N], mean[N];
      for (int j = 0; j < N; ++j) {
        s[j] = d[j] = broadcast(0);
        scale[j] = load<I>(n.scale + first + j * width);
        shift[j] = load<I>(n.shift + first + j * width);
        mean[j] = load<I>(n.mean + first + j * width);
      }
      const bool keep = n.masked != nullptr;
      for (std::int64_t i = 0, k = first; i < n.pixels; ++i, k += n.channels)
        for (int j = 0; j < N; ++j) {
          const F16Value x = load<I>(n.x + k + j * width);
          const F16Value g = detail::incoming<I, T, Second, Relu, MaskY>(n, k + j * width, x, scale[j], shift[j]);
          if (keep) store<I>(n.masked + k + j * width, g);
          s[j] += g;
          d[j] += g * (x - mean[j]);
        }
      for (int j = 0; j < N; ++j)
        for (int e = 0; e < width; ++e) {
          sum[first + j * width + e] += static_cast<double>(s[j][e]);
          dot[first + j * width + e] += static_cast<double>(d[j][e]);
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

template <Isa I, class T>
TUTTI_INLINE void norm_backward_apply_body(NormBackwardArgs<T> n) {
  std::int64_t c = detail::strips(n.channels, [&]<int N>(std::int64_t first) TUTTI_LAMBDA {
    F16Value a[N], b[N], shift_by[N], scale[N], shift[N];
    for (int j = 0; j < N; ++j) {
      a[j] = load<I>(n.a + first + j * width);
      b[j] = load<I>(n.b + first + j * width);
      shift_by[j] = load<I>(n.c + first + j * width);
      scale[j] = load<I>(n.scale + first + j * width);
      shift[j] = load<I>(n.shift + first + j * width);
    }
    if (n.masked != nullptr) {
      for (std::int64_t i = 0, k = first; i < n.pixels; ++i, k += n.channels)
        for (int j = 0; j < N; ++j)
          store<I>(n.dx + k + j * width,
                   a[j] * load<I>(n.masked + k + j * width) + (b[j] * load<I>(n.x + k + j * width) + shift_by[j]));
      return;
    }
    detail::with_flags(n, [&]<bool Second, bool Relu, bool MaskY>() TUTTI_LAMBDA {
      for (std::int64_t i = 0, k = first; i < n.pixels; ++i, k += n.channels)
        for (int j = 0; j < N; ++j) {
          const F16Value x = load<I>(n.x + k + j * width);
          const F16Value g = detail::incoming<I, T, Second, Relu, MaskY>(n, k + j * width, x, scale[j], shift[j]);
          store<I>(n.dx + k + j * width, a[j] * g + (b[j] * x + shift_by[j]));
        }
    });
  });
  for (; c < n.channels; ++c)
    for (std::int64_t i = 0; i < n.pixels; ++i) {
      const std::int64_t k = i * n.channels + c;
      const float g = n.masked != nullptr ? static_cast<float>(n.masked[k]) : detail::incoming_scalar(n, k, c);
      n.dx[k] = T(n.a[c] * g + (n.b[c] * static_cast<float>(n.x[k]) + n.c[c]));
    }
}
TUTTI_DEFINE_DISPATCH(norm_backward_apply, norm_backward_apply_body);

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
