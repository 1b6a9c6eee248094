// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/math.hpp>
#include <tutti/tensor/arena.hpp>

// Blocks of gradients that are summed as integers (integer_sums.hpp), and the arguments of the backend's two passes
// over them (Backend::to_integers, Backend::from_integers).
namespace tutti {

// At most `elements` consecutive elements of one tensor. Its integers count units of 2^exponent.
struct IntegerBlock {
  static constexpr std::size_t elements = 4096;

  std::uint64_t begin = 0;    // first element in the arena
  std::uint32_t count = 0;    // elements
  std::int32_t exponent = 0;  // -149..127
};

// Converts blocks of f32 into i32. For each element i of each block:
//   to[i] = integer(from[i]) + (plus == null ? 0 : plus[i]), modulo 2^32,
// where integer(g) is g / 2^exponent, limited to +-2147483520, rounded to the nearest integer, halves to even; for a
// NaN 2147483520. maxima[b] is the greatest of the bits of |g| in block b, as an unsigned integer: 0x7f800000 or more
// if an element is not finite. All pointers are addresses in the backend's memory; `to` may be `from` or `plus`.
struct ToIntegers {
  const IntegerBlock* blocks = nullptr;
  std::size_t count = 0;  // of blocks, and of maxima
  const float* from = nullptr;
  std::int32_t* to = nullptr;
  const std::int32_t* plus = nullptr;
  std::uint32_t* maxima = nullptr;
};

// Converts blocks of i32 back: to[i] = float(from[i]) * 2^exponent. Both operations round to the nearest float. `to`
// may be `from`.
struct FromIntegers {
  const IntegerBlock* blocks = nullptr;
  std::size_t count = 0;
  const std::int32_t* from = nullptr;
  float* to = nullptr;
};

// A level describes the greatest sum of a block that is expected, with 64 steps for each octave: level l stands for
// bounds below 2^(l / 64 - 256) * (1 + (l % 64) / 64). 0: unset.
namespace integer_level {
inline constexpr std::int32_t steps = 64, zero_exponent = 256;
// Room between the expected bound and the greatest integer, in steps. bench/RESULTS.md has the measurement that chose
// it.
inline constexpr std::int32_t room = 96;
static_assert(room >= 8, "a unit that is made for a bound has room for it");
inline constexpr std::int32_t least_exponent = -149, greatest_exponent = 127;  // of a unit
inline constexpr std::int64_t greatest_sum = 2147483647;

// Returns the exponent of the unit for a level that is set.
[[nodiscard]] constexpr std::int32_t exponent_of(std::int32_t level) noexcept {
  return std::clamp((level + room + steps - 1) / steps - zero_exponent - 31, least_exponent, greatest_exponent);
}
// Returns the lowest level of a bound of `sum` > 0 units of 2^exponent.
[[nodiscard]] constexpr std::int32_t level_of(std::int64_t sum, std::int32_t exponent) noexcept {
  const auto bits = static_cast<std::uint64_t>(sum);
  const int top = 63 - __builtin_clzll(bits);
  const auto fraction = static_cast<std::int32_t>((top >= 6 ? bits >> (top - 6) : bits << (6 - top)) & 63U);
  return (exponent + top + zero_exponent) * steps + fraction + 1;
}
// Returns the level for the next step, from that of this step and the lowest one for its bound; 0: all gradients were
// zero. It falls slowly if it is near the bound, and fast after a step with much greater gradients.
[[nodiscard]] constexpr std::int32_t next_level(std::int32_t level, std::int32_t lowest) noexcept {
  const std::int32_t excess = lowest > 0 ? (level - lowest) / 8 : 0;
  return std::max({level - std::max(2, excess), lowest, 1});
}
}  // namespace integer_level

// Slices of an arena that are cut into blocks: first_block[i] is the first block of slice i, and the last element is
// the number of blocks. No block has elements of two slices.
struct IntegerBlocks {
  std::vector<IntegerBlock> blocks;
  std::vector<std::size_t> first_block;
};
// Cuts the first `slices` slices of an arena into blocks.
[[nodiscard]] inline IntegerBlocks make_integer_blocks(const ArenaLayout& layout, std::size_t slices) {
  IntegerBlocks t;
  for (std::size_t i = 0; i < slices; ++i) {
    const Slice& s = layout.slices[i];
    t.first_block.push_back(t.blocks.size());
    for (std::size_t at = 0; at < s.count; at += IntegerBlock::elements)
      t.blocks.push_back(
          {s.offset + at, static_cast<std::uint32_t>(std::min(IntegerBlock::elements, s.count - at)), 0});
  }
  t.first_block.push_back(t.blocks.size());
  return t;
}

// Returns x, rounded to a multiple of 2^-24. Sums of such numbers in f64 are exact, so they do not depend on the order,
// if they are below 2^29.
[[nodiscard]] inline double round_to_2_24(double x) noexcept {
  const double scaled = x * 16777216.0;
  if (!(math::fabs(scaled) < 4503599627370496.0)) return x;  // an integer already, or not finite
  return static_cast<double>(static_cast<std::int64_t>(scaled + (scaled < 0 ? -0.5 : 0.5))) / 16777216.0;
}

}  // namespace tutti
