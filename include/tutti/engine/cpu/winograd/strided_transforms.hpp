// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>

#include <tutti/engine/cpu/winograd/transforms.hpp>

// The transforms of 3x3 convolutions with stride 2. Along one dimension, y[i] = w[1] x[2i] + (w[0] x[2i-1] + w[2]
// x[2i+1]): the even inputs times one weight, and a convolution of the odd ones with two weights, which is Winograd's
// F(4, 2). So a tile of 4x4 outputs takes (5 + 4)^2 = 81 products instead of 144.
//
// Transformed tiles hold 5 points of the odd inputs and the 4 even inputs unchanged, which share a weight. The gradient
// of the inputs works in the opposite direction: the odd ones from 5 points, the even ones from unchanged products.
//
// The points are 1/2, -1/2, 5/4, -5/4 and infinity, which has half the error of 0, 1, -1, 2 and infinity.
namespace tutti::cpu::winograd {

inline constexpr int strided_patch = 9, strided_points = 81;  // point i * 9 + j
inline constexpr int odd_points = 5;                          // the even positions follow

// The weights that transformed tiles are multiplied by, point by point. Points that share weights are adjacent.
struct PointOrder {
  int count = 0;
  std::array<std::uint8_t, strided_points> tiles{}, weights{};
};
[[nodiscard]] constexpr PointOrder point_order(bool strided) {
  PointOrder r;
  const int side = strided ? strided_patch : patch;
  for (int w = 0; w < points; ++w)
    for (int t = 0; t < side * side; ++t) {
      const int i = t / side, j = t % side;
      const int by = strided ? (i < odd_points ? i : odd_points) * patch + (j < odd_points ? j : odd_points) : t;
      if (by != w) continue;
      const auto k = static_cast<std::size_t>(r.count++);
      r.tiles[k] = static_cast<std::uint8_t>(t);
      r.weights[k] = static_cast<std::uint8_t>(w);
    }
  return r;
}

[[nodiscard]] inline const PointOrder& order_of(bool strided) {
  static constexpr PointOrder orders[] = {point_order(false), point_order(true)};
  return orders[strided ? 1 : 0];
}

namespace strided_nodes {
inline constexpr float p = 0.5F, q = 1.25F, p2 = p * p, q2 = q * q;
// The denominators of Lagrange's polynomials, of p and of q; those of -p and -q have the other sign.
inline constexpr float n1 = 1 / (2 * p * (p2 - q2)), n2 = 1 / (2 * q * (q2 - p2));
}  // namespace strided_nodes

// These transforms work in place, like those of stride 1.
//
// Transforms 5 odd inputs to 5 points, followed by 4 even inputs, which do not change. Or transforms 4 gradients of
// outputs to 5 points, followed by the unchanged gradients.
template <class V>
struct StridedReadTransform {
  static constexpr int in = strided_patch, out = strided_patch;
  bool gradients;
  ReadConstants<V> constants{strided_nodes::p, strided_nodes::q};

  [[nodiscard]] TUTTI_INLINE int values() const { return gradients ? tile : in; }

  TUTTI_INLINE void operator()(V* d) const {
    const auto& [p, q, p2, q2, product, sum] = constants;
    V odd_p, even_p, odd_q, even_q;
    if (gradients) {
      odd_p = d[0] + p2 * d[2], even_p = d[1] + p2 * d[3];
      odd_q = d[0] + q2 * d[2], even_q = d[1] + q2 * d[3];
#pragma GCC unroll 4
      for (int i = tile - 1; i >= 0; --i) d[odd_points + i] = d[i];
      d[4] = d[8];
    } else {
      odd_p = d[3] - q2 * d[1], even_p = d[2] - q2 * d[0];
      odd_q = d[3] - p2 * d[1], even_q = d[2] - p2 * d[0];
      d[4] = d[4] + product * d[0] - sum * d[2];
    }
    d[0] = odd_p + p * even_p;
    d[1] = odd_p - p * even_p;
    d[2] = odd_q + q * even_q;
    d[3] = odd_q - q * even_q;
  }
};
// Transforms 9 products to 4 outputs, or to 8 gradients of inputs.
template <class V>
struct StridedWriteTransform {
  static constexpr int in = strided_patch, out = 2 * tile;
  bool data;
  WriteConstants<V> constants{strided_nodes::p, strided_nodes::q};

  // Returns the number of results.
  [[nodiscard]] TUTTI_INLINE int values() const { return data ? out : tile; }

  TUTTI_INLINE void operator()(V* m) const {
    const auto& [p, q, p2, q2, p3, q3] = constants;
    const V even_p = m[0] + m[1], odd_p = m[0] - m[1], even_q = m[2] + m[3], odd_q = m[2] - m[3];
    m[0] = even_p + even_q;
    m[1] = p * odd_p + q * odd_q;
    m[2] = p2 * even_p + q2 * even_q;
    m[3] = p3 * odd_p + q3 * odd_q + m[4];
    if (!data) {
#pragma GCC unroll 4
      for (int i = 0; i < tile; ++i) m[i] += m[odd_points + i];
      return;
    }
    const V even[] = {m[5], m[6], m[7], m[8]};
#pragma GCC unroll 4
    for (int i = tile - 1; i >= 0; --i) {
      m[2 * i + 1] = m[i];
      m[2 * i] = even[i];
    }
  }
};
// Transforms 3 weights to 5 points of the outer two weights, followed by the middle weight.
template <class V>
TUTTI_INLINE void strided_weights_1d(V* w) {
  using namespace strided_nodes;
  const V even_p = n1 * w[0], odd_p = n1 * p * w[2], even_q = n2 * w[0], odd_q = n2 * q * w[2];
  w[5] = w[1];
  w[4] = w[2];
  w[0] = odd_p + even_p;
  w[1] = odd_p - even_p;
  w[2] = odd_q + even_q;
  w[3] = odd_q - even_q;
}
// Transforms 6 products to 3 gradients of weights.
template <class V>
TUTTI_INLINE void strided_weight_gradient_1d(V* d) {
  using namespace strided_nodes;
  const V first = n1 * (d[0] - d[1]) + n2 * (d[2] - d[3]);
  d[2] = n1 * p * (d[0] + d[1]) + n2 * q * (d[2] + d[3]) + d[4];
  d[0] = first;
  d[1] = d[5];
}

}  // namespace tutti::cpu::winograd
