// SPDX-License-Identifier: MIT
#pragma once

// Source of kernels: the conversions of sums of logical ranks (engine/step/integer_block.hpp). A block of threads for
// each block of elements. They give the bits of the reference loops.
namespace tutti::cuda::kernels {

inline constexpr char integers[] = R"cuda(
struct IntegerBlock {
  unsigned long long begin;
  unsigned count;
  int exponent;
};

// Returns 2^exponent, for -149 to 127.
inline float power_of_two(int exponent) {
  return __uint_as_float(exponent < -126 ? 1u << (exponent + 149) : (unsigned)(exponent + 127) << 23);
}

__global__ void to_integers(const IntegerBlock* blocks, const float* from, int* to, const int* plus, unsigned* maxima) {
  wait_for_earlier_kernels();
  struct Values {
    float g;
    int earlier;
  };
  const IntegerBlock b = blocks[blockIdx.x];
  // Two normal floats with the product 2^-exponent: the first product overflows only far above the limit.
  const int n = -b.exponent, part = n < -126 ? -126 : n > 127 ? 127 : n;
  const float first = power_of_two(part), second = power_of_two(n - part), limit = 2147483520.0f;
  const int mine = threadIdx.x < b.count ? (int)((b.count - threadIdx.x + blockDim.x - 1) / blockDim.x) : 0;
  unsigned most = 0;
  stream<4>(
      mine, (i64)b.begin + threadIdx.x, blockDim.x,
      [&](i64 i) {
        Values v;
        v.g = from[i];
        v.earlier = plus == 0 ? 0 : plus[i];
        return v;
      },
      [&](i64 i, const Values& v) {
        const unsigned bits = __float_as_uint(v.g) & 0x7fffffffu;
        most = most < bits ? bits : most;
        float x = __fmul_rn(__fmul_rn(v.g, first), second);
        x = x < limit ? x : limit;
        x = x > -limit ? x : -limit;
        to[i] = (int)((unsigned)(int)rintf(x) + (unsigned)v.earlier);
      });
  __shared__ unsigned greatest[256];
  greatest[threadIdx.x] = most;
  for (int h = 128; h > 0; h /= 2) {
    __syncthreads();
    if (threadIdx.x < h && greatest[threadIdx.x] < greatest[threadIdx.x + h])
      greatest[threadIdx.x] = greatest[threadIdx.x + h];
  }
  if (threadIdx.x == 0) maxima[blockIdx.x] = greatest[0];
}

__global__ void from_integers(const IntegerBlock* blocks, const int* from, float* to) {
  wait_for_earlier_kernels();
  const IntegerBlock b = blocks[blockIdx.x];
  const float unit = power_of_two(b.exponent);
  const int mine = threadIdx.x < b.count ? (int)((b.count - threadIdx.x + blockDim.x - 1) / blockDim.x) : 0;
  stream<4>(
      mine, (i64)b.begin + threadIdx.x, blockDim.x, [&](i64 i) { return from[i]; },
      [&](i64 i, int q) { to[i] = __fmul_rn((float)q, unit); });
}
)cuda";

}  // namespace tutti::cuda::kernels
