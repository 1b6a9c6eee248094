// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: batch norm and other sums over all pixels of a channel, NHWC. 256 threads are 2^lw threads across
// groups of V channels times rows (pixels). blockIdx.x: which groups, blockIdx.y: which chunk of rows. The partial sums
// of a chunk are [chunk][2][channels]; they are added in the order of the chunks, so sums are the same in every run.
namespace tutti::cuda::kernels {

inline constexpr char norm[] = R"cuda(
struct Tile {
  int lanes, rows, lane, row, channel;
  i64 begin, end;
  inline Tile(int lw, int v, i64 all, i64 chunk) {
    lanes = 1 << lw;
    rows = 256 >> lw;
    lane = threadIdx.x & (lanes - 1);
    row = threadIdx.x >> lw;
    channel = (blockIdx.x * lanes + lane) * v;
    begin = blockIdx.y * chunk;
    end = begin + chunk < all ? begin + chunk : all;
  }
  // The thread's last row. A kernel that reads what the one before it has read goes from there back to begin: it meets
  // first what the L2 cache still holds, and leaves there where the next kernel begins.
  inline i64 last() const { return begin + row + ((end - begin - row + rows - 1) / rows - 1) * rows; }
};

// Adds up two values per thread over the tile's rows, in a fixed order, and writes them for the chunk.
template <int V>
inline void write_partial(const Tile& t, float (&a)[V], float (&b)[V], float* partial, int channels) {
  __shared__ float first[256 * V], second[256 * V];
  const int me = threadIdx.x;
  #pragma unroll
  for (int j = 0; j < V; ++j) {
    first[j * 256 + me] = a[j];
    second[j * 256 + me] = b[j];
  }
  for (int h = t.rows / 2; h > 0; h /= 2) {
    __syncthreads();
    if (t.row < h) {
      #pragma unroll
      for (int j = 0; j < V; ++j) {
        first[j * 256 + me] += first[j * 256 + me + h * t.lanes];
        second[j * 256 + me] += second[j * 256 + me + h * t.lanes];
      }
    }
  }
  if (t.row == 0 && t.channel < channels) {
    float* to = partial + (i64)blockIdx.y * 2 * channels + t.channel;
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      to[j] = first[j * 256 + me];
      to[channels + j] = second[j * 256 + me];
    }
  }
}

// Per chunk and channel: the mean, and the sum of squared distances from it. Sums are of distances from the thread's
// first value, so that a mean far from zero costs no digits; parts are joined as by Chan, Golub and LeVeque 1979.
template <class T, int V>
__global__ void norm_statistics(const T* __restrict__ x, float* __restrict__ partial, i64 all, int channels, int lw,
                                i64 chunk) {
  __shared__ float means[256 * V], squares[256 * V], counts[256];
  const Tile t(lw, V, all, chunk);
  const int me = threadIdx.x;
  float pivot[V], s1[V], s2[V], n = 0;
  #pragma unroll
  for (int j = 0; j < V; ++j) pivot[j] = s1[j] = s2[j] = 0;
  if (t.channel < channels) {
    const T* p = x + t.channel;
    if (t.begin + t.row < t.end) load_floats<T, V>(p + (t.begin + t.row) * channels, pivot);
    #pragma unroll 4
    for (i64 r = t.begin + t.row; r < t.end; r += t.rows) {
      float f[V];
      load_floats<T, V>(p + r * channels, f);
      #pragma unroll
      for (int j = 0; j < V; ++j) {
        const float d = f[j] - pivot[j];
        s1[j] += d;
        s2[j] = fmaf(d, d, s2[j]);
      }
      n += 1;
    }
  }
  counts[me] = n;
  const float inverse = n > 0 ? 1 / n : 0;
  #pragma unroll
  for (int j = 0; j < V; ++j) {
    const float d = s1[j] * inverse;
    means[j * 256 + me] = pivot[j] + d;
    squares[j * 256 + me] = n > 0 ? s2[j] - s1[j] * d : 0;
  }
  for (int h = t.rows / 2; h > 0; h /= 2) {
    __syncthreads();
    if (t.row < h) {
      const int other = me + h * t.lanes;
      const float na = counts[me], nb = counts[other], both = na + nb;
      if (nb > 0) {
        const float share = nb / both;
        #pragma unroll
        for (int j = 0; j < V; ++j) {
          const float d = means[j * 256 + other] - means[j * 256 + me];
          squares[j * 256 + me] += squares[j * 256 + other] + d * d * na * share;
          means[j * 256 + me] += d * share;
        }
        counts[me] = both;
      }
    }
  }
  if (t.row == 0 && t.channel < channels) {
    float* to = partial + (i64)blockIdx.y * 2 * channels + t.channel;
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      to[j] = means[j * 256 + me];
      to[channels + j] = squares[j * 256 + me];
    }
  }
}

// 256 threads: 32 channels times 8 groups of neighbouring chunks. f(chunk) summed over all chunks, in order; all
// threads of a channel get the sum.
template <class F>
inline double sum_chunks(int chunks, F f) {
  __shared__ double sums[256];
  const int lane = threadIdx.x & 31, group = threadIdx.x >> 5;
  const int begin = (int)((i64)chunks * group / 8), end = (int)((i64)chunks * (group + 1) / 8);
  double sum = 0;
  for (int k = begin; k < end; ++k) sum += f(k);
  __syncthreads();
  sums[threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  for (int g = 0; g < 8; ++g) sum += sums[g * 32 + lane];
  return sum;
}

__global__ void norm_finish(const float* partial, int chunks, i64 chunk, i64 all, int channels, float eps,
                            float momentum, float* running_mean, float* running_var, float* mean, float* inv_std) {
  const int c = blockIdx.x * 32 + (threadIdx.x & 31);
  const bool there = c < channels;
  const auto at = [&](int k, int which) { return there ? (double)partial[((i64)k * 2 + which) * channels + c] : 0.0; };
  const auto count = [&](int k) { return (double)((k + 1) * chunk < all ? chunk : all - k * chunk); };
  const double n = (double)all;
  const double mu = sum_chunks(chunks, [&](int k) { return count(k) * at(k, 0); }) / n;
  const double squares = sum_chunks(chunks, [&](int k) {
    const double d = at(k, 0) - mu;
    return at(k, 1) + count(k) * d * d;
  });
  if (!there || threadIdx.x >= 32) return;
  const double var = squares / n, unbiased = all > 1 ? squares / (n - 1) : var;
  mean[c] = (float)mu;
  inv_std[c] = (float)(1 / sqrt(var + (double)eps));
  running_mean[c] = (float)((1 - (double)momentum) * running_mean[c] + (double)momentum * mu);
  running_var[c] = (float)((1 - (double)momentum) * running_var[c] + (double)momentum * unbiased);
}

// `spread`: the inverse standard deviation, or with from_variance the variance.
template <int V>
inline void scale_of(const float* gamma, const float* spread, int c, int from_variance, float eps, float (&scale)[V]) {
  #pragma unroll
  for (int j = 0; j < V; ++j) {
    const float s = from_variance ? 1 / sqrtf(spread[c + j] + eps) : spread[c + j];
    scale[j] = gamma[c + j] * s;
  }
}

template <class T, int V>
__global__ void norm_apply(const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y,
                           const float* __restrict__ mean, const float* __restrict__ spread,
                           const float* __restrict__ gamma, const float* __restrict__ beta, i64 all, int channels,
                           int lw, i64 chunk, int from_variance, float eps, int with_relu) {
  const Tile t(lw, V, all, chunk);
  if (t.channel >= channels) return;
  float mu[V], scale[V], shift[V];
  scale_of<V>(gamma, spread, t.channel, from_variance, eps, scale);
  #pragma unroll
  for (int j = 0; j < V; ++j) {
    mu[j] = mean[t.channel + j];
    shift[j] = beta[t.channel + j];
  }
  #pragma unroll 4
  for (i64 r = t.last(); r >= t.begin; r -= t.rows) {
    const i64 i = r * channels + t.channel;
    float f[V], add[V];
    load_floats<T, V>(x + i, f);
    if (residual) load_floats<T, V>(residual + i, add);
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      f[j] = fmaf(f[j] - mu[j], scale[j], shift[j]);
      if (residual) f[j] += add[j];
      if (with_relu) f[j] = relu(f[j]);
    }
    store_floats<T, V>(y + i, f);
  }
}

// The gradient that comes in: dy (+ dy2), zero where the forward relu was not active. mask: 0 none, 1 the sign of the
// output computed again, 2 the sign of y.
template <class T, int V>
inline void incoming(const T* dy, const T* dy2, const T* y, i64 i, const float (&off)[V], const float (&scale)[V],
                     const float (&shift)[V], int mask, float (&g)[V]) {
  load_floats<T, V>(dy + i, g);
  if (dy2) {
    float more[V];
    load_floats<T, V>(dy2 + i, more);
    #pragma unroll
    for (int j = 0; j < V; ++j) g[j] += more[j];
  }
  if (mask == 1) {
    #pragma unroll
    for (int j = 0; j < V; ++j) g[j] = fmaf(off[j], scale[j], shift[j]) > 0 ? g[j] : 0.0f;
  } else if (mask == 2) {
    float out[V];
    load_floats<T, V>(y + i, out);
    #pragma unroll
    for (int j = 0; j < V; ++j) g[j] = out[j] > 0 ? g[j] : 0.0f;
  }
}

// Per chunk and channel: the sums of g and of g times the normalised x. Keeps g where dresidual is asked for.
template <class T, int V>
__global__ void norm_backward_sums(const T* __restrict__ dy, const T* __restrict__ dy2, const T* __restrict__ x,
                                   const T* __restrict__ y, const float* __restrict__ mean,
                                   const float* __restrict__ inv_std, const float* __restrict__ gamma,
                                   const float* __restrict__ beta, T* __restrict__ dresidual,
                                   float* __restrict__ partial, i64 all, int channels, int lw, i64 chunk, int mask) {
  const Tile t(lw, V, all, chunk);
  float sum[V], dot[V];
  #pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = dot[j] = 0;
  if (t.channel < channels) {
    float mu[V], scale[V], shift[V], is[V];
    scale_of<V>(gamma, inv_std, t.channel, 0, 0.0f, scale);
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      mu[j] = mean[t.channel + j];
      shift[j] = beta[t.channel + j];
      is[j] = inv_std[t.channel + j];
    }
    #pragma unroll 2
    for (i64 r = t.begin + t.row; r < t.end; r += t.rows) {
      const i64 i = r * channels + t.channel;
      float off[V], g[V];
      load_floats<T, V>(x + i, off);
      #pragma unroll
      for (int j = 0; j < V; ++j) off[j] -= mu[j];
      incoming<T, V>(dy, dy2, y, i, off, scale, shift, mask, g);
      if (dresidual) store_floats<T, V>(dresidual + i, g);
      #pragma unroll
      for (int j = 0; j < V; ++j) {
        sum[j] += g[j];
        dot[j] = fmaf(g[j], off[j] * is[j], dot[j]);
      }
    }
  }
  write_partial<V>(t, sum, dot, partial, channels);
}

// dbeta and dgamma; and their means over all rows, for the second pass.
__global__ void norm_backward_finish(const float* partial, int chunks, i64 all, int channels, float* dgamma,
                                     float* dbeta, float* means) {
  const int c = blockIdx.x * 32 + (threadIdx.x & 31);
  const bool there = c < channels;
  const auto at = [&](int k, int which) { return there ? (double)partial[((i64)k * 2 + which) * channels + c] : 0.0; };
  const double sum = sum_chunks(chunks, [&](int k) { return at(k, 0); });
  const double dot = sum_chunks(chunks, [&](int k) { return at(k, 1); });
  if (!there || threadIdx.x >= 32) return;
  dbeta[c] = (float)sum;
  dgamma[c] = (float)dot;
  means[c] = (float)(sum / (double)all);
  means[channels + c] = (float)(dot / (double)all);
}

// dx = gamma * inv_std * (g - mean(g) - xhat * mean(g * xhat)). With dresidual, which holds g, dy is not read again.
template <class T, int V>
__global__ void norm_backward_apply(const T* __restrict__ dy, const T* __restrict__ dy2, const T* __restrict__ x,
                                    const float* __restrict__ mean, const float* __restrict__ inv_std,
                                    const float* __restrict__ gamma, const float* __restrict__ beta,
                                    const T* __restrict__ dresidual, const float* __restrict__ means,
                                    T* __restrict__ dx, i64 all, int channels, int lw, i64 chunk, int mask) {
  const Tile t(lw, V, all, chunk);
  if (t.channel >= channels) return;
  float mu[V], scale[V], shift[V], mean_g[V], slope[V];
  scale_of<V>(gamma, inv_std, t.channel, 0, 0.0f, scale);
  #pragma unroll
  for (int j = 0; j < V; ++j) {
    mu[j] = mean[t.channel + j];
    shift[j] = beta[t.channel + j];
    mean_g[j] = means[t.channel + j];
    slope[j] = inv_std[t.channel + j] * means[channels + t.channel + j];
  }
  #pragma unroll 2
  for (i64 r = t.last(); r >= t.begin; r -= t.rows) {
    const i64 i = r * channels + t.channel;
    float off[V], g[V];
    load_floats<T, V>(x + i, off);
    #pragma unroll
    for (int j = 0; j < V; ++j) off[j] -= mu[j];
    if (dresidual)
      load_floats<T, V>(dresidual + i, g);
    else
      incoming<T, V>(dy, dy2, (const T*)nullptr, i, off, scale, shift, mask, g);
    #pragma unroll
    for (int j = 0; j < V; ++j) g[j] = scale[j] * (g[j] - mean_g[j] - off[j] * slope[j]);
    store_floats<T, V>(dx + i, g);
  }
}

// Sums of the columns of [all, channels], per chunk.
template <class T, int V>
__global__ void column_sums(const T* __restrict__ x, float* __restrict__ partial, i64 all, int channels, int lw,
                            i64 chunk) {
  const Tile t(lw, V, all, chunk);
  float sum[V], none[V];
  #pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = none[j] = 0;
  if (t.channel < channels) {
    #pragma unroll 4
    for (i64 r = t.begin + t.row; r < t.end; r += t.rows) {
      float f[V];
      load_floats<T, V>(x + r * channels + t.channel, f);
      #pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += f[j];
    }
  }
  write_partial<V>(t, sum, none, partial, channels);
}
__global__ void column_sums_finish(const float* partial, int chunks, int channels, float* to) {
  const int c = blockIdx.x * 32 + (threadIdx.x & 31);
  const double sum =
      sum_chunks(chunks, [&](int k) { return c < channels ? (double)partial[(i64)k * 2 * channels + c] : 0.0; });
  if (c < channels && threadIdx.x < 32) to[c] = (float)sum;
}
)cuda";

}  // namespace tutti::cuda::kernels
