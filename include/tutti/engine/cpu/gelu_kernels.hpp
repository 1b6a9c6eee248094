// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace tutti::cpu {

// e = exp(v) for v up to 88; 0 below -87. A NaN stays a NaN. 2^k * exp(r): k is rounded by adding 1.5 * 2^23, which
// leaves it in the lowest bits.
template <Isa I>
TUTTI_INLINE void exp_vector(F<I>& e, const F<I>& v) {
  using U = typename Vec<I>::U;
  const F<I> zero = F<I>{};
  const F<I> shifted = v * 1.44269504F + 12582912.0F, k = shifted - 12582912.0F;
  const F<I> r = v - k * 0.693145751953125F - k * 1.42860682e-6F;
  e = r * (1 / 5040.0F) + (1 / 720.0F);
  e = e * r + (1 / 120.0F);
  e = e * r + (1 / 24.0F);
  e = e * r + (1 / 6.0F);
  e = e * r + 0.5F;
  e = e * r + 1.0F;
  e = e * r + 1.0F;
  e = (F<I>)((U)e + ((U)shifted << 23));
  e = v < zero - 87.0F ? zero : e;  // would be denormal
}

// Computes, for the normal distribution at a = |x|: density = exp(-a^2 / 2) / sqrt(2 pi), tail = Phi(-a). As in
// Abramowitz and Stegun 7.1.26, tail = exp(-a^2 / 2) * t * polynomial(t) with t = 1 / (1 + p a), but fitted to a
// relative error of 4e-8 for a up to 14. Values beyond 15, for which both are zero in f32, are set to 15 to avoid
// infinity times zero. A NaN stays a NaN.
template <Isa I>
TUTTI_INLINE void normal_tail(F<I>& a, F<I>& tail, F<I>& density, const F<I>& x) {
  using U = typename Vec<I>::U;
  F<I> most;
  broadcast<I>(most, 15.0F);
  a = (F<I>)((U)x & 0x7fffffffU);
  a = a > most ? most : a;

  F<I> e;
  exp_vector<I>(e, -0.5F * a * a);
  const F<I> t = 1.0F / (a * 0.275F + 1.0F);
  F<I> q = t * 0.026253876647652486F - 0.10604228682934712F;
  q = q * t + 0.1202266013304913F;
  q = q * t - 0.02339375710061F;
  q = q * t + 0.07963608591828258F;
  q = q * t + 0.0825882079723986F;
  q = q * t + 0.10123951998772027F;
  q = q * t + 0.1097890013476525F;
  q = q * t + 0.10970277013090607F;
  tail = e * t * q;
  density = e * 0.3989422804F;
}

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
