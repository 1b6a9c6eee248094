// SPDX-License-Identifier: MIT
#pragma once

// PTX's approximate instructions with the largest errors that NVIDIA's "PTX ISA", version 9.1, section 9.7.3, allows
// them, included by ptx_runtime.hpp. Machine::errors: 0 the exact result, 1 the largest one, 2 the smallest one, 3 one
// of both, which depends on the operands, so that each run gives the same bits. Only the results in the tables of that
// section (for zeros, infinities and NaNs) are always exact.
namespace ptx {

// Returns the f32 farthest from `middle` within `bound`, in the direction that the mode says.
inline float approximate(double middle, double bound, u32 operands) {
  const float nearest = (float)middle;
  if (M->errors == 0 || !(__builtin_fabs(middle) <= 0x1.fffffep127)) return result(nearest);
  operands = (operands ^ operands >> 15) * 0x2c1b3c6du;
  const bool up = M->errors == 1 || (M->errors == 3 && (operands >> 17 & 1) != 0);
  for (float f = (float)(middle + (up ? bound : -bound)); up ? f > nearest : f < nearest;
       f = __builtin_nextafterf(f, nearest))
    if (__builtin_fabs(f - middle) <= bound) return f;
  return nearest;
}
// A bound in units in the last place counts from the correctly rounded result. A result of zero is exact.
inline float approximate_ulp(double exact, int bound, u32 operands) {
  const float nearest = (float)exact, size = __builtin_fabsf(nearest);
  if (size == 0 || !(size < __builtin_inff())) return result(nearest);
  const double ulp = size < 0x1p-126f ? 0x1p-149 : (double)as<float>(as<u32>(size) & 0x7f800000u) * 0x1p-23;
  return approximate(nearest, bound * ulp, operands);
}
inline float approximate_relative(double exact, double bound, u32 operands) {
  return approximate(exact, __builtin_fabs(exact) * bound, operands);
}

// 1 ulp.
inline float rcp_approx(float a) { return approximate_ulp(1.0 / a, 1, as<u32>(a)); }
// 2 ulp.
inline float div_full(float a, float b) { return approximate_ulp((double)a / b, 2, as<u32>(a) ^ as<u32>(b) * 31); }
// 2 ulp for 2^-126 <= |b| <= 2^126. For a larger b the result is 0, or NaN if a is infinite. For a smaller b it is the
// product with an approximate reciprocal, which may be infinite.
inline float div_approx(float a, float b) {
  const float size = __builtin_fabsf(b);
  if (size < 0x1p-126f) return result(a * rcp_approx(b));
  if (!(size > 0x1p126f && size < __builtin_inff())) return div_full(a, b);
  if (is_nan(a) || __builtin_fabsf(a) == __builtin_inff()) return nan_of(a);
  return __builtin_copysignf(0.0f, b > 0 ? a : -a);
}
// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 read the upper 32 bits of their operand and write those of their result.
// The section states no error for these two and for rsqrt.approx.f64, so their results are exact here.
inline double upper(double a) {
  return is_nan(a) ? as<double>((u64)0x7fffffff00000000) : as<double>(as<u64>(a) & 0xffffffff00000000ull);
}
inline double flush_f64(double a) { return __builtin_fabs(a) < 0x1p-1022 ? __builtin_copysign(0.0, a) : a; }
inline double rcp_gross(double a) { return upper(flush_f64(1 / upper(flush_f64(a)))); }
inline double rsqrt_gross(double a) { return upper(1 / __builtin_sqrt(upper(flush_f64(a)))); }
inline double rsqrt_f64(double a) { return result(1 / __builtin_sqrt(a)); }
// 2^-23 relative.
inline float sqrt_approx(float a) { return approximate_relative(__builtin_sqrt((double)a), 0x1p-23, as<u32>(a)); }
// 2^-22.9 relative.
inline float rsqrt_approx(float a) {
  return approximate_relative(1 / __builtin_sqrt((double)a), 0x1.125fbep-23, as<u32>(a));
}
// 2^-20.5 absolute for |a| <= 2 pi, and 2^-14.7 for |a| <= 100 pi. There is no bound for a larger a.
inline double bound_of_angle(float a) {
  const float size = __builtin_fabsf(a);
  if (size > 0x1.3a28c4p8f && size < __builtin_inff())
    M->fault("a sine or cosine of unknown error: an angle", as<u32>(a));
  return size <= 0x1.921fb4p2f ? 0x1.6a09e6p-21 : 0x1.3b2c46p-15;
}
inline float sin_approx(float a) {
  return a == 0 ? a : approximate(__builtin_sin((double)a), bound_of_angle(a), as<u32>(a));
}
inline float cos_approx(float a) {
  return a == 0 ? 1.0f : approximate(__builtin_cos((double)a), bound_of_angle(a), as<u32>(a));
}
// 2^-22 absolute for 0.5 < a < 2, otherwise relative.
inline float lg2_approx(float a) {
  const double r = __builtin_log2((double)a);
  return a > 0.5f && a < 2 ? approximate(r, 0x1p-22, as<u32>(a)) : approximate_relative(r, 0x1p-22, as<u32>(a));
}
// 2 ulp.
inline float ex2_approx(float a) { return a == 0 ? 1.0f : approximate_ulp(__builtin_exp2((double)a), 2, as<u32>(a)); }
// 2^-11 relative. The result for a subnormal operand is the operand.
inline float tanh_approx(float a) {
  const float size = __builtin_fabsf(a);
  if (size < 0x1p-126f) return a;
  if (size == __builtin_inff()) return __builtin_copysignf(1.0f, a);
  return approximate_relative(__builtin_tanh((double)a), 0x1p-11, as<u32>(a));
}

}  // namespace ptx
