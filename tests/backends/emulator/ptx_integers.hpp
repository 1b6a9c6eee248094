// SPDX-License-Identifier: MIT
#pragma once

// PTX's operations on integers and bits, and what atomic operations compute, included by ptx_runtime.hpp.
namespace ptx {

// Integers.
template <class T>
inline T high(T a, T b) {
  return (T)((__int128)a * (__int128)b >> (8 * sizeof(T)));
}
template <>
inline u64 high(u64 a, u64 b) {
  return (u64)((unsigned __int128)a * b >> 64);
}
template <class T>
inline T quotient(T a, T b) {
  if (b == 0) M->fault("an integer divided by zero", 0);
  return Limits<T>::with_sign && b == (T)-1 ? (T)(0 - (u64)a) : (T)(a / b);
}
template <class T>
inline T remainder(T a, T b) {
  if (b == 0) M->fault("an integer divided by zero", 0);
  return Limits<T>::with_sign && b == (T)-1 ? (T)0 : (T)(a % b);
}
// A shift by more than the width counts as one by the width.
template <class T>
inline T shift_left(T a, u32 n) {
  return n >= 8 * sizeof(T) ? (T)0 : (T)((u64)a << n);
}
template <class T>
inline T shift_right(T a, u32 n) {
  if (n >= 8 * sizeof(T)) return a < 0 ? (T)-1 : (T)0;
  return (T)(a >> n);
}
inline u32 funnel_l(u32 low, u32 high, u32 n, bool wrap) {
  n = wrap ? n & 31 : n > 32 ? 32 : n;
  return (u32)(((((u64)high << 32) | low) << n) >> 32);
}
inline u32 funnel_r(u32 low, u32 high, u32 n, bool wrap) {
  n = wrap ? n & 31 : n > 32 ? 32 : n;
  return (u32)((((u64)high << 32) | low) >> n);
}
template <class T>
inline u32 permute(u32 a, u32 b, u32 selector) {
  const u64 v = (u64)b << 32 | a;
  u32 r = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 k = selector >> 4 * i & 15, byte = (u32)(v >> 8 * (k & 7)) & 255;
    r |= (k & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return r;
}
template <class T>
inline T insert_bits(T a, T b, u32 position, u32 length) {
  const u32 p = position & 255, n = length & 255;
  if (p >= 8 * sizeof(T) || n == 0) return b;
  const T ones = n >= 8 * sizeof(T) ? (T) ~(T)0 : (T)(((T)1 << n) - 1), mask = (T)(ones << p);
  return (T)((b & ~mask) | ((T)(a << p) & mask));
}
template <class T>
inline T extract_bits(T a, u32 position, u32 length) {
  const u32 p = position & 255, n = length & 255, w = 8 * sizeof(T);
  const u32 top = p + n - 1 > w - 1 ? w - 1 : p + n - 1;
  const bool sign = Limits<T>::with_sign && n != 0 && ((u64)a >> top & 1) != 0;
  u64 r = 0;
  for (u32 i = 0; i < w; ++i)
    if (i < n && p + i < w ? ((u64)a >> (p + i) & 1) != 0 : sign) r |= (u64)1 << i;
  return (T)r;
}
template <class T>
inline u32 logic_of_three(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (u32 k = 0; k < 8; ++k)
    if (table >> k & 1) r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return r;
}
template <class T>
inline u32 count_ones(T a) {
  return (u32)__builtin_popcountll(a);
}
template <class T>
inline u32 leading_zeros(T a) {
  return a == 0 ? 8 * sizeof(T) : (u32)__builtin_clzll(a) - (64 - 8 * sizeof(T));
}
template <class T>
inline T reversed_bits(T a) {
  T r = 0;
  for (unsigned i = 0; i < 8 * sizeof(T); ++i) r = (T)(r << 1 | (a >> i & 1));
  return r;
}

// Atomic operations on the value before.
template <class T>
inline T atomic_add(T a, T b) {
  return (T)(a + b);
}
template <class T>
inline T atomic_min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T atomic_max(T a, T b) {
  return b > a ? b : a;
}
template <class T>
inline T atomic_and(T a, T b) {
  return (T)(a & b);
}
template <class T>
inline T atomic_or(T a, T b) {
  return (T)(a | b);
}
template <class T>
inline T atomic_xor(T a, T b) {
  return (T)(a ^ b);
}
template <class T>
inline T atomic_exch(T, T b) {
  return b;
}
template <class T>
inline T atomic_cas(T a, T expected, T b) {
  return a == expected ? b : a;
}
template <class T>
inline T atomic_inc(T a, T b) {
  return a >= b ? 0 : a + 1;
}
template <class T>
inline T atomic_dec(T a, T b) {
  return a == 0 || a > b ? b : a - 1;
}

}  // namespace ptx
