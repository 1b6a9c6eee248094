// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/amx/copy_image.hpp>
#include <tutti/engine/cpu/amx/layout.hpp>
#include <tutti/engine/cpu/amx/pack.hpp>
#include <tutti/engine/cpu/amx/tile_unit.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Convolutions as products of tiles (layout.hpp). Each output is summed over taps and inputs in a fixed order, in f32,
// and rounded once, so its bits do not depend on the task that computes it.
namespace tutti::cpu::amx {

// Some outputs of some images.
struct Products {
  // Copies of the images, image_elements() apart; the images, if reads_images().
  const bf16* from = nullptr;
  std::int64_t images = 0;
  const std::uint32_t* weights = nullptr;  // all of them
  bf16* to = nullptr;                      // the first image's output
  std::int64_t first_panel = 0, end_panel = 0;
  std::int64_t first_line = 0, end_line = 0;  // of the first image's output, if there is one image and one phase
  const float* bias = nullptr;                // null: no bias, residual and relu
  const bf16* residual = nullptr;             // null: none; otherwise as y
  bool relu = false;
};

namespace detail {

// Sums of M tiles of 16 pixels by N tiles of 16 outputs, [16 M][block].
template <class Unit, int M, int N>
TUTTI_INLINE void sum_block(Unit& u, const Layout& l, const OutputPhase& phase, const bf16* from,
                            const std::uint32_t* weights, float* sums) {
  const std::int64_t bytes = l.step * l.pixel * static_cast<std::int64_t>(sizeof(bf16));
  const std::int64_t second = side * l.step * l.pixel;
  constexpr std::int64_t weight_bytes = 64;
  u.template zero<0>();
  if constexpr (N == 2) u.template zero<1>();
  if constexpr (M == 2) u.template zero<2>();
  if constexpr (M == 2 && N == 2) u.template zero<3>();
  for (std::size_t t = 0; t < phase.taps; ++t) {
    const bf16* at = from + l.taps[phase.first_tap + t].offset;
    for (std::int64_t k = 0; k < l.blocks; ++k, at += depth, weights += N * tile_words) {
      u.template load<4>(at, bytes);
      u.template load<6>(weights, weight_bytes);
      u.template multiply_add<0, 4, 6>();
      if constexpr (N == 2) {
        u.template load<7>(weights + tile_words, weight_bytes);
        u.template multiply_add<1, 4, 7>();
      }
      if constexpr (M == 2) {
        u.template load<5>(at + second, bytes);
        u.template multiply_add<2, 5, 6>();
      }
      if constexpr (M == 2 && N == 2) u.template multiply_add<3, 5, 7>();
    }
  }
  constexpr std::int64_t row = block * 4, below = side * block;
  u.template store<0>(sums, row);
  if constexpr (N == 2) u.template store<1>(sums + side, row);
  if constexpr (M == 2) u.template store<2>(sums + below, row);
  if constexpr (M == 2 && N == 2) u.template store<3>(sums + below + side, row);
}

// The end of `count` outputs of a pixel, and their rounding. `first`: the first of these outputs.
template <Isa I>
TUTTI_INLINE void store_outputs(const Products& p, const float* sums, std::int64_t first, std::int64_t count,
                                bf16* to) {
#ifdef TUTTI_HAS_AMX
  if constexpr (I == Isa::avx512_bf16) {
    if (p.bias == nullptr && count == block) {
      F<I> low, high;
      load<I>(low, sums);
      load<I>(high, sums + side);
      std::uint16_t __attribute__((vector_size(64))) rounded;
      asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(rounded) : "v"(high), "v"(low));
      return write(to, rounded);
    }
  }
#endif
  bf16 rest[block];
  const bool whole = count % lanes_of<I> == 0;
  bf16* const target = whole ? to : rest;
  for (std::int64_t k = 0; k < count; k += lanes_of<I>) {
    F<I> v;
    load<I>(v, sums + k);
    if (p.bias != nullptr) {
      const std::int64_t filled = std::min<std::int64_t>(lanes_of<I>, count - k);
      F<I> more;
      if (filled == lanes_of<I>) {
        load<I>(more, p.bias + first + k);
      } else {
        float some[lanes_of<I>] = {};
        std::copy_n(p.bias + first + k, filled, some);
        load<I>(more, static_cast<const float*>(some));
      }
      v += more;
      if (p.residual != nullptr) {
        const bf16* const residual = p.residual + (to - p.to) + k;
        if (filled == lanes_of<I>) {
          load<I>(more, residual);
        } else {
          bf16 some[lanes_of<I>] = {};
          std::copy_n(residual, filled, some);
          load<I>(more, static_cast<const bf16*>(some));
        }
        v += more;
      }
      if (p.relu) v = v < F<I>{} ? F<I>{} : v;
    }
    store<I>(target + k, v);
  }
  if (!whole) std::memcpy(to, rest, static_cast<std::size_t>(count) * sizeof(bf16));
}

// Pixels of the outputs of a phase that are one sequence of the copy: those of all lines, or of one.
struct Sequence {
  const bf16* from;     // the inputs of the first
  bf16* to;             // the image
  std::int64_t length;  // with the pixels between lines, which have no output
  std::int64_t pitch;   // from a line to the next
  std::int64_t line;    // the first
};

// The sums of `size` pixels from q on, and one panel.
template <Isa I, class Unit, int N>
TUTTI_INLINE void multiply_block(Unit& u, const Layout& l, const Products& p, const OutputPhase& phase,
                                 const Sequence& s, std::int64_t q, std::int64_t size, std::int64_t panel,
                                 const std::uint32_t* weights) {
  alignas(64) float sums[block * block];
  if (size == block)
    sum_block<Unit, 2, N>(u, l, phase, s.from + q * l.step * l.pixel, weights, sums);
  else
    sum_block<Unit, 1, N>(u, l, phase, s.from + q * l.step * l.pixel, weights, sums);
  const std::int64_t end = std::min(q + size, s.length), outputs = std::min(block, l.outputs - panel * block);
  if (s.pitch == phase.columns && l.output_step == 1) {
    bf16* to = s.to + (s.line * l.out_w + q) * l.outputs + panel * block;
    for (std::int64_t i = q; i < end; ++i, to += l.outputs)
      store_outputs<I>(p, sums + (i - q) * block, panel * block, outputs, to);
    return;
  }
  std::int64_t line = s.line + q / s.pitch, column = q % s.pitch;
  for (std::int64_t i = q; i < end; ++i) {
    if (column < phase.columns) {
      const std::int64_t y = line * l.output_step + phase.line, x = column * l.output_step + phase.column;
      store_outputs<I>(p, sums + (i - q) * block, panel * block, outputs,
                       s.to + (y * l.out_w + x) * l.outputs + panel * block);
    }
    if (++column == s.pitch) column = 0, ++line;
  }
}

// All panels for a few pixels, before the next: the outputs of a pixel are next to each other, and the inputs stay in
// the level-1 cache. `weights`: those of the phase in panel 0.
template <Isa I, class Unit>
TUTTI_INLINE void multiply_sequence(Unit& u, const Layout& l, const Products& p, const OutputPhase& phase,
                                    const Sequence& s) {
  constexpr std::int64_t at_once = 4 * block;
  const auto before = tile_words * l.blocks * static_cast<std::int64_t>(phase.first_tap);
  for (std::int64_t group = 0; group < s.length; group += at_once)
    for (std::int64_t panel = p.first_panel; panel < p.end_panel; ++panel) {
      const bool narrow = l.outputs - panel * block <= side;
      const std::uint32_t* const weights = p.weights + panel * l.panel_words() + (narrow ? 1 : 2) * before;
      for (std::int64_t done = group, end = std::min(group + at_once, s.length); done < end;) {
        // A tile does not read beyond the images themselves: it computes some outputs again.
        const bool direct = l.way == Way::direct, wide = s.length - done > side && (!direct || s.length >= block);
        const std::int64_t size = wide ? block : side;
        const std::int64_t q = direct ? std::max<std::int64_t>(0, std::min(done, s.length - size)) : done;
        if (narrow)
          multiply_block<I, Unit, 1>(u, l, p, phase, s, q, size, panel, weights);
        else
          multiply_block<I, Unit, 2>(u, l, p, phase, s, q, size, panel, weights);
        done = q + size;
      }
    }
}

// Outputs that no input reaches.
inline void clear_phase(const Layout& l, const OutputPhase& phase, bf16* image) {
  for (std::int64_t i = 0; i < phase.lines; ++i)
    for (std::int64_t j = 0; j < phase.columns; ++j) {
      const std::int64_t y = i * l.output_step + phase.line, x = j * l.output_step + phase.column;
      std::memset(static_cast<void*>(image + (y * l.out_w + x) * l.outputs), 0,
                  static_cast<std::size_t>(l.outputs) * sizeof(bf16));
    }
}

template <Isa I, class Unit>
TUTTI_INLINE void multiply_body(const Layout& l, const Products& p) {
  Unit u;
  // With Way::direct the pixels of all images are one sequence.
  const bool together = l.way == Way::direct && l.output_step == 1, by_lines = l.way == Way::lines;
  const std::int64_t image_outputs = l.out_h * l.out_w * l.outputs, line = l.columns * l.pixel;
  for (std::int64_t image = 0; image < (together ? 1 : p.images); ++image)
    for (const OutputPhase& phase : l.phases) {
      bf16* const to = p.to + image * image_outputs;
      if (phase.taps == 0) {
        if (p.first_panel == 0) clear_phase(l, phase, to);
        continue;
      }
      const bool all = l.phases.size() > 1;
      const std::int64_t first = all ? 0 : p.first_line, count = (all ? phase.lines : p.end_line) - first;
      const bf16* const from = p.from + image * l.image_elements() + first * line * (by_lines ? l.step : 1);
      if (by_lines) {
        for (std::int64_t i = 0; i < count; ++i)
          multiply_sequence<I>(u, l, p, phase, {from + i * line * l.step, to, phase.columns, phase.columns, first + i});
        continue;
      }
      const std::int64_t more = together ? (p.images - 1) * l.h * l.w : 0;
      multiply_sequence<I>(u, l, p, phase,
                           {from, to, (count - 1) * l.columns + phase.columns + more, l.columns, first});
    }
}

}  // namespace detail

// Compute the products; pack weights for them. They need detect_amx().
TUTTI_CORE_FUNCTION void multiply(const Layout& l, const Products& p);
TUTTI_CORE_FUNCTION void pack_weights(const Layout& l, const float* weights, std::uint32_t* to);

#if TUTTI_CORE_DEFINITIONS
#ifdef TUTTI_HAS_AMX
namespace detail {
TUTTI_TARGET_AVX512_BF16 inline void multiply_by_registers(const Layout& l, const Products& p) {
  multiply_body<Isa::avx512_bf16, RegisterTiles>(l, p);
}
TUTTI_TARGET_AVX512_BF16 inline void pack_by_registers(const Layout& l, const float* weights, std::uint32_t* to) {
  pack_body<Isa::avx512_bf16>(l, weights, to);
}
}  // namespace detail
TUTTI_CORE_FUNCTION void multiply(const Layout& l, const Products& p) { detail::multiply_by_registers(l, p); }
TUTTI_CORE_FUNCTION void pack_weights(const Layout& l, const float* weights, std::uint32_t* to) {
  detail::pack_by_registers(l, weights, to);
}
#else
TUTTI_CORE_FUNCTION void multiply(const Layout&, const Products&) {
  fail<UsageError>("amx", "a processor with AMX", "another processor or compiler");
}
TUTTI_CORE_FUNCTION void pack_weights(const Layout&, const float*, std::uint32_t*) {
  fail<UsageError>("amx", "a processor with AMX", "another processor or compiler");
}
#endif
#endif

}  // namespace tutti::cpu::amx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
