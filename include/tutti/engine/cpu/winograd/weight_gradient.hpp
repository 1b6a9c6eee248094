// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/winograd/tiles.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Gradients of weights by Winograd's F(4x4, 3x3): dw = G' [sum over tiles of (B' x B) (A dy A')] G. Tiles are
// transformed first; then each of the 36 points is a product of matrices, outputs x tiles by tiles x inputs.
namespace tutti::cpu::winograd {

struct WeightProductArgs {
  TransformedTiles x, dy;
  std::int64_t tiles = 0;
  std::int64_t inputs = 0, outputs = 0;
  std::int64_t first_input = 0, end_input = 0, first_output = 0, end_output = 0;  // what is computed: whole registers
  float* products = nullptr;                                                      // room for weight_product_floats()
  // Where it goes: sums [outputs][9][inputs, whole registers], set or added to, or else dw [outputs][inputs][9].
  float* sums = nullptr;
  bool add = false;
  float* dw = nullptr;
};

namespace detail {

inline constexpr std::int64_t output_block = 64;  // whose products by 2 registers of inputs stay in the second cache

template <Isa I>
inline constexpr std::int64_t product_plane = output_block * 2 * lanes_of<I> + 16;

}  // namespace detail

[[nodiscard]] constexpr std::int64_t weight_product_floats() { return points * detail::product_plane<Isa::avx512>; }

#if defined(__x86_64__)

namespace detail {

// R outputs by N registers of inputs, summed over tiles.
template <Isa I, int R, int N>
TUTTI_INLINE void weight_product(const float* dy, const float* x, std::int64_t step, std::int64_t tiles, float* to) {
  constexpr int lanes = lanes_of<I>;
  F<I> sum[R][N];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) sum[i][j] = F<I>{};
  for (std::int64_t t = 0; t < tiles; ++t, dy += lanes, x += lanes) {
    F<I> b[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) load<I>(b[j], x + j * step);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      F<I> a;
      repeat<I>(a, dy + i);
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) sum[i][j] += a * b[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i, to += 2 * lanes)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) store<I>(to + j * lanes, sum[i][j]);
}

// All points for outputs [k, end) and N registers of inputs from c on: products, then G' m G.
template <Isa I, int N>
TUTTI_INLINE void weight_block(const WeightProductArgs& a, std::int64_t c, std::int64_t k, std::int64_t end) {
  using V = F<I>;
  constexpr int lanes = lanes_of<I>, at_once = lanes / N;
  const std::int64_t step = a.dy.tiles * lanes, row = (a.inputs + lanes - 1) / lanes * lanes;
  for (int point = 0; point < points; ++point) {
    const float* const x = a.x.data + point * a.x.plane + c * a.x.tiles;
    const float* const dy = a.dy.data + point * a.dy.plane;
    float* to = a.products + point * product_plane<I>;
    for (std::int64_t i = k; i < end; i += at_once, to += at_once * 2 * lanes)
      weight_product<I, at_once, N>(dy + i / lanes * step + i % lanes, x, step, a.tiles, to);
  }
  for (std::int64_t i = k; i < std::min(end, a.outputs); ++i)
    for (int j = 0; j < N; ++j) {
      const std::int64_t first = c + j * lanes;
      const float* const m = a.products + (i - k) * 2 * lanes + j * lanes;
      float nine[9][lanes];
      float* const to = a.sums != nullptr ? a.sums + i * 9 * row + first : static_cast<float*>(nine[0]);
      const std::int64_t place_step = a.sums != nullptr ? row : lanes;
      const bool add = a.add;
      in_two_dimensions<V, patch, 3>([](V* d) TUTTI_LAMBDA { weight_gradient_1d(d); },
                                     [&](V& v, int p, int q) TUTTI_LAMBDA {
                                       load<I>(v, static_cast<const float*>(m + (p * patch + q) * product_plane<I>));
                                     },
                                     [&](const V& v, int p, int q) TUTTI_LAMBDA {
                                       float* const at = to + (p * 3 + q) * place_step;
                                       V before = V{};
                                       if (add) load<I>(before, static_cast<const float*>(at));
                                       store<I>(at, before + v);
                                     });
      if (a.sums != nullptr) continue;
      float* dw = a.dw + (i * a.inputs + first) * 9;
      for (std::int64_t l = 0; l < std::min<std::int64_t>(lanes, a.inputs - first); ++l)
        for (int place = 0; place < 9; ++place) *dw++ = nine[place][l];
    }
}

template <Isa I>
TUTTI_INLINE void weight_products_body(const WeightProductArgs& a) {
  constexpr int lanes = lanes_of<I>;
  for (std::int64_t c = a.first_input; c < a.end_input; c += 2 * lanes)
    for (std::int64_t k = a.first_output; k < a.end_output; k += output_block) {
      const std::int64_t end = std::min(k + output_block, a.end_output);
      if (c + lanes < a.end_input)
        weight_block<I, 2>(a, c, k, end);
      else
        weight_block<I, 1>(a, c, k, end);
    }
}
TUTTI_TARGET_AVX512 inline void weight_products_avx512(const WeightProductArgs& a) {
  weight_products_body<Isa::avx512>(a);
}
TUTTI_TARGET_AVX2 inline void weight_products_avx2(const WeightProductArgs& a) { weight_products_body<Isa::avx2>(a); }

}  // namespace detail

#endif

// For AVX2 and AVX-512.
TUTTI_CORE_FUNCTION void weight_products(Isa isa, const WeightProductArgs& a);
#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void weight_products([[maybe_unused]] Isa isa, [[maybe_unused]] const WeightProductArgs& a) {
#if defined(__x86_64__)
  isa == Isa::avx2 ? detail::weight_products_avx2(a) : detail::weight_products_avx512(a);
#else
  fail<UsageError>("winograd", "AVX2 or AVX-512", "another processor");
#endif
}
#endif

}  // namespace tutti::cpu::winograd

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
