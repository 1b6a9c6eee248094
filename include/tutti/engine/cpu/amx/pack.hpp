// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <tutti/core/float/bf16.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/engine/cpu/amx/layout.hpp>
#include <tutti/engine/cpu/amx/registers.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Weights as tiles: [panels of 32 outputs][taps][blocks of 32 inputs][1 or 2 tiles][16 pairs of inputs][16 outputs].
namespace tutti::cpu::amx {

namespace detail {

// Rounds 16 floats that are `step` apart; count of them, and zeros after these.
template <Isa I>
TUTTI_INLINE void round_row(const float* from, std::int64_t step, std::int64_t count, bf16* to) {
  float row[side] = {};
  if (step == 1 && count >= side)
    std::memcpy(row, from, sizeof row);
  else
    for (std::int64_t k = 0; k < std::min(count, side); ++k) row[k] = from[k * step];
  for (std::int64_t k = 0; k < side; k += lanes_of<I>) {
    F<I> v;
    load<I>(v, static_cast<const float*>(row + k));
    store<I>(to + k, v);
  }
}

// [16 outputs][16 pairs] -> [16 pairs][16 outputs]
template <Isa I>
TUTTI_INLINE void turn_tile(std::uint32_t* tile) {
#ifdef TUTTI_HAS_AMX
  if constexpr (lanes_of<I> == side) return transpose<I>(reinterpret_cast<float*>(tile));
#endif
  for (std::int64_t i = 0; i < side; ++i)
    for (std::int64_t k = 0; k < i; ++k) std::swap(tile[i * side + k], tile[k * side + i]);
}

// The tile of 16 outputs from `output` and 32 inputs from block `at` of a tap.
template <Isa I>
TUTTI_INLINE void pack_tile(const Layout& l, const Tap& tap, const float* w, std::int64_t output, std::int64_t at,
                            std::uint32_t* to) {
  const std::int64_t window = std::int64_t{l.kernel_h} * l.kernel_w, outputs = std::min(side, l.outputs - output);
  auto* const halves = reinterpret_cast<bf16*>(to);
  if (l.way == Way::lines) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const std::int64_t e = at * depth + k, column = e / l.channels, c = e % l.channels;
      const std::int64_t s = l.gradient ? tap.s - column : tap.s + column;
      for (std::int64_t n = 0; n < side; ++n) {
        const bool inside = column < l.kernel_w && n < outputs;
        const std::int64_t o = output + n;
        const std::int64_t row = l.gradient ? c * l.outputs + o : o * l.channels + c;
        halves[(k / 2 * side + n) * 2 + k % 2] = bf16(inside ? w[row * window + tap.r * l.kernel_w + s] : 0.0F);
      }
    }
    return;
  }
  const std::int64_t first = at * depth, inputs = std::min(depth, l.channels - first);
  w += tap.r * l.kernel_w + tap.s;
  if (!l.gradient) {  // [outputs][inputs][window]
    for (std::int64_t n = 0; n < side; ++n)
      for (std::int64_t k = 0; k < depth; k += side)
        round_row<I>(w + ((output + n) * l.channels + first + k) * window, window, n < outputs ? inputs - k : 0,
                     halves + n * depth + k);
    return turn_tile<I>(to);
  }
  for (std::int64_t k = 0; k < depth; k += 2, to += side) {  // [inputs][outputs][window]
    bf16 pair[2][side];
    for (std::int64_t i = 0; i < 2; ++i)
      round_row<I>(w + ((first + k + i) * l.outputs + output) * window, window, k + i < inputs ? outputs : 0, pair[i]);
    for (std::int64_t n = 0; n < side; ++n)
      to[n] = static_cast<std::uint32_t>(pair[0][n].bits) | static_cast<std::uint32_t>(pair[1][n].bits) << 16;
  }
}

template <Isa I>
TUTTI_INLINE void pack_body(const Layout& l, const float* w, std::uint32_t* to) {
  for (std::int64_t p = 0; p < l.panels; ++p) {
    const std::int64_t tiles = l.outputs - p * block > side ? 2 : 1;
    // All taps of a block together: their weights are in the same cache lines.
    for (std::int64_t at = 0; at < l.blocks; ++at)
      for (std::int64_t t = 0; t < tiles; ++t) {
        std::uint32_t* tile = to + (at * tiles + t) * tile_words;
        for (const Tap& tap : l.taps) {
          pack_tile<I>(l, tap, w, p * block + t * side, at, tile);
          tile += l.blocks * tiles * tile_words;
        }
      }
    to += static_cast<std::int64_t>(l.taps.size()) * l.blocks * tiles * tile_words;
  }
}

}  // namespace detail

}  // namespace tutti::cpu::amx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
