// SPDX-License-Identifier: MIT
#pragma once

// The functions of <cmath> that training needs. <cmath> itself also declares the special functions of mathematical
// physics and overloads for all types, which take a tenth of the compile time of a file that trains.
namespace tutti::math {

#define TUTTI_MATH_FUNCTION(name)                                                     \
  [[nodiscard]] inline double name(double x) noexcept { return __builtin_##name(x); } \
  [[nodiscard]] inline float name(float x) noexcept { return __builtin_##name##f(x); }
TUTTI_MATH_FUNCTION(sqrt)
TUTTI_MATH_FUNCTION(exp)
TUTTI_MATH_FUNCTION(log)
TUTTI_MATH_FUNCTION(cos)
TUTTI_MATH_FUNCTION(erfc)
TUTTI_MATH_FUNCTION(fabs)
TUTTI_MATH_FUNCTION(floor)
TUTTI_MATH_FUNCTION(ceil)
TUTTI_MATH_FUNCTION(rint)
#undef TUTTI_MATH_FUNCTION

[[nodiscard]] inline double pow(double base, double exponent) noexcept { return __builtin_pow(base, exponent); }  // x^y
[[nodiscard]] inline double ldexp(double x, int exponent) noexcept { return __builtin_ldexp(x, exponent); }  // x 2^n
// Returns the nearest integer; halves are rounded away from zero.
[[nodiscard]] inline long long llround(double x) noexcept { return __builtin_llround(x); }

[[nodiscard]] constexpr bool is_finite(double x) noexcept { return __builtin_isfinite(x); }  // neither NaN nor infinity
[[nodiscard]] constexpr bool is_nan(double x) noexcept { return __builtin_isnan(x); }        // also with -ffast-math

}  // namespace tutti::math
