// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/backends/eigen/lanes.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/graph/ops.hpp>

// Forward convolutions, and their gradients with respect to x, as correlations; the layout of their weights.
namespace tutti::eigen {

struct Image {
  std::int64_t h, w, c;
};
inline Image image_of(const Shape& s) { return {s[2], s[3], s[1]}; }

// Output pixel (i, j) is the sum over kernel_h x kernel_w taps (r, s) of the input at (i * step + top + r, j * step +
// left + s), each times its weight. Outside of the input the value is zero. The pixel is stored at (first_row + i *
// spread, first_col + j * spread) of the output.
struct Correlation {
  int kernel_h = 1, kernel_w = 1, step = 1;
  std::int64_t top = 0, left = 0;
  std::int64_t rows = 0, cols = 0;
  std::int64_t first_row = 0, first_col = 0, spread = 1;
  // Tap (r, s) has the convolution's weight at (tap_row + r * tap_step, tap_col + s * tap_step).
  int tap_row = 0, tap_col = 0, tap_step = 1;
  std::int64_t weights = 0;  // offset of its packed weights

  [[nodiscard]] std::int64_t taps() const { return std::int64_t{kernel_h} * kernel_w; }
};

// The computation of one op: several correlations over the same input, each for a part of the output pixels.
struct Correlations {
  Image in{}, out{};
  std::vector<Correlation> parts;
  bool everywhere = true;  // false: pixels outside all parts are zero
  // Strides of the plain weights in elements: within a kernel's row, between input channels, between output channels.
  std::int64_t weight_row = 1, weight_in = 1, weight_out = 1;
  std::int64_t weight_count = 0;  // number of packed weights, with padding

  [[nodiscard]] std::int64_t padded_out() const { return (out.c + width - 1) / width * width; }

  void add(Correlation part) {
    if (part.rows < 1 || part.cols < 1) return;
    if (part.taps() == 0) {
      everywhere = false;
      return;
    }
    part.weights = weight_count;
    weight_count += part.taps() * in.c * padded_out();
    parts.push_back(part);
  }
};

[[nodiscard]] inline Correlations forward(const op::Window& o, const Image& x, const Image& y) {
  Correlations c;
  c.in = x;
  c.out = y;
  c.weight_row = o.kernel_w;
  c.weight_in = std::int64_t{o.kernel_h} * o.kernel_w;
  c.weight_out = c.weight_in * x.c;
  Correlation part;
  part.kernel_h = o.kernel_h;
  part.kernel_w = o.kernel_w;
  part.step = o.stride;
  part.top = part.left = -o.padding;
  part.rows = y.h;
  part.cols = y.w;
  c.add(part);
  return c;
}

// dx[h] is the sum of dy[(h + padding - r) / stride] * w[r] over all r for which the division has no remainder. For
// rows h = a + stride * i these are r = first + stride * t, and dy's row is i + base - t: a correlation with every
// stride-th row of the kernel in reverse order. The same holds for columns b + stride * j. Therefore there are stride *
// stride correlations, one for each (a, b).
[[nodiscard]] inline Correlations backward_data(const op::Window& o, const Image& dx, const Image& dy) {
  Correlations c;
  c.in = dy;
  c.out = dx;
  c.weight_row = o.kernel_w;
  c.weight_out = std::int64_t{o.kernel_h} * o.kernel_w;
  c.weight_in = c.weight_out * dx.c;
  const auto along = [&](int phase, int kernel, std::int64_t extent, int& taps, std::int64_t& begin, int& tap,
                         std::int64_t& count) {
    const int first = (phase + o.padding) % o.stride;
    taps = first < kernel ? (kernel - 1 - first) / o.stride + 1 : 0;
    begin = (phase + o.padding - first) / o.stride - (taps - 1);
    tap = first + o.stride * (taps - 1);
    count = phase < extent ? (extent - 1 - phase) / o.stride + 1 : 0;
  };
  for (int a = 0; a < o.stride; ++a)
    for (int b = 0; b < o.stride; ++b) {
      Correlation part;
      along(a, o.kernel_h, dx.h, part.kernel_h, part.top, part.tap_row, part.rows);
      along(b, o.kernel_w, dx.w, part.kernel_w, part.left, part.tap_col, part.cols);
      part.first_row = a;
      part.first_col = b;
      part.spread = o.stride;
      part.tap_step = -o.stride;
      c.add(part);
    }
  return c;
}

// y = x w^T and dx = dy w for w [out, in]: correlations with one tap and one pixel.
[[nodiscard]] inline Correlations linear(std::int64_t in, std::int64_t out, bool transposed) {
  Correlations c = forward({1, 1, 1, 0}, {1, 1, in}, {1, 1, out});
  if (transposed) {
    c.weight_out = 1;
    c.weight_in = out;
  }
  return c;
}

// Packs plain weights: [part, block of output channels, tap row, tap column, input channel, output channel in the
// block]. Pads the last block with zeros.
template <class T, class M>
void pack(const Correlations& c, const M* from, T* to) {
  for (const Correlation& p : c.parts) {
    T* block = to + p.weights;
    for (std::int64_t o = 0; o < c.padded_out(); o += block_channels) {
      const std::int64_t lanes = std::min(block_channels, c.padded_out() - o), real = std::min(lanes, c.out.c - o);
      for (std::int64_t i = 0; i < c.in.c; ++i)
        for (int r = 0; r < p.kernel_h; ++r)
          for (int s = 0; s < p.kernel_w; ++s) {
            const M* w = from + i * c.weight_in + o * c.weight_out + (p.tap_row + r * p.tap_step) * c.weight_row +
                         (p.tap_col + s * p.tap_step);
            T* at = block + ((std::int64_t{r} * p.kernel_w + s) * c.in.c + i) * lanes;
            std::int64_t l = 0;
            for (; l < real; ++l) at[l] = static_cast<T>(w[l * c.weight_out]);
            for (; l < lanes; ++l) at[l] = static_cast<T>(0.0F);
          }
      block += p.taps() * c.in.c * lanes;
    }
  }
}

}  // namespace tutti::eigen
