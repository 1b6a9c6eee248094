// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>

namespace tutti {

// bfloat16: the upper half of an IEEE binary32. Conversion rounds to nearest, ties to even; NaN stays a quiet NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float f) noexcept : bits(round(f)) {}
  constexpr explicit bf16(double d) noexcept : bf16(static_cast<float>(d)) {}
  constexpr operator float() const noexcept {  // NOLINT(google-explicit-constructor): widening loses nothing
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  static constexpr bf16 from_bits(std::uint16_t b) noexcept {
    bf16 r;
    r.bits = b;
    return r;
  }

 private:
  static constexpr std::uint16_t round(float f) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(f);
    if ((u & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((u >> 16) | 0x40U);
    return static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
};

static_assert(sizeof(bf16) == 2);

}  // namespace tutti
