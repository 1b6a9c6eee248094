// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <tutti/core/isa.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/simd.hpp>
#include <tutti/engine/step/integer_block.hpp>

// The conversions of sums of logical ranks (integer_block.hpp) for one block, with the registers of each instruction
// set. They give the bits of the reference loops.
namespace tutti::cpu {

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // see simd.hpp
#endif

namespace integers {

inline constexpr float limit = 2147483520.0F;  // the greatest float below 2^31
inline constexpr float whole = 8388608.0F;     // 2^23: floats from here on are integers
inline constexpr std::uint32_t whole_bits = 0x4b000000U, sign = 0x80000000U, magnitude = 0x7fffffffU;

// Returns 2^exponent, for -149 to 127.
[[nodiscard]] inline float power_of_two(std::int32_t exponent) noexcept {
  const std::uint32_t bits =
      exponent < -126 ? 1U << (exponent + 149) : static_cast<std::uint32_t>(exponent + 127) << 23;
  float f = 0;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
// Two normal floats with the product 2^-exponent. The first product with a gradient overflows only if the gradient is
// far above the limit, and is subnormal only if the gradient becomes 0.
struct Scale {
  float first, second;
  explicit Scale(std::int32_t exponent) noexcept
      : first(power_of_two(std::clamp(-exponent, -126, 127))),
        second(power_of_two(-exponent - std::clamp(-exponent, -126, 127))) {}
};

// The loops below, for the elements that fill no register.
[[nodiscard]] TUTTI_INLINE std::int32_t integer_of(float g, const Scale& s) noexcept {
  float x = g * s.first * s.second;
  x = x < limit ? x : limit;
  x = x > -limit ? x : -limit;
  const float shift = x < 0 ? -whole : whole;
  return static_cast<std::int32_t>(x < whole && x > -whole ? x + shift - shift : x);
}

}  // namespace integers

// Adds: std::true_type if `plus` is read.
template <Isa I, class Adds>
TUTTI_INLINE void to_integers_body(IntegerBlock b, const float* from, std::int32_t* to, const std::int32_t* plus,
                                   std::uint32_t* maximum) {
  using U = typename Vec<I>::U;
  using S = typename Vec<I>::I;
  constexpr std::size_t lanes = lanes_of<I>;
  const integers::Scale scale(b.exponent);
  F<I> first, second, top, bottom;
  broadcast<I>(first, scale.first);
  broadcast<I>(second, scale.second);
  broadcast<I>(top, integers::limit);
  broadcast<I>(bottom, -integers::limit);
  S most = {};
  std::size_t i = b.begin;
  const std::size_t end = b.begin + b.count;
  for (; i + lanes <= end; i += lanes) {
    F<I> x;
    load<I>(x, from + i);
    const S bits = (S)((U)x & integers::magnitude);
    most = bits > most ? bits : most;
    x = x * first * second;
    x = x < top ? x : top;
    x = x > bottom ? x : bottom;
    // The sum with 2^23 of the same sign has no bits after the point.
    const F<I> shift = (F<I>)(((U)x & integers::sign) | integers::whole_bits);
    const F<I> rounded = x + shift - shift;
    x = (S)((U)x & integers::magnitude) < (S)(U{} + integers::whole_bits) ? rounded : x;
    U q = (U) __builtin_convertvector(x, S);
    if constexpr (Adds::value) {
      U earlier;
      read(earlier, plus + i);
      q += earlier;
    }
    write(to + i, q);
  }
  std::uint32_t greatest = 0;
  for (std::size_t e = 0; e < lanes; ++e) greatest = std::max(greatest, static_cast<std::uint32_t>(most[e]));
  for (; i < end; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from + i, sizeof bits);  // the same memory has integers in other places
    greatest = std::max(greatest, bits & integers::magnitude);
    float g = 0;
    std::memcpy(&g, &bits, sizeof g);
    auto q = static_cast<std::uint32_t>(integers::integer_of(g, scale));
    if constexpr (Adds::value) q += static_cast<std::uint32_t>(plus[i]);
    std::memcpy(to + i, &q, sizeof q);
  }
  *maximum = greatest;
}
TUTTI_DEFINE_DISPATCH(to_integers, to_integers_body);
TUTTI_CORE_INSTANCE(template void to_integers<std::true_type>(Isa, IntegerBlock, const float*, std::int32_t*,
                                                              const std::int32_t*, std::uint32_t*));
TUTTI_CORE_INSTANCE(template void to_integers<std::false_type>(Isa, IntegerBlock, const float*, std::int32_t*,
                                                               const std::int32_t*, std::uint32_t*));

template <Isa I>
TUTTI_INLINE void from_integers_body(IntegerBlock b, const std::int32_t* from, float* to) {
  using S = typename Vec<I>::I;
  constexpr std::size_t lanes = lanes_of<I>;
  const float unit = integers::power_of_two(b.exponent);
  F<I> units;
  broadcast<I>(units, unit);
  std::size_t i = b.begin;
  const std::size_t end = b.begin + b.count;
  for (; i + lanes <= end; i += lanes) {
    S q;
    read(q, from + i);
    const F<I> x = __builtin_convertvector(q, F<I>) * units;
    store<I>(to + i, x);
  }
  for (; i < end; ++i) {
    std::int32_t q = 0;
    std::memcpy(&q, from + i, sizeof q);
    const float g = static_cast<float>(q) * unit;
    std::memcpy(to + i, &g, sizeof g);
  }
}
TUTTI_DEFINE_DISPATCH(from_integers, from_integers_body);
TUTTI_CORE_INSTANCE(template void from_integers<>(Isa, IntegerBlock, const std::int32_t*, float*));

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace tutti::cpu
