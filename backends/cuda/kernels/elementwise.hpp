// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: ops that read one element at a time, and copies into other layouts.
namespace tutti::cuda::kernels {

inline constexpr char elementwise[] = R"cuda(
template <class T, int V>
__global__ void normalize(const u8* in, T* out, const float* mean, const float* inv_std, int channels, i64 n) {
  wait_for_earlier_kernels();
  for (i64 k = first_index(); k * V < n; k += index_step()) {
    const i64 i = k * V;
    int c = (int)(i % channels);
    if (i + V <= n) {
      const Vec<u8, V> a = load<u8, V>(in + i);
      float f[V];
      #pragma unroll
      for (int j = 0; j < V; ++j) {
        f[j] = ((float)a.v[j] - mean[c]) * inv_std[c];
        c = c + 1 == channels ? 0 : c + 1;
      }
      store_floats<T, V>(out + i, f);
    } else {
      for (i64 e = i; e < n; ++e) {
        out[e] = from_float<T>(((float)in[e] - mean[c]) * inv_std[c]);
        c = c + 1 == channels ? 0 : c + 1;
      }
    }
  }
}

// Copies pixels of fewer than 4 channels to pixels of N channels; the other channels are zero.
template <class T, int N>
__global__ void normalize_padded(const u8* in, T* out, const float* mean, const float* inv_std, int channels,
                                 i64 pixels) {
  wait_for_earlier_kernels();
  for (i64 k = first_index(); k < pixels; k += index_step()) {
    float f[N];
    #pragma unroll
    for (int c = 0; c < N; ++c) f[c] = c < channels ? ((float)in[k * channels + c] - mean[c]) * inv_std[c] : 0.0f;
    store_floats<T, N>(out + k * N, f);
  }
}

template <class T, int V, class F>
inline void map(const T* a, const T* b, T* out, i64 n, F f) {
  for (i64 k = first_index(); k < n / V; k += index_step()) {
    float x[V], y[V];
    load_floats<T, V>(a + k * V, x);
    load_floats<T, V>(b + k * V, y);
    #pragma unroll
    for (int j = 0; j < V; ++j) x[j] = f(x[j], y[j]);
    store_floats<T, V>(out + k * V, x);
  }
  for (i64 i = n / V * V + first_index(); i < n; i += index_step())
    out[i] = from_float<T>(f(to_float(a[i]), to_float(b[i])));
}

template <class T, int V, class F>
inline void map(const T* x, T* y, i64 n, F f) {
  for (i64 k = first_index(); k < n / V; k += index_step()) {
    float a[V];
    load_floats<T, V>(x + k * V, a);
    #pragma unroll
    for (int j = 0; j < V; ++j) a[j] = f(a[j]);
    store_floats<T, V>(y + k * V, a);
  }
  for (i64 i = n / V * V + first_index(); i < n; i += index_step()) y[i] = from_float<T>(f(to_float(x[i])));
}

template <class T, int V>
__global__ void relu_forward(const T* x, T* y, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(x, y, n, [](float f) { return relu(f); });
}
template <class T, int V>
__global__ void relu_backward(const T* dy, const T* y, T* dx, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(dy, y, dx, n, [](float d, float out) { return out > 0 ? d : 0.0f; });
}
// The normal distribution at a = |x|: density = exp(-a^2 / 2) / sqrt(2 pi), tail = Phi(-a) by the formula of
// tutti/engine/cpu/gelu_kernels.hpp. Above 15, uses a = 15, where both are zero. For a NaN, both are NaN.
struct NormalTail {
  float a, tail, density;
  inline NormalTail(float x) {
    a = fabsf(x) > 15.0f ? 15.0f : fabsf(x);
    const float e = __expf(-0.5f * a * a), t = __fdividef(1.0f, fmaf(a, 0.275f, 1.0f));
    float q = fmaf(t, 0.026253876647652486f, -0.10604228682934712f);
    q = fmaf(q, t, 0.1202266013304913f);
    q = fmaf(q, t, -0.02339375710061f);
    q = fmaf(q, t, 0.07963608591828258f);
    q = fmaf(q, t, 0.0825882079723986f);
    q = fmaf(q, t, 0.10123951998772027f);
    q = fmaf(q, t, 0.1097890013476525f);
    q = fmaf(q, t, 0.10970277013090607f);
    tail = e * t * q;
    density = e * 0.3989422804f;
  }
};
template <class T, int V>
__global__ void gelu_forward(const T* x, T* y, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(x, y, n, [](float f) {
    const NormalTail p(f);
    return relu(f) - p.a * p.tail;
  });
}
template <class T, int V>
__global__ void gelu_backward(const T* dy, const T* x, T* dx, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(dy, x, dx, n, [](float d, float f) {
    const NormalTail p(f);
    const float left = p.tail - p.a * p.density;
    return d * (f < 0 ? left : 1 - left);
  });
}
// For large negative x the exponential is infinite, and the quotient 0.
inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
template <class T, int V>
__global__ void sigmoid_forward(const T* x, T* y, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(x, y, n, [](float f) { return sigmoid(f); });
}
template <class T, int V>
__global__ void sigmoid_backward(const T* dy, const T* y, T* dx, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(dy, y, dx, n, [](float d, float out) { return d * (out * (1 - out)); });
}
template <class T, int V>
__global__ void silu_forward(const T* x, T* y, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(x, y, n, [](float f) { return f * sigmoid(f); });
}
template <class T, int V>
__global__ void silu_backward(const T* dy, const T* x, T* dx, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(dy, x, dx, n, [](float d, float f) { return d * (sigmoid(f) * (1 + f * sigmoid(-f))); });
}
template <class T, int V>
__global__ void hard_swish_forward(const T* x, T* y, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(x, y, n, [](float f) {
    const float t = f + 3 < 0 ? 0.0f : f + 3;  // keeps a NaN
    return f * ((t > 6 ? 6.0f : t) * (1 / 6.0f));
  });
}
template <class T, int V>
__global__ void hard_swish_backward(const T* dy, const T* x, T* dx, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(dy, x, dx, n, [](float d, float f) {
    return d * (f <= -3 ? 0.0f : f >= 3 ? 1.0f : f * (1 / 3.0f) + 0.5f);
  });
}
template <class T, int V>
__global__ void add(const T* a, const T* b, T* out, i64 n) {
  wait_for_earlier_kernels();
  map<T, V>(a, b, out, n, [](float x, float y) { return x + y; });
}

// V must divide the channels.
template <class T, int V>
__global__ void bias_forward(const T* x, const float* b, T* y, int channels, i64 n) {
  wait_for_earlier_kernels();
  for (i64 k = first_index(); k < n / V; k += index_step()) {
    float f[V], bias[V];
    load_floats<T, V>(x + k * V, f);
    load_channels(b + (int)(k * V % channels), bias);
    #pragma unroll
    for (int j = 0; j < V; ++j) f[j] += bias[j];
    store_floats<T, V>(y + k * V, f);
  }
}

// Adds a bias to x, which is f32 [rows, columns], and converts the sum to T.
template <class T>
__global__ void bias_cast(const float* x, const float* b, T* y, int columns, i64 n) {
  wait_for_earlier_kernels();
  for (i64 i = first_index(); i < n; i += index_step()) y[i] = from_float<T>(x[i] + b[(int)(i % columns)]);
}

// Copies pixels of `from` channels to pixels of `to` channels: missing channels are zero, surplus ones are left out.
template <class T>
__global__ void change_channels(const T* in, T* out, int from, int to, i64 pixels) {
  wait_for_earlier_kernels();
  for (i64 k = first_index(); k < pixels * to; k += index_step()) {
    const i64 pixel = k / to;
    const int c = (int)(k - pixel * to);
    out[k] = c < from ? in[pixel * from + c] : from_float<T>(0.0f);
  }
}

// Converts weights from f32 [rows, columns, taps] (OIHW) to T [padded rows, taps, padded columns] (KRSC).
template <class T>
inline void pack_place(i64 i, const float* w, T* to, int rows, int columns, int taps, int padded_columns) {
  const int k = (int)quotient(i, padded_columns), c = (int)(i - (i64)k * padded_columns);
  const bool there = k < rows && c < columns;
  const float* const from = w + ((i64)k * columns + c) * taps;
  T* const first = to + (i64)k * taps * padded_columns + c;
  stream<3>(taps, 0, 1, [&](i64 t) { return there ? from[t] : 0.0f; },
            [&](i64 t, float v) { first[t * padded_columns] = from_float<T>(v); });
}
// The same for many tensors. Each block converts one piece (chunk) of one tensor (job).
struct PackJob {
  const float* from;
  void* to;
  int rows, columns, taps, padded_rows, padded_columns, unused;
};
struct PackChunk {
  i64 begin;
  int job, count;
};
template <class T>
__global__ void pack_table(const PackJob* jobs, const PackChunk* chunks) {
  wait_for_earlier_kernels();
  const PackChunk c = chunks[blockIdx.x];
  const PackJob j = jobs[c.job];
  for (int i = threadIdx.x; i < c.count; i += blockDim.x)
    pack_place<T>(c.begin + i, j.from, (T*)j.to, j.rows, j.columns, j.taps, j.padded_columns);
}
// The reverse, for gradients: converts the results of convolutions to f32, for many tensors. Each block converts one
// piece of a tensor: the last tensor whose first_block is not after the block. Writes dw in order, four bytes at a
// time. Reads values out of order, which are close enough to be in the cache.
struct UnpackJob {
  const void* from;
  float* to;
  i64 count;
  int columns, taps, padded_columns;
  unsigned first_block;
};
struct UnpackJobs {
  UnpackJob of[64];
  int count;
};
// TAPS: the number of taps; 0: j.taps gives it at run time. Indices relative to the piece's first row fit 32 bits.
template <class T, int TAPS>
inline void unpack_piece(const UnpackJob& j, i64 begin, int n) {
  const int taps = TAPS > 0 ? TAPS : j.taps, columns = j.columns, padded_columns = j.padded_columns;
  const i64 row = quotient(quotient(begin, taps), columns), first = row * columns * taps;
  const T* const packed = (const T*)j.from + row * taps * padded_columns;
  float* const dw = j.to + first;
  const int mine = (n - (int)threadIdx.x + (int)blockDim.x - 1) / (int)blockDim.x;
  stream<4>(mine, (begin - first) + threadIdx.x, blockDim.x,
            [&](i64 i) {
              const unsigned place = (unsigned)i / (unsigned)taps, k = place / (unsigned)columns;
              const unsigned t = (unsigned)i - place * taps, c = place - k * columns;
              return packed[(k * taps + t) * (unsigned)padded_columns + c];
            },
            [&](i64 i, T v) { dw[i] = to_float(v); });
}
template <class T>
__global__ void unpack_gradients(const UnpackJobs jobs) {
  wait_for_earlier_kernels();
  int at = 0;
  for (int step = 32; step > 0; step /= 2)
    if (at + step < jobs.count && jobs.of[at + step].first_block <= blockIdx.x) at += step;
  const UnpackJob j = jobs.of[at];
  const i64 begin = (i64)(blockIdx.x - j.first_block) * 2048, left = j.count - begin;
  const int n = left < 2048 ? (int)left : 2048;
  if (j.taps == 1) unpack_piece<T, 1>(j, begin, n);
  else if (j.taps == 9) unpack_piece<T, 9>(j, begin, n);
  else unpack_piece<T, 0>(j, begin, n);
}
)cuda";

}  // namespace tutti::cuda::kernels
