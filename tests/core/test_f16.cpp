// SPDX-License-Identifier: MIT
#include <tutti/core/float/f16.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

using tutti::f16;

namespace {

// Returns the value of the bits, from the definition of binary16.
double value_of(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 0    ? std::ldexp(fraction, -24)
                      : exponent == 31 ? (fraction == 0 ? std::numeric_limits<double>::infinity()
                                                        : std::numeric_limits<double>::quiet_NaN())
                                       : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}
std::uint16_t bits_of(int i) { return static_cast<std::uint16_t>(i); }

}  // namespace

TEST_CASE("every f16 value is what its bits define, and is unchanged by conversion to f32 and back") {
  int wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    const float f = f16::from_bits(bits_of(i));
    const double expected = value_of(bits_of(i));
    if (std::isnan(expected)) {
      wrong += !std::isnan(f) || !std::isnan(static_cast<float>(f16(f)));
      continue;
    }
    wrong += static_cast<double>(f) != expected || std::signbit(f) != std::signbit(expected);
    wrong += f16(f).bits != bits_of(i);
  }
  CHECK(wrong == 0);
}

TEST_CASE("conversion to f16 rounds to nearest, ties to even, between any two neighbours") {
  int wrong = 0;
  for (int i = 0; i < 0x7c00; ++i)
    for (int sign : {0, 0x8000}) {
      const std::uint16_t low = bits_of(i | sign), high = bits_of((i + 1) | sign);
      // For the rounding, the value after the largest number is 2^16.
      const double a = value_of(low), b = i == 0x7bff ? std::copysign(65536.0, a) : value_of(high);
      const auto middle = static_cast<float>((a + b) / 2);
      wrong += f16(middle).bits != ((i & 1) == 0 ? low : high);
      wrong += f16(std::nextafter(middle, static_cast<float>(a))).bits != low;
      wrong += f16(std::nextafter(middle, static_cast<float>(b))).bits != high;
    }
  CHECK(wrong == 0);
}

TEST_CASE(
    "in f16, values that are too large become infinite, values that are too small become zero, and NaN stays NaN") {
  const float inf = std::numeric_limits<float>::infinity();
  for (float f : {65520.0F, 1e5F, 3e38F, inf}) {
    CHECK(f16(f).bits == 0x7c00);
    CHECK(f16(-f).bits == 0xfc00);
  }
  CHECK(f16(65519.0F).bits == 0x7bff);
  for (float f : {0.0F, 1e-45F, 1e-8F, 0x1p-25F}) {
    CHECK(f16(f).bits == 0);
    CHECK(f16(-f).bits == 0x8000);
  }
  for (std::uint32_t nan : {0x7fc00000U, 0x7f800001U, 0xffffffffU})
    CHECK(std::isnan(static_cast<float>(f16(std::bit_cast<float>(nan)))));
}
