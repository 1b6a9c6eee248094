// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/winograd/pack.hpp>
#include <tutti/engine/cpu/winograd/tiles.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Gradients of weights by Winograd's F(4x4, 3x3): dw = G' [sum over tiles of (B' x B) (A dy A')] G. Tiles are
// transformed first; then each of the 36 points is a matrix product, outputs x tiles by tiles x inputs. With stride 2
// the tiles have 81 points, and points with the same weight are added up.
namespace tutti::cpu::winograd {

struct WeightProductArgs {
  TransformedTiles x, dy;
  bool strided = false;
  std::int64_t tiles = 0;
  std::int64_t inputs = 0, outputs = 0;
  // the part that is computed, in whole registers
  std::int64_t first_input = 0, end_input = 0, first_output = 0, end_output = 0;
  float* products = nullptr;  // memory for weight_product_floats()
  // The destination: sums [outputs][9][inputs, whole registers], set or added to, or else dw, of the computed part:
  // [outputs][inputs][9], with dw_step floats from one output to the next.
  float* sums = nullptr;
  bool add = false;
  float* dw = nullptr;
  std::int64_t dw_step = 0;
};

// The amount that is multiplied at once, of all points: a block of the gradient with products that stay in the
// second-level cache, and a number of tiles with which both operands of a point stay in the first. Blocks as high as
// wide read the fewest tiles for a sum.
inline constexpr std::int64_t weight_block = 64, weight_block_tiles = 64;
inline constexpr std::int64_t weight_block_plane = weight_block * weight_block + 16;

[[nodiscard]] constexpr std::int64_t weight_product_floats() { return points * weight_block_plane; }

#ifdef TUTTI_HAS_WIDE_KERNELS

namespace detail {

// Points of tiles that are multiplied at once: `count` points from the i-th in order on, which share weights.
struct PointRun {
  const PointOrder& order;
  std::size_t i, count;
  bool add;  // add to the sums of previous points
};

// Multiplies R outputs by N registers of inputs: sums over points and tiles, from zero or from the present values.
// Prefetches half a register of the next tiles meanwhile, because a block reads them only a few times.
template <Isa I, int R, int N>
TUTTI_INLINE void weight_product(const WeightProductArgs& a, const PointRun& run, const float* first_dy,
                                 const float* first_x, std::int64_t tiles, float* to, const float* next) {
  constexpr int lanes = lanes_of<I>;
  F<I> sum[R][N];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      sum[i][j] = F<I>{};
      if (run.add) load<I>(sum[i][j], static_cast<const float*>(to + (i * N + j) * lanes));
    }
  for (std::size_t p = run.i; p < run.i + run.count; ++p) {
    const float* dy = first_dy + run.order.tiles[p] * a.dy.plane;
    const float* x = first_x + run.order.tiles[p] * a.x.plane;
    for (std::int64_t t = 0; t < tiles; ++t, dy += lanes, x += lanes, next += lanes / 2) {
      __builtin_prefetch(next, 0, 2);
      F<I> b[N];
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) load<I>(b[j], x + j * a.x.tiles * lanes);
      if constexpr (multiplies_lanes<I>) {
#pragma GCC unroll 2
        for (int r = 0; r < R; r += lanes) {
          F<I> d;
          load<I>(d, dy + r * a.dy.tiles);
#pragma GCC unroll 4
          for (int k = 0; k < lanes; ++k)
#pragma GCC unroll 2
            for (int j = 0; j < N; ++j) add_lane_product<I>(sum[r + k][j], b[j], d, k);
        }
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
          F<I> d;
          repeat<I>(d, dy + i);
#pragma GCC unroll 2
          for (int j = 0; j < N; ++j) sum[i][j] += d * b[j];
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) store<I>(to + (i * N + j) * lanes, sum[i][j]);
}

// A block of the gradient: inputs [c, c_end) in whole registers, outputs [k, k_end).
struct WeightBlock {
  std::int64_t c, c_end, k, k_end;
};
template <Isa I>
TUTTI_INLINE void multiply_points(const WeightProductArgs& a, const WeightBlock& b, const PointRun& run,
                                  std::int64_t first) {
  constexpr int lanes = lanes_of<I>;
  const std::int64_t count = std::min(weight_block_tiles, a.tiles - first);
  const auto x_of = [&](std::int64_t t, std::int64_t c) TUTTI_LAMBDA { return a.x.data + c * a.x.tiles + t * lanes; };
  const auto dy_of = [&](std::int64_t t, std::int64_t k)
                         TUTTI_LAMBDA { return a.dy.data + k / lanes * lanes * a.dy.tiles + t * lanes + k % lanes; };
  const bool last = first + count == a.tiles;
  const auto points_in_all = static_cast<std::size_t>(run.order.count);
  const std::int64_t next_point = run.order.tiles[std::min(points_in_all - 1, last ? run.i + run.count : run.i)];
  const std::int64_t next_tile = last ? 0 : first + count, registers = (b.c_end - b.c) / lanes;
  const std::int64_t halves = 2 * (registers + (b.k_end - b.k + lanes - 1) / lanes);
  // Prefetch addresses: one half register of tiles after the other, of inputs and then of gradients.
  const auto ahead = [&](std::int64_t half) TUTTI_LAMBDA {
    half = std::min(half, halves - 1);
    const std::int64_t r = half / 2;
    return (r < registers ? x_of(next_tile, b.c + r * lanes) + next_point * a.x.plane
                          : dy_of(next_tile, b.k + (r - registers) * lanes) + next_point * a.dy.plane) +
           half % 2 * (count * lanes / 2);
  };
  float* to = a.products + run.order.weights[run.i] * weight_block_plane;
  std::int64_t calls = 0;
  // With registers of 4 lanes, a block that is as high as a register holds too few sums to hide their latency.
  constexpr int rows_of_two = lanes == 4 ? 8 : lanes / 2;
  for (std::int64_t c = b.c; c < b.c_end; c += 2 * lanes) {
    const float* const x = x_of(first, c);
    if (c + lanes < b.c_end)
      for (std::int64_t k = b.k; k < b.k_end; k += rows_of_two, to += 2 * rows_of_two * lanes) {
        if constexpr (rows_of_two > lanes)
          if (k + lanes == b.k_end) {
            weight_product<I, lanes, 2>(a, run, dy_of(first, k), x, count, to, ahead(calls++));
            to += 2 * lanes * lanes;
            break;
          }
        weight_product<I, rows_of_two, 2>(a, run, dy_of(first, k), x, count, to, ahead(calls++));
      }
    else
      for (std::int64_t k = b.k; k < b.k_end; k += lanes, to += lanes * lanes)
        weight_product<I, lanes, 1>(a, run, dy_of(first, k), x, count, to, ahead(calls++));
  }
}

// Writes nine positions of a register of inputs to [input][9], for those inputs that exist.
template <Isa I>
TUTTI_INLINE void put_places(F<I>* nine, float* to, std::int64_t inputs) {
  constexpr int lanes = lanes_of<I>;
  if constexpr (lanes == 16) {
    if (inputs >= lanes) {
      // Each store writes an input's nine values and zeros on the positions of the next input, which is written after
      // it.
      transpose_stages<I>(nine);
#pragma GCC unroll 16
      for (int l = 0; l < lanes - 1; ++l) store<I>(to + l * 9, nine[l]);
      float last[lanes];
      store<I>(static_cast<float*>(last), nine[lanes - 1]);
      std::copy_n(static_cast<const float*>(last), 9, to + (lanes - 1) * 9);
      return;
    }
  }
  float values[9][lanes];
  for (int place = 0; place < 9; ++place) store<I>(static_cast<float*>(values[place]), nine[place]);
  for (std::int64_t l = 0; l < std::min<std::int64_t>(lanes, inputs); ++l)
    for (int place = 0; place < 9; ++place) *to++ = values[place][l];
}

// Computes the products of all points of a block, then G' m G.
template <Isa I>
TUTTI_INLINE void multiply_weights(const WeightProductArgs& a, const WeightBlock& b) {
  using V = F<I>;
  constexpr int lanes = lanes_of<I>;
  const PointOrder& order = order_of(a.strided);
  const auto points_in_all = static_cast<std::size_t>(order.count);
  // If there are few tiles, multiplies more points that share weights at once.
  const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, weight_block_tiles / a.tiles));
  for (std::size_t i = 0, same = 1; i < points_in_all; i += same) {
    for (same = 1; i + same < points_in_all && order.weights[i + same] == order.weights[i];) ++same;
    for (std::int64_t t = 0; t < a.tiles; t += weight_block_tiles)
      for (std::size_t k = 0; k < same; k += most)
        multiply_points<I>(a, b, {order, i + k, std::min(most, same - k), t > 0 || k > 0}, t);
  }
  const std::int64_t row = (a.inputs + lanes - 1) / lanes * lanes;
  const std::int64_t rows = (b.k_end - b.k + lanes - 1) / lanes * lanes;  // rows of products
  for (std::int64_t i = b.k; i < std::min(b.k_end, a.outputs); ++i)
    for (std::int64_t first = b.c; first < b.c_end; first += lanes) {
      // Products are stored in columns of two registers of inputs; the last column may have one.
      const std::int64_t r = (first - b.c) / lanes, width = first - r % 2 * lanes + lanes < b.c_end ? 2 : 1;
      const float* const m = a.products + (r / 2 * 2 * rows + (i - b.k) * width + r % 2) * lanes;
      const auto transform = [&](const auto& put) TUTTI_LAMBDA {
        in_two_dimensions<V, patch, 3>(
            [&](V* d) TUTTI_LAMBDA { a.strided ? strided_weight_gradient_1d(d) : weight_gradient_1d(d); },
            [&](V& v, int p, int q)
                TUTTI_LAMBDA { load<I>(v, static_cast<const float*>(m + (p * patch + q) * weight_block_plane)); },
            [&](const V& v, int p, int q) TUTTI_LAMBDA { put(v, p * 3 + q); });
      };
      if (a.sums == nullptr) {
        float* const to = a.dw + (i - a.first_output) * a.dw_step + (first - a.first_input) * 9;
        // The next output's gradient is far away in memory, and the hardware's prefetchers do not follow the blocks.
        const auto* const ahead = reinterpret_cast<const std::byte*>(to + a.dw_step);
        for (std::size_t at = 0; at < 9 * sizeof(V); at += 64) fetch_for_writing(ahead + at);
        V nine[lanes > 9 ? lanes : 9] = {};
        transform([&](const V& v, int place) TUTTI_LAMBDA { nine[place] = v; });
        put_places<I>(nine, to, a.inputs - first);
      } else {
        float* const to = a.sums + i * 9 * row + first;
        const bool add = a.add;
        transform([&](const V& v, int place) TUTTI_LAMBDA {
          V before = V{};
          if (add) load<I>(before, static_cast<const float*>(to + place * row));
          store<I>(to + place * row, before + v);
        });
      }
    }
}

template <Isa I>
TUTTI_INLINE void weight_products_body(const WeightProductArgs& a) {
  for (std::int64_t c = a.first_input; c < a.end_input; c += weight_block)
    for (std::int64_t k = a.first_output; k < a.end_output; k += weight_block)
      multiply_weights<I>(a, {c, std::min(c + weight_block, a.end_input), k, std::min(k + weight_block, a.end_output)});
}
#if defined(__x86_64__)
TUTTI_TARGET_AVX512 inline void weight_products_avx512(const WeightProductArgs& a) {
  weight_products_body<Isa::avx512>(a);
}
TUTTI_TARGET_AVX2 inline void weight_products_avx2(const WeightProductArgs& a) { weight_products_body<Isa::avx2>(a); }
#endif

}  // namespace detail

#endif

// For all instruction sets beyond the baseline.
TUTTI_CORE_FUNCTION void weight_products(Isa isa, const WeightProductArgs& a);
#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void weight_products([[maybe_unused]] Isa isa, [[maybe_unused]] const WeightProductArgs& a) {
#if defined(__x86_64__)
  isa == Isa::avx2 ? detail::weight_products_avx2(a) : detail::weight_products_avx512(a);
#elif defined(TUTTI_HAS_WIDE_KERNELS)
  detail::weight_products_body<Isa::neon>(a);
#else
  fail<UsageError>("winograd", "AVX2, AVX-512 or NEON", "another processor");
#endif
}
#endif

}  // namespace tutti::cpu::winograd

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
