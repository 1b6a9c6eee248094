// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/shape.hpp>
#include <tutti/engine/cpu/amx/registers.hpp>
#include <tutti/graph/ops/window.hpp>

// How a convolution in bf16, or the gradient of its input, becomes products of tiles: the outputs of 16 pixels are the
// sums, over the positions of the window (taps) and over blocks of 32 inputs, of a tile of inputs times a tile of
// weights.
namespace tutti::cpu::amx {

inline constexpr std::int64_t depth = 32;  // inputs of a tile
inline constexpr std::int64_t block = 32;  // pixels, and outputs, of four tiles that are summed at once
inline constexpr std::int64_t tile_words = side * side;

// The memory from which tiles of inputs are read.
//   direct   in the images themselves: windows of 1x1 without padding, if the stride is 1 or it is the gradient
//   flat     in a copy with zeros around each image, whose pixels have whole blocks of inputs. The pixels of several
//            lines are one sequence: sums at the ends of lines are not stored. A stride divides the copy into images of
//            even and odd lines and columns.
//   lines    in a copy with zeros around each image. A tap is a line of the window, with the inputs of all its columns:
//            for few channels
enum class Way : std::uint8_t { direct, flat, lines };

// Outputs that have the same taps: all; or, in the gradient of a convolution with a stride, those at every stride-th
// line and column.
struct OutputPhase {
  std::int64_t line = 0, column = 0;    // the first
  std::int64_t lines = 0, columns = 0;  // their number
  std::size_t first_tap = 0, taps = 0;
};
struct Tap {
  std::int64_t offset;  // from a pixel of the copy, in elements
  int r, s;             // the position in the window; with Way::lines s is the column of the first input
};

struct Layout {
  // x: of the operand that is multiplied, which is the gradient of the output if `gradient`; y: of the result.
  Layout(const op::Window& window, const Shape& x, const Shape& y, bool is_gradient)
      : Layout(window, x, y, is_gradient, way_of(window, x, y, is_gradient)) {}
  // unit: with Way::flat, the pixels of a copy have a multiple of so many elements.
  Layout(const op::Window& window, const Shape& x, const Shape& y, bool is_gradient, Way chosen,
         std::int64_t unit = depth)
      : gradient(is_gradient),
        kernel_h(window.kernel_h),
        kernel_w(window.kernel_w),
        channels(x[1]),
        outputs(y[1]),
        h(x[2]),
        w(x[3]),
        out_h(y[2]),
        out_w(y[3]),
        way(chosen),
        pixel(way == Way::flat ? (channels + unit - 1) / unit * unit : channels) {
    const int stride = window.stride, padding = window.padding;
    gradient ? place_gradient(stride, padding) : place_forward(stride, padding);
    panels = (outputs + block - 1) / block;
    blocks = ((way == Way::lines ? kernel_w : 1) * channels + depth - 1) / depth;
  }

  // Words of two bf16: of the tiles of weights of a panel of 32 outputs (the last one may have 16), and of all.
  [[nodiscard]] std::int64_t panel_words() const {
    return 2 * tile_words * blocks * static_cast<std::int64_t>(taps.size());
  }
  [[nodiscard]] std::int64_t weight_words() const { return panel_words() / 2 * ((outputs + side - 1) / side); }
  // Elements between the copies of two images. A tile may read beyond the last line.
  [[nodiscard]] std::int64_t image_elements() const {
    if (way == Way::direct) return h * w * channels;
    // A multiple of a cache line, because tiles whose rows lie in two lines are read several times as slowly.
    return (copies_h * copies_w * lines * columns * pixel + (block + 1) * step * pixel + 2 * depth - 1) / depth * depth;
  }
  // Whether tiles read these images themselves. A tile has 16 pixels of a sequence: of all images, or of one if the
  // outputs of an image have several phases.
  [[nodiscard]] bool reads_images(std::int64_t images) const {
    return way == Way::direct && (output_step == 1 ? images : 1) * h * w >= side;
  }
  // The lines of the copy that the outputs' lines first <= line < end read.
  struct Lines {
    std::int64_t first, end;
  };
  [[nodiscard]] Lines lines_for(std::int64_t first, std::int64_t end) const {
    if (gradient || way == Way::direct) return {0, lines};
    if (way == Way::lines) return {first * step, (end - 1) * step + kernel_h};
    return {first, end + (kernel_h - 1) / copy_stride};
  }

  bool gradient;
  int kernel_h, kernel_w;
  std::int64_t channels, outputs, h, w, out_h, out_w;
  Way way;
  std::int64_t pixel;                   // elements of a pixel of the copy
  int copy_stride = 1;                  // of the lines and columns of a copy
  int copies_h = 1, copies_w = 1;       // of an image
  int step = 1;                         // pixels of the copy from one output to the next
  int output_step = 1;                  // lines and columns between outputs of a phase
  std::int64_t top = 0, left = 0;       // lines and columns of zeros before the image
  std::int64_t lines = 0, columns = 0;  // of the copy
  std::int64_t blocks = 0, panels = 0;
  std::vector<OutputPhase> phases;
  std::vector<Tap> taps;

 private:
  // Returns the way with the fewest tiles of inputs.
  [[nodiscard]] static Way way_of(const op::Window& o, const Shape& x, const Shape& y, bool is_gradient) {
    const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to; };
    if (o.kernel_h == 1 && o.kernel_w == 1 && o.padding == 0 && x[1] % depth == 0 && (is_gradient || o.stride == 1))
      return Way::direct;
    if (is_gradient && o.stride > 1) return Way::flat;
    const std::int64_t by_lines = o.kernel_h * up(o.kernel_w * x[1], depth) * y[2] * up(y[3], side);
    const std::int64_t pitch = y[3] + (o.kernel_w - 1) / o.stride;
    const std::int64_t flat = o.kernel_h * o.kernel_w * up(x[1], depth) * up((y[2] - 1) * pitch + y[3], side);
    return by_lines < flat ? Way::lines : Way::flat;
  }

  void place_forward(int stride, int padding) {
    top = left = padding;
    phases.push_back({0, 0, out_h, out_w, 0, 0});
    if (way == Way::lines) {
      step = stride;
      lines = (out_h - 1) * stride + kernel_h;
      columns = (out_w - 1) * stride + kernel_w;
      for (int r = 0; r < kernel_h; ++r) taps.push_back({r * columns * pixel, r, 0});
    } else {
      copy_stride = stride;
      copies_h = std::min(stride, kernel_h);
      copies_w = std::min(stride, kernel_w);
      lines = out_h + (kernel_h - 1) / stride;
      columns = out_w + (kernel_w - 1) / stride;
      for (int r = 0; r < kernel_h; ++r)
        for (int s = 0; s < kernel_w; ++s) {
          const std::int64_t copy = r % stride * copies_w + s % stride;
          const std::int64_t at = (copy * lines + r / stride) * columns + s / stride;
          taps.push_back({at * pixel, r, s});
        }
    }
    phases[0].taps = taps.size();
  }

  // The output at stride * i + a is the sum over r of the input at i + (a + padding - r) / stride, if that is a whole
  // number, times the weights at r.
  void place_gradient(int stride, int padding) {
    output_step = stride;
    const auto reach = [&](int kernel, std::int64_t out, std::int64_t in, std::int64_t& before) {
      std::int64_t after = 0;
      for (int a = 0; a < stride; ++a)
        for (int r = 0; r < kernel; ++r) {
          if ((a + padding - r) % stride != 0) continue;
          before = std::max<std::int64_t>(before, -((a + padding - r) / stride));
          after = std::max<std::int64_t>(after, (a + padding - r) / stride);
        }
      return before + std::max(in, (out + stride - 1) / stride + after);
    };
    lines = reach(kernel_h, out_h, h, top);
    columns = reach(kernel_w, out_w, w, left);
    for (int a = 0; a < stride; ++a)
      for (int b = 0; b < stride; ++b) {
        OutputPhase phase{a, b, (out_h - a + stride - 1) / stride, (out_w - b + stride - 1) / stride, taps.size(), 0};
        if (phase.lines <= 0 || phase.columns <= 0) continue;
        for (int r = kernel_h - 1; r >= 0; --r)
          for (int s = kernel_w - 1; s >= 0; --s) {
            if ((a + padding - r) % stride != 0 || (b + padding - s) % stride != 0) continue;
            const std::int64_t line = top + (a + padding - r) / stride, column = left + (b + padding - s) / stride;
            taps.push_back({(line * columns + column) * pixel, r, s});
            if (way == Way::lines) break;
          }
        phase.taps = taps.size() - phase.first_tap;
        phases.push_back(phase);
      }
  }
};

}  // namespace tutti::cpu::amx
