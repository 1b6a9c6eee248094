// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/isa.hpp>
#include <tutti/data/images/resize_kernels.hpp>

// Bilinear scaling of RGB images.
namespace tutti {

// A rectangle in pixels. Its edges need not be whole numbers: pixel (0, 0) extends from 0 to 1.
struct ResizeBox {
  double x = 0, y = 0, width = 0, height = 0;
};

// [height, width, 3] of u8, rows without gaps between them.
struct RgbView {
  const std::uint8_t* pixels = nullptr;
  int width = 0, height = 0;
};

namespace detail {

// The weights of one axis: output i is the sum of `taps` weighted inputs, from input first[i] on. Fixed point; the
// weights of an output sum to exactly one. `taps` is even; unused taps have weight 0.
struct ResizeAxis {
  static constexpr int one = 1 << 14;
  std::vector<std::int32_t> first;
  std::vector<std::int16_t> weights;  // [outputs, taps]
  int taps = 0;
  std::vector<double> exact;  // weights of one output, not yet rounded

  // Sets the weights that map the interval [from, from + length) of the inputs [low, high) to `outputs` values, the
  // last one first if `reversed`. The triangle filter and its support are those of PIL's resize.
  void set(double from, double length, int low, int high, int outputs, bool antialias, bool reversed) {
    const double scale = length / outputs;
    const double width = antialias ? std::max(scale, 1.0) : 1.0, per_width = 1 / width;
    const int most = std::min(high - low, static_cast<int>(std::ceil(width)) * 2 + 1);
    taps = most + most % 2;
    const auto n = static_cast<std::size_t>(taps);
    first.resize(static_cast<std::size_t>(outputs));
    weights.assign(static_cast<std::size_t>(outputs) * n, 0);
    exact.resize(n);
    constexpr double half = 0.5;
    int used = 0;
    for (int i = 0; i < outputs; ++i) {
      const double centre = from + (i + 0.5) * scale;
      const int begin = std::clamp(static_cast<int>(centre - width + half), low, high - 1);
      const int end = std::min(std::clamp(static_cast<int>(centre + width + half), begin + 1, high), begin + most);
      double sum = 0;
      for (int k = begin; k < end; ++k) {
        const double w = std::max(0.0, 1.0 - std::abs((k + 0.5 - centre) * per_width));
        exact[static_cast<std::size_t>(k - begin)] = w;
        sum += w;
      }
      if (sum <= 0) exact[0] = sum = 1;
      const auto row = static_cast<std::size_t>(reversed ? outputs - 1 - i : i);
      std::int16_t* to = weights.data() + row * n;
      first[row] = begin;
      const double factor = one / sum;
      int left = one, largest = 0;
      for (int k = 0; k < end - begin; ++k) {
        to[k] = static_cast<std::int16_t>(exact[static_cast<std::size_t>(k)] * factor + half);
        left -= to[k];
        if (to[k] > to[largest]) largest = k;
      }
      to[largest] = static_cast<std::int16_t>(to[largest] + left);
      used = std::max(used, end - begin);
    }
    narrow(used);
  }

 private:
  // Drops columns of weights that no output uses.
  void narrow(int used) {
    const int fewer = used + used % 2;
    if (fewer >= taps) return;
    const auto from = static_cast<std::size_t>(taps), to = static_cast<std::size_t>(fewer);
    for (std::size_t i = 1; i < first.size(); ++i)
      for (std::size_t k = 0; k < to; ++k) weights[i * to + k] = weights[i * from + k];
    weights.resize(first.size() * to);
    taps = fewer;
  }
};

// The pixels that scaling may read: columns [left, right), rows [top, bottom).
struct ResizeLimits {
  int left, right, top, bottom;
};

// Returns the pixels that `bounds` touches. Throws UsageError for a box that is empty or leaves the bounds, for bounds
// that leave the image, and for an empty output.
inline ResizeLimits resize_limits(const RgbView& image, const ResizeBox& box, const ResizeBox& bounds, int out_width,
                                  int out_height) {
  constexpr double slack = 1e-6;
  const auto within = [](double at, double length, double low, double size) {
    return length > 0 && at >= low - slack && at + length <= low + size + slack;
  };
  if (out_width <= 0 || out_height <= 0 || !within(box.x, box.width, bounds.x, bounds.width) ||
      !within(box.y, box.height, bounds.y, bounds.height) || !within(bounds.x, bounds.width, 0, image.width) ||
      !within(bounds.y, bounds.height, 0, image.height))
    fail<UsageError>("resize", "a box within bounds within the image, and an output", "an invalid box or no output");
  const auto low = [](double v) { return std::max(0, static_cast<int>(std::floor(v + slack))); };
  const auto high = [](double v, int most) { return std::min(most, static_cast<int>(std::ceil(v - slack))); };
  const int left = low(bounds.x), right = std::max(left + 1, high(bounds.x + bounds.width, image.width));
  const int top = low(bounds.y), bottom = std::max(top + 1, high(bounds.y + bounds.height, image.height));
  return {left, right, top, bottom};
}

}  // namespace detail

// Scales parts of images to one size after another and keeps its buffers. Use one for each thread.
class Resizer {
 public:
  explicit Resizer(cpu::Isa isa = cpu::detect_isa()) : isa_(isa) {}

  // Scales `box` of the image to [out_height, out_width, 3] at `to`, mirrored left to right if `mirror`. Uses only
  // pixels that `bounds`, a rectangle within the image, touches. If `bounds` equals `box`, this is cropping before
  // scaling; with larger bounds, antialiasing at the edge reads pixels outside the box. Without antialiasing each
  // output is the blend of four pixels. Integer arithmetic: the result is the same on every instruction set, and
  // differs from exact arithmetic by at most 1. Throws UsageError for a box that is empty or leaves the bounds, and for
  // bounds that leave the image.
  void operator()(const RgbView& image, const ResizeBox& box, const ResizeBox& bounds, int out_width, int out_height,
                  bool antialias, bool mirror, std::uint8_t* to) {
    const auto [left, right, top, bottom] = detail::resize_limits(image, box, bounds, out_width, out_height);
    columns_.set(box.x, box.width, left, right, out_width, antialias, mirror);
    rows_.set(box.y, box.height, top, bottom, out_height, antialias, false);

    // Columns that at least one output uses.
    int begin = right, end = left;
    for (const int f : columns_.first) {
      begin = std::min(begin, f);
      end = std::max(end, f + columns_.taps);
    }
    end = std::min(end, right);
    for (int& f : columns_.first) f = (f - begin) * 3;
    const int values = (end - begin) * 3, taps = rows_.taps;
    // Zeros after the last column, because taps of weight 0 may lie there and whole vectors are read.
    blended_.resize(static_cast<std::size_t>(values) + static_cast<std::size_t>(columns_.taps) * 3 + 8);
    std::fill(blended_.begin() + values, blended_.end(), std::int16_t{0});
    grouped_.resize(columns_.weights.size() * 4);
    cpu::group_weights(columns_.weights.data(), columns_.taps, out_width, grouped_.data());
    const cpu::ResizeTaps columns{columns_.first.data(), columns_.weights.data(), grouped_.data(), columns_.taps,
                                  out_width};
    lines_.resize(static_cast<std::size_t>(taps));
    for (int y = 0; y < out_height; ++y, to += std::ptrdiff_t{out_width} * 3) {
      // Taps after the last row have weight 0 and may use any row.
      for (int t = 0; t < taps; ++t) {
        const std::ptrdiff_t line = std::min(rows_.first[static_cast<std::size_t>(y)] + t, bottom - 1);
        lines_[static_cast<std::size_t>(t)] = image.pixels + (line * image.width + begin) * 3;
      }
      cpu::blend_rows(isa_, lines_.data(), rows_.weights.data() + std::ptrdiff_t{y} * taps, taps, values,
                      blended_.data());
      cpu::blend_columns(isa_, blended_.data(), columns, to);
    }
  }

 private:
  cpu::Isa isa_;
  detail::ResizeAxis columns_, rows_;
  std::vector<std::int16_t> blended_, grouped_;
  std::vector<const std::uint8_t*> lines_;
};

}  // namespace tutti
