// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>

#include <tutti/backend/cpu/isa.hpp>
#include <tutti/core/bf16.hpp>

// A register of floats, with the compiler's vector types: 16, 8 or 4 of them, by instruction set.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // these vectors are never passed between functions, all is inlined
#endif

namespace tutti::cpu {

#define TUTTI_VECTOR(type, bytes) type __attribute__((vector_size(bytes)))
#define TUTTI_UNALIGNED(type, bytes, alignment) type __attribute__((vector_size(bytes), aligned(alignment), may_alias))

// Types of one register: F floats, U as many u32; in memory, F and H (u16) and B (u8) at any address of their element.
template <int W>
struct Vector;
#define TUTTI_DEFINE_VECTOR(W)                               \
  template <>                                                \
  struct Vector<W> {                                         \
    using F = TUTTI_VECTOR(float, 4 * W);                    \
    using U = TUTTI_VECTOR(std::uint32_t, 4 * W);            \
    using I = TUTTI_VECTOR(std::int32_t, 4 * W);             \
    using HalfValue = TUTTI_VECTOR(std::uint16_t, 2 * W);    \
    using FloatAt = TUTTI_UNALIGNED(float, 4 * W, 4);        \
    using HalfAt = TUTTI_UNALIGNED(std::uint16_t, 2 * W, 2); \
    using ByteValue = TUTTI_VECTOR(std::uint8_t, W);         \
    using ByteAt = TUTTI_UNALIGNED(std::uint8_t, W, 1);      \
  }
TUTTI_DEFINE_VECTOR(16);
TUTTI_DEFINE_VECTOR(8);
TUTTI_DEFINE_VECTOR(4);
#undef TUTTI_DEFINE_VECTOR
#undef TUTTI_UNALIGNED
#undef TUTTI_VECTOR

template <Isa I>
inline constexpr int lanes_of = I == Isa::avx512_bf16 || I == Isa::avx512 ? 16
                                : I == Isa::avx2                          ? 8
                                                                          : 4;
template <Isa I>
using Vec = Vector<lanes_of<I>>;
template <Isa I>
using F = typename Vec<I>::F;

// Vectors go in and out by reference: returning one from a function compiled for less than its instruction set would
// have another calling convention, and compilers warn of it even where all is inlined.
template <Isa I>
TUTTI_INLINE void broadcast(F<I>& to, float f) {
  to = f - F<I>{};
}
template <Isa I>
TUTTI_INLINE void load(F<I>& to, const float* p) {
  to = *reinterpret_cast<const typename Vec<I>::FloatAt*>(p);
}
template <Isa I>
TUTTI_INLINE void load(F<I>& to, const bf16* p) {
  const typename Vec<I>::HalfValue h = *reinterpret_cast<const typename Vec<I>::HalfAt*>(p);
  to = (F<I>)(__builtin_convertvector(h, typename Vec<I>::U) << 16);
}
template <Isa I>
TUTTI_INLINE void load(F<I>& to, const std::uint8_t* p) {
  const auto wide = __builtin_convertvector(*reinterpret_cast<const typename Vec<I>::ByteAt*>(p), typename Vec<I>::I);
  to = __builtin_convertvector(wide, F<I>);
}
template <Isa I>
TUTTI_INLINE void store(float* p, const F<I>& v) {
  *reinterpret_cast<typename Vec<I>::FloatAt*>(p) = v;
}
// Rounds to nearest even; a NaN stays one.
template <Isa I>
TUTTI_INLINE void store(bf16* p, const F<I>& v) {
  using U = typename Vec<I>::U;
#if defined(__x86_64__) && !defined(__clang__)  // Clang wants the register's instruction set on every caller
  if constexpr (I == Isa::avx512_bf16) {
    typename Vec<I>::HalfValue r;
    asm("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(v));
    *reinterpret_cast<typename Vec<I>::HalfAt*>(p) = r;
    return;
  }
#endif
  const U u = (U)v;
  const U rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  const U quiet = (u >> 16) | 0x40U;
  const auto nan = (u & 0x7fffffffU) > 0x7f800000U;
  const U r = nan ? quiet : rounded;
  *reinterpret_cast<typename Vec<I>::HalfAt*>(p) = __builtin_convertvector(r, typename Vec<I>::HalfValue);
}
// Adds the lanes to sums in f64.
template <Isa I>
TUTTI_INLINE void add_lanes(double* sums, const F<I>& v) {
  for (int e = 0; e < lanes_of<I>; ++e) sums[e] += static_cast<double>(v[e]);
}

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
