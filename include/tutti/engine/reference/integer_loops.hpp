// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tutti/core/math.hpp>
#include <tutti/engine/step/integer_block.hpp>

// The conversions of sums of logical ranks as simple loops.
namespace tutti::reference {

// Returns a value of a block as an integer, as integer_block.hpp defines it. The product is exact in f64.
[[nodiscard]] inline std::int32_t integer_of(float g, std::int32_t exponent) noexcept {
  const double units = math::ldexp(static_cast<double>(g), -exponent), limit = 2147483520.0;
  if (!(units < limit)) return 2147483520;
  return static_cast<std::int32_t>(math::rint(std::max(units, -limit)));
}

inline void to_integers(const ToIntegers& c) noexcept {
  for (std::size_t k = 0; k < c.count; ++k) {
    const IntegerBlock& b = c.blocks[k];
    std::uint32_t most = 0;
    for (std::size_t i = b.begin; i < b.begin + b.count; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, c.from + i, sizeof bits);  // the same memory has integers in other places
      most = std::max(most, bits & 0x7fffffffU);
      float g = 0;
      std::memcpy(&g, &bits, sizeof g);
      const auto earlier = c.plus != nullptr ? static_cast<std::uint32_t>(c.plus[i]) : 0U;
      const std::uint32_t sum = static_cast<std::uint32_t>(integer_of(g, b.exponent)) + earlier;
      std::memcpy(c.to + i, &sum, sizeof sum);
    }
    c.maxima[k] = most;
  }
}

inline void from_integers(const FromIntegers& c) noexcept {
  for (std::size_t k = 0; k < c.count; ++k) {
    const IntegerBlock& b = c.blocks[k];
    const auto unit = static_cast<float>(math::ldexp(1.0, b.exponent));
    for (std::size_t i = b.begin; i < b.begin + b.count; ++i) {
      std::int32_t q = 0;
      std::memcpy(&q, c.from + i, sizeof q);
      const float g = static_cast<float>(q) * unit;
      std::memcpy(c.to + i, &g, sizeof g);
    }
  }
}

}  // namespace tutti::reference
