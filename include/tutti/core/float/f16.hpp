// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>

namespace tutti {

// IEEE binary16, the half precision of GPUs. Conversion rounds to nearest, ties to even; NaN stays a quiet NaN, and
// values that are too large become infinite.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  constexpr explicit f16(float f) noexcept : bits(round(f)) {}
  constexpr explicit f16(double d) noexcept : f16(static_cast<float>(d)) {}
  constexpr operator float() const noexcept {  // NOLINT(google-explicit-constructor): widening loses nothing
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16, exponent = bits >> 10 & 0x1fU,
                        fraction = bits & 0x3ffU;
    if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13);
    if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112U) << 23 | fraction << 13);
    const float tiny = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -tiny : tiny;
  }

  static constexpr f16 from_bits(std::uint16_t b) noexcept {
    f16 r;
    r.bits = b;
    return r;
  }

 private:
  static constexpr std::uint16_t round(float f) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(f);
    const std::uint32_t sign = u >> 16 & 0x8000U, size = u & 0x7fffffffU;
    if (size > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U | (size >> 13 & 0x3ffU));
    if (size >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 65520 and more
    if (size < 0x38800000U) {
      // Below the smallest normal number the result is a multiple of 2^-24. Adding 0.5 rounds to it.
      const auto sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F);
      return static_cast<std::uint16_t>(sign | (sum - 0x3f000000U));
    }
    const std::uint32_t rounded = size - 0x38000000U + 0xfffU + (size >> 13 & 1U);
    return static_cast<std::uint16_t>(sign | rounded >> 13);
  }
};

static_assert(sizeof(f16) == 2);

}  // namespace tutti
