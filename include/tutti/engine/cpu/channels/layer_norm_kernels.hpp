// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/math.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Layer norm over the channels of each pixel, NHWC, in f32. Values in bf16 are converted in the L1 cache, as for
// activations.
namespace tutti::cpu {

namespace detail {

template <Isa I>
TUTTI_INLINE float total(const F<I>& v) {
  constexpr int width = lanes_of<I>;
  float lane[width];
  store<I>(static_cast<float*>(lane), v);
  float sum[4] = {};
  for (int e = 0; e < width; e += 4)
    for (int k = 0; k < 4; ++k) sum[k] += lane[e + k];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Computes the mean of a pixel's channels and 1 / sqrt(var + eps). In two passes, which avoids cancellation.
template <Isa I>
TUTTI_INLINE void moments(const float* x, std::int64_t channels, float eps, float& mean, float& inv_std) {
  constexpr int width = lanes_of<I>;
  const float share = 1.0F / static_cast<float>(channels);
  F<I> sum = F<I>{}, squares = F<I>{};
  std::int64_t c = 0;
  for (; c + width <= channels; c += width) {
    F<I> v;
    load<I>(v, x + c);
    sum += v;
  }
  float rest = 0;
  for (std::int64_t k = c; k < channels; ++k) rest += x[k];
  mean = (total<I>(sum) + rest) * share;
  for (c = 0; c + width <= channels; c += width) {
    F<I> v;
    load<I>(v, x + c);
    v -= mean;
    squares += v * v;
  }
  rest = 0;
  for (; c < channels; ++c) rest += (x[c] - mean) * (x[c] - mean);
  inv_std = 1.0F / math::sqrt((total<I>(squares) + rest) * share + eps);
}

}  // namespace detail

// Operands of some pixels: x, dy and out are [pixels, channels].
struct LayerNormArgs {
  std::int64_t pixels = 0, channels = 0;
  float eps = 0;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* x = nullptr;
  const float* dy = nullptr;  // null: forward
  float* out = nullptr;       // y, or dx
  float* dgamma = nullptr;    // the sums over the pixels are added
  float* dbeta = nullptr;
};

// Forward: y = (x - mean) * inv_std * gamma + beta. Backward: dx = inv_std * (g - mean(g) - xhat * mean(g * xhat)) with
// g = dy * gamma and xhat = (x - mean) * inv_std.
template <Isa I>
TUTTI_INLINE void layer_norm_body(LayerNormArgs a) {
  constexpr int width = lanes_of<I>;
  const float *x = a.x, *dy = a.dy;
  float* out = a.out;
  const float share = 1.0F / static_cast<float>(a.channels);
  for (std::int64_t i = 0; i < a.pixels; ++i, x += a.channels, out += a.channels) {
    float mean = 0, inv_std = 0;
    detail::moments<I>(x, a.channels, a.eps, mean, inv_std);
    std::int64_t c = 0;
    F<I> v, d, gamma, beta;
    if (dy == nullptr) {
      for (; c + width <= a.channels; c += width) {
        load<I>(v, x + c);
        load<I>(gamma, a.gamma + c);
        load<I>(beta, a.beta + c);
        store<I>(out + c, (v - mean) * inv_std * gamma + beta);
      }
      for (; c < a.channels; ++c) out[c] = (x[c] - mean) * inv_std * a.gamma[c] + a.beta[c];
      continue;
    }
    float rest = 0, rest_dot = 0;
    F<I> sum = F<I>{}, dot = F<I>{}, dgamma, dbeta;
    for (; c + width <= a.channels; c += width) {
      load<I>(v, x + c);
      load<I>(d, dy + c);
      load<I>(gamma, a.gamma + c);
      load<I>(dgamma, static_cast<const float*>(a.dgamma + c));
      load<I>(dbeta, static_cast<const float*>(a.dbeta + c));
      v = (v - mean) * inv_std;
      store<I>(a.dgamma + c, dgamma + d * v);
      store<I>(a.dbeta + c, dbeta + d);
      d *= gamma;
      sum += d;
      dot += d * v;
    }
    for (std::int64_t k = c; k < a.channels; ++k) {
      const float xhat = (x[k] - mean) * inv_std;
      a.dgamma[k] += dy[k] * xhat;
      a.dbeta[k] += dy[k];
      rest += dy[k] * a.gamma[k];
      rest_dot += dy[k] * a.gamma[k] * xhat;
    }
    const float mean_g = (detail::total<I>(sum) + rest) * share, mean_dot = (detail::total<I>(dot) + rest_dot) * share;
    for (c = 0; c + width <= a.channels; c += width) {
      load<I>(v, x + c);
      load<I>(d, dy + c);
      load<I>(gamma, a.gamma + c);
      v = (v - mean) * inv_std;
      store<I>(out + c, (d * gamma - mean_g - v * mean_dot) * inv_std);
    }
    for (; c < a.channels; ++c) out[c] = (dy[c] * a.gamma[c] - mean_g - (x[c] - mean) * inv_std * mean_dot) * inv_std;
    dy += a.channels;
  }
}
TUTTI_DEFINE_READER_DISPATCH(layer_norm, layer_norm_body);
TUTTI_CORE_INSTANCE(template void layer_norm<>(Isa, LayerNormArgs));

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
