// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/math.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Factors of channels, concatenation, layer norm and dropout as simple loops, NHWC. They read and write each element by
// a function that looks at its type: one loop for all types compiles faster than a template.
namespace tutti::reference {

[[nodiscard]] inline double at(const TensorRef& t, std::int64_t i) {
  if (t.dtype == DType::f64) return t.as<double>()[i];
  if (t.dtype == DType::f32) return static_cast<double>(t.as<float>()[i]);
  if (t.dtype == DType::bf16) return static_cast<double>(static_cast<float>(t.as<bf16>()[i]));
  fail<UsageError>("reference", "f32, bf16 or f64", name_of(t.dtype));
}
inline void set(const TensorRef& t, std::int64_t i, double v) {
  if (t.dtype == DType::f64)
    t.as<double>()[i] = v;
  else if (t.dtype == DType::f32)
    t.as<float>()[i] = static_cast<float>(v);
  else if (t.dtype == DType::bf16)
    t.as<bf16>()[i] = static_cast<bf16>(v);
  else
    fail<UsageError>("reference", "f32, bf16 or f64", name_of(t.dtype));
}

// x times one factor for each image and channel, [N,C,1,1], or for each channel.
inline void multiply(const Call& c) {
  const TensorRef &x = c.in[0], &f = c.in[1];
  const std::int64_t channels = x.shape[1], row = x.shape.row_numel(), factors = f.shape.numel();
  for (std::int64_t i = 0, n = x.shape.numel(); i < n; ++i) {
    const std::int64_t image = factors == channels ? 0 : i / row;
    set(c.out[0], i, at(x, i) * at(f, image * channels + i % channels));
  }
}
// The sum of dy * x over the pixels of an image, or of all images.
inline void multiply_backward(const Call& c) {
  const TensorRef &dy = c.in[0], &x = c.in[1], &df = c.out[0];
  const std::int64_t channels = x.shape[1], factors = df.shape.numel(), part = x.shape.numel() / (factors / channels);
  for (std::int64_t k = 0; k < factors; ++k) {
    double sum = 0;
    for (std::int64_t i = k / channels * part + k % channels; i < (k / channels + 1) * part; i += channels)
      sum += at(dy, i) * at(x, i);
    set(df, k, sum);
  }
}

// Channels [to, ...) of y = channels [from, ...) of x; copies the smaller number of channels.
inline void copy_channels(const TensorRef& x, std::int64_t from, const TensorRef& y, std::int64_t to) {
  const std::int64_t in = x.shape[1], out = y.shape[1], both = std::min(in, out);
  for (std::int64_t i = 0; i < x.shape.numel() / in; ++i)
    for (std::int64_t k = 0; k < both; ++k) set(y, i * out + to + k, at(x, i * in + from + k));
}
inline void concat(const Call& c) {
  std::int64_t first = 0;
  for (std::size_t k = 0; k < static_cast<std::size_t>(c.inputs); first += c.in[k++].shape[1])
    copy_channels(c.in[k], 0, c.out[0], first);
}

// The mean of `count` values from `first` on, and 1 / sqrt(var + eps).
inline void moments(const TensorRef& x, std::int64_t first, std::int64_t count, double eps, double& mean,
                    double& inv_std) {
  double sum = 0, squares = 0;
  for (std::int64_t k = 0; k < count; ++k) sum += at(x, first + k);
  mean = sum / static_cast<double>(count);
  for (std::int64_t k = 0; k < count; ++k) squares += (at(x, first + k) - mean) * (at(x, first + k) - mean);
  inv_std = 1 / math::sqrt(squares / static_cast<double>(count) + eps);
}
inline void layer_norm(const op::LayerNorm& o, const Call& c) {
  const TensorRef& x = c.in[0];
  const std::int64_t channels = x.shape[1];
  for (std::int64_t first = 0; first < x.shape.numel(); first += channels) {
    double mean = 0, inv_std = 0;
    moments(x, first, channels, static_cast<double>(o.eps), mean, inv_std);
    for (std::int64_t k = 0; k < channels; ++k)
      set(c.out[0], first + k, at(c.in[1], k) * (at(x, first + k) - mean) * inv_std + at(c.in[2], k));
  }
}
inline void layer_norm_backward(const op::LayerNormBackward& o, const Call& c) {
  const TensorRef &dy = c.in[0], &x = c.in[1], &gamma = c.in[2];
  const std::int64_t channels = x.shape[1];
  std::vector<double> dgamma(static_cast<std::size_t>(channels)), dbeta(dgamma.size());
  for (std::int64_t first = 0; first < x.shape.numel(); first += channels) {
    double mean = 0, inv_std = 0, sum = 0, dot = 0;
    moments(x, first, channels, static_cast<double>(o.eps), mean, inv_std);
    const auto normalised = [&](std::int64_t k) { return (at(x, first + k) - mean) * inv_std; };
    for (std::int64_t k = 0; k < channels; ++k) {
      const double d = at(dy, first + k), g = d * at(gamma, k);
      dgamma[static_cast<std::size_t>(k)] += d * normalised(k);
      dbeta[static_cast<std::size_t>(k)] += d;
      sum += g / static_cast<double>(channels);
      dot += g * normalised(k) / static_cast<double>(channels);
    }
    for (std::int64_t k = 0; k < channels; ++k)
      set(c.out[0], first + k, inv_std * (at(dy, first + k) * at(gamma, k) - sum - normalised(k) * dot));
  }
  for (std::int64_t k = 0; k < channels; ++k) {
    set(c.out[1], k, dgamma[static_cast<std::size_t>(k)]);
    set(c.out[2], k, dbeta[static_cast<std::size_t>(k)]);
  }
}

inline void dropout(const op::Dropout& o, const Call& c) {
  const std::int64_t row = c.in[0].shape.row_numel();
  for (std::int64_t n = 0; n < c.in[0].shape[0]; ++n) {
    if (o.rate == 0) {
      for (std::int64_t i = n * row; i < (n + 1) * row; ++i) set(c.out[0], i, at(c.in[0], i));
      continue;
    }
    Rng numbers = o.numbers_of(c.scalars->key, c.first_row + n);
    float factor = o.rows ? o.next_factor(numbers) : 0;
    for (std::int64_t i = n * row; i < (n + 1) * row; ++i) {
      if (!o.rows) factor = o.next_factor(numbers);
      set(c.out[0], i, at(c.in[0], i) * static_cast<double>(factor));
    }
  }
}

}  // namespace tutti::reference
