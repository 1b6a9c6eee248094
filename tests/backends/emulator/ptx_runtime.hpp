// SPDX-License-Identifier: MIT
#pragma once

// What the C++ that ptx_emit.py writes calls: PTX's arithmetic with its rules for NaNs, zeros and shifts, and memory
// accesses, which the emulator checks. The rules are those of NVIDIA's "PTX ISA", version 9.1. It includes little,
// because each kernel is compiled alone.
#include <cfenv>
#include <cstdint>

typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;

// As in block.hpp.
struct Position {
  unsigned x, y, z;
};
enum Access : unsigned {
  reads = 1,
  writes = 2,
  strong_reads = 5,
  strong_writes = 6,
  updates = 7,
  release_updates = 15,  // order earlier accesses before it, for a block that reads it with acquire
  acquire_reads = 21
};
struct Machine {
  Position thread, block, threads, blocks;
  void (*sync)();
  void (*yield)();
  void (*dependency)(bool wait);
  void (*warp_sync)(u32 mask);
  const u32* (*exchange)(u32 mask, u32 value);
  void (*global)(u64 address, unsigned size, unsigned count, unsigned access);
  void (*shared)(u64 address, unsigned size, unsigned count, unsigned access);
  void (*fault)(const char* what, u64 address);
  unsigned errors;
  unsigned instruction;
};
#define TUTTI_HIDDEN __attribute__((visibility("hidden")))
extern Machine* tutti_machine TUTTI_HIDDEN;
extern float (*tutti_from_f16)(unsigned short) TUTTI_HIDDEN;
extern unsigned short (*tutti_to_f16)(float) TUTTI_HIDDEN;
extern u8 tutti_shared[] TUTTI_HIDDEN;  // the shared memory of a block
#define M tutti_machine

namespace ptx {

template <class T, class F>
inline T as(F f) {
  T t = T();
  __builtin_memcpy(&t, &f, sizeof(T) < sizeof(F) ? sizeof(T) : sizeof(F));
  return t;
}
template <>
inline bool as<bool, bool>(bool b) {
  return b;
}
// A value in a register that may be wider: integers with their sign.
template <class R>
inline R wide(bool v) {
  return (R)v;
}
template <class R>
inline R wide(u8 v) {
  return (R)v;
}
template <class R>
inline R wide(s8 v) {
  return (R)(s64)v;
}
template <class R>
inline R wide(u16 v) {
  return (R)v;
}
template <class R>
inline R wide(s16 v) {
  return (R)(s64)v;
}
template <class R>
inline R wide(u32 v) {
  return (R)v;
}
template <class R>
inline R wide(s32 v) {
  return (R)(s64)v;
}
template <class R>
inline R wide(u64 v) {
  return (R)v;
}
template <class R>
inline R wide(s64 v) {
  return (R)v;
}
template <class R>
inline R wide(float v) {
  return (R)as<u32>(v);
}
template <class R>
inline R wide(double v) {
  return (R)as<u64>(v);
}

// Memory. Shared memory has a window in the generic addresses; other generic addresses are global.
constexpr u64 shared_window = 0x7f00000000000000ull;
inline u8* global(u64 address, unsigned size, unsigned count, Access access) {
  M->global(address, size, count, access);
  return (u8*)address;
}
inline u8* shared(u64 address, unsigned size, unsigned count, Access access) {
  M->shared((u32)address, size, count, access);
  return tutti_shared + (u32)address;
}
inline u8* local(u64 address, unsigned size, unsigned count, Access) {
  if (address % (size * count) != 0) M->fault("data that is not aligned", address);
  return (u8*)address;
}
inline u8* generic(u64 address, unsigned size, unsigned count, Access access) {
  return address >> 56 == shared_window >> 56 ? shared(address - shared_window, size, count, access)
                                              : global(address, size, count, access);
}
template <class T>
inline T at(const u8* p, int k) {
  T t;
  __builtin_memcpy(&t, p + k * sizeof(T), sizeof(T));
  return t;
}
template <class T>
inline void set(u8* p, int k, T t) {
  __builtin_memcpy(p + k * sizeof(T), &t, sizeof(T));
}
template <class T>
inline T parameter(void* p, unsigned offset) {
  return at<T>((const u8*)p + offset, 0);
}
// The address of parameter i is (i + 1) << 32.
inline const u8* parameter_at(void** a, const u32* sizes, u64 address, unsigned size, unsigned count) {
  u64 number = 0;
  while (number + 1 < address >> 32 && sizes[number] != 0) ++number;
  if (address >> 32 == 0 || (u32)address % (size * count) != 0 || (u32)address + size * count > sizes[number])
    M->fault("a parameter: an index out of bounds", address);
  return (const u8*)a[number] + (u32)address;
}

// Floating point. A result that is NaN has NVIDIA's bits.
inline bool is_nan(float f) { return f != f; }
inline bool is_nan(double f) { return f != f; }
inline float nan_of(float) { return as<float>(0x7fffffffu); }
inline double nan_of(double) { return as<double>(0x7fffffffffffffffull); }  // only quiet; its bits are not specified
template <class T>
inline T result(T t) {
  return t == t ? t : nan_of(t);
}
inline float flush(float f) { return __builtin_fabsf(f) < 0x1p-126f ? __builtin_copysignf(0.0f, f) : f; }
inline float saturate(float f) { return !(f > 0) ? 0.0f : f > 1 ? 1.0f : f; }
inline double saturate(double f) { return !(f > 0) ? 0.0 : f > 1 ? 1.0 : f; }
template <class T>
inline T add(T a, T b) {
  return result(a + b);
}
template <class T>
inline T sub(T a, T b) {
  return result(a - b);
}
template <class T>
inline T mul(T a, T b) {
  return result(a * b);
}
template <class T>
inline T div(T a, T b) {
  return result(a / b);
}
inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
template <class T>
inline T fma(T a, T b, T c) {
  return result(fused(a, b, c));
}
inline float root(float a) { return __builtin_sqrtf(a); }
inline double root(double a) { return __builtin_sqrt(a); }
template <class T>
inline T square_root(T a) {
  return result(root(a));
}
template <class T, class F>
inline T cast(F f) {
  return (T)f;
}
// Calls f in another rounding mode, through a pointer that the compiler cannot look through.
template <int MODE, class R, class... P, class... A>
inline R in_mode(R (*f)(P...), A... a) {
  R (*volatile call)(P...) = f;
  fesetround(MODE);
  const R r = call(a...);
  fesetround(FE_TONEAREST);
  return r;
}
inline float absolute(float f) { return as<float>(as<u32>(f) & 0x7fffffffu); }
inline double absolute(double f) { return as<double>(as<u64>(f) & 0x7fffffffffffffffull); }
inline float negative(float f) { return as<float>(as<u32>(f) ^ 0x80000000u); }
inline double negative(double f) { return as<double>(as<u64>(f) ^ 0x8000000000000000ull); }
inline s16 absolute(s16 a) { return a < 0 ? (s16) - (u16)a : a; }
inline s32 absolute(s32 a) { return a < 0 ? (s32) - (u32)a : a; }
inline s64 absolute(s64 a) { return a < 0 ? (s64) - (u64)a : a; }
inline s16 negative(s16 a) { return (s16) - (u16)a; }
inline s32 negative(s32 a) { return (s32) - (u32)a; }
inline s64 negative(s64 a) { return (s64) - (u64)a; }
// A number and a NaN give the number, or with .NaN a NaN; -0 is below +0.
template <class T>
inline T min_number(T a, T b, bool nan) {
  if (is_nan(a) || is_nan(b)) return nan || (is_nan(a) && is_nan(b)) ? nan_of(a) : is_nan(a) ? b : a;
  return a == b ? (__builtin_signbit(a) ? a : b) : a < b ? a : b;
}
template <class T>
inline T max_number(T a, T b, bool nan) {
  if (is_nan(a) || is_nan(b)) return nan || (is_nan(a) && is_nan(b)) ? nan_of(a) : is_nan(a) ? b : a;
  return a == b ? (__builtin_signbit(a) ? b : a) : a > b ? a : b;
}
inline float sign_bits(u32 m, u32 s) { return as<float>((m & 0x7fffffffu) | (s & 0x80000000u)); }
template <class T>
T with_sign_of(T sign, T magnitude);
template <>
inline float with_sign_of(float s, float m) {
  return __builtin_copysignf(m, s);
}
template <>
inline double with_sign_of(double s, double m) {
  return __builtin_copysign(m, s);
}

// Conversions. A float out of range gives the nearest integer of the type. NaN: 0, or for 64 bits the highest bit.
inline float from_f16(u16 b) { return tutti_from_f16(b); }
inline u16 to_f16(float f) { return is_nan(f) ? (u16)0x7fff : tutti_to_f16(f); }
inline float from_bf16(u16 b) { return as<float>((u32)b << 16); }
inline u16 to_bf16(float f) {
  const u32 u = as<u32>(f);
  return is_nan(f) ? (u16)0x7fff : (u16)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
template <int MODE, class T>
inline T to_whole(T f) {
  if (is_nan(f)) return nan_of(f);
  const double d = (double)f;
  const double w = MODE == FE_TOWARDZERO ? __builtin_trunc(d)
                   : MODE == FE_DOWNWARD ? __builtin_floor(d)
                   : MODE == FE_UPWARD   ? __builtin_ceil(d)
                                         : __builtin_rint(d);
  return (T)__builtin_copysign(w, d);
}
template <class T>
struct Limits {
  static constexpr bool with_sign = (T)-1 < (T)0;
  static constexpr T high = with_sign ? (T)(~(u64)0 >> (65 - 8 * sizeof(T))) : (T) ~(u64)0;
  static constexpr T low = with_sign ? (T)-high - 1 : (T)0;
};
template <class T, int MODE, class F>
inline T to_integer(F f) {
  if (is_nan(f))
    return sizeof(T) == 8 || (sizeof(F) == 8 && sizeof(T) == 8) ? (T)((u64)1 << (8 * sizeof(T) - 1)) : (T)0;
  const double w = to_whole<MODE>((double)f);
  if (w < (double)Limits<T>::low) return Limits<T>::low;
  if (w >= (double)Limits<T>::high) return Limits<T>::high;
  return (T)w;
}
template <class T, class F>
inline T saturated(F f) {
  const __int128 v = f;
  return v < (__int128)Limits<T>::low ? Limits<T>::low : v > (__int128)Limits<T>::high ? Limits<T>::high : (T)v;
}

// Warps.
inline u32 lane() { return M->thread.x & 31u; }
struct Shuffled {
  u32 value;
  bool valid;
};
inline Shuffled shuffled(u32 a, u32 from, bool valid, u32 mask) {
  const u32 j = valid ? from & 31 : lane();
  const u32* const values = M->exchange(mask, a);
  if ((mask >> j & 1) == 0) M->fault("a shuffle from a lane that takes no part", j);
  return {values[j], valid};
}
inline u32 last_lane(u32 c) { return (lane() & (c >> 8 & 31)) | (c & 31 & ~(c >> 8)); }
inline Shuffled shuffle_up(u32 a, u32 b, u32 c, u32 mask) {
  const s32 j = (s32)lane() - (s32)(b & 31);
  return shuffled(a, (u32)j, j >= (s32)last_lane(c), mask);
}
inline Shuffled shuffle_down(u32 a, u32 b, u32 c, u32 mask) {
  const u32 j = lane() + (b & 31);
  return shuffled(a, j, j <= last_lane(c), mask);
}
inline Shuffled shuffle_bfly(u32 a, u32 b, u32 c, u32 mask) {
  const u32 j = lane() ^ (b & 31);
  return shuffled(a, j, j <= last_lane(c), mask);
}
inline Shuffled shuffle_idx(u32 a, u32 b, u32 c, u32 mask) {
  const u32 segment = c >> 8 & 31, j = (lane() & segment) | (b & 31 & ~segment);
  return shuffled(a, j, j <= last_lane(c), mask);
}
inline u32 vote_ballot(bool p, u32 mask) {
  const u32* const values = M->exchange(mask, p);
  u32 r = 0;
  for (u32 i = 0; i < 32; ++i)
    if (mask >> i & 1 && values[i]) r |= 1u << i;
  return r;
}
inline bool vote_all(bool p, u32 mask) { return vote_ballot(p, mask) == mask; }
inline bool vote_any(bool p, u32 mask) { return vote_ballot(p, mask) != 0; }
inline bool vote_uni(bool p, u32 mask) {
  const u32 b = vote_ballot(p, mask);
  return b == 0 || b == mask;
}

}  // namespace ptx

#include "ptx_approximate.hpp"
#include "ptx_integers.hpp"

using namespace ptx;
