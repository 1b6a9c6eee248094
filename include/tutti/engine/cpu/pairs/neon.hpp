// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <tutti/engine/cpu/pairs/shapes.hpp>
#include <tutti/engine/cpu/simd.hpp>

// The sums of forward.hpp and weight_gradient.hpp by BFDOT, which adds the products of four pairs and takes one pair of
// a register as the factor of all four. A panel of 16 outputs is four registers.
#if defined(__aarch64__)
namespace tutti::cpu::pairs::detail {

using Pair = std::uint32_t __attribute__((may_alias));
using Quad = F<Isa::neon_bf16>;        // sums of four outputs
using Words = Vec<Isa::neon_bf16>::U;  // four pairs
inline constexpr int quad = 4, tile_h = 2, tile_w = 4;
inline constexpr int tile_outputs = 8;     // of a tile in registers
inline constexpr int gradient_inputs = 8;  // of a tile of the gradient

// sum += a b, with pair `Lane` of b. Uses a copy of `sum`, because an array stays in memory if its elements are
// operands of asm. Volatile, because GCC 12 would compute one sum after the other: each product would wait for the one
// before.
template <int Lane>
TUTTI_INLINE void add_product(Quad& sum, const Words& a, const Words& b) {
  Quad s = sum;
  asm volatile(".arch_extension bf16\n\tbfdot %0.4s, %1.8h, %2.2h[%c3]" : "+w"(s) : "w"(a), "w"(b), "i"(Lane));
  sum = s;
}

using Tile = Quad[tile_h][tile_w][tile_outputs / quad];

// Adds the products of neighbouring pairs `Lane` of four pixels: multiplied by row A of the weights for the first row
// of outputs, row B for the second; -1: not used. n: pairs of a row of the weights.
template <int A, int B, int... Lane>
TUTTI_INLINE void add_pairs(Tile& sums, const Words (&x)[tile_w], const std::uint32_t* weights, std::int64_t n,
                            std::integer_sequence<int, Lane...>) {
  const auto add = [&]<int L>(std::integral_constant<int, L>) TUTTI_LAMBDA {
    Words a[2], b[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      if constexpr (A >= 0) read(a[h], weights + (A * n + L) * lanes + h * quad);
      if constexpr (B >= 0) read(b[h], weights + (B * n + L) * lanes + h * quad);
    }
#pragma GCC unroll 4
    for (int j = 0; j < tile_w; ++j)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        if constexpr (A >= 0) add_product<L>(sums[0][j][h], a[h], x[j]);
        if constexpr (B >= 0) add_product<L>(sums[1][j][h], b[h], x[j]);
      }
  };
  (add(std::integral_constant<int, Lane>()), ...);
}

// Adds one row of an image to the rows of outputs that it belongs to.
template <int A, int B>
TUTTI_INLINE void add_row(Tile& sums, const Pair* x, std::int64_t pairs, const std::uint32_t* weights) {
  const std::int64_t n = 3 * pairs;
  Words v[tile_w];
  std::int64_t k = 0;
  for (; k + quad <= n; k += quad) {
#pragma GCC unroll 4
    for (int j = 0; j < tile_w; ++j) read(v[j], x + j * pairs + k);
    add_pairs<A, B>(sums, v, weights + k * lanes, n, std::make_integer_sequence<int, quad>());
  }
  for (; k < n; ++k) {
#pragma GCC unroll 4
    for (int j = 0; j < tile_w; ++j) v[j] = Words{} + x[j * pairs + k];
    add_pairs<A, B>(sums, v, weights + k * lanes, n, std::make_integer_sequence<int, 1>());
  }
}

// weights: of the first output of the tile. x: the tile's first pixel in an image with zeros around it, with `line`
// pairs from a row to the next.
TUTTI_INLINE void forward_tile(Tile& sums, const Pair* x, std::int64_t line, std::int64_t pairs,
                               const std::uint32_t* weights) {
#pragma GCC unroll 2
  for (int i = 0; i < tile_h; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < tile_w; ++j)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) sums[i][j][h] = Quad{};
  add_row<0, -1>(sums, x, pairs, weights);
  add_row<1, 0>(sums, x + line, pairs, weights);
  add_row<2, 1>(sums, x + 2 * line, pairs, weights);
  add_row<-1, 2>(sums, x + 3 * line, pairs, weights);
}

// Computes 2x4 pixels of up to 16 outputs and writes h x w of them to `to`, with `row` numbers from a row to the next
// and `step` from a pixel to the next.
TUTTI_INLINE void forward_tiles(const Pair* x, std::int64_t line, std::int64_t pairs, const std::uint32_t* weights,
                                std::int64_t count, std::int64_t h, std::int64_t w, bf16* to, std::int64_t row,
                                std::int64_t step) {
  for (std::int64_t c = 0; c < count; c += tile_outputs) {
    Tile sums;
    forward_tile(sums, x, line, pairs, weights + c);
    bf16 rounded[tile_h][tile_w][tile_outputs];
    const bool whole = count - c >= tile_outputs && h >= tile_h && w >= tile_w;
    bf16* const first = whole ? to + c : static_cast<bf16*>(rounded[0][0]);
    const std::int64_t down = whole ? row : tile_w * tile_outputs, along = whole ? step : tile_outputs;
#pragma GCC unroll 2
    for (int r = 0; r < tile_h; ++r)
#pragma GCC unroll 4
      for (int s = 0; s < tile_w; ++s)
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) store<Isa::neon_bf16>(first + r * down + s * along + k * quad, sums[r][s][k]);
    if (whole) continue;
    for (std::int64_t r = 0; r < std::min<std::int64_t>(tile_h, h); ++r)
      for (std::int64_t s = 0; s < std::min<std::int64_t>(tile_w, w); ++s)
        std::copy_n(static_cast<const bf16*>(rounded[r][s]), std::min<std::int64_t>(tile_outputs, count - c),
                    to + r * row + s * step + c);
  }
}

// The steps of a tile of the gradient, in words: from a pair of inputs to the next pair of pixels and to the next row
// of x, from a row of dy to the next one.
struct GradientSteps {
  std::int64_t across, pair, input_row, output_row;
};

// 8 inputs times four outputs times the three rows of a column of the weights, over `rows` rows of pairs. The sums of
// an input are 9 * 16 floats from the next ones, those of a row of weights 3 * 16.
template <int Stride>
TUTTI_INLINE void gradient_quad(const GradientSteps& l, const Pair* x, const std::uint32_t* dy, std::int64_t rows,
                                float* to, bool add) {
  Quad sums[gradient_inputs][3];
#pragma GCC unroll 8
  for (int c = 0; c < gradient_inputs; ++c)
#pragma GCC unroll 3
    for (int r = 0; r < 3; ++r) sums[c][r] = Quad{};
  for (std::int64_t i = 0; i < rows; ++i, x += Stride * l.input_row, dy += l.output_row)
    for (std::int64_t p = 0; p < l.across; ++p) {
      const Pair* const at = x + p * l.pair;
      const std::uint32_t* const d = dy + p * lanes;
      Words g[Stride == 1 ? 3 : 1];
      if constexpr (Stride == 1) {  // a row of inputs and three of gradients
        read(g[0], d + 2 * l.output_row);
        read(g[1], d + l.output_row);
        read(g[2], d);
      } else {  // a row of gradients and three of inputs
        read(g[0], d);
      }
      const auto four = [&]<int First, int... Lane>(std::integral_constant<int, First>, int r,
                                                    std::integer_sequence<int, Lane...>) TUTTI_LAMBDA {
        Words v;
        read(v, at + (Stride == 1 ? 0 : r * l.input_row) + First);
        if constexpr (Stride == 1)
          ((add_product<Lane>(sums[First + Lane][0], g[0], v), add_product<Lane>(sums[First + Lane][1], g[1], v),
            add_product<Lane>(sums[First + Lane][2], g[2], v)),
           ...);
        else
          (add_product<Lane>(sums[First + Lane][r], g[0], v), ...);
      };
#pragma GCC unroll 3
      for (int r = 0; r < (Stride == 1 ? 1 : 3); ++r) {
        four(std::integral_constant<int, 0>(), r, std::make_integer_sequence<int, quad>());
        four(std::integral_constant<int, quad>(), r, std::make_integer_sequence<int, quad>());
      }
    }
#pragma GCC unroll 8
  for (int c = 0; c < gradient_inputs; ++c)
#pragma GCC unroll 3
    for (int r = 0; r < 3; ++r) {
      float* const at = to + (c * 9 + r * 3) * lanes;
      Quad before{};
      if (add) read(before, at);
      write(at, before + sums[c][r]);
    }
}

}  // namespace tutti::cpu::pairs::detail
#endif
