// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/gelu_kernels.hpp>
#include <tutti/engine/cpu/simd.hpp>
#include <tutti/graph/ops/activation.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Activations and their gradients, element by element, in f32, and the conversions around them for bf16. A second
// instance for bf16 would cost every program that includes it more than it saves at run time: the values that are
// converted are in the L1 cache.
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

// apply(y, _, x) of an activation; apply(dx, dy, x) of a gradient, in which x may be the activation's result.
struct Gelu {  // x * Phi(x) = relu(x) - a * Phi(-a)
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& y, const F<I>&, const F<I>& x) {
    F<I> a, tail, density;
    normal_tail<I>(a, tail, density, x);
    const F<I> zero = F<I>{};
    y = (x < zero ? zero : x) - a * tail;
  }
};
struct GeluBackward {  // dy * (Phi(x) + x * density(x))
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& dx, const F<I>& dy, const F<I>& x) {
    F<I> a, tail, density;
    normal_tail<I>(a, tail, density, x);
    const F<I> left = tail - a * density;  // derivative at -a
    dx = dy * (x < F<I>{} ? left : 1.0F - left);
  }
};
struct Sigmoid {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& y, const F<I>&, const F<I>& x) {
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
  static TUTTI_INLINE void apply(F<I>& y, const F<I>&, const F<I>& x) {
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
  static TUTTI_INLINE void apply(F<I>& y, const F<I>&, const F<I>& x) {
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

struct Relu6 {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& y, const F<I>&, const F<I>& x) {
    const F<I> zero = F<I>{}, six = zero + 6.0F;
    y = x < zero ? zero : x;
    y = y > six ? six : y;
  }
};
struct Relu6Backward {
  template <Isa I>
  static TUTTI_INLINE void apply(F<I>& dx, const F<I>& dy, const F<I>& x) {
    const F<I> zero = F<I>{}, six = zero + 6.0F;
    const F<I> above = x <= zero ? zero : dy, below = x >= six ? zero : dy;
    dx = (F<I>)((typename Vec<I>::U)above & (typename Vec<I>::U)below);
  }
};

// The last values use the same instructions as the others, so that a result does not depend on its position.
template <Isa I, class A>
TUTTI_INLINE void map(const float* dy, const float* x, float* to, std::int64_t n) {
  constexpr int width = lanes_of<I>;
  F<I> d, v, result;
  std::int64_t i = 0;
  for (; i + width <= n; i += width) {
    load<I>(d, dy + i);
    load<I>(v, x + i);
    A::template apply<I>(result, d, v);
    store<I>(to + i, result);
  }
  if (i == n) return;
  float some[width] = {}, in[width] = {};
  for (std::int64_t k = i; k < n; ++k) {
    some[k - i] = dy[k];
    in[k - i] = x[k];
  }
  load<I>(d, static_cast<const float*>(some));
  load<I>(v, static_cast<const float*>(in));
  A::template apply<I>(result, d, v);
  store<I>(static_cast<float*>(some), result);
  for (std::int64_t k = i; k < n; ++k) to[k] = some[k - i];
}

}  // namespace activation

// to = the activation of x, or, if `backward`, dx of dy and x. Forward, dy is read but not used.
template <Isa I>
TUTTI_INLINE void activate_body(op::ActivationKind kind, bool backward, const float* dy, const float* x, float* to,
                                std::int64_t n) {
  namespace a = activation;
  switch (kind) {
    case op::ActivationKind::gelu:
      return backward ? a::map<I, a::GeluBackward>(dy, x, to, n) : a::map<I, a::Gelu>(dy, x, to, n);
    case op::ActivationKind::sigmoid:
      return backward ? a::map<I, a::SigmoidBackward>(dy, x, to, n) : a::map<I, a::Sigmoid>(dy, x, to, n);
    case op::ActivationKind::silu:
      return backward ? a::map<I, a::SiluBackward>(dy, x, to, n) : a::map<I, a::Silu>(dy, x, to, n);
    case op::ActivationKind::hard_swish:
      return backward ? a::map<I, a::HardSwishBackward>(dy, x, to, n) : a::map<I, a::HardSwish>(dy, x, to, n);
    case op::ActivationKind::relu6:
      return backward ? a::map<I, a::Relu6Backward>(dy, x, to, n) : a::map<I, a::Relu6>(dy, x, to, n);
  }
}
TUTTI_DEFINE_READER_DISPATCH(activate, activate_body);
TUTTI_CORE_INSTANCE(template void activate<>(Isa, op::ActivationKind, bool, const float*, const float*, float*,
                                             std::int64_t));

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
