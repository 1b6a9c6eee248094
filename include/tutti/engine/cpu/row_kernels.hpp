// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tutti/core/separate.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Small kernels over rows.
namespace tutti::cpu {

template <Isa I, class T>
TUTTI_INLINE void add_body(const T* a, const T* b, T* y, std::int64_t n) {
  constexpr int width = lanes_of<I>;
  std::int64_t i = 0;
  for (; i + width <= n; i += width) {
    F<I> u, v;
    load<I>(u, a + i);
    load<I>(v, b + i);
    store<I>(y + i, u + v);
  }
  for (; i < n; ++i) y[i] = T(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}
TUTTI_DEFINE_DISPATCH(add, add_body);
TUTTI_CORE_INSTANCE(template void add<float>(Isa, const float*, const float*, float*, std::int64_t));
TUTTI_CORE_INSTANCE(template void add<bf16>(Isa, const bf16*, const bf16*, bf16*, std::int64_t));

// u8 pixels -> (x - mean[c]) * inv_std[c]. As many pixels as a register has lanes fill `channels` registers with
// repeating factors.
template <Isa I, class T>
TUTTI_INLINE void normalize_body(const std::uint8_t* x, T* y, std::int64_t n, std::int64_t channels, const float* mean,
                                 const float* inv_std) {
  constexpr std::int64_t most = 4;
  constexpr int width = lanes_of<I>;
  float m[most * width], s[most * width];
  std::int64_t i = 0;
  if (channels <= most) {
    for (std::int64_t k = 0; k < channels * width; ++k) {
      m[k] = mean[k % channels];
      s[k] = inv_std[k % channels];
    }
    for (; i + channels * width <= n; i += channels * width)
      for (std::int64_t j = 0; j < channels; ++j) {
        F<I> pixel, by, times;
        load<I>(pixel, x + i + j * width);
        load<I>(by, static_cast<const float*>(m + j * width));
        load<I>(times, static_cast<const float*>(s + j * width));
        store<I>(y + i + j * width, (pixel - by) * times);
      }
  }
  for (; i < n; ++i) y[i] = T((static_cast<float>(x[i]) - mean[i % channels]) * inv_std[i % channels]);
}
TUTTI_DEFINE_DISPATCH(normalize, normalize_body);
TUTTI_CORE_INSTANCE(template void normalize<float>(Isa, const std::uint8_t*, float*, std::int64_t, std::int64_t,
                                                   const float*, const float*));
TUTTI_CORE_INSTANCE(template void normalize<bf16>(Isa, const std::uint8_t*, bf16*, std::int64_t, std::int64_t,
                                                  const float*, const float*));

// [rows, pixels, channels] -> [rows, channels]
template <Isa I, class T>
TUTTI_INLINE void global_avg_pool_body(const T* x, T* y, std::int64_t rows, std::int64_t pixels,
                                       std::int64_t channels) {
  constexpr int width = lanes_of<I>;
  const float inv = 1.0F / static_cast<float>(pixels);
  for (std::int64_t n = 0; n < rows; ++n, x += pixels * channels, y += channels) {
    std::int64_t c = 0;
    for (; c + width <= channels; c += width) {
      F<I> sum = F<I>{};
      for (std::int64_t i = 0; i < pixels; ++i) {
        F<I> v;
        load<I>(v, x + i * channels + c);
        sum += v;
      }
      store<I>(y + c, sum * inv);
    }
    for (; c < channels; ++c) {
      float sum = 0;
      for (std::int64_t i = 0; i < pixels; ++i) sum += static_cast<float>(x[i * channels + c]);
      y[c] = T(sum * inv);
    }
  }
}
TUTTI_DEFINE_DISPATCH(global_avg_pool, global_avg_pool_body);
TUTTI_CORE_INSTANCE(template void global_avg_pool<float>(Isa, const float*, float*, std::int64_t, std::int64_t,
                                                         std::int64_t));
TUTTI_CORE_INSTANCE(template void global_avg_pool<bf16>(Isa, const bf16*, bf16*, std::int64_t, std::int64_t,
                                                        std::int64_t));

// [rows, channels] -> [rows, pixels, channels]
template <Isa I, class T>
TUTTI_INLINE void global_avg_pool_backward_body(const T* dy, T* dx, std::int64_t rows, std::int64_t pixels,
                                                std::int64_t channels) {
  constexpr int width = lanes_of<I>;
  const float inv = 1.0F / static_cast<float>(pixels);
  for (std::int64_t n = 0; n < rows; ++n, dx += pixels * channels, dy += channels) {
    std::int64_t c = 0;
    for (; c + width <= channels; c += width) {
      F<I> g;
      load<I>(g, dy + c);
      g *= inv;
      for (std::int64_t i = 0; i < pixels; ++i) store<I>(dx + i * channels + c, g);
    }
    for (; c < channels; ++c)
      for (std::int64_t i = 0; i < pixels; ++i) dx[i * channels + c] = T(static_cast<float>(dy[c]) * inv);
  }
}
TUTTI_DEFINE_DISPATCH(global_avg_pool_backward, global_avg_pool_backward_body);
TUTTI_CORE_INSTANCE(template void global_avg_pool_backward<float>(Isa, const float*, float*, std::int64_t, std::int64_t,
                                                                  std::int64_t));
TUTTI_CORE_INSTANCE(template void global_avg_pool_backward<bf16>(Isa, const bf16*, bf16*, std::int64_t, std::int64_t,
                                                                 std::int64_t));

// dw [out, in] += dy^T x; db [out] += column sums of dy, with rows `stride` apart.
template <Isa I, class T>
TUTTI_INLINE void linear_backward_weights_body(const T* x, const T* dy, float* dw, float* db, std::int64_t rows,
                                               std::int64_t in, std::int64_t out, std::int64_t stride) {
  constexpr int width = lanes_of<I>;
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t n = 0; n < rows; ++n) {
      const float g = static_cast<float>(dy[n * stride + o]);
      db[o] += g;
      float* w = dw + o * in;
      const T* xr = x + n * in;
      std::int64_t i = 0;
      for (; i + width <= in; i += width) {
        F<I> sum, v;
        load<I>(sum, static_cast<const float*>(w + i));
        load<I>(v, xr + i);
        store<I>(w + i, sum + g * v);
      }
      for (; i < in; ++i) w[i] += g * static_cast<float>(xr[i]);
    }
  }
}
TUTTI_DEFINE_READER_DISPATCH(linear_backward_weights, linear_backward_weights_body);
TUTTI_CORE_INSTANCE(template void linear_backward_weights<float>(Isa, const float*, const float*, float*, float*,
                                                                 std::int64_t, std::int64_t, std::int64_t,
                                                                 std::int64_t));
TUTTI_CORE_INSTANCE(template void linear_backward_weights<bf16>(Isa, const bf16*, const bf16*, float*, float*,
                                                                std::int64_t, std::int64_t, std::int64_t,
                                                                std::int64_t));

// sums[c] += the sum over pixels of x[c].
template <Isa I, class T>
TUTTI_INLINE void column_sums_body(const T* x, std::int64_t pixels, std::int64_t channels, double* sums) {
  constexpr int width = lanes_of<I>;
  std::int64_t c = 0;
  for (; c + width <= channels; c += width) {
    F<I> sum[4] = {};  // hides the latency of the addition
    for (std::int64_t i = 0; i < pixels; ++i) {
      F<I> v;
      load<I>(v, x + i * channels + c);
      sum[i % 4] += v;
    }
    for (const F<I>& s : sum) add_lanes<I>(sums + c, s);
  }
  for (; c < channels; ++c)
    for (std::int64_t i = 0; i < pixels; ++i) sums[c] += static_cast<double>(static_cast<float>(x[i * channels + c]));
}
TUTTI_DEFINE_READER_DISPATCH(column_sums, column_sums_body);
TUTTI_CORE_INSTANCE(template void column_sums<float>(Isa, const float*, std::int64_t, std::int64_t, double*));
TUTTI_CORE_INSTANCE(template void column_sums<bf16>(Isa, const bf16*, std::int64_t, std::int64_t, double*));

// Adds the shards' partial arrays, which are stored one after the other, into `to`, in the order of the shards.
template <std::size_t K>
void sum_shards(const Call& c, const std::array<float*, K>& to, const std::array<std::size_t, K>& counts) {
  std::size_t offset = 0;
  for (std::size_t k = 0; k < K; ++k) {
    for (int l = 0; l < c.shards; ++l) {
      const float* from = reinterpret_cast<const float*>(c.partial_of(l)) + offset;
      for (std::size_t i = 0; i < counts[k]; ++i) to[k][i] = l == 0 ? from[i] : to[k][i] + from[i];
    }
    offset += counts[k];
  }
}

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
