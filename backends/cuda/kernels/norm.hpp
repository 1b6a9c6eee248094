// SPDX-License-Identifier: MIT
#pragma once

// Source of the passes of batch norm over all pixels of a channel, NHWC; norm_kernels.hpp has the kernels that make
// them. A block has 256 threads: 2^lw threads for V channels each, times rows (pixels). blockIdx.x: the channels.
// `number`: the chunk of rows. Partial sums are [chunk][2][channels], which are added in the order of the chunks, so
// that sums are the same in every run.
namespace tutti::cuda::kernels {

inline constexpr char norm[] = R"cuda(
struct Tile {
  int lanes, rows, lane, row, channel;
  i64 begin, end;
  inline Tile(int lw, int v, i64 all, i64 chunk, i64 number) {
    lanes = 1 << lw;
    rows = 256 >> lw;
    lane = threadIdx.x & (lanes - 1);
    row = threadIdx.x >> lw;
    channel = (blockIdx.x * lanes + lane) * v;
    begin = number * chunk;
    end = begin + chunk < all ? begin + chunk : all;
    mine = (int)((end - begin - row + rows - 1) >> (8 - lw));
  }
  int mine;  // number of rows of this thread: every rows-th row, beginning with its first
  inline i64 first(int channels) const { return (begin + row) * channels + channel; }
  // A kernel that reads the same data as the kernel before it goes from a thread's last row back to its first. It
  // begins with the data that the L2 cache still holds, and ends with the data with which the next kernel begins.
  inline i64 last(int channels) const { return (begin + row + (i64)(mine - 1) * rows) * channels + channel; }
};

// The form of a batch norm, in bits: a template argument, or form_any (-1) if the argument `given` gives it at run
// time. The most frequent forms are template arguments, so that there is no branch between the loads.
enum { form_relu = 1, form_residual = 2, form_bits = 4 };                 // norm_apply; for the bits see mask_of
enum { form_mask = 3, form_second = 4, form_keep = 8, form_any = -1 };  // its gradient; for the mask see Incoming

// The mask of a relu: byte channel / 8 of each row has a bit for each of 8 neighbouring channels, beginning with the
// lowest, which is 1 if the value is positive. Kernels with a mask take 8 channels per thread. A NaN has 0.
template <class T>
inline u8 mask_of(const Vec<T, 8>& y) {
  unsigned bits = 0;
  #pragma unroll
  for (int j = 0; j < 8; ++j) bits |= (to_float(y.v[j]) > 0 ? 1u : 0u) << j;
  return (u8)bits;
}

// Adds up two values per thread over the tile's rows, in a fixed order, and writes them for the chunk.
template <int V>
inline void write_partial(const Tile& t, float (&a)[V], float (&b)[V], float* partial, int channels, i64 number) {
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
    float* to = partial + number * 2 * channels + t.channel;
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      a[j] = first[j * 256 + me];
      b[j] = second[j * 256 + me];
    }
    store_channels(to, a);
    store_channels(to + channels, b);
  }
}

// Per chunk and channel: the mean, and the sum of squared distances from it. A thread adds distances from its first
// value, so that a mean far from zero costs no digits. Parts are joined as by Chan, Golub and LeVeque 1979.
template <class T, int V>
__forceinline__ void statistics_of(const T* x, float* partial, i64 all, int channels, int lw, i64 chunk, i64 number) {
  __shared__ float means[256 * V], squares[256 * V], counts[256];
  const Tile t(lw, V, all, chunk, number);
  const int me = threadIdx.x;
  float pivot[V], s1[V], s2[V], n = 0;
  #pragma unroll
  for (int j = 0; j < V; ++j) pivot[j] = s1[j] = s2[j] = 0;
  if (t.channel < channels) {
    const i64 first = t.first(channels);
    if (t.mine > 0) load_floats<T, V>(x + first, pivot);
    stream<4>(t.mine, first, (i64)t.rows * channels, [&](i64 at) { return load<T, V>(x + at); },
              [&](i64, const Vec<T, V>& a) {
                #pragma unroll
                for (int j = 0; j < V; ++j) {
                  const float d = to_float(a.v[j]) - pivot[j];
                  s1[j] += d;
                  s2[j] = fmaf(d, d, s2[j]);
                }
              });
    n = (float)t.mine;
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
    float* to = partial + number * 2 * channels + t.channel;
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      s1[j] = means[j * 256 + me];
      s2[j] = squares[j * 256 + me];
    }
    store_channels(to, s1);
    store_channels(to + channels, s2);
  }
}

// 256 threads: 8 channels (32 bytes, which memory moves together) times 32 groups of neighbouring chunks. sum_chunks()
// adds f(chunk) over all chunks, in an order that depends only on their number. All threads of a channel get the sum.
enum { finish_lanes = 8, finish_groups = 256 / finish_lanes };
inline int finish_channel(int first = blockIdx.x) {
  return first * finish_lanes + (threadIdx.x & (finish_lanes - 1));
}
template <class F>
inline double sum_chunks(int chunks, F f) {
  __shared__ double sums[256];
  const int lane = threadIdx.x & (finish_lanes - 1), group = threadIdx.x / finish_lanes;
  const int begin = (int)((i64)chunks * group / finish_groups), end = (int)((i64)chunks * (group + 1) / finish_groups);
  double sum = 0;
  stream<4>(end - begin, begin, 1, [&](i64 k) { return f((int)k); }, [&](i64, double v) { sum += v; });
  __syncthreads();
  sums[threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  #pragma unroll
  for (int g = 0; g < finish_groups; ++g) sum += sums[g * finish_lanes + lane];
  return sum;
}

// first: the number of the group of finish_lanes channels.
__forceinline__ void finish_statistics(const float* partial, int chunks, i64 chunk, i64 all, int channels, float eps,
                                       float momentum, float* running_mean, float* running_var, float* mean,
                                       float* inv_std, int first) {
  const int c = finish_channel(first);
  const bool there = c < channels;
  const auto at = [&](int k, int which) { return there ? (double)partial[((i64)k * 2 + which) * channels + c] : 0.0; };
  const auto count = [&](int k) { return (double)((k + 1) * chunk < all ? chunk : all - k * chunk); };
  const double n = (double)all;
  const double mu = sum_chunks(chunks, [&](int k) { return count(k) * at(k, 0); }) / n;
  const double squares = sum_chunks(chunks, [&](int k) {
    const double d = at(k, 0) - mu;
    return at(k, 1) + count(k) * d * d;
  });
  if (!there || threadIdx.x >= finish_lanes) return;
  const double var = squares / n, unbiased = all > 1 ? squares / (n - 1) : var;
  mean[c] = (float)mu;
  inv_std[c] = (float)(1 / sqrt(var + (double)eps));
  running_mean[c] = (float)((1 - (double)momentum) * running_mean[c] + (double)momentum * mu);
  running_var[c] = (float)((1 - (double)momentum) * running_var[c] + (double)momentum * unbiased);
}

// spread: the inverse standard deviation, or, if from_variance is not 0, the variance.
template <int V>
inline void scale_of(const float* gamma, const float* spread, int c, int from_variance, float eps, float (&scale)[V]) {
  float s[V];
  load_channels(gamma + c, scale);
  load_channels(spread + c, s);
  #pragma unroll
  for (int j = 0; j < V; ++j) scale[j] *= from_variance ? 1 / sqrtf(s[j] + eps) : s[j];
}

template <class T, int V, int FORM>
__forceinline__ void apply_to(const T* x, const T* residual, T* y, const float* mean, const float* spread,
                              const float* gamma, const float* beta, u8* mask, i64 all, int channels, int lw, i64 chunk,
                              int from_variance, float eps, int form, i64 number) {
  const Tile t(lw, V, all, chunk, number);
  if (t.channel >= channels) return;
  float mu[V], scale[V], shift[V];
  scale_of<V>(gamma, spread, t.channel, from_variance, eps, scale);
  load_channels(mean + t.channel, mu);
  load_channels(beta + t.channel, shift);
  struct Row {
    Vec<T, V> x, residual;
  };
  stream<(FORM == form_any || sizeof(T) * V > 16 ? 1 : FORM & form_residual ? 2 : 4)>(
            t.mine, t.last(channels), -(i64)t.rows * channels,
            [&](i64 at) {
              Row r;
              r.x = load<T, V>(x + at);
              if (form & form_residual) r.residual = load<T, V>(residual + at);
              return r;
            },
            [&](i64 at, const Row& r) {
              float f[V];
              #pragma unroll
              for (int j = 0; j < V; ++j) {
                f[j] = fmaf(to_float(r.x.v[j]) - mu[j], scale[j], shift[j]);
                if (form & form_residual) f[j] += to_float(r.residual.v[j]);
                if (form & form_relu) f[j] = relu(f[j]);
              }
              Vec<T, V> v;
              #pragma unroll
              for (int j = 0; j < V; ++j) v.v[j] = from_float<T>(f[j]);
              store<T, V>(y + at, v);
              if constexpr (FORM != form_any && (FORM & form_bits)) mask[at >> 3] = mask_of<T>(v);
            });
}

// The values of a row that the gradient of a batch norm reads: x and the incoming gradient dy (+ dy2), which counts
// only if the forward relu was active. form_mask: 0 no mask, 1 the sign of the recomputed output, 2 the sign of y, 3
// the bits of mask_of() at y.
template <class T, int V>
struct Incoming {
  Vec<T, V> x, dy, dy2, y;
  unsigned bits;
};
template <class T, int V>
inline Incoming<T, V> load_incoming(const T* x, const T* dy, const T* dy2, const T* y, i64 at, int form) {
  Incoming<T, V> r;
  r.x = load<T, V>(x + at);
  r.dy = load<T, V>(dy + at);
  if (form & form_second) r.dy2 = load<T, V>(dy2 + at);
  if ((form & form_mask) == 2) r.y = load<T, V>(y + at);
  if ((form & form_mask) == 3) r.bits = reinterpret_cast<const u8*>(y)[at >> 3];
  return r;
}
// Returns the masked incoming gradient of value j. off: distance of x from the mean.
template <class T, int V>
inline float gradient_of(const Incoming<T, V>& r, int j, float off, float scale, float shift, int form) {
  float g = to_float(r.dy.v[j]);
  if (form & form_second) g += to_float(r.dy2.v[j]);
  if ((form & form_mask) == 1) g = fmaf(off, scale, shift) > 0 ? g : 0.0f;
  if ((form & form_mask) == 2) g = to_float(r.y.v[j]) > 0 ? g : 0.0f;
  if ((form & form_mask) == 3) g = r.bits >> j & 1 ? g : 0.0f;
  return g;
}
// rows_at_once: rows that a thread loads at once, with two to four vectors of `bytes` each. blocks_at_once: blocks for
// which a multiprocessor has registers.
constexpr int rows_at_once(int form, int bytes) { return form == form_any || bytes > 16 ? 1 : 2; }
constexpr int blocks_at_once(int form, int bytes) {
  return form == form_any || form == (1 | form_second) || bytes > 16 ? 2 : 3;
}

// Per chunk and channel: the sums of g and of g times the normalised x. Writes g to dresidual if the form says so.
template <class T, int V, int FORM>
__forceinline__ void backward_sums_of(const T* dy, const T* dy2, const T* x, const T* y, const float* mean,
                                      const float* inv_std, const float* gamma, const float* beta, T* dresidual,
                                      float* partial, i64 all, int channels, int lw, i64 chunk, int form, i64 number) {
  const Tile t(lw, V, all, chunk, number);
  float sum[V], dot[V];
  #pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = dot[j] = 0;
  if (t.channel < channels) {
    float mu[V], scale[V], shift[V];
    scale_of<V>(gamma, inv_std, t.channel, 0, 0.0f, scale);
    load_channels(mean + t.channel, mu);
    load_channels(beta + t.channel, shift);
    stream<rows_at_once(FORM, sizeof(T) * V)>(
        t.mine, t.first(channels), (i64)t.rows * channels,
        [&](i64 at) { return load_incoming<T, V>(x, dy, dy2, y, at, form); },
        [&](i64 at, const Incoming<T, V>& r) {
          float g[V];
          #pragma unroll
          for (int j = 0; j < V; ++j) {
            const float off = to_float(r.x.v[j]) - mu[j];
            g[j] = gradient_of<T, V>(r, j, off, scale[j], shift[j], form);
            sum[j] += g[j];
            dot[j] = fmaf(g[j], off, dot[j]);
          }
          if (form & form_keep) store_floats<T, V>(dresidual + at, g);
        });
    load_channels(inv_std + t.channel, mu);
    #pragma unroll
    for (int j = 0; j < V; ++j) dot[j] *= mu[j];
  }
  write_partial<V>(t, sum, dot, partial, channels, number);
}

// Computes dbeta and dgamma, and, for the second pass, these sums divided by the number of rows.
__forceinline__ void finish_backward_sums(const float* partial, int chunks, i64 all, int channels, float* dgamma,
                                          float* dbeta, float* means, int first) {
  const int c = finish_channel(first);
  const bool there = c < channels;
  const auto at = [&](int k, int which) { return there ? (double)partial[((i64)k * 2 + which) * channels + c] : 0.0; };
  const double sum = sum_chunks(chunks, [&](int k) { return at(k, 0); });
  const double dot = sum_chunks(chunks, [&](int k) { return at(k, 1); });
  if (!there || threadIdx.x >= finish_lanes) return;
  dbeta[c] = (float)sum;
  dgamma[c] = (float)dot;
  means[c] = (float)(sum / (double)all);
  means[channels + c] = (float)(dot / (double)all);
}

// dx = gamma * inv_std * (g - mean(g) - xhat * mean(g * xhat)). If g was kept, it is dy here and is used unchanged.
template <class T, int V, int FORM>
__forceinline__ void gradient_to(const T* dy, const T* dy2, const T* x, const float* mean, const float* inv_std,
                                 const float* gamma, const float* beta, const float* means, T* dx, i64 all,
                                 int channels, int lw, i64 chunk, int form, i64 number) {
  const Tile t(lw, V, all, chunk, number);
  if (t.channel >= channels) return;
  float mu[V], scale[V], shift[V], mean_g[V], slope[V];
  scale_of<V>(gamma, inv_std, t.channel, 0, 0.0f, scale);
  load_channels(inv_std + t.channel, mu);
  load_channels(means + channels + t.channel, slope);
  #pragma unroll
  for (int j = 0; j < V; ++j) slope[j] *= mu[j];
  load_channels(mean + t.channel, mu);
  load_channels(beta + t.channel, shift);
  load_channels(means + t.channel, mean_g);
  stream<rows_at_once(FORM, sizeof(T) * V)>(
      t.mine, t.last(channels), -(i64)t.rows * channels,
      [&](i64 at) { return load_incoming<T, V>(x, dy, dy2, (const T*)nullptr, at, form); },
      [&](i64 at, const Incoming<T, V>& r) {
        float g[V];
        #pragma unroll
        for (int j = 0; j < V; ++j) {
          const float off = to_float(r.x.v[j]) - mu[j];
          g[j] = gradient_of<T, V>(r, j, off, scale[j], shift[j], form);
          g[j] = scale[j] * fmaf(-off, slope[j], g[j] - mean_g[j]);
        }
        store_floats<T, V>(dx + at, g);
      });
}
)cuda";

}  // namespace tutti::cuda::kernels
