// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <array>
#include <cstdint>

// The two inner loops of a convolution, as sums of fixed-size Eigen arrays that stay in registers. On the matrices of
// small ResNets, on one Zen 5 core with a peak of about 252 GFLOP/s, Eigen's own matrix product reaches 100 to 165
// GFLOP/s, and these loops 220 to 245. They need no im2col.
namespace tutti::eigen {

// Floats in a register of the instruction set for which Eigen was compiled.
inline constexpr int width = EIGEN_MAX_STATIC_ALIGN_BYTES >= 16 ? EIGEN_MAX_STATIC_ALIGN_BYTES / 4 : 4;
using Lanes = Eigen::Array<float, width, 1>;

// Output channels are processed in blocks of B registers: B = 2, or 1 for the last block.
inline constexpr std::int64_t block_channels = 2 * width;
// Output pixels are processed in groups of neighbours in a row, several groups at once.
inline constexpr int group = 4;
// The numbers of independent sums below hide the latency of an addition, and fit in 32 registers (AVX-512) or 16.
inline constexpr bool many_registers = width >= 16;
template <int B>
inline constexpr int groups = (many_registers ? 4 : 2) / B;
// Number of weights whose gradients are summed at once, each for B registers of output channels.
template <int B>
inline constexpr int taps = many_registers ? 16 / B
                            : B == 2       ? 6
                                           : 8;

[[nodiscard]] inline Lanes load(const float* p) { return Eigen::Map<const Lanes>(p); }
inline void store(float* p, const Lanes& v) { Eigen::Map<Lanes>{p} = v; }

// out[g][i] = (add ? out[g][i] : initial) + sum over r, k of x[g][i * pixel + r * row + k] * w[r * run + k]
// for `groups` groups g of 4 pixels i. Each value of w, initial and out is B registers of output channels.
template <int B>
struct Tile {
  std::array<const float*, groups<B>> x;
  std::array<float*, groups<B>> out;
  std::int64_t pixel, row, run, out_pixel;  // in floats; run: length of a kernel's row; the others: distances
  int runs;
  const float *w, *initial;
  bool add;
};

template <int B>
[[gnu::noinline]] void correlate(const Tile<B>& t) {
  constexpr int pixels = group * groups<B>;
  Lanes sum[pixels][B];
#pragma GCC unroll 16
  for (int i = 0; i < pixels; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < B; ++j) {
      const float* from = t.add ? t.out[static_cast<std::size_t>(i / group)] + i % group * t.out_pixel : t.initial;
      sum[i][j] = load(from + j * width);
    }
  const float* w = t.w;
  const std::int64_t pixel = t.pixel, run = t.run;
  for (int r = 0; r < t.runs; ++r) {
    const float* x[groups<B>];
#pragma GCC unroll 4
    for (int g = 0; g < groups<B>; ++g) x[g] = t.x[static_cast<std::size_t>(g)] + r * t.row;
    for (std::int64_t k = 0; k < run; ++k, w += B * width) {
      Lanes weight[B];
#pragma GCC unroll 2
      for (int j = 0; j < B; ++j) weight[j] = load(w + j * width);
#pragma GCC unroll 16
      for (int i = 0; i < pixels; ++i) {
        const float v = x[i / group][i % group * pixel];
#pragma GCC unroll 2
        for (int j = 0; j < B; ++j) sum[i][j] += v * weight[j];
      }
#pragma GCC unroll 4
      for (int g = 0; g < groups<B>; ++g) ++x[g];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < pixels; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < B; ++j)
      store(t.out[static_cast<std::size_t>(i / group)] + i % group * t.out_pixel + j * width, sum[i][j]);
}

// Distances between images, rows and pixels in memory, in floats.
struct Walk {
  std::int64_t image, row, pixel;
};

// dw[k] = (add ? dw[k] : 0) + sum over pixels of x[k] * dy for `taps` neighbouring k. Each value of dy and
// dw is B registers of output channels.
template <int B>
[[gnu::noinline]] void outer_products(const float* x, const Walk& xs, const float* dy, const Walk& dys,
                                      std::int64_t images, std::int64_t rows, std::int64_t cols, float* dw, bool add) {
  Lanes sum[taps<B>][B];
#pragma GCC unroll 16
  for (int i = 0; i < taps<B>; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < B; ++j) {
      sum[i][j].setZero();
      if (add) sum[i][j] = load(dw + (i * B + j) * width);
    }
  const std::int64_t x_pixel = xs.pixel, dy_pixel = dys.pixel;
  for (std::int64_t n = 0; n < images; ++n)
    for (std::int64_t p = 0; p < rows; ++p) {
      const float* a = x + n * xs.image + p * xs.row;
      const float* b = dy + n * dys.image + p * dys.row;
      for (std::int64_t q = 0; q < cols; ++q, a += x_pixel, b += dy_pixel) {
        Lanes gradient[B];
#pragma GCC unroll 2
        for (int j = 0; j < B; ++j) gradient[j] = load(b + j * width);
#pragma GCC unroll 16
        for (int i = 0; i < taps<B>; ++i) {
          const float v = a[i];
#pragma GCC unroll 2
          for (int j = 0; j < B; ++j) sum[i][j] += v * gradient[j];
        }
      }
    }
#pragma GCC unroll 16
  for (int i = 0; i < taps<B>; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < B; ++j) store(dw + (i * B + j) * width, sum[i][j]);
}

}  // namespace tutti::eigen
