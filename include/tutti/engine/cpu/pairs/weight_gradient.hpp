// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/pairs/forward.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Gradients of the weights of 3x3 convolutions with padding 1, in bf16. Sums go over pairs of adjacent pixels:
// registers of 16 outputs' gradients times single inputs. Some rows of an image are copied into pairs: gradients once,
// and inputs once for each `way` in which the inputs of a pair can lie (PairLayout). Then 8 inputs times one column of
// the weights are summed in registers over these rows.
namespace tutti::cpu::pairs {

struct GradientArgs {
  Shape x, dy;
  int stride = 1;
  const bf16* from = nullptr;       // x
  const bf16* gradients = nullptr;  // dy
  float* sums = nullptr;            // gradient_floats(): [outputs / 16][inputs, whole registers][9][16]
  bool add = false;                 // add to the present values of sums
  std::uint32_t* room = nullptr;    // gradient_room() words
};

[[nodiscard]] constexpr std::int64_t whole_lanes(std::int64_t channels) {
  return (channels + lanes - 1) / lanes * lanes;
}
[[nodiscard]] constexpr std::int64_t gradient_floats(std::int64_t inputs, std::int64_t outputs) {
  return whole_lanes(outputs) * whole_lanes(inputs) * 9;
}

namespace detail {

// The layout of pairs for a block of rows of gradients: inputs [row][block of 16 channels][pair][way][16], gradients
// [block of 16][row][pair][16].
//
// Stride 1: three columns of weights use two ways. The first, inputs (2q - 1, 2q), is read at pair p and p + 1; the
// second is (2q, 2q + 1). Stride 2: three ways, inputs (4p - 1, 4p + 1), (4p, 4p + 2) and (4p + 1, 4p + 3).
struct PairLayout {
  PairLayout(const Shape& x, const Shape& dy, int stride)
      : across((dy[3] + 1) / 2),
        ways(stride == 1 ? 2 : 3),
        at_once(across + (stride == 1 ? 1 : 0)),
        inputs(whole_lanes(x[1])),
        outputs(whole_lanes(dy[1])) {
    input_row = at_once * ways * inputs;
    output_row = across * lanes;
    // As many rows as fit into 32 KiB, the smallest first-level cache, but at least 4: neighbouring blocks both copy
    // the 3 - stride rows of inputs between them.
    const std::int64_t fit = 32 * 1024 / 4 / (input_row * stride + output_row * outputs / lanes);
    rows = std::min(dy[2], std::max<std::int64_t>(4, fit));
    input_rows = (rows - 1) * stride + 3;
    output_rows = rows + (stride == 1 ? 2 : 0);
  }
  std::int64_t across, ways, at_once, inputs, outputs, input_row = 0, output_row = 0;
  std::int64_t rows = 0, input_rows = 0, output_rows = 0;  // rows of a block
};

}  // namespace detail

[[nodiscard]] inline std::int64_t gradient_room(const Shape& x, const Shape& dy, int stride) {
  const detail::PairLayout l(x, dy, stride);
  return l.input_rows * l.input_row + l.outputs / lanes * l.output_rows * l.output_row;
}

#ifdef TUTTI_HAS_PAIRS

namespace detail {

#if defined(__x86_64__)
using SixteenWords = Vec<Isa::avx512_bf16>::U;
inline constexpr int gradient_inputs = 8;  // of a tile

// sum += a b, with the pair b in all lanes of a.
TUTTI_INLINE void add_product(Register& sum, const Register& a, const Pair* b) {
  Register s = sum;
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(s) : "v"(a), "m"(*b));
  sum = s;
}

// Reads `count` channels of a pixel, at most 16, or zeros if the pixel is outside.
TUTTI_INLINE void read_pixel(SixteenWords& to, const bf16* p, bool inside, std::int64_t count) {
  to = SixteenWords{};
  if (!inside) return;
  if (count >= lanes) return widen<Isa::avx512_bf16>(to, p);
  bf16 some[lanes] = {};
  std::copy_n(p, count, static_cast<bf16*>(some));
  widen<Isa::avx512_bf16>(to, static_cast<const bf16*>(some));
}
TUTTI_INLINE void write_pairs(std::uint32_t* to, const SixteenWords& low, const SixteenWords& high) {
  write(to, low | high << 16);
}

#else
// Sixteen pairs, in the registers of NEON.
struct SixteenWords {
  Words of[lanes / quad];
};
TUTTI_INLINE void read_pixel(SixteenWords& to, const bf16* p, bool inside, std::int64_t count) {
  to = {};
  if (!inside) return;
  bf16 some[lanes] = {};
  if (count < lanes) {
    std::copy_n(p, count, static_cast<bf16*>(some));
    p = static_cast<const bf16*>(some);
  }
#pragma GCC unroll 4
  for (int i = 0; i < lanes / quad; ++i) widen<Isa::neon_bf16>(to.of[i], p + i * quad);
}
TUTTI_INLINE void write_pairs(std::uint32_t* to, const SixteenWords& low, const SixteenWords& high) {
#pragma GCC unroll 4
  for (int i = 0; i < lanes / quad; ++i) write(to + i * quad, low.of[i] | high.of[i] << 16);
}
#endif

// A row of w pixels, or of zeros, to copy into pairs q of [0, count). The pair of way k holds the pixel step * q +
// first + k and the pixel that is `apart` further.
struct PairRow {
  const bf16* from;  // null: zeros
  std::int64_t w, channels, count, step, first, apart;
};
template <int Ways>
TUTTI_INLINE void lay_out(const PairRow& r, std::uint32_t* to, std::int64_t block_step) {
  if (r.from == nullptr) {
    for (std::int64_t c = 0; c < r.channels; c += lanes, to += block_step) std::fill_n(to, r.count * Ways * lanes, 0U);
    return;
  }
  for (std::int64_t c = 0; c < r.channels; c += lanes, to += block_step) {
    std::uint32_t* at = to;
    const std::int64_t count = r.channels - c;
    for (std::int64_t q = 0; q < r.count; ++q) {
      const std::int64_t left = r.step * q + r.first, right = left + Ways - 1 + r.apart;
      const bool inside = left >= 0 && right < r.w && count >= lanes;
#pragma GCC unroll 3
      for (int k = 0; k < Ways; ++k, at += lanes) {
        const std::int64_t a = left + k, b = a + r.apart;
        SixteenWords low, high;
        read_pixel(low, r.from + a * r.channels + c, inside || (a >= 0 && a < r.w), inside ? lanes : count);
        read_pixel(high, r.from + b * r.channels + c, inside || (b >= 0 && b < r.w), inside ? lanes : count);
        write_pairs(at, low, high);
      }
    }
  }
}

// 8 inputs times 16 outputs times the three rows of a column of the weights, over `rows` rows of pairs.
template <int Stride>
TUTTI_INLINE void gradient_tile(const PairLayout& l, const Pair* x, const std::uint32_t* dy, std::int64_t rows,
                                float* to, bool add) {
#if defined(__aarch64__)
  const GradientSteps steps{l.across, l.ways * lanes, l.input_row, l.output_row};
  for (int q = 0; q < lanes; q += quad) gradient_quad<Stride>(steps, x, dy + q, rows, to + q, add);
#else
  Register sums[gradient_inputs][3];
#pragma GCC unroll 8
  for (int c = 0; c < gradient_inputs; ++c)
#pragma GCC unroll 3
    for (int r = 0; r < 3; ++r) sums[c][r] = Register{};
  for (std::int64_t i = 0; i < rows; ++i, x += Stride * l.input_row, dy += l.output_row)
    for (std::int64_t p = 0; p < l.across; ++p) {
      const Pair* const at = x + p * l.ways * lanes;
      const std::uint32_t* const d = dy + p * lanes;
      if constexpr (Stride == 1) {  // a row of inputs and three of gradients
        Register g0, g1, g2;
        read(g0, d + 2 * l.output_row);
        read(g1, d + l.output_row);
        read(g2, d);
#pragma GCC unroll 8
        for (int c = 0; c < gradient_inputs; ++c) {
          Register v;
          repeat(v, at + c);
          add_product(sums[c][0], g0, v);
          add_product(sums[c][1], g1, v);
          add_product(sums[c][2], g2, v);
        }
      } else {  // a row of gradients and three of inputs
        Register g;
        read(g, d);
#pragma GCC unroll 8
        for (int c = 0; c < gradient_inputs; ++c) {
          add_product(sums[c][0], g, at + c);
          add_product(sums[c][1], g, at + l.input_row + c);
          add_product(sums[c][2], g, at + 2 * l.input_row + c);
        }
      }
    }
#pragma GCC unroll 8
  for (int c = 0; c < gradient_inputs; ++c)
#pragma GCC unroll 3
    for (int r = 0; r < 3; ++r) {
      float* const at = to + (c * 9 + r * 3) * lanes;
      Register before{};
      if (add) read(before, at);
      write(at, before + sums[c][r]);
    }
#endif
}

template <int Stride>
TUTTI_TARGET_PAIRS void gradient_body(const GradientArgs& a) {
  const PairLayout l(a.x, a.dy, Stride);
  std::uint32_t* const dy_at = a.room + l.input_rows * l.input_row;
  const std::int64_t block = l.output_rows * l.output_row;  // floats of a block of 16 outputs
  const std::int64_t w = a.x[3], out_h = a.dy[2], out_w = a.dy[3];
  bool add = a.add;
  for (std::int64_t n = 0; n < a.x[0]; ++n)
    for (std::int64_t first = 0; first < out_h; first += l.rows) {
      const std::int64_t rows = std::min(l.rows, out_h - first);
      const auto row = [](const bf16* image, const Shape& s, std::int64_t i) {
        return i < 0 || i >= s[2] ? nullptr : image + i * s[3] * s[1];
      };
      const bf16* const x = a.from + n * a.x.row_numel();
      const bf16* const dy = a.gradients + n * a.dy.row_numel();
      if constexpr (Stride == 1) {
        for (std::int64_t i = 0; i < rows; ++i)
          lay_out<2>({row(x, a.x, first + i), w, a.x[1], l.at_once, 2, -1, 1}, a.room + i * l.input_row,
                     l.at_once * 2 * lanes);
        for (std::int64_t i = 0; i < rows + 2; ++i)
          lay_out<1>({row(dy, a.dy, first + i - 1), out_w, a.dy[1], l.across, 2, 0, 1}, dy_at + i * l.output_row,
                     block);
      } else {
        for (std::int64_t i = 0; i < 2 * rows + 1; ++i)
          lay_out<3>({row(x, a.x, 2 * first + i - 1), w, a.x[1], l.at_once, 4, -1, 2}, a.room + i * l.input_row,
                     l.at_once * 3 * lanes);
        for (std::int64_t i = 0; i < rows; ++i)
          lay_out<1>({row(dy, a.dy, first + i), out_w, a.dy[1], l.across, 2, 0, 1}, dy_at + i * l.output_row, block);
      }
      for (std::int64_t k = 0; k < l.outputs; k += lanes)
        for (std::int64_t c = 0; c < l.inputs; c += gradient_inputs)
          for (int s = 0; s < 3; ++s) {
            const std::int64_t way = Stride == 1 ? s % 2 + s / 2 * l.ways : s;
            gradient_tile<Stride>(l, a.room + (c / lanes * l.at_once * l.ways + way) * lanes + c % lanes,
                                  dy_at + k / lanes * block, rows, a.sums + (k * l.inputs + c * lanes) * 9 + s * lanes,
                                  add);
          }
      add = true;
    }
}

}  // namespace detail

#endif

// Requires has_code().
TUTTI_CORE_FUNCTION void weight_gradient(const GradientArgs& a);
#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void weight_gradient([[maybe_unused]] const GradientArgs& a) {
#ifdef TUTTI_HAS_PAIRS
  a.stride == 1 ? detail::gradient_body<1>(a) : detail::gradient_body<2>(a);
#else
  fail<UsageError>("convolution", "AVX-512 or NEON with bf16", "another processor");
#endif
}
#endif

}  // namespace tutti::cpu::pairs

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
