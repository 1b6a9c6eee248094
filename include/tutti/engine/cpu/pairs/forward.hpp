// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/engine/cpu/pairs/shapes.hpp>
#include <tutti/engine/cpu/simd.hpp>
#if defined(__aarch64__)
#include <tutti/engine/cpu/pairs/neon.hpp>
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// 3x3 convolutions with padding and stride 1 in bf16, forward and, if the weights are packed for it, the gradient of
// their input. An image is copied with zeros around it; then 2x8 pixels of 16 outputs are summed in registers. Each
// loaded pair of a pixel's channels is used for both rows of outputs that it belongs to.
namespace tutti::cpu::pairs {

#if defined(__aarch64__)
using detail::tile_h;
using detail::tile_w;
#else
inline constexpr int tile_h = 2, tile_w = 8;
#endif

struct ForwardArgs {
  Shape x, y;
  const bf16* from = nullptr;              // x
  const std::uint32_t* weights = nullptr;  // [panels of 16 outputs][3][3][pairs of channels][16]
  bf16* to = nullptr;                      // y
  bf16* room = nullptr;                    // memory for a copy of an image, of the size of padded()
  // The images [first, end) and their lines [first, end) that are computed; lines begin at a whole tile.
  std::int64_t first_image = 0, end_image = 0, first_h = 0, end_h = 0;
};

// The size of an image with zeros around it, up to whole tiles of outputs and an even number of channels.
struct Padded {
  std::int64_t h, w, channels;

  [[nodiscard]] std::int64_t numel() const { return h * w * channels; }
};
[[nodiscard]] inline Padded padded(const Shape& x, const Shape& y) {
  const auto reach = [&](std::int64_t out, std::int64_t whole) { return (out + whole - 1) / whole * whole + 2; };
  return {reach(y[2], tile_h), reach(y[3], tile_w), (x[1] + 1) / 2 * 2};
}
[[nodiscard]] inline std::int64_t packed_words(std::int64_t inputs, std::int64_t outputs) {
  return (outputs + lanes - 1) / lanes * lanes * 9 * ((inputs + 1) / 2);
}

#ifdef TUTTI_HAS_PAIRS

namespace detail {

#if defined(__x86_64__)
using Register = F<Isa::avx512_bf16>;
using Pair = std::uint32_t __attribute__((may_alias));

// sum += a b, of pairs. Uses a copy of `sum`, because an array stays in memory if its elements are operands of asm.
TUTTI_INLINE void add_product(Register& sum, const Register& a, const Register& b) {
  Register s = sum;
  asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(b));
  sum = s;
}
TUTTI_INLINE void repeat(Register& to, const Pair* p) { asm("vpbroadcastd %1, %0" : "=v"(to) : "m"(*p)); }

// Adds one row of an image to two rows of outputs: multiplied by row A of the weights for the first, row B for the
// second; -1: not used.
template <int A, int B>
TUTTI_INLINE void add_row(Register (&sums)[tile_h][tile_w], const Pair* x, std::int64_t pairs,
                          const std::uint32_t* weights) {
  const std::int64_t n = 3 * pairs;
  for (std::int64_t k = 0; k < n; ++k, ++x, weights += lanes) {
    Register a, b;
    if constexpr (A >= 0) read(a, weights + A * n * lanes);
    if constexpr (B >= 0) read(b, weights + B * n * lanes);
#pragma GCC unroll 8
    for (int j = 0; j < tile_w; ++j) {
      Register v;
      repeat(v, x + j * pairs);
      if constexpr (A >= 0) add_product(sums[0][j], a, v);
      if constexpr (B >= 0) add_product(sums[1][j], b, v);
    }
  }
}

TUTTI_INLINE void forward_tile(Register (&sums)[tile_h][tile_w], const Pair* x, std::int64_t line, std::int64_t pairs,
                               const std::uint32_t* weights) {
#pragma GCC unroll 2
  for (int i = 0; i < tile_h; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < tile_w; ++j) sums[i][j] = Register{};
  add_row<0, -1>(sums, x, pairs, weights);
  add_row<1, 0>(sums, x + line, pairs, weights);
  add_row<2, 1>(sums, x + 2 * line, pairs, weights);
  add_row<-1, 2>(sums, x + 3 * line, pairs, weights);
}

#endif

// Copies one image into `room`, with zeros around it.
inline void pad_image(const bf16* from, const Shape& x, const Padded& to, bf16* room) {
  const std::int64_t line = to.w * to.channels;
  std::fill_n(room, line, bf16{});
  for (std::int64_t i = 1; i < to.h; ++i) {
    bf16* at = room + i * line;
    bf16* const end = at + line;
    if (i <= x[2]) {
      at = std::fill_n(at, to.channels, bf16{});
      if (x[1] == to.channels) {
        at = std::copy_n(from + (i - 1) * x[3] * x[1], x[3] * x[1], at);
      } else {
        for (std::int64_t j = 0; j < x[3]; ++j) {
          at = std::copy_n(from + ((i - 1) * x[3] + j) * x[1], x[1], at);
          *at++ = bf16{};
        }
      }
    }
    std::fill(at, end, bf16{});
  }
}

inline TUTTI_TARGET_PAIRS void forward_body(const ForwardArgs& a) {
  const Padded p = padded(a.x, a.y);
  const std::int64_t pairs = p.channels / 2, line = p.w * pairs;
  const auto* const image = reinterpret_cast<const Pair*>(a.room);
  const std::int64_t h = a.y[2], w = a.y[3], outputs = a.y[1];
  for (std::int64_t n = a.first_image; n < a.end_image; ++n) {
    pad_image(a.from + n * a.x.row_numel(), a.x, p, a.room);
    for (std::int64_t c = 0; c < outputs; c += lanes) {
      const std::uint32_t* const weights = a.weights + c * 9 * pairs;
      const std::int64_t count = std::min<std::int64_t>(lanes, outputs - c);
      for (std::int64_t i = a.first_h; i < a.end_h; i += tile_h)
        for (std::int64_t j = 0; j < w; j += tile_w) {
#if defined(__aarch64__)
          forward_tiles(image + i * line + j * pairs, line, pairs, weights, count, h - i, w - j,
                        a.to + ((n * h + i) * w + j) * outputs + c, w * outputs, outputs);
#else
          Register sums[tile_h][tile_w];
          forward_tile(sums, image + i * line + j * pairs, line, pairs, weights);
          bf16* const to = a.to + ((n * h + i) * w + j) * outputs + c;
          if (count == lanes && i + tile_h <= h && j + tile_w <= w) {
#pragma GCC unroll 2
            for (int r = 0; r < tile_h; ++r)
#pragma GCC unroll 8
              for (int s = 0; s < tile_w; ++s) store<Isa::avx512_bf16>(to + (r * w + s) * outputs, sums[r][s]);
            continue;
          }
          bf16 rounded[tile_h][tile_w][lanes];
#pragma GCC unroll 2
          for (int r = 0; r < tile_h; ++r)
#pragma GCC unroll 8
            for (int s = 0; s < tile_w; ++s) store<Isa::avx512_bf16>(static_cast<bf16*>(rounded[r][s]), sums[r][s]);
          for (std::int64_t r = 0; r < std::min<std::int64_t>(tile_h, h - i); ++r)
            for (std::int64_t s = 0; s < std::min<std::int64_t>(tile_w, w - j); ++s)
              std::copy_n(static_cast<const bf16*>(rounded[r][s]), count, to + (r * w + s) * outputs);
#endif
        }
    }
  }
}

}  // namespace detail

#endif

// Packs weights [outputs][inputs][3][3] in pairs. `backward`: rotated by 180 degrees, to compute gradients of inputs
// from those of outputs.
inline void pack_pairs(const float* weights, std::int64_t outputs, std::int64_t inputs, bool backward,
                       std::uint32_t* to) {
  const std::int64_t summed = backward ? outputs : inputs, kept = backward ? inputs : outputs;
  const auto bits = [&](std::int64_t channel, std::int64_t lane, std::int64_t place) -> std::uint32_t {
    if (channel >= summed || lane >= kept) return 0;
    return bf16(backward ? weights[(channel * inputs + lane) * 9 + 8 - place]
                         : weights[(lane * inputs + channel) * 9 + place])
        .bits;
  };
  for (std::int64_t panel = 0; panel < kept; panel += lanes)
    for (std::int64_t place = 0; place < 9; ++place)
      for (std::int64_t c = 0; c < summed; c += 2)
        for (std::int64_t k = panel; k < panel + lanes; ++k) *to++ = bits(c, k, place) | bits(c + 1, k, place) << 16;
}

// Requires has_code().
TUTTI_CORE_FUNCTION void forward(const ForwardArgs& a);
#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void forward([[maybe_unused]] const ForwardArgs& a) {
#ifdef TUTTI_HAS_PAIRS
  detail::forward_body(a);
#else
  fail<UsageError>("convolution", "AVX-512 or NEON with bf16", "another processor");
#endif
}
#endif

}  // namespace tutti::cpu::pairs

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
