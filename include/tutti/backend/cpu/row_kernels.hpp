// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tutti/backend/call.hpp>
#include <tutti/backend/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Small kernels over rows.
namespace tutti::cpu {

template <Isa I, class T>
TUTTI_INLINE void add_body(const T* a, const T* b, T* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + width <= n; i += width) store<I>(y + i, load<I>(a + i) + load<I>(b + i));
  for (; i < n; ++i) y[i] = T(static_cast<float>(a[i]) + static_cast<float>(b[i]));
}
TUTTI_DEFINE_DISPATCH(add, add_body);

// dw [out, in] += dy^T x; db [out] += column sums of dy.
template <Isa I, class T>
TUTTI_INLINE void linear_backward_weights_body(const T* x, const T* dy, float* dw, float* db, std::int64_t rows,
                                               std::int64_t in, std::int64_t out) {
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t n = 0; n < rows; ++n) {
      const float g = static_cast<float>(dy[n * out + o]);
      db[o] += g;
      float* w = dw + o * in;
      const T* xr = x + n * in;
      std::int64_t i = 0;
      for (; i + width <= in; i += width)
        store<I>(w + i, load<I>(static_cast<const float*>(w + i)) + broadcast(g) * load<I>(xr + i));
      for (; i < in; ++i) w[i] += g * static_cast<float>(xr[i]);
    }
  }
}
TUTTI_DEFINE_DISPATCH(linear_backward_weights, linear_backward_weights_body);

// Adds the lanes' partial arrays, which lie one behind the other, into `to`, in the order of the lanes.
template <std::size_t K>
void sum_lanes(const Call& c, const std::array<float*, K>& to, const std::array<std::size_t, K>& counts) {
  std::size_t offset = 0;
  for (std::size_t k = 0; k < K; ++k) {
    for (int l = 0; l < c.lanes; ++l) {
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
