// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>

#include <tutti/backend/cpu/isa.hpp>
#include <tutti/core/bf16.hpp>

// Sixteen floats at a time, with the compiler's vector types: one 512-bit register, two of 256 or four of 128 bits,
// depending on the instruction set that the caller is compiled for.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // these vectors are never passed between functions, all is inlined
#endif

namespace tutti::cpu {

using F16 = float __attribute__((vector_size(64), aligned(4), may_alias));
using U16x16 = std::uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
using U32x16 = std::uint32_t __attribute__((vector_size(64), aligned(4), may_alias));
using I32x16 = std::int32_t __attribute__((vector_size(64), aligned(4), may_alias));
using F16Value = float __attribute__((vector_size(64)));
using I32Value = std::int32_t __attribute__((vector_size(64)));

inline constexpr std::int64_t width = 16;

[[nodiscard]] TUTTI_INLINE F16Value broadcast(float f) {
  return F16Value{f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f};
}

template <Isa I>
[[nodiscard]] TUTTI_INLINE F16Value load(const float* p) {
  return *reinterpret_cast<const F16*>(p);
}
template <Isa I>
[[nodiscard]] TUTTI_INLINE F16Value load(const bf16* p) {
  const auto wide = __builtin_convertvector(*reinterpret_cast<const U16x16*>(p), U32x16) << 16;
  return (F16Value)wide;
}
template <Isa I>
TUTTI_INLINE void store(float* p, F16Value v) {
  *reinterpret_cast<F16*>(p) = v;
}
// Rounds to nearest even; a NaN stays one.
template <Isa I>
TUTTI_INLINE void store(bf16* p, F16Value v) {
#if defined(__x86_64__)
  if constexpr (I == Isa::avx512_bf16) {
    using U16Value = std::uint16_t __attribute__((vector_size(32)));
    U16Value r;
    asm("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(v));
    *reinterpret_cast<U16x16*>(p) = r;
    return;
  }
#endif
  using U32Value = std::uint32_t __attribute__((vector_size(64)));
  const U32Value u = (U32Value)v;
  const U32Value rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  const U32Value quiet = (u >> 16) | 0x40U;
  const auto nan = (u & 0x7fffffffU) > 0x7f800000U;
  const U32Value r = nan ? quiet : rounded;
  *reinterpret_cast<U16x16*>(p) = __builtin_convertvector(r, U16x16);
}

[[nodiscard]] TUTTI_INLINE F16Value max0(F16Value v) {
  // Written so that a NaN passes: relu must not hide one.
  return v < 0 ? broadcast(0) : v;
}
[[nodiscard]] TUTTI_INLINE F16Value keep_where_positive(F16Value condition, F16Value v) {
  return condition > 0 ? v : broadcast(0);
}

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
