// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

// Weight gradients as products of tiles: for each tap (layout.hpp), a tile of outputs by pairs of pixels times a tile
// of pairs of pixels by inputs. The outputs' gradients are transposed once for all taps. The inputs are interleaved as
// pairs of neighbouring pixels: twice, from even and from odd pixels on, so that every tap finds its pairs, whatever
// its distance. Sums over pixels are in order, in f32.
namespace tutti::cpu::amx {

// A unit is some lines of one image. The operands of some units are held at once.
struct GradientLayout {
  GradientLayout(const op::Window& window, const Shape& x, const Shape& dy)
      : stride(window.stride), out_h(dy[2]), l(window, x, dy, false, x[1] < side ? Way::lines : Way::flat, side) {
    rows = tiles_of(l.outputs);
    columns = tiles_of(in_tap());
    for (const Tap& t : l.taps) both = both || (l.way == Way::flat && t.offset / l.pixel % 2 != 0);
    const auto with_lines = [&](std::int64_t n) {
      lines = n;
      l = Layout(window, x, {dy[0], dy[1], n, dy[3]}, false, l.way, side);
      pixels = ((n - 1) * pitch() + l.out_w + depth - 1) / depth * depth;
      farthest = 0;
      for (const Tap& t : l.taps) farthest = std::max(farthest, t.offset / l.pixel);
    };
    const auto bytes = [&] { return 4 * (rows * row_words() + columns * sets() * column_words()); };
    with_lines(out_h);
    while (lines > 1 && (bytes() > most_bytes || pixels > most_pixels)) with_lines((lines + 1) / 2);
    units_at_once = std::max<std::int64_t>(1, std::min(most_bytes / bytes(), most_pixels / pixels));
  }

  [[nodiscard]] static std::int64_t tiles_of(std::int64_t channels) { return (channels + side - 1) / side; }
  [[nodiscard]] static std::int64_t pairs(std::int64_t n) { return (n + 1) / 2; }
  // Inputs of a tap.
  [[nodiscard]] std::int64_t in_tap() const { return (l.way == Way::lines ? l.kernel_w : 1) * l.channels; }
  // Floats of the gradient of two tiles of outputs and two of inputs, of a pair of rows, and of all:
  // [pairs of rows][pairs of columns][taps][2][2][16 outputs][16 inputs].
  [[nodiscard]] std::int64_t slot_floats() const { return 4 * tile_words * static_cast<std::int64_t>(l.taps.size()); }
  [[nodiscard]] std::int64_t row_floats() const { return pairs(columns) * slot_floats(); }
  [[nodiscard]] std::int64_t floats() const { return pairs(rows) * row_floats(); }

  [[nodiscard]] std::int64_t units_of_image() const { return (out_h + lines - 1) / lines; }
  // Pixels of a unit from one line of the output to the next.
  [[nodiscard]] std::int64_t pitch() const { return l.way == Way::flat ? l.columns : l.out_w; }
  // Words of a unit: of a tile of rows, and of a tile of columns. The farthest tap reads the most pixels of a copy.
  [[nodiscard]] std::int64_t row_words() const { return pixels / 2 * side; }
  [[nodiscard]] std::int64_t column_words() const {
    return (l.way == Way::flat ? pairs(farthest + pixels) : pixels / 2) * side;
  }
  // Words from a tile to the next: a cache line more than its units have, because at a distance of a power of two tiles
  // would share sets of the caches.
  [[nodiscard]] std::int64_t row_step() const { return units_at_once * row_words() + side; }
  [[nodiscard]] std::int64_t column_step() const { return units_at_once * column_words() + side; }
  // Forms of the columns: for each tap; for even and odd pixels; or one.
  [[nodiscard]] std::int64_t sets() const {
    return l.way == Way::lines ? static_cast<std::int64_t>(l.taps.size()) : both ? 2 : 1;
  }
  // Elements of the copy, all of which are written.
  [[nodiscard]] std::int64_t copy_elements() const {
    return std::max(l.image_elements(), (column_words() / side * 2 + 1) * l.pixel);
  }
  [[nodiscard]] std::int64_t room_words() const {
    return rows * row_step() + columns * sets() * column_step() + (copy_elements() + depth) / 2;
  }

  int stride;
  std::int64_t out_h;                  // of the whole image
  Layout l;                            // of a unit
  bool both = false;                   // whether a tap begins at an odd pixel
  std::int64_t rows = 0, columns = 0;  // tiles
  std::int64_t lines = 1;              // of the output, in a unit
  std::int64_t pixels = 0;             // of a unit, in whole blocks of 32; with those between lines
  std::int64_t units_at_once = 1;
  std::int64_t farthest = 0;  // pixels from an output's first tap to the last, with Way::flat

 private:
  // Limits of what is held at once. Two tiles of rows stay in the level-1 cache while columns are read.
  static constexpr std::int64_t most_bytes = 768 * 1024, most_pixels = 512;
};

// The gradient of some images.
struct Gradient {
  const bf16* x = nullptr;
  const bf16* dy = nullptr;
  std::int64_t images = 0;
  float* tiles = nullptr;         // floats() floats
  bool add = false;               // to the present values
  std::uint32_t* room = nullptr;  // room_words() words, aligned to 64 bytes
};

namespace detail {

inline constexpr bf16 zeros[depth] = {};

// The pairs of two pixels' values, of n tiles of 16 channels; those of the next tile are `step` words further.
template <Isa I>
TUTTI_INLINE void interleave(const bf16* a, const bf16* b, std::int64_t n, std::uint32_t* to, std::int64_t step) {
#ifdef TUTTI_HAS_AMX
  if constexpr (I == Isa::avx512_bf16) {
    using Wide = std::uint16_t __attribute__((vector_size(64)));
    const Wide low{0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                   8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const Wide high = low + 16;
    for (; n >= 2; n -= 2, a += depth, b += depth, to += 2 * step) {
      Wide x, y;
      read(x, a);
      read(y, b);
      write(to, __builtin_shuffle(x, y, low));
      write(to + step, __builtin_shuffle(x, y, high));
    }
    if (n == 0) return;
    typename Vec<I>::U x, y;
    widen<I>(x, a);
    widen<I>(y, b);
    return write(to, x | y << 16);
  }
#endif
  for (std::int64_t t = 0; t < n; ++t)
    for (std::int64_t k = 0; k < side; ++k)
      to[t * step + k] =
          static_cast<std::uint32_t>(a[t * side + k].bits) | static_cast<std::uint32_t>(b[t * side + k].bits) << 16;
}

// 32 pixels' channels -> [tiles][16 channels][16 pairs], `step` words apart. from[q]: channel 0 of a pixel, which has
// `channels`; null: zeros.
template <Isa I>
TUTTI_INLINE void transpose_block(const bf16* const* from, std::int64_t channels, std::uint32_t* to,
                                  std::int64_t step) {
  bf16 rest[2][depth];
  const std::int64_t tiles = GradientLayout::tiles_of(channels);
  // Pixel by pixel, because that is how they lie in memory.
  for (std::int64_t j = 0; j < side; ++j)
    for (std::int64_t t = 0; t < tiles; t += 2) {
      const std::int64_t n = std::min<std::int64_t>(2, tiles - t), first = t * side, there = channels - first;
      const bf16* pair[2];
      for (std::int64_t i = 0; i < 2; ++i) {
        const bf16* const pixel = from[2 * j + i];
        pair[i] = pixel != nullptr ? pixel + first : static_cast<const bf16*>(zeros);
        if (pixel == nullptr || there >= n * side) continue;
        std::fill(std::copy_n(pixel + first, there, rest[i]), rest[i] + depth, bf16{});  // channels that exist
        pair[i] = rest[i];
      }
      interleave<I>(pair[0], pair[1], n, to + t * step + j * side, step);
    }
  for (std::int64_t t = 0; t < tiles; ++t) turn_tile<I>(to + t * step);
}

// Blocks of 32 pixels of each of some units.
struct Factors {
  const std::uint32_t* rows;
  const std::uint32_t* columns;
  std::int64_t row_step, column_step;    // words to the next tile
  std::int64_t row_words, column_words;  // to the next unit
  std::int64_t units, blocks;
};
// Adds their products to tiles of 16 M rows by 16 N columns.
template <class Unit, int M, int N>
TUTTI_INLINE void add_products(Unit& u, const Factors& f, bool add, float* tiles) {
  constexpr std::int64_t bytes = 64;
  if (add) {
    u.template load<0>(tiles, bytes);
    if constexpr (N == 2) u.template load<1>(tiles + tile_words, bytes);
    if constexpr (M == 2) u.template load<2>(tiles + 2 * tile_words, bytes);
    if constexpr (M == 2 && N == 2) u.template load<3>(tiles + 3 * tile_words, bytes);
  } else {
    u.template zero<0>();
    u.template zero<1>();
    u.template zero<2>();
    u.template zero<3>();
  }
  for (std::int64_t i = 0; i < f.units; ++i) {
    const std::uint32_t *rows = f.rows + i * f.row_words, *columns = f.columns + i * f.column_words;
    for (std::int64_t k = 0; k < f.blocks; ++k, rows += tile_words, columns += tile_words) {
      u.template load<4>(rows, bytes);
      u.template load<6>(columns, bytes);
      u.template multiply_add<0, 4, 6>();
      if constexpr (N == 2) {
        u.template load<7>(columns + f.column_step, bytes);
        u.template multiply_add<1, 4, 7>();
      }
      if constexpr (M == 2) {
        u.template load<5>(rows + f.row_step, bytes);
        u.template multiply_add<2, 5, 6>();
      }
      if constexpr (M == 2 && N == 2) u.template multiply_add<3, 5, 7>();
    }
  }
  u.template store<0>(tiles, bytes);
  if constexpr (N == 2) u.template store<1>(tiles + tile_words, bytes);
  if constexpr (M == 2) u.template store<2>(tiles + 2 * tile_words, bytes);
  if constexpr (M == 2 && N == 2) u.template store<3>(tiles + 3 * tile_words, bytes);
}

// Makes a unit's operands: rows [tiles][blocks][16][16 pairs], columns [sets][tiles][pairs][16].
template <Isa I>
TUTTI_INLINE void make_unit(const GradientLayout& g, const Gradient& p, std::int64_t unit, bf16* copy,
                            std::uint32_t* rows, std::uint32_t* columns) {
  const Layout& l = g.l;
  const std::int64_t image = unit / g.units_of_image(), line = unit % g.units_of_image() * g.lines;
  const std::int64_t pitch = g.pitch(), step = g.column_step();
  // The gradients of the outputs. The pixels between lines are zeros.
  const bf16* const dy = p.dy + (image * g.out_h + line) * l.out_w * l.outputs;
  std::int64_t i = 0, j = 0;
  for (std::int64_t q = 0; q < g.pixels; q += depth, rows += tile_words) {
    const bf16* from[depth];
    for (const bf16*& f : from) {
      const bool inside = j < l.out_w && i < std::min(g.lines, g.out_h - line);
      f = inside ? dy + (i * l.out_w + j) * l.outputs : nullptr;
      if (++j == pitch) j = 0, ++i;
    }
    transpose_block<I>(from, l.outputs, rows, g.row_step());
  }
  copy_image(l, p.x + image * l.h * l.w * l.channels, 0, l.lines, copy, line * g.stride);
  const std::int64_t copied = l.copies_h * l.copies_w * l.lines * l.columns * l.pixel;
  std::fill(copy + copied, copy + g.copy_elements(), bf16{});
  if (l.way == Way::flat) {
    for (std::int64_t set = 0; set < g.sets(); ++set, columns += g.columns * step)
      for (std::int64_t k = 0; k < g.column_words() / side; ++k) {
        const bf16* const at = copy + (2 * k + set) * l.pixel;
        interleave<I>(at, at + l.pixel, g.columns, columns + k * side, step);
      }
    return;
  }
  i = j = 0;
  for (std::int64_t k = 0; k < g.pixels / 2; ++k, columns += side) {
    const bf16* pair[2];
    for (const bf16*& f : pair) {
      f = i < l.out_h ? copy + (i * l.columns + j) * l.step * l.pixel : copy;  // beyond the last line dy is zero
      if (++j == l.out_w) j = 0, ++i;
    }
    for (std::int64_t t = 0; t < g.sets(); ++t) {
      const std::int64_t offset = l.taps[static_cast<std::size_t>(t)].offset;
      interleave<I>(pair[0] + offset, pair[1] + offset, g.columns, columns + t * g.columns * step, step);
    }
  }
}

template <Isa I, class Unit>
TUTTI_INLINE void gradient_body(const GradientLayout& g, const Gradient& p) {
  Unit u;
  const Layout& l = g.l;
  std::uint32_t* const in_columns = p.room + g.rows * g.row_step();
  auto* const copy = reinterpret_cast<bf16*>(in_columns + g.columns * g.sets() * g.column_step());
  const std::int64_t units = p.images * g.units_of_image();
  for (std::int64_t first = 0; first < units; first += g.units_at_once) {
    const std::int64_t count = std::min(g.units_at_once, units - first);
    for (std::int64_t i = 0; i < count; ++i)
      make_unit<I>(g, p, first + i, copy, p.room + i * g.row_words(), in_columns + i * g.column_words());
    const bool add = p.add || first > 0;
    float* tiles = p.tiles;
    for (std::int64_t m = 0; m < g.rows; m += 2)
      for (std::int64_t n = 0; n < g.columns; n += 2)
        for (std::size_t t = 0; t < l.taps.size(); ++t, tiles += 4 * tile_words) {
          const std::int64_t pixels = l.way == Way::flat ? l.taps[t].offset / l.pixel : 0;
          const std::int64_t set = l.way == Way::lines ? static_cast<std::int64_t>(t) : g.both ? pixels % 2 : 0;
          const Factors f{p.room + m * g.row_step(),
                          in_columns + (set * g.columns + n) * g.column_step() + pixels / 2 * side,
                          g.row_step(),
                          g.column_step(),
                          g.row_words(),
                          g.column_words(),
                          count,
                          g.pixels / depth};
          const bool tall = m + 1 < g.rows, wide = n + 1 < g.columns;
          if (tall && wide)
            add_products<Unit, 2, 2>(u, f, add, tiles);
          else if (tall)
            add_products<Unit, 2, 1>(u, f, add, tiles);
          else if (wide)
            add_products<Unit, 1, 2>(u, f, add, tiles);
          else
            add_products<Unit, 1, 1>(u, f, add, tiles);
        }
  }
}

}  // namespace detail

// Writes the gradients in the tiles of two rows, the first of which is `row`, to dw [outputs][channels][window].
inline void write_gradient(const GradientLayout& g, const float* tiles, std::int64_t row, float* dw) {
  const Layout& l = g.l;
  const std::int64_t window = std::int64_t{l.kernel_h} * l.kernel_w;
  const auto taps = static_cast<std::int64_t>(l.taps.size());
  for (std::int64_t o = 0; o < std::min(depth, l.outputs - row * side); ++o) {
    float* const to = dw + (row * side + o) * l.channels * window;
    for (std::int64_t k = 0; k < g.in_tap(); ++k) {
      const float* from =
          tiles + k / depth * g.slot_floats() + (o / side * 2 + k / side % 2) * tile_words + o % side * side + k % side;
      const std::int64_t input = k % l.channels, column = k / l.channels;
      for (std::int64_t t = 0; t < taps; ++t)
        to[input * window + (l.way == Way::lines ? t * l.kernel_w + column : t)] = from[t * 4 * tile_words];
    }
  }
}

// Computes the gradient. Needs detect_amx().
TUTTI_CORE_FUNCTION void add_gradient(const GradientLayout& g, const Gradient& p);

#if TUTTI_CORE_DEFINITIONS
#ifdef TUTTI_HAS_AMX
namespace detail {
TUTTI_TARGET_AVX512_BF16 inline void gradient_by_registers(const GradientLayout& g, const Gradient& p) {
  gradient_body<Isa::avx512_bf16, RegisterTiles>(g, p);
}
}  // namespace detail
TUTTI_CORE_FUNCTION void add_gradient(const GradientLayout& g, const Gradient& p) {
  detail::gradient_by_registers(g, p);
}
#else
TUTTI_CORE_FUNCTION void add_gradient(const GradientLayout&, const Gradient&) {
  fail<UsageError>("amx", "a processor with AMX", "another processor or compiler");
}
#endif
#endif

}  // namespace tutti::cpu::amx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
