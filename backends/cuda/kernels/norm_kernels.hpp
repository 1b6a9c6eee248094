// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: batch norm with a kernel for each pass of norm.hpp, and with one kernel for all of them. This
// source must follow norm.hpp.
namespace tutti::cuda::kernels {

inline constexpr char norm_kernels[] = R"cuda(
// A kernel for each pass. blockIdx.y: the chunk. A second pass begins with the last chunk: the L2 cache still holds the
// end of what the first pass has read.
inline i64 from_last() { return gridDim.y - 1 - blockIdx.y; }

template <class T, int V>
__global__ void __launch_bounds__(256, 4) norm_statistics(const T* x, float* partial, i64 all, int channels, int lw,
                                                          i64 chunk) {
  wait_for_earlier_kernels();
  statistics_of<T, V>(x, partial, all, channels, lw, chunk, blockIdx.y);
}
__global__ void norm_finish(const float* partial, int chunks, i64 chunk, i64 all, int channels, float eps,
                            float momentum, float* running_mean, float* running_var, float* mean, float* inv_std) {
  wait_for_earlier_kernels();
  finish_statistics(partial, chunks, chunk, all, channels, eps, momentum, running_mean, running_var, mean, inv_std,
                    blockIdx.x);
}
template <class T, int V, int FORM>
__global__ void __launch_bounds__(256, FORM & form_residual ? 3 : 4)
    norm_apply(const T* x, const T* residual, T* y, const float* mean, const float* spread, const float* gamma,
               const float* beta, u8* mask, i64 all, int channels, int lw, i64 chunk, int from_variance, float eps,
               int given) {
  wait_for_earlier_kernels();
  apply_to<T, V, FORM>(x, residual, y, mean, spread, gamma, beta, mask, all, channels, lw, chunk, from_variance, eps,
                       FORM == form_any ? given : FORM, from_last());
}
template <class T, int V, int FORM>
__global__ void __launch_bounds__(256, blocks_at_once(FORM, sizeof(T) * V))
    norm_backward_sums(const T* dy, const T* dy2, const T* x, const T* y, const float* mean, const float* inv_std,
                       const float* gamma, const float* beta, T* dresidual, float* partial, i64 all, int channels,
                       int lw, i64 chunk, int given) {
  wait_for_earlier_kernels();
  backward_sums_of<T, V, FORM>(dy, dy2, x, y, mean, inv_std, gamma, beta, dresidual, partial, all, channels, lw, chunk,
                               FORM == form_any ? given : FORM, blockIdx.y);
}
__global__ void norm_backward_finish(const float* partial, int chunks, i64 all, int channels, float* dgamma,
                                     float* dbeta, float* means) {
  wait_for_earlier_kernels();
  finish_backward_sums(partial, chunks, all, channels, dgamma, dbeta, means, blockIdx.x);
}
template <class T, int V, int FORM>
__global__ void __launch_bounds__(256, blocks_at_once(FORM, sizeof(T) * V))
    norm_backward_apply(const T* dy, const T* dy2, const T* x, const float* mean, const float* inv_std,
                        const float* gamma, const float* beta, const float* means, T* dx, i64 all, int channels, int lw,
                        i64 chunk, int given) {
  wait_for_earlier_kernels();
  gradient_to<T, V, FORM>(dy, dy2, x, mean, inv_std, gamma, beta, means, dx, all, channels, lw, chunk,
                          FORM == form_any ? given : FORM, from_last());
}

// One kernel for all passes, for tensors that the L2 cache holds. All of its blocks must run at the same time: it needs
// a cooperative launch. A block makes the passes over the chunks blockIdx.y, blockIdx.y + gridDim.y, ..., which give
// the same bits as the separate kernels. No argument is __restrict__, so that the compiler neither moves loads of what
// an earlier pass writes over the barrier nor reads it through a cache that does not see the writes.

inline unsigned add_release(unsigned* p, unsigned v) {
  unsigned before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
}
inline unsigned load_acquire(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// Waits for all blocks of the launch. arrived: a number that the device keeps between launches. All blocks together add
// 2^31, so its highest bit changes when the last block arrives.
inline void wait_for_blocks(unsigned* arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned blocks = gridDim.x * gridDim.y;
    const unsigned before = add_release(arrived, blockIdx.x + blockIdx.y == 0 ? 0x80000000u - (blocks - 1) : 1u);
    while (((before ^ load_acquire(arrived)) & 0x80000000u) == 0) {
    }
  }
  __syncthreads();
}
// Calls pass(k) for the chunks of this block, in their order or from the last to the first.
template <class F>
inline void each_chunk(int chunks, F pass) {
  for (int k = blockIdx.y; k < chunks; k += gridDim.y) {
    pass(k);
    __syncthreads();
  }
}
template <class F>
inline void each_chunk_from_last(int chunks, F pass) {
  const int me = blockIdx.y, step = gridDim.y;
  for (int k = me + (chunks - 1 - me) / step * step; k >= 0; k -= step) pass(k);
}
// Calls finish(first) for each group of finish_lanes channels, in a block for each.
template <class F>
inline void each_finish(int channels, F finish) {
  const int blocks = gridDim.x * gridDim.y;
  for (int k = blockIdx.y * gridDim.x + blockIdx.x; k * finish_lanes < channels; k += blocks) finish(k);
}

template <class T, int V, int FORM>
__global__ void __launch_bounds__(256, 3)
    norm_once(const T* x, const T* residual, T* y, float* mean, float* inv_std, const float* gamma, const float* beta,
              u8* mask, float* partial, float* running_mean, float* running_var, unsigned* arrived, i64 all,
              int channels, int lw, i64 chunk, int chunks, float eps, float momentum) {
  wait_for_earlier_kernels();
  each_chunk(chunks, [&](int k) { statistics_of<T, V>(x, partial, all, channels, lw, chunk, k); });
  wait_for_blocks(arrived);
  each_finish(channels, [&](int k) {
    finish_statistics(partial, chunks, chunk, all, channels, eps, momentum, running_mean, running_var, mean, inv_std,
                      k);
  });
  wait_for_blocks(arrived);
  each_chunk_from_last(chunks, [&](int k) {
    apply_to<T, V, FORM>(x, residual, y, mean, inv_std, gamma, beta, mask, all, channels, lw, chunk, 0, eps, FORM, k);
  });
}
template <class T, int V, int FORM>
__global__ void __launch_bounds__(256, 2)
    norm_backward_once(const T* dy, const T* dy2, const T* x, const T* y, const float* mean, const float* inv_std,
                       const float* gamma, const float* beta, T* dresidual, float* partial, float* dgamma, float* dbeta,
                       float* means, T* dx, unsigned* arrived, i64 all, int channels, int lw, i64 chunk, int chunks) {
  wait_for_earlier_kernels();
  constexpr int last = FORM & form_keep ? 0 : FORM;
  each_chunk(chunks, [&](int k) {
    backward_sums_of<T, V, FORM>(dy, dy2, x, y, mean, inv_std, gamma, beta, dresidual, partial, all, channels, lw,
                                 chunk, FORM, k);
  });
  wait_for_blocks(arrived);
  each_finish(channels,
              [&](int k) { finish_backward_sums(partial, chunks, all, channels, dgamma, dbeta, means, k); });
  wait_for_blocks(arrived);
  each_chunk_from_last(chunks, [&](int k) {
    gradient_to<T, V, last>(FORM & form_keep ? dresidual : dy, dy2, x, mean, inv_std, gamma, beta, means, dx, all,
                            channels, lw, chunk, last, k);
  });
}

// Writes the mask of a relu's output y (mask_of) of n values, which are a multiple of 8, for a library's batch norm.
template <class T>
__global__ void relu_mask(const T* y, u8* mask, i64 n) {
  wait_for_earlier_kernels();
  for (i64 k = first_index(); k < n / 8; k += index_step()) mask[k] = mask_of<T>(load<T, 8>(y + 8 * k));
}

// Sums of the columns of [all, channels], per chunk.
template <class T, int V>
__global__ void __launch_bounds__(256, 4) column_sums(const T* x, float* partial, i64 all, int channels, int lw,
                                                      i64 chunk) {
  wait_for_earlier_kernels();
  const Tile t(lw, V, all, chunk, blockIdx.y);
  float sum[V], zero[V];
  #pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = zero[j] = 0;
  if (t.channel < channels)
    stream<4>(t.mine, t.first(channels), (i64)t.rows * channels, [&](i64 at) { return load<T, V>(x + at); },
              [&](i64, const Vec<T, V>& a) {
                #pragma unroll
                for (int j = 0; j < V; ++j) sum[j] += to_float(a.v[j]);
              });
  write_partial<V>(t, sum, zero, partial, channels, blockIdx.y);
}
__global__ void column_sums_finish(const float* partial, int chunks, int channels, float* to) {
  wait_for_earlier_kernels();
  const int c = finish_channel();
  const double sum =
      sum_chunks(chunks, [&](int k) { return c < channels ? (double)partial[(i64)k * 2 * channels + c] : 0.0; });
  if (c < channels && threadIdx.x < finish_lanes) to[c] = (float)sum;
}
)cuda";

}  // namespace tutti::cuda::kernels
