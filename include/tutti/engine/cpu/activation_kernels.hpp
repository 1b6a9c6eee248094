// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/gelu_kernels.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Activations and their gradients, element by element.
namespace tutti::cpu {

namespace activation {

// s = 1 / (1 + exp(-x)), without an overflow: a = |x|, and exp(-a) / (1 + exp(-a)) for negative x. A NaN stays a NaN.
template <Isa I>
TUTTI_INLINE void sigmoid(F<I>& s, const F<I>& x) {
  using U = typename Vec<I>::U;
  F<I> e;
  exp_vector<I>(e, (F<I>)((U)x | 0x80000000U));
  const F<I> inverse = 1.0F / (e + 1.0F);
  s = x < F<I>{} ? e * inverse : inverse;
  s = x == x ? s : x;
}

// apply(y, x) of an activation; apply(dx, dy, x) of a gradient, in which x may be the activation's result.
struct Sigmoid {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& y, const F<I>& x) {
    sigmoid<I>(y, x);
  }
};
struct SigmoidBackward {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& dx, const F<I>& dy, const F<I>& y) {
    dx = dy * (y * (1.0F - y));
  }
};
struct Silu {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& y, const F<I>& x) {
    F<I> s;
    sigmoid<I>(s, x);
    y = x * s;
  }
};
struct SiluBackward {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& dx, const F<I>& dy, const F<I>& x) {
    F<I> s, rest;
    sigmoid<I>(s, x);
    sigmoid<I>(rest, -x);
    dx = dy * (s * (x * rest + 1.0F));
  }
};
// A NaN fails every comparison and stays.
struct HardSwish {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& y, const F<I>& x) {
    F<I> t = x + 3.0F;
    const F<I> zero = F<I>{}, six = zero + 6.0F;
    t = t < zero ? zero : t;
    t = t > six ? six : t;
    y = x * (t * (1 / 6.0F));
  }
};
struct HardSwishBackward {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& dx, const F<I>& dy, const F<I>& x) {
    const F<I> zero = F<I>{}, one = zero + 1.0F, three = zero + 3.0F;
    F<I> slope = x * (1 / 3.0F) + 0.5F;
    slope = x <= -three ? zero : slope;
    slope = x >= three ? one : slope;
    dx = dy * slope;
  }
};

}  // namespace activation

// The last values use the same instructions as the others, so that a result does not depend on its position.
template <Isa I, class T, class A>
TUTTI_INLINE void map_body(const T* x, T* y, std::int64_t n) {
  constexpr int width = lanes_of<I>;
  F<I> v, result;
  std::int64_t i = 0;
  for (; i + width <= n; i += width) {
    load<I>(v, x + i);
    A::template apply<I>(result, v);
    store<I>(y + i, result);
  }
  if (i == n) return;
  T some[width] = {};
  for (std::int64_t k = i; k < n; ++k) some[k - i] = x[k];
  load<I>(v, static_cast<const T*>(some));
  A::template apply<I>(result, v);
  store<I>(static_cast<T*>(some), result);
  for (std::int64_t k = i; k < n; ++k) y[k] = some[k - i];
}
TUTTI_DEFINE_DISPATCH(map, map_body);

template <Isa I, class T, class A>
TUTTI_INLINE void map_backward_body(const T* dy, const T* x, T* dx, std::int64_t n) {
  constexpr int width = lanes_of<I>;
  F<I> d, v, result;
  std::int64_t i = 0;
  for (; i + width <= n; i += width) {
    load<I>(d, dy + i);
    load<I>(v, x + i);
    A::template apply<I>(result, d, v);
    store<I>(dx + i, result);
  }
  if (i == n) return;
  T some[width] = {}, in[width] = {};
  for (std::int64_t k = i; k < n; ++k) {
    some[k - i] = dy[k];
    in[k - i] = x[k];
  }
  load<I>(d, static_cast<const T*>(some));
  load<I>(v, static_cast<const T*>(in));
  A::template apply<I>(result, d, v);
  store<I>(static_cast<T*>(some), result);
  for (std::int64_t k = i; k < n; ++k) dx[k] = some[k - i];
}
TUTTI_DEFINE_DISPATCH(map_backward, map_backward_body);

#define TUTTI_MAP_INSTANCES(T)                                                                                \
  TUTTI_CORE_INSTANCE(template void map<T, activation::Sigmoid>(Isa, const T*, T*, std::int64_t));            \
  TUTTI_CORE_INSTANCE(template void map<T, activation::Silu>(Isa, const T*, T*, std::int64_t));               \
  TUTTI_CORE_INSTANCE(template void map<T, activation::HardSwish>(Isa, const T*, T*, std::int64_t));          \
  TUTTI_CORE_INSTANCE(                                                                                        \
      template void map_backward<T, activation::SigmoidBackward>(Isa, const T*, const T*, T*, std::int64_t)); \
  TUTTI_CORE_INSTANCE(                                                                                        \
      template void map_backward<T, activation::SiluBackward>(Isa, const T*, const T*, T*, std::int64_t));    \
  TUTTI_CORE_INSTANCE(                                                                                        \
      template void map_backward<T, activation::HardSwishBackward>(Isa, const T*, const T*, T*, std::int64_t))
TUTTI_MAP_INSTANCES(float);
TUTTI_MAP_INSTANCES(bf16);
#undef TUTTI_MAP_INSTANCES

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
