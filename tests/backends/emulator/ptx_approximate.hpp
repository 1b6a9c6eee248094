// SPDX-License-Identifier: MIT
#pragma once

// PTX's approximate instructions with the largest errors that NVIDIA's "PTX ISA" allows them (section 9.7.3, on
// floating point), included by ptx_runtime.hpp. Machine::errors: 0 the exact result, 1 the largest one, 2 the smallest
// one, 3 one of both, which depends on the operands, so that each run gives the same bits. Zeros, infinities, NaNs and
// the results for powers of two are exact, as on a GPU: its tables contain these values.
namespace ptx {

// Returns the f32 farthest from `exact` within `bound`, in the direction that the mode says.
inline float approximate(double exact, double bound, u32 operands) {
  const float nearest = (float)exact;
  if (M->errors == 0 || !(__builtin_fabs(exact) <= 0x1.fffffep127) || exact == 0) return result(nearest);
  operands = (operands ^ operands >> 15) * 0x2c1b3c6du;
  const bool up = M->errors == 1 || (M->errors == 3 && (operands >> 17 & 1) != 0);
  for (float f = (float)(exact + (up ? bound : -bound)); up ? f > nearest : f < nearest;
       f = __builtin_nextafterf(f, nearest))
    if (__builtin_fabs(f - exact) <= bound) return f;
  return nearest;
}
// Returns the distance between neighbouring values of f32 at v.
inline double ulp(double v) {
  const float f = __builtin_fabsf((float)v);
  return f < 0x1p-126f ? 0x1p-149 : (double)__builtin_nextafterf(f, 2 * f) - f;
}
inline double relative(double v, double share) { return __builtin_fabs(v) * share; }
inline bool is_power_of_two(float f) { return (as<u32>(f) & 0x7fffffu) == 0 && (as<u32>(f) & 0x7f800000u) != 0; }

// div.approx: 2 ulp for 2^-126 <= |b| <= 2^126; for a larger b the quotient is 0. div.full: 2 ulp.
inline float div_full(float a, float b) {
  const double q = (double)a / b;
  return approximate(q, is_power_of_two(b) ? 0 : 2 * ulp(q), as<u32>(a) ^ as<u32>(b) * 31);
}
inline float div_approx(float a, float b) {
  if (__builtin_fabsf(b) > 0x1p126f && __builtin_fabsf(b) < __builtin_inff())
    return __builtin_fabsf(a) == __builtin_inff() ? nan_of(a)
           : is_nan(a)                            ? nan_of(a)
                                                  : __builtin_copysignf(0.0f, a * (b > 0 ? 1 : -1));
  return div_full(a, b);
}
// 1 ulp.
inline float rcp_approx(float a) {
  const double q = 1.0 / a;
  return approximate(q, is_power_of_two(a) ? 0 : ulp(q), as<u32>(a));
}
// The upper 32 bits of the result; the others are 0.
inline double rcp_approx(double a) { return as<double>(as<u64>(1 / a) & 0xffffffff00000000ull); }
inline double rsqrt_approx(double a) { return as<double>(as<u64>(1 / __builtin_sqrt(a)) & 0xffffffff00000000ull); }
// 2^-23 relative.
inline float sqrt_approx(float a) {
  const double r = __builtin_sqrt((double)a);
  return approximate(r, is_power_of_two(a) ? 0 : relative(r, 0x1p-23), as<u32>(a));
}
// 2^-22.9 relative.
inline float rsqrt_approx(float a) {
  const double r = 1 / __builtin_sqrt((double)a);
  return approximate(r, is_power_of_two(a) ? 0 : relative(r, 0x1.125fbep-23), as<u32>(a));
}
// 2^-20.5 absolute for |a| <= 2 pi.
inline float sin_approx(float a) { return approximate(__builtin_sin((double)a), 0x1.6a09e6p-21, as<u32>(a)); }
inline float cos_approx(float a) {
  return a == 0 ? 1.0f : approximate(__builtin_cos((double)a), 0x1.6a09e6p-21, as<u32>(a));
}
// 2^-22 absolute for 0.5 < a < 2, otherwise relative.
inline float lg2_approx(float a) {
  const double r = __builtin_log2((double)a);
  return approximate(r, is_power_of_two(a) ? 0 : a > 0.5f && a < 2 ? 0x1p-22 : relative(r, 0x1p-22), as<u32>(a));
}
// 2^-22 relative. Zero gives exactly 1.
inline float ex2_approx(float a) {
  return a == 0 ? 1.0f
                : approximate(__builtin_exp2((double)a), relative(__builtin_exp2((double)a), 0x1p-22), as<u32>(a));
}
// 2^-11 relative.
inline float tanh_approx(float a) {
  const double r = __builtin_tanh((double)a);
  return approximate(r, relative(r, 0x1p-11), as<u32>(a));
}

}  // namespace ptx
