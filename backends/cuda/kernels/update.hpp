// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: optimizers and sums over the arenas, f32.
namespace tutti::cuda::kernels {

inline constexpr char update[] = R"cuda(
// Sets the factor of the loss, which is in device memory so that a captured graph reads the factor of the current step.
__global__ void set_scale(double* to, double value) {
  wait_for_earlier_kernels();
  *to = value;
}

// Calls f(i, n) for elements i .. i + n; n == V except at the end.
template <int V, class F>
inline void each(i64 n, F f) {
  for (i64 k = first_index(); k < n / V; k += index_step()) f(k * V, V);
  if (first_index() == 0 && n % V != 0) f(n / V * V, (int)(n % V));
}
template <int V>
inline void read(const float* p, int n, float (&f)[V]) {
  if (n == V) return load_floats<float, V>(p, f);
  for (int j = 0; j < V; ++j) f[j] = j < n ? p[j] : 0;
}
template <int V>
inline void write(float* p, int n, const float (&f)[V]) {
  if (n == V) return store_floats<float, V>(p, f);
  for (int j = 0; j < V; ++j)
    if (j < n) p[j] = f[j];
}

struct Numbers {
  float lr, weight_decay, gradient_scale, factor;
};

// The update of one element. Explicit functions compute the products and sums, so that the compiler cannot fuse them in
// one kernel and not in another: all kernels give the same bits.
inline void sgd_element(float& w, float g, float& a, float lr, float gradient_scale, float weight_decay, float factor,
                        float momentum, int nesterov) {
  const float grad = __fmul_rn(factor, fmaf(gradient_scale, g, __fmul_rn(weight_decay, w)));
  a = fmaf(momentum, a, grad);
  w = fmaf(-lr, nesterov ? fmaf(momentum, a, grad) : a, w);
}
struct Adamw {
  float beta1, rest1, beta2, rest2, eps;  // rest: 1 - beta, which is exact on the host
  int l2;  // Adam: the decay is part of the gradient
};
// c1, c2: 1 / (1 - beta^step) for beta1 and beta2.
inline void adamw_element(float& w, float g, float& m, float& v, float lr, float gradient_scale, float weight_decay,
                          float factor, const Adamw& o, float c1, float c2) {
  const float grad = o.l2 ? __fmul_rn(factor, fmaf(gradient_scale, g, __fmul_rn(weight_decay, w)))
                          : __fmul_rn(__fmul_rn(factor, gradient_scale), g);
  m = fmaf(o.beta1, m, __fmul_rn(o.rest1, grad));
  v = fmaf(o.beta2, v, __fmul_rn(__fmul_rn(o.rest2, grad), grad));
  const float root = __fadd_rn(sqrtf(__fmul_rn(v, c2)), o.eps);
  w = fmaf(w, o.l2 ? 1.0f : fmaf(-lr, weight_decay, 1.0f), -(__fmul_rn(lr, __fmul_rn(m, c1)) / root));
}
struct Lamb {
  float beta1, rest1, beta2, rest2, eps;
  int trust_clip, always_adapt;
};
// The two parts of a step of LAMB: the moments, and after the norms the weights. Both use lamb_direction.
inline float lamb_direction(float w, float m, float v, float weight_decay, const Lamb& o, float c1, float c2) {
  const float root = __fadd_rn(sqrtf(__fmul_rn(v, c2)), o.eps);
  return fmaf(weight_decay, w, __fmul_rn(m, c1) / root);
}
inline void lamb_element(float g, float& m, float& v, float gradient_scale, float factor, const Lamb& o) {
  const float grad = __fmul_rn(__fmul_rn(factor, gradient_scale), g);
  m = fmaf(o.beta1, m, __fmul_rn(o.rest1, grad));
  v = fmaf(o.beta2, v, __fmul_rn(__fmul_rn(o.rest2, grad), grad));
}
// Returns the rate times the trust ratio. LambUpdate::ratio() is the same on the host.
inline float lamb_rate(double weights, double directions, float weight_decay, float lr, const Lamb& o) {
  double ratio = 1;
  if ((weight_decay != 0 || o.always_adapt) && weights > 0 && directions > 0) ratio = sqrt(weights / directions);
  if (o.trust_clip && ratio > 1) ratio = 1;
  return (float)(lr * ratio);
}
inline float average_element(float to, float from, float decay) {
  return fmaf(decay, to, __fmul_rn(__fsub_rn(1.0f, decay), from));
}

template <int V>
__global__ void sgd(float* w, const float* g, float* a, i64 n, Numbers u, float momentum, int nesterov) {
  wait_for_earlier_kernels();
  each<V>(n, [&](i64 i, int count) {
    float wi[V], gi[V], ai[V];
    read<V>(w + i, count, wi);
    read<V>(g + i, count, gi);
    read<V>(a + i, count, ai);
    #pragma unroll
    for (int j = 0; j < V; ++j)
      sgd_element(wi[j], gi[j], ai[j], u.lr, u.gradient_scale, u.weight_decay, u.factor, momentum, nesterov);
    write<V>(a + i, count, ai);
    write<V>(w + i, count, wi);
  });
}

template <int V>
__global__ void adamw(float* w, const float* g, float* m, float* v, i64 n, Numbers u, Adamw o, float c1, float c2) {
  wait_for_earlier_kernels();
  each<V>(n, [&](i64 i, int count) {
    float wi[V], gi[V], mi[V], vi[V];
    read<V>(w + i, count, wi);
    read<V>(g + i, count, gi);
    read<V>(m + i, count, mi);
    read<V>(v + i, count, vi);
    #pragma unroll
    for (int j = 0; j < V; ++j)
      adamw_element(wi[j], gi[j], mi[j], vi[j], u.lr, u.gradient_scale, u.weight_decay, u.factor, o, c1, c2);
    write<V>(m + i, count, mi);
    write<V>(v + i, count, vi);
    write<V>(w + i, count, wi);
  });
}

// Computes two sums in f64 per block. Afterwards one block adds the sums of all blocks in order. The number of blocks
// depends only on n.
inline void two_sums(double a, double b, double* to) {
  __shared__ double first[256], second[256];
  first[threadIdx.x] = a;
  second[threadIdx.x] = b;
  for (int h = 128; h > 0; h /= 2) {
    __syncthreads();
    if (threadIdx.x < h) {
      first[threadIdx.x] += first[threadIdx.x + h];
      second[threadIdx.x] += second[threadIdx.x + h];
    }
  }
  if (threadIdx.x == 0) {
    to[0] = first[0];
    to[1] = second[0];
  }
}
template <int V>
__global__ void squared_norms(const float* w, const float* g, i64 n, float gradient_scale, float weight_decay,
                              double* partial) {
  wait_for_earlier_kernels();
  double weights = 0, gradients = 0;
  each<V>(n, [&](i64 i, int count) {
    float wi[V], gi[V];
    read<V>(w + i, count, wi);
    read<V>(g + i, count, gi);
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      const double grad = (double)gradient_scale * gi[j] + (double)weight_decay * wi[j];
      weights += (double)wi[j] * wi[j];
      gradients += grad * grad;
    }
  });
  two_sums(weights, gradients, partial + 2 * blockIdx.x);
}
__global__ void squared_norms_finish(const double* partial, int blocks, double* to) {
  wait_for_earlier_kernels();
  double a = 0, b = 0;
  for (int k = threadIdx.x; k < blocks; k += 256) {
    a += partial[2 * k];
    b += partial[2 * k + 1];
  }
  two_sums(a, b, to);
}


// LAMB for one tensor: the sums of squares of the weights and of the direction per block, as squared_norms.
template <int V>
__global__ void lamb_moments(const float* w, const float* g, float* m, float* v, i64 n, Numbers u, Lamb o, float c1,
                             float c2, double* partial) {
  wait_for_earlier_kernels();
  double weights = 0, directions = 0;
  each<V>(n, [&](i64 i, int count) {
    float wi[V], gi[V], mi[V], vi[V];
    read<V>(w + i, count, wi);
    read<V>(g + i, count, gi);
    read<V>(m + i, count, mi);
    read<V>(v + i, count, vi);
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      lamb_element(gi[j], mi[j], vi[j], u.gradient_scale, u.factor, o);
      const double d = lamb_direction(wi[j], mi[j], vi[j], u.weight_decay, o, c1, c2);
      weights += (double)wi[j] * wi[j];
      directions += d * d;
    }
    write<V>(m + i, count, mi);
    write<V>(v + i, count, vi);
  });
  two_sums(weights, directions, partial + 2 * blockIdx.x);
}
template <int V>
__global__ void lamb_step(float* w, const float* m, const float* v, i64 n, Numbers u, Lamb o, float c1, float c2,
                          const double* norms) {
  wait_for_earlier_kernels();
  const float rate = lamb_rate(norms[0], norms[1], u.weight_decay, u.lr, o);
  each<V>(n, [&](i64 i, int count) {
    float wi[V], mi[V], vi[V];
    read<V>(w + i, count, wi);
    read<V>(m + i, count, mi);
    read<V>(v + i, count, vi);
    #pragma unroll
    for (int j = 0; j < V; ++j)
      wi[j] = fmaf(-rate, lamb_direction(wi[j], mi[j], vi[j], u.weight_decay, o, c1, c2), wi[j]);
    write<V>(w + i, count, wi);
  });
}

template <int V>
__global__ void average(float* to, const float* from, i64 n, float decay) {
  wait_for_earlier_kernels();
  each<V>(n, [&](i64 i, int count) {
    float a[V], b[V];
    read<V>(to + i, count, a);
    read<V>(from + i, count, b);
    #pragma unroll
    for (int j = 0; j < V; ++j) a[j] = average_element(a[j], b[j], decay);
    write<V>(to + i, count, a);
  });
}
template <int V>
__global__ void accumulate(float* to, const float* from, i64 n) {
  wait_for_earlier_kernels();
  each<V>(n, [&](i64 i, int count) {
    float a[V], b[V];
    read<V>(to + i, count, a);
    read<V>(from + i, count, b);
    #pragma unroll
    for (int j = 0; j < V; ++j) a[j] += b[j];
    write<V>(to + i, count, a);
  });
}
)cuda";

}  // namespace tutti::cuda::kernels
