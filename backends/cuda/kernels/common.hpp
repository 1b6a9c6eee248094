// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels, compiled at run time (nvrtc.hpp): the part that all kernels use, with element types, conversions
// and vectors of 16 bytes. Each function without __global__ is a device function.
namespace tutti::cuda::kernels {

inline constexpr char common[] = R"cuda(
typedef long long i64;
typedef unsigned char u8;

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline float to_float(f16 x) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
  return f;
}

template <class T> T from_float(float f);
template <> inline float from_float<float>(float f) { return f; }
template <> inline bf16 from_float<bf16>(float f) {
  bf16 r;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  const unsigned u = __float_as_uint(f);
  r.bits = f != f ? 0x7fff : (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#else
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));
#endif
  return r;
}
template <> inline f16 from_float<f16>(float f) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(f));
  return r;
}

// V neighbouring values. One instruction loads or stores them if they have 16 bytes.
template <class T, int V> struct alignas(sizeof(T) * V) Vec { T v[V]; };
template <class T, int V> inline Vec<T, V> load(const T* p) { return *reinterpret_cast<const Vec<T, V>*>(p); }
template <class T, int V> inline void store(T* p, const Vec<T, V>& v) { *reinterpret_cast<Vec<T, V>*>(p) = v; }
template <class T, int V> inline void load_floats(const T* p, float (&f)[V]) {
  const Vec<T, V> v = load<T, V>(p);
  #pragma unroll
  for (int j = 0; j < V; ++j) f[j] = to_float(v.v[j]);
}
template <class T, int V> inline void store_floats(T* p, const float (&f)[V]) {
  Vec<T, V> v;
  #pragma unroll
  for (int j = 0; j < V; ++j) v.v[j] = from_float<T>(f[j]);
  store<T, V>(p, v);
}

// Load and store the numbers of V neighbouring channels, 16 bytes at a time if V is a multiple of 4. The lanes of a
// warp read neighbouring groups: single loads would ask for 32 bytes of memory for each 4 bytes. Each channel number is
// a multiple of V, and the arrays are aligned to 16 bytes.
template <int V>
inline void load_channels(const float* from, float (&to)[V]) {
  constexpr int n = V % 4 == 0 ? 4 : 1;
  #pragma unroll
  for (int k = 0; k < V; k += n) {
    const Vec<float, n> part = load<float, n>(from + k);
    #pragma unroll
    for (int j = 0; j < n; ++j) to[k + j] = part.v[j];
  }
}

template <int V>
inline void store_channels(float* to, const float (&from)[V]) {
  constexpr int n = V % 4 == 0 ? 4 : 1;
  #pragma unroll
  for (int k = 0; k < V; k += n) {
    Vec<float, n> part;
    #pragma unroll
    for (int j = 0; j < n; ++j) part.v[j] = from[k + j];
    store<float, n>(to + k, part);
  }
}

// Every kernel begins with this call, in all of its threads, and accesses no memory of the device before it: the kernel
// may have been started before the kernel before it in the stream had ended (Launcher). Waits until that kernel has
// ended and its writes are visible, and then lets the next kernel start. So all kernels before the previous one have
// ended, too. No pointer is __restrict__: otherwise compilers load through a cache that is only valid if
// nobody writes the memory from the start of the kernel on (ld.global.nc), and move such loads before the wait.
inline void wait_for_earlier_kernels() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline i64 first_index() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
inline i64 index_step() { return (i64)gridDim.x * blockDim.x; }

// Calls use(at, load(at)) for n places at, at + step, ... U places are loaded before the first is used, so that these
// loads of a thread run at the same time. Unrolling alone does not do this: an unrolled loop tests for its end after
// each place, and compilers move no load over a branch.
template <int U, class Load, class Use>
inline void stream(int n, i64 at, i64 step, Load load, Use use) {
  for (; n >= U; n -= U, at += U * step) {
    decltype(load(at)) r[U];
    #pragma unroll
    for (int u = 0; u < U; ++u) r[u] = load(at + u * step);
    #pragma unroll
    for (int u = 0; u < U; ++u) use(at + u * step, r[u]);
  }
  for (; n > 0; --n, at += step) use(at, load(at));
}

// a / b for a >= 0, b > 0. Most of these numbers fit 32 bits, in which the device divides five times faster.
inline i64 quotient(i64 a, int b) { return a >> 32 ? a / b : (i64)((unsigned)a / (unsigned)b); }

// Returns NaN for a NaN.
inline float relu(float x) { return x < 0 ? 0.0f : x; }
)cuda";

}  // namespace tutti::cuda::kernels
