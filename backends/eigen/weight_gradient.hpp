// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <tutti/backends/eigen/convert.hpp>
#include <tutti/backends/eigen/correlate.hpp>
#include <tutti/backends/eigen/lanes.hpp>

// The gradient of a convolution's weights: for each tap, the sum over pixels of outer products of x and dy.
namespace tutti::eigen {

class WeightGradient {
 public:
  WeightGradient(const op::Window& o, const Image& x, const Image& y)
      : o_(o), x_(x), y_(y), ins_{0, x.c}, outs_{0, y.c} {}

  // Returns the number of tasks that each compute a part of the weights from the whole batch, or 1. There are such
  // tasks if there are many weights: a partial sum for each shard of a batch would cost more than it saves.
  [[nodiscard]] int tasks() const {
    const std::int64_t n = weights() < 1024 * 1024 ? 1 : slices() * halves();
    return n < 4 ? 1 : static_cast<int>(n);
  }
  [[nodiscard]] WeightGradient part(int task) const {
    WeightGradient g = *this;
    const std::int64_t out = task / slices(), in = task % slices(), half = round_up((y_.c + 1) / 2, block_channels);
    g.ins_ = {in * slice, std::min(x_.c, (in + 1) * slice)};
    if (halves() > 1) g.outs_ = out == 0 ? Range{0, half} : Range{half, y_.c};
    return g;
  }

  // Returns the floats of a partial sum. For each block of output channels, each slice of input channels and each
  // kernel row it has [tap column, input channel, output channel], padded to a multiple of `taps`.
  [[nodiscard]] std::int64_t partial_floats() const {
    std::int64_t n = 0;
    for_each_run([&](const Run& r) { n += r.padded * r.lanes; });
    return n;
  }
  [[nodiscard]] std::int64_t scratch_floats(std::int64_t n) const {
    const Band b = band(n);
    return x_floats(b) + b.images * b.rows * y_.w * round_up(outs_.size(), width);
  }

  // Adds the gradient of n rows of the batch to `partial`, or overwrites `partial` if `first`.
  template <class T>
  void add(cpu::Isa isa, const T* x, const T* dy, std::int64_t n, float* partial, bool first, float* scratch) const {
    const Band b = band(n);
    for (std::int64_t image = 0; image < n; image += b.images)
      for (std::int64_t row = 0; row < y_.h; row += b.rows) {
        add_band<T>(isa, x + image * x_.h * x_.w * x_.c, dy + (image * y_.h + row) * y_.w * y_.c,
                    {std::min(b.images, n - image), std::min(b.rows, y_.h - row)}, row, partial, first, scratch,
                    scratch + x_floats(b));
        first = false;
      }
  }

  // dw [O, I, kernel_h, kernel_w] = sum of the shards' partial sums, in order.
  template <class PartialOf>
  void finish(int shards, const PartialOf& partial_of, float* dw) const {
    const std::int64_t tap_count = std::int64_t{o_.kernel_h} * o_.kernel_w;
    std::int64_t at = 0;
    for_each_run([&](const Run& r) {
      const std::int64_t real = std::min(r.lanes, outs_.end - r.out);
      for (std::int64_t k = 0; k < o_.kernel_w * r.channels; ++k)
        for (std::int64_t j = 0; j < r.lanes; j += width) {
          const std::int64_t offset = at + k * r.lanes + j;
          Lanes sum = load(partial_of(0) + offset);
          for (int l = 1; l < shards; ++l) sum += load(partial_of(l) + offset);
          const std::int64_t s = k / r.channels, c = r.in + k % r.channels;
          float* to = dw + ((r.out + j) * x_.c + c) * tap_count + r.row * o_.kernel_w + s;
          for (std::int64_t l = 0; l < std::min<std::int64_t>(width, real - j); ++l) to[l * x_.c * tap_count] = sum[l];
        }
      at += r.padded * r.lanes;
    });
  }

 private:
  // Input channels that are processed together. A limit keeps neighbouring pixels close in memory.
  static constexpr std::int64_t slice = 64;

  struct Range {
    std::int64_t begin, end;
    [[nodiscard]] std::int64_t size() const { return end - begin; }
  };
  struct Band {
    std::int64_t images, rows;
  };
  struct Run {
    std::int64_t out, lanes;    // block of output channels
    std::int64_t in, channels;  // slice of input channels
    std::int64_t row, padded;   // row of the kernel; taps with padding
  };

  template <class F>
  void for_each_run(F&& f) const {
    for (std::int64_t o = outs_.begin; o < outs_.end; o += block_channels) {
      const std::int64_t lanes = std::min(block_channels, round_up(outs_.end - o, width));
      const int multiple = lanes == block_channels ? taps<2> : taps<1>;
      for (std::int64_t c = ins_.begin; c < ins_.end; c += slice) {
        const std::int64_t channels = std::min(slice, ins_.end - c);
        for (int r = 0; r < o_.kernel_h; ++r)
          f(Run{o, lanes, c, channels, r, round_up(o_.kernel_w * channels, multiple)});
      }
    }
  }

  [[nodiscard]] std::int64_t weights() const { return std::int64_t{o_.kernel_h} * o_.kernel_w * x_.c * y_.c; }
  [[nodiscard]] std::int64_t slices() const { return (x_.c + slice - 1) / slice; }
  [[nodiscard]] std::int64_t halves() const { return y_.c > 2 * block_channels ? 2 : 1; }
  // A kernel with one tap skips pixels if it has a stride: only every gather-th pixel is copied.
  [[nodiscard]] std::int64_t gather() const { return o_.kernel_h * o_.kernel_w == 1 ? o_.stride : 1; }
  [[nodiscard]] std::int64_t step() const { return o_.stride / gather(); }
  [[nodiscard]] std::int64_t in_rows(std::int64_t rows) const { return (rows - 1) * step() + o_.kernel_h; }
  [[nodiscard]] std::int64_t in_cols() const { return (y_.w - 1) * step() + o_.kernel_w; }
  // Returns the floats of the copied input. A tile may read up to 32 floats beyond it.
  [[nodiscard]] std::int64_t x_floats(const Band& b) const {
    return round_up(b.images * in_rows(b.rows) * in_cols() * ins_.size() + 32, width);
  }

  // The data of one block of output channels and one slice of input channels should stay in the L1 cache. With many
  // weights a band is larger, so that each access to their sums adds many pixels.
  [[nodiscard]] Band band(std::int64_t n) const {
    const std::int64_t target = weights() <= 64 * 1024 ? 8 * 1024 : 32 * 1024;
    const std::int64_t pixel_row = in_cols() * std::min(slice, x_.c),
                       y_row = y_.w * std::min(block_channels, round_up(y_.c, width));
    const std::int64_t image = in_rows(y_.h) * pixel_row + y_.h * y_row;
    if (image <= target) return {std::min(n, target / image), y_.h};
    return {1, std::clamp<std::int64_t>((target - o_.kernel_h * pixel_row) / (step() * pixel_row + y_row), 1, y_.h)};
  }

  template <class T>
  void add_band(cpu::Isa isa, const T* x, const T* dy, const Band& b, std::int64_t row, float* partial, bool first,
                float* xs, float* ys) const {
    const Patch patch{row * o_.stride - o_.padding, -o_.padding, in_rows(b.rows), in_cols(), gather()};
    const std::int64_t x_pixels = b.images * patch.rows * patch.cols, y_pixels = b.images * b.rows * y_.w;
    for (std::int64_t c = ins_.begin; c < ins_.end; c += slice)
      copy_patch<T>(isa, x, x_, b.images, patch, c, std::min(slice, ins_.end - c), xs + x_pixels * (c - ins_.begin));
    bool direct = false;
    if constexpr (std::is_same_v<T, float>) direct = y_.c % width == 0 && y_.c <= 4 * block_channels;
    if (!direct) copy_gradient<T>(isa, dy, b, y_pixels, ys);
    for_each_run([&](const Run& r) {
      const Walk x_walk{patch.rows * patch.cols * r.channels, step() * patch.cols * r.channels, step() * r.channels};
      const float* from = xs + x_pixels * (r.in - ins_.begin) + r.row * patch.cols * r.channels;
      const float* gradient = ys + y_pixels * (r.out - outs_.begin);
      Walk y_walk{b.rows * y_.w * r.lanes, y_.w * r.lanes, r.lanes};
      if constexpr (std::is_same_v<T, float>)
        if (direct) {
          gradient = dy + r.out;
          y_walk = {y_.h * y_.w * y_.c, y_.w * y_.c, y_.c};
        }
      if (r.lanes == block_channels)
        add_run<2>(r, from, x_walk, gradient, y_walk, b, partial, first);
      else
        add_run<1>(r, from, x_walk, gradient, y_walk, b, partial, first);
      partial += r.padded * r.lanes;
    });
  }

  template <class T>
  void copy_gradient(cpu::Isa isa, const T* dy, const Band& b, std::int64_t pixels, float* to) const {
    for (std::int64_t o = outs_.begin; o < outs_.end; o += block_channels) {
      const std::int64_t real = std::min(block_channels, outs_.end - o), lanes = round_up(real, width);
      const std::int64_t per_image = b.rows * y_.w;
      for (std::int64_t n = 0; n < b.images; ++n)
        copy_rows<T, float>(isa, dy + n * y_.h * y_.w * y_.c + o, y_.c,
                            to + pixels * (o - outs_.begin) + n * per_image * lanes, lanes, per_image, real, lanes);
    }
  }

  template <int B>
  void add_run(const Run& r, const float* x, const Walk& xs, const float* dy, const Walk& ys, const Band& b, float* dw,
               bool first) const {
    for (std::int64_t k = 0; k < r.padded; k += taps<B>)
      outer_products<B>(x + k, xs, dy, ys, b.images, b.rows, y_.w, dw + k * B * width, !first);
  }

  op::Window o_;
  Image x_, y_;
  Range ins_, outs_;  // the channels for which weights are computed
};

}  // namespace tutti::eigen
