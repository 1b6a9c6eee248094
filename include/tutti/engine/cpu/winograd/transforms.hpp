// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include <tutti/engine/cpu/simd.hpp>

// The transforms of Winograd's F(4x4, 3x3): y = A' [(G w G') * (B' x B)] A, for tiles of 4x4 outputs.
//
// The points are 0, 5/8, -5/8, 3/2, -3/2 and infinity. They have half the error of 1 and 2 in place of 5/8 and 3/2, and
// their powers are exact in f32.
namespace tutti::cpu::winograd {

inline constexpr int tile = 4;                // outputs in each direction
inline constexpr int patch = 6, points = 36;  // point i * 6 + j of a transformed patch, and of the weights

// Sets all lanes to one float. GCC 12 would load a whole register, across cache lines, to repeat its first lane, at
// half the speed.
template <Isa I>
TUTTI_INLINE void repeat(F<I>& to, const float* p) {
#if defined(__x86_64__) && !defined(__clang__)
  asm("vbroadcastss %1, %0" : "=v"(to) : "m"(*p));
#else
  broadcast<I>(to, *p);
#endif
}

namespace nodes {
inline constexpr float p = 0.625F, q = 1.5F, p2 = p * p, q2 = q * q;
// The denominators of Lagrange's polynomials.
inline constexpr float n0 = 1 / (p2 * q2), n1 = 1 / (2 * p2 * (p2 - q2)), n2 = 1 / (2 * q2 * (q2 - p2));
}  // namespace nodes

// Keeps a constant in a register. Otherwise GCC reads it from memory for every product.
template <class V>
TUTTI_INLINE void keep(V& to, float f) {
  to = f - V{};
#if defined(__x86_64__) && !defined(__clang__)
  asm("" : "+v"(to));
#elif defined(__aarch64__) && !defined(__clang__)
  asm("" : "+w"(to));
#endif
}

// The constants of the transforms of both strides: the points p and q and their powers. For reading also the product
// and the sum of the squares.
template <class V>
struct ReadConstants {
  V p, q, p2, q2, product, sum;

  TUTTI_INLINE ReadConstants(float at_p, float at_q) {
    keep(p, at_p);
    keep(q, at_q);
    keep(p2, at_p * at_p);
    keep(q2, at_q * at_q);
    keep(product, at_p * at_p * at_q * at_q);
    keep(sum, at_p * at_p + at_q * at_q);
  }
};
template <class V>
struct WriteConstants {
  V p, q, p2, q2, p3, q3;

  TUTTI_INLINE WriteConstants(float at_p, float at_q) {
    keep(p, at_p);
    keep(q, at_q);
    keep(p2, at_p * at_p);
    keep(q2, at_q * at_q);
    keep(p3, at_p * at_p * at_p);
    keep(q3, at_q * at_q * at_q);
  }
};

// These transforms work in place, on registers V or on floats. Pairs of points differ in sign, so they share an even
// and an odd part.
//
// The transforms for reading share a type, so that the loops around them are compiled once. B' transforms 6 inputs to 6
// points; A transforms 4 gradients of outputs to 6 points.
template <class V>
struct ReadTransform {
  static constexpr int in = patch, out = patch;
  bool gradients;
  ReadConstants<V> constants{nodes::p, nodes::q};

  // Returns the number of input values.
  [[nodiscard]] TUTTI_INLINE int values() const { return gradients ? tile : in; }

  TUTTI_INLINE void operator()(V* d) const {
    const auto& [p, q, p2, q2, product, sum] = constants;
    V even_p, odd_p, even_q, odd_q;
    if (gradients) {
      even_p = d[0] + p2 * d[2], odd_p = d[1] + p2 * d[3];
      even_q = d[0] + q2 * d[2], odd_q = d[1] + q2 * d[3];
      d[5] = d[3];
    } else {
      even_p = d[4] - q2 * d[2], odd_p = d[3] - q2 * d[1];
      even_q = d[4] - p2 * d[2], odd_q = d[3] - p2 * d[1];
      d[0] = d[4] + product * d[0] - sum * d[2];
      d[5] = d[5] + product * d[1] - sum * d[3];
    }
    d[1] = even_p + p * odd_p;
    d[2] = even_p - p * odd_p;
    d[3] = even_q + q * odd_q;
    d[4] = even_q - q * odd_q;
  }
};
// A': transforms 6 products to 4 outputs.
template <class V>
struct WriteTransform {
  static constexpr int in = patch, out = tile;
  WriteConstants<V> constants{nodes::p, nodes::q};

  [[nodiscard]] TUTTI_INLINE int values() const { return out; }

  TUTTI_INLINE void operator()(V* m) const {
    const auto& [p, q, p2, q2, p3, q3] = constants;
    const V even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
    m[0] = m[0] + even_p + even_q;
    m[1] = p * odd_p + q * odd_q;
    m[2] = p2 * even_p + q2 * even_q;
    m[3] = p3 * odd_p + q3 * odd_q + m[5];
  }
};
// G: transforms 3 weights to 6 points.
template <class V>
TUTTI_INLINE void weights_1d(V* w) {
  using namespace nodes;
  const V even_p = n1 * w[0] + n1 * p2 * w[2], odd_p = n1 * p * w[1];
  const V even_q = n2 * w[0] + n2 * q2 * w[2], odd_q = n2 * q * w[1];
  w[5] = w[2];
  w[0] = n0 * w[0];
  w[1] = even_p + odd_p;
  w[2] = even_p - odd_p;
  w[3] = even_q + odd_q;
  w[4] = even_q - odd_q;
}
// G': transforms 6 products to 3 gradients of weights.
template <class V>
TUTTI_INLINE void weight_gradient_1d(V* d) {
  using namespace nodes;
  const V even_p = n1 * (d[1] + d[2]), odd_p = n1 * (d[1] - d[2]);
  const V even_q = n2 * (d[3] + d[4]), odd_q = n2 * (d[3] - d[4]);
  d[0] = n0 * d[0] + even_p + even_q;
  d[1] = p * odd_p + q * odd_q;
  d[2] = p2 * even_p + q2 * even_q + d[5];
}

// Transforms In x In values, load(V&, i, j), to Out x Out values, store(const V&, i, j): down the columns, then along
// the rows. `columns`: the number of existing columns; `rows`: the number of requested rows. A column that does not
// exist counts as zeros.
template <class V, int In, int Out, class Transform, class Exists, class Load, class Store>
TUTTI_INLINE void in_two_dimensions(const Transform& transform, int columns, int rows, Exists exists, Load load,
                                    Store store) {
  constexpr int most = std::max(In, Out);
  V half[Out][In];
  const auto column = [&](int j) TUTTI_LAMBDA {
    V d[most];
    if (exists(j)) {
#pragma GCC unroll 9
      for (int i = 0; i < In; ++i) load(d[i], i, j);
      transform(static_cast<V*>(d));
    } else {
#pragma GCC unroll 9
      for (int i = 0; i < Out; ++i) d[i] = V{};
    }
#pragma GCC unroll 9
    for (int i = 0; i < Out; ++i) half[i][j] = d[i];
  };
  const auto row = [&](int i) TUTTI_LAMBDA {
    V d[most];
#pragma GCC unroll 9
    for (int j = 0; j < In; ++j) d[j] = half[i][j];
    transform(static_cast<V*>(d));
#pragma GCC unroll 9
    for (int j = 0; j < Out; ++j) store(d[j], i, j);
  };
  // Not unrolled: the inputs' values would need more registers than there are. For writing, unrolling was a third
  // faster on AVX-512, but programs took longer to compile.
#pragma GCC unroll 1
  for (int j = 0; j < columns; ++j) column(j);
#pragma GCC unroll 1
  for (int i = 0; i < rows; ++i) row(i);
}
template <class V, int In, int Out, class Transform, class Load, class Store>
TUTTI_INLINE void in_two_dimensions(const Transform& transform, Load load, Store store) {
  in_two_dimensions<V, In, Out>(
      transform, In, Out, [](int) TUTTI_LAMBDA { return true; }, load, store);
}

}  // namespace tutti::cpu::winograd
