// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: Muon's step of one matrix. It follows kernels/step.hpp. With a state, the numbers of the step come
// from the device, and a step that changes no weights is skipped; without one, from the host.
namespace tutti::cuda::kernels {

inline constexpr char muon[] = R"cuda(
struct Muon {
  float momentum, a, b, c, scale, eps, norm_factor;
  int nesterov, limit_eps, normalize, half;  // normalize: 2: the decay follows; half: rounds matrices to bf16
};
struct Matrix {
  int rows, cols;  // of the weights; the other matrices lie with the longer side as columns
};

inline bool muon_numbers(Numbers& u, const StepState* s, const Run* run) {
  if (!s) return true;
  if (s->skip) return false;
  u.lr = (float)(s->lr * run->lr_scale);
  u.weight_decay = run->weight_decay;
  u.gradient_scale = s->gradient_scale;
  u.factor = run->factor;
  return true;
}
// Rounds to bf16, to nearest even.
inline float muon_round(float x, int half) {
  if (!half || !is_finite(x)) return x;
  const unsigned u = __float_as_uint(x);
  return __uint_as_float((u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u);
}
// Returns the place of an element of the weights in a matrix with the longer side as columns.
inline i64 muon_place(i64 i, Matrix m) { return m.rows > m.cols ? i % m.cols * m.rows + i / m.cols : i; }

// Updates the momentum, writes the direction, and takes the sums of squares of the weights and of the direction per
// block, as squared_norms.
__global__ void muon_momentum(const float* w, const float* g, float* a, float* x, Matrix m, Numbers u, Muon o,
                              const StepState* s, const Run* run, double* partial) {
  wait_for_earlier_kernels();
  double weights = 0, squares = 0;
  const bool takes = muon_numbers(u, s, run);
  const i64 n = (i64)m.rows * m.cols;
  for (i64 i = first_index(); takes && i < n; i += index_step()) {
    const float grad = __fmul_rn(__fmul_rn(u.factor, u.gradient_scale), g[i]);
    a[i] = fmaf(o.momentum, a[i], grad);
    const float d = muon_round(o.nesterov ? fmaf(o.momentum, a[i], grad) : a[i], o.half);
    x[muon_place(i, m)] = d;
    weights += (double)w[i] * w[i];
    squares += (double)d * d;
  }
  two_sums(weights, squares, partial + 2 * blockIdx.x);
}
__global__ void muon_scale(float* x, i64 n, const double* norms, Muon o) {
  wait_for_earlier_kernels();
  const double norm = sqrt(norms[1]) * o.norm_factor;
  const float inverse = (float)(1 / (o.limit_eps ? (norm > o.eps ? norm : (double)o.eps) : norm + o.eps));
  for (i64 i = first_index(); i < n; i += index_step()) x[i] = muon_round(__fmul_rn(x[i], inverse), o.half);
}
// to = alpha * x * y + beta * add, with x of rows x depth, y of depth x cols, or of cols x depth if `turned`. A block of
// 256 threads computes 16 x 16 numbers, each one thread, in the order of depth.
__global__ void muon_product(const float* x, const float* y, const float* add, float* to, int rows, int depth, int cols,
                             int turned, float alpha, float beta, int half) {
  wait_for_earlier_kernels();
  __shared__ float left[16][17], right[16][17];
  const int across = (cols + 15) / 16, row = threadIdx.x / 16, col = threadIdx.x % 16;
  const int i = blockIdx.x / across * 16 + row, j = blockIdx.x % across * 16 + col;
  float sum = 0;
  for (int k = 0; k < depth; k += 16) {
    left[row][col] = i < rows && k + col < depth ? x[(i64)i * depth + k + col] : 0;
    if (turned) {
      const int other = blockIdx.x % across * 16 + row;
      right[col][row] = other < cols && k + col < depth ? y[(i64)other * depth + k + col] : 0;
    } else {
      right[row][col] = k + row < depth && j < cols ? y[(i64)(k + row) * cols + j] : 0;
    }
    __syncthreads();
    for (int t = 0; t < 16; ++t) sum = fmaf(left[row][t], right[t][col], sum);
    __syncthreads();
  }
  if (i >= rows || j >= cols) return;
  const i64 at = (i64)i * cols + j;
  to[at] = muon_round(fmaf(alpha, sum, add ? __fmul_rn(beta, add[at]) : 0.0f), half);
}
__global__ void muon_step(float* w, const float* x, Matrix m, Numbers u, Muon o, const StepState* s, const Run* run,
                          const double* norms) {
  wait_for_earlier_kernels();
  if (!muon_numbers(u, s, run)) return;
  float keep = fmaf(-u.lr, u.weight_decay, 1.0f);
  if (o.normalize) keep = (o.normalize == 2 ? keep : 1.0f) * (norms[0] > 0 ? (float)sqrt(m.rows / norms[0]) : 1.0f);
  const float rate = __fmul_rn(u.lr, o.scale);
  const i64 n = (i64)m.rows * m.cols;
  for (i64 i = first_index(); i < n; i += index_step()) w[i] = fmaf(-rate, x[muon_place(i, m)], __fmul_rn(w[i], keep));
}
)cuda";

}  // namespace tutti::cuda::kernels
