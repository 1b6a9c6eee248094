// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: two batch norms at once, y = relu(norm(x) + norm(s)), in which s is the input of the norm in the
// shortcut of a block. norm(s) is only in registers. It is rounded there as it would be in memory, so that all results
// have the bits of two separate norms (norm_kernels.hpp). This source must follow norm_kernels.hpp.
namespace tutti::cuda::kernels {

inline constexpr char norm_shortcut[] = R"cuda(
// Rounds a value to the type in which it would be stored.
template <class T> inline float rounded(float f) { return to_float(from_float<T>(f)); }

// The numbers of V neighbouring channels that give the output of a batch norm.
template <int V>
struct ChannelsOf {
  float mu[V], scale[V], shift[V];
  inline ChannelsOf(const float* mean, const float* inv_std, const float* gamma, const float* beta, int channel) {
    scale_of<V>(gamma, inv_std, channel, 0, 0.0f, scale);
    load_channels(mean + channel, mu);
    load_channels(beta + channel, shift);
  }
  inline float of(float x, int j) const { return fmaf(x - mu[j], scale[j], shift[j]); }
};

// y = relu(norm(x) + norm(s)), and its mask.
template <class T, int V>
__global__ void __launch_bounds__(256, 2)
    norm_apply_shortcut(const T* x, const T* s, T* y, const float* mean, const float* inv_std, const float* gamma,
                        const float* beta, const float* s_mean, const float* s_inv_std, const float* s_gamma,
                        const float* s_beta, u8* mask, i64 all, int channels, int lw, i64 chunk) {
  wait_for_earlier_kernels();
  const Tile t(lw, V, all, chunk, from_last());
  if (t.channel >= channels) return;
  const ChannelsOf<V> of_x(mean, inv_std, gamma, beta, t.channel), of_s(s_mean, s_inv_std, s_gamma, s_beta, t.channel);
  struct Row {
    Vec<T, V> x, s;
  };
  stream<(sizeof(T) * V > 16 ? 1 : 2)>(
      t.mine, t.last(channels), -(i64)t.rows * channels,
      [&](i64 at) {
        Row r;
        r.x = load<T, V>(x + at);
        r.s = load<T, V>(s + at);
        return r;
      },
      [&](i64 at, const Row& r) {
        Vec<T, V> v;
        #pragma unroll
        for (int j = 0; j < V; ++j)
          v.v[j] = from_float<T>(
              relu(of_x.of(to_float(r.x.v[j]), j) + rounded<T>(of_s.of(to_float(r.s.v[j]), j))));
        store<T, V>(y + at, v);
        mask[at >> 3] = mask_of<T>(v);
      });
}

// Adds up the masked gradient g for both norms: for x as it is, for s rounded. FORM: form_mask, and if the gradient has
// two parts, form_second and form_keep, which writes the rounded g to `kept`. partial: that of x, followed by that of s.
template <class T, int V, int FORM>
__global__ void __launch_bounds__(256, 2)
    norm_backward_sums_shortcut(const T* dy, const T* dy2, const T* x, const T* s, const T* mask, const float* mean,
                                const float* inv_std, const float* s_mean, const float* s_inv_std, T* kept,
                                float* partial, i64 all, int channels, int lw, i64 chunk) {
  wait_for_earlier_kernels();
  const Tile t(lw, V, all, chunk, blockIdx.y);
  float sum[V], dot[V], s_sum[V], s_dot[V];
  #pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = dot[j] = s_sum[j] = s_dot[j] = 0;
  if (t.channel < channels) {
    float mu[V], s_mu[V];
    load_channels(mean + t.channel, mu);
    load_channels(s_mean + t.channel, s_mu);
    struct Row {
      Incoming<T, V> in;
      Vec<T, V> s;
    };
    stream<2>(
        t.mine, t.first(channels), (i64)t.rows * channels,
        [&](i64 at) {
          Row r;
          r.in = load_incoming<T, V>(x, dy, dy2, mask, at, FORM);
          r.s = load<T, V>(s + at);
          return r;
        },
        [&](i64 at, const Row& r) {
          float g[V];
          #pragma unroll
          for (int j = 0; j < V; ++j) {
            const float off = to_float(r.in.x.v[j]) - mu[j];
            g[j] = gradient_of<T, V>(r.in, j, off, 0.0f, 0.0f, FORM);
            sum[j] += g[j];
            dot[j] = fmaf(g[j], off, dot[j]);
            if (FORM & form_second) g[j] = rounded<T>(g[j]);
            s_sum[j] += g[j];
            s_dot[j] = fmaf(g[j], to_float(r.s.v[j]) - s_mu[j], s_dot[j]);
          }
          if (FORM & form_keep) store_floats<T, V>(kept + at, g);
        });
    load_channels(inv_std + t.channel, mu);
    load_channels(s_inv_std + t.channel, s_mu);
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      dot[j] *= mu[j];
      s_dot[j] *= s_mu[j];
    }
  }
  write_partial<V>(t, sum, dot, partial, channels, blockIdx.y);
  __syncthreads();  // the second call writes to the shared memory of the first
  write_partial<V>(t, s_sum, s_dot, partial + (i64)gridDim.y * 2 * channels, channels, blockIdx.y);
}

// blockIdx.y: 0 for the norm of x, 1 for that of s. s_sums: dbeta of s, followed by its dgamma. means: those of x,
// followed by those of s.
__global__ void norm_backward_finish_shortcut(const float* partial, int chunks, i64 all, int channels, float* dgamma,
                                              float* dbeta, float* s_sums, float* means) {
  wait_for_earlier_kernels();
  const bool of_s = blockIdx.y == 1;
  finish_backward_sums(partial + (of_s ? (i64)chunks * 2 * channels : 0), chunks, all, channels,
                       of_s ? s_sums + channels : dgamma, of_s ? s_sums : dbeta, means + (of_s ? 2 * channels : 0),
                       blockIdx.x);
}

// The numbers of V neighbouring channels that give the gradient of a batch norm's input.
template <int V>
struct GradientChannelsOf {
  float mu[V], scale[V], slope[V], mean_g[V];
  inline GradientChannelsOf(const float* mean, const float* inv_std, const float* gamma, const float* means,
                            int channels, int channel) {
    scale_of<V>(gamma, inv_std, channel, 0, 0.0f, scale);
    load_channels(inv_std + channel, mu);
    load_channels(means + channels + channel, slope);
    #pragma unroll
    for (int j = 0; j < V; ++j) slope[j] *= mu[j];
    load_channels(mean + channel, mu);
    load_channels(means + channel, mean_g);
  }
  inline float of(float g, float x, int j) const { return scale[j] * fmaf(-(x - mu[j]), slope[j], g - mean_g[j]); }
};

// The gradients of x and of s. FORM: 0 if dy is the kept g, which may be at the place of ds, otherwise form_mask.
template <class T, int V, int FORM>
__global__ void __launch_bounds__(256, 2)
    norm_backward_apply_shortcut(const T* dy, const T* x, const T* s, const T* mask, const float* mean,
                                 const float* inv_std, const float* gamma, const float* s_mean, const float* s_inv_std,
                                 const float* s_gamma, const float* means, T* dx, T* ds, i64 all, int channels, int lw,
                                 i64 chunk) {
  wait_for_earlier_kernels();
  const Tile t(lw, V, all, chunk, from_last());
  if (t.channel >= channels) return;
  const GradientChannelsOf<V> of_x(mean, inv_std, gamma, means, channels, t.channel),
      of_s(s_mean, s_inv_std, s_gamma, means + 2 * channels, channels, t.channel);
  struct Row {
    Incoming<T, V> in;
    Vec<T, V> s;
  };
  stream<2>(
      t.mine, t.last(channels), -(i64)t.rows * channels,
      [&](i64 at) {
        Row r;
        r.in = load_incoming<T, V>(x, dy, (const T*)nullptr, mask, at, FORM);
        r.s = load<T, V>(s + at);
        return r;
      },
      [&](i64 at, const Row& r) {
        float of_row[V];
        #pragma unroll
        for (int j = 0; j < V; ++j)
          of_row[j] = of_x.of(gradient_of<T, V>(r.in, j, 0.0f, 0.0f, 0.0f, FORM), to_float(r.in.x.v[j]), j);
        store_floats<T, V>(dx + at, of_row);
        #pragma unroll
        for (int j = 0; j < V; ++j)
          of_row[j] = of_s.of(gradient_of<T, V>(r.in, j, 0.0f, 0.0f, 0.0f, FORM), to_float(r.s.v[j]), j);
        store_floats<T, V>(ds + at, of_row);
      });
}
)cuda";

}  // namespace tutti::cuda::kernels
