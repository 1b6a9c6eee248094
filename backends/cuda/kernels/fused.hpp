// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: the parts of batch norm between fused convolutions. This source must follow norm.hpp, because it
// uses the tiles and partial sums of norm.hpp.
namespace tutti::cuda::kernels {

inline constexpr char fused[] = R"cuda(
// Computes the sums of x and of its squares from the results of norm_statistics for each chunk.
__global__ void norm_sums_finish(const float* partial, int chunks, i64 chunk, i64 all, int channels, float* sum,
                                 float* square_sum) {
  wait_for_earlier_kernels();
  const int c = finish_channel();
  const bool there = c < channels;
  const auto at = [&](int k, int which) { return there ? (double)partial[((i64)k * 2 + which) * channels + c] : 0.0; };
  const auto count = [&](int k) { return (double)((k + 1) * chunk < all ? chunk : all - k * chunk); };
  const double s = sum_chunks(chunks, [&](int k) { return count(k) * at(k, 0); });
  const double q = sum_chunks(chunks, [&](int k) { return at(k, 1) + count(k) * at(k, 0) * at(k, 0); });
  if (!there || threadIdx.x >= finish_lanes) return;
  sum[c] = (float)s;
  square_sum[c] = (float)q;
}

// Computes the statistics of a batch from its sums, one thread per channel. Also computes scale and bias, unless null:
// the batch norm is scale * x + bias. bias is computed with the rounded scale.
template <class T>
__global__ void norm_from_sums(const float* sum, const float* square_sum, i64 all, int channels, float eps,
                               float momentum, const float* gamma, const float* beta, float* running_mean,
                               float* running_var, float* mean, float* inv_std, T* scale, T* bias) {
  wait_for_earlier_kernels();
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  const double n = (double)all, mu = sum[c] / n;
  const double off = (double)square_sum[c] - sum[c] * mu, squares = off < 0 ? 0 : off;
  const double var = squares / n, unbiased = all > 1 ? squares / (n - 1) : var;
  const double is = 1 / sqrt(var + (double)eps);
  mean[c] = (float)mu;
  inv_std[c] = (float)is;
  running_mean[c] = (float)((1 - (double)momentum) * running_mean[c] + (double)momentum * mu);
  running_var[c] = (float)((1 - (double)momentum) * running_var[c] + (double)momentum * unbiased);
  if (!scale) return;
  const T s = from_float<T>((float)(gamma[c] * is));
  scale[c] = s;
  bias[c] = from_float<T>((float)(beta[c] - mu * to_float(s)));
}

// y = relu(scale * x + bias). V must divide the channels.
template <class T, int V>
__global__ void activate(const T* x, const T* scale, const T* bias, T* y, int channels, i64 n) {
  wait_for_earlier_kernels();
  for (i64 k = first_index(); k < n / V; k += index_step()) {
    const int c = (int)(k * V % channels);
    float f[V], s[V], b[V];
    load_floats<T, V>(x + k * V, f);
    load_floats<T, V>(scale + c, s);
    load_floats<T, V>(bias + c, b);
    #pragma unroll
    for (int j = 0; j < V; ++j) f[j] = relu(fmaf(f[j], s[j], b[j]));
    store_floats<T, V>(y + k * V, f);
  }
}

// Computes dgamma, dbeta and the factors of dx = from_g * g + from_x * x + constant from the results of
// norm_backward_sums.
__global__ void norm_backward_factors(const float* partial, int chunks, i64 all, int channels, const float* gamma,
                                      const float* mean, const float* inv_std, float* dgamma, float* dbeta,
                                      float* from_g, float* from_x, float* constant) {
  wait_for_earlier_kernels();
  const int c = finish_channel();
  const bool there = c < channels;
  const auto at = [&](int k, int which) { return there ? (double)partial[((i64)k * 2 + which) * channels + c] : 0.0; };
  const double sum = sum_chunks(chunks, [&](int k) { return at(k, 0); });
  const double dot = sum_chunks(chunks, [&](int k) { return at(k, 1); });
  if (!there || threadIdx.x >= finish_lanes) return;
  const double is = inv_std[c], s = gamma[c] * is, n = (double)all;
  dbeta[c] = (float)sum;
  dgamma[c] = (float)dot;
  from_g[c] = (float)s;
  from_x[c] = (float)(-s * is * dot / n);
  constant[c] = (float)(s * (mean[c] * is * dot / n - sum / n));
}

// dx = from_g * (g if the relu was active, else 0) + from_x * x + constant
template <class T, int V>
__global__ void __launch_bounds__(256, 2)
    norm_backward_affine(const T* g, const T* x, const float* gamma, const float* beta, const float* mean,
                         const float* inv_std, const float* from_g, const float* from_x, const float* constant, T* dx,
                         i64 all, int channels, int lw, i64 chunk) {
  wait_for_earlier_kernels();
  const Tile t(lw, V, all, chunk, blockIdx.y);
  if (t.channel >= channels) return;
  float mu[V], scale[V], shift[V], a[V], b[V], k[V];
  scale_of<V>(gamma, inv_std, t.channel, 0, 0.0f, scale);
  load_channels(mean + t.channel, mu);
  load_channels(beta + t.channel, shift);
  load_channels(from_g + t.channel, a);
  load_channels(from_x + t.channel, b);
  load_channels(constant + t.channel, k);
  struct Row {
    Vec<T, V> g, x;
  };
  stream<3>(t.mine, t.last(channels), -(i64)t.rows * channels,
            [&](i64 at) {
              Row r;
              r.x = load<T, V>(x + at);
              r.g = load<T, V>(g + at);
              return r;
            },
            [&](i64 at, const Row& r) {
              float d[V];
              #pragma unroll
              for (int j = 0; j < V; ++j) {
                const float f = to_float(r.x.v[j]);
                const float incoming = fmaf(f - mu[j], scale[j], shift[j]) > 0 ? a[j] * to_float(r.g.v[j]) : 0.0f;
                d[j] = incoming + fmaf(b[j], f, k[j]);
              }
              store_floats<T, V>(dx + at, d);
            });
}
)cuda";

}  // namespace tutti::cuda::kernels
