// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>

#include <tutti/core/float/bf16.hpp>
#include <tutti/core/isa.hpp>

// A register of floats, with the compiler's vector types: 16, 8 or 4 floats, by instruction set.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // these vectors are never passed between functions: everything is inlined
#endif

namespace tutti::cpu {

#define TUTTI_VECTOR(type, bytes) type __attribute__((vector_size(bytes)))

// Types of one register: F floats, U and I the same number of u32 and i32, Half u16, Byte u8.
template <int W>
struct Vector;
#define TUTTI_DEFINE_VECTOR(W)                       \
  template <>                                        \
  struct Vector<W> {                                 \
    using F = TUTTI_VECTOR(float, 4 * W);            \
    using U = TUTTI_VECTOR(std::uint32_t, 4 * W);    \
    using I = TUTTI_VECTOR(std::int32_t, 4 * W);     \
    using Half = TUTTI_VECTOR(std::uint16_t, 2 * W); \
    using Byte = TUTTI_VECTOR(std::uint8_t, W);      \
  }
TUTTI_DEFINE_VECTOR(16);
TUTTI_DEFINE_VECTOR(8);
TUTTI_DEFINE_VECTOR(4);
#undef TUTTI_DEFINE_VECTOR
#undef TUTTI_VECTOR

template <Isa I>
inline constexpr int lanes_of = I == Isa::avx512_bf16 || I == Isa::avx512 ? 16
                                : I == Isa::avx2                          ? 8
                                                                          : 4;
template <Isa I>
using Vec = Vector<lanes_of<I>>;
template <Isa I>
using F = typename Vec<I>::F;
// Whether there are 32 registers.
template <Isa I>
inline constexpr bool has_many_registers =
#if defined(__aarch64__)
    true;
#else
    lanes_of<I> == 16;
#endif
// Whether a product can take one lane of a register as a factor.
template <Isa I>
inline constexpr bool multiplies_lanes = I == Isa::neon || I == Isa::neon_bf16;

// Reads or writes a register at any address. Uses a packed struct, because Clang forgets the alignment of an alias of a
// vector type and assumes that the address is a multiple of the register's size.
template <class V>
struct __attribute__((packed, may_alias)) Unaligned {
  V v;
};
template <class V>
TUTTI_INLINE void read(V& to, const void* p) {
  to = static_cast<const Unaligned<V>*>(p)->v;
}
template <class V>
TUTTI_INLINE void write(void* p, const V& v) {
  static_cast<Unaligned<V>*>(p)->v = v;
}

// Vectors are passed by reference: returning one from a function compiled for a smaller instruction set would use
// another calling convention, and compilers warn about it even if everything is inlined.
template <Isa I>
TUTTI_INLINE void broadcast(F<I>& to, float f) {
  to = f - F<I>{};
}
template <Isa I>
TUTTI_INLINE void load(F<I>& to, const float* p) {
  read(to, p);
}
// Loads bytes, each into 32 bits.
template <Isa I>
TUTTI_INLINE void widen(typename Vec<I>::I& to, const std::uint8_t* p) {
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (lanes_of<I> == 16) {  // without this, GCC 12 loads them one by one
    asm("vpmovzxbd %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const Unaligned<typename Vec<I>::Byte>*>(p)));
    return;
  }
#endif
  typename Vec<I>::Byte b;
  read(b, p);
  to = __builtin_convertvector(b, typename Vec<I>::I);
}
// Loads the bits of a register of bf16, each into 32 bits.
template <Isa I>
TUTTI_INLINE void widen(typename Vec<I>::U& to, const bf16* p) {
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (lanes_of<I> == 16) {  // without this, GCC 12 uses five instructions
    asm("vpmovzxwd %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const Unaligned<typename Vec<I>::Half>*>(p)));
    return;
  }
#endif
  typename Vec<I>::Half h;
  read(h, p);
  to = __builtin_convertvector(h, typename Vec<I>::U);
}
template <Isa I>
TUTTI_INLINE void load(F<I>& to, const bf16* p) {
  typename Vec<I>::U u;
  widen<I>(u, p);
  to = (F<I>)(u << 16);
}
template <Isa I>
TUTTI_INLINE void load(F<I>& to, const std::uint8_t* p) {
  typename Vec<I>::I i;
  widen<I>(i, p);
  to = __builtin_convertvector(i, F<I>);
}
template <Isa I>
TUTTI_INLINE void store(float* p, const F<I>& v) {
  write(p, v);
}
// Rounds to nearest even; a NaN stays a NaN.
template <Isa I>
TUTTI_INLINE void store(bf16* p, const F<I>& v) {
  using U = typename Vec<I>::U;
#if defined(__x86_64__) && !defined(__clang__)  // Clang requires the register's instruction set in every caller
  if constexpr (I == Isa::avx512_bf16) {
    typename Vec<I>::Half r;
    asm("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(v));
    write(p, r);
    return;
  }
#elif defined(__aarch64__) && !defined(__clang__)
  if constexpr (I == Isa::neon_bf16) {
    typename Vec<I>::Half r;
    asm(".arch_extension bf16\n\tbfcvtn %0.4h, %1.4s" : "=w"(r) : "w"(v));
    write(p, r);
    return;
  }
#endif
  const U u = (U)v;
  const U rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  const U quiet = (u >> 16) | 0x40U;
  const auto nan = (u & 0x7fffffffU) > 0x7f800000U;
  const U r = nan ? quiet : rounded;
  write(p, __builtin_convertvector(r, typename Vec<I>::Half));
}
// Stores values that were bf16 before, without rounding.
template <Isa I>
TUTTI_INLINE void store_exact(float* p, const F<I>& v) {
  write(p, v);
}
template <Isa I>
TUTTI_INLINE void store_exact(bf16* p, const F<I>& v) {
  write(p, __builtin_convertvector((typename Vec<I>::U)v >> 16, typename Vec<I>::Half));
}
// sum += a * b[lane]. `lane` is a constant after inlining, and the product one instruction.
template <Isa I>
TUTTI_INLINE void add_lane_product(F<I>& sum, const F<I>& a, const F<I>& b, int lane) {
  sum += a * b[lane];
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
