// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/graph/ops/op.hpp>
#include <tutti/graph/ops/window.hpp>

namespace tutti::op {

struct MaxPoolBackward : Window {  // dy, which -> dx
  static constexpr OpInfo info{.name = "max_pool_backward", .gradient = true};
};
struct MaxPool : Window {  // x -> y, which (u8: index in the window)
  static constexpr OpInfo info{.name = "max_pool"};

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const {
    const Shape& x = in.activation(0, 4);
    if (kernel_h * kernel_w > 255 || padding * 2 > std::min(kernel_h, kernel_w))
      fail<ShapeError>(in.layer(), "a window of at most 255 pixels, padded by at most half its size",
                       {kernel_h, "x", kernel_w});
    const Shape y = over(in.layer(), x, x[1]);
    return {{in.layer(), y}, {in.layer() + ".which", y, true, Precision::u8}};
  }
  template <class G>
  void gradient(G& g) const {
    if (const auto [dy, dx] = g.through(); dx != no_value) g.add(MaxPoolBackward{*this}, {dy, g.output(1)}, {dx});
  }
};

// The window of a mean: of kernel_h = 0 the whole image. count_padding: the padding's zeros count, as in PyTorch by
// default; otherwise the mean is over the pixels of the image. ceil: a last window that reaches over the edge counts
// too, as with PyTorch's ceil_mode; not together with count_padding.
struct AvgWindow {
  Window window{0, 0, 1, 0};
  bool count_padding = true, ceil = false;
  [[nodiscard]] bool global() const { return window.kernel_h == 0; }
};
struct AvgPoolBackward : AvgWindow {  // dy -> dx
  static constexpr OpInfo info{.name = "avg_pool_backward", .gradient = true};
};
struct AvgPool : AvgWindow {  // x [N,C,H,W] -> y, the means; [N,C,1,1] of the whole image
  static constexpr OpInfo info{.name = "avg_pool"};

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const {
    const Shape& x = in.activation(0, 4);
    if (global()) return one_output(in, Shape{1, x[1], 1, 1});
    if (window.padding * 2 > std::min(window.kernel_h, window.kernel_w))
      fail<ShapeError>(in.layer(), "a window that is padded by at most half its size",
                       {window.kernel_h, "x", window.kernel_w});
    if (ceil && count_padding)
      fail<ShapeError>(in.layer(), "a mean over the pixels of the image if windows reach over its edge",
                       "a mean that counts the padding");
    if (!ceil) return one_output(in, window.over(in.layer(), x, x[1]));
    // As PyTorch: a window begins in the image or in the padding before it. It may be larger than the image.
    Window fits = window;
    fits.kernel_h = static_cast<int>(std::min<std::int64_t>(fits.kernel_h, x[2] + 2 * window.padding));
    fits.kernel_w = static_cast<int>(std::min<std::int64_t>(fits.kernel_w, x[3] + 2 * window.padding));
    (void)fits.over(in.layer(), x, x[1]);
    const auto windows = [&](std::int64_t extent, int kernel) {
      const std::int64_t rest = std::max<std::int64_t>(extent + 2 * window.padding - kernel, 0);
      const std::int64_t n = (rest + window.stride - 1) / window.stride;
      return n * window.stride < extent + window.padding ? n + 1 : n;
    };
    return one_output(in, Shape{1, x[1], windows(x[2], window.kernel_h), windows(x[3], window.kernel_w)});
  }
  template <class G>
  void gradient(G& g) const {
    if (const auto [dy, dx] = g.through(); dx != no_value) g.add(AvgPoolBackward{*this}, {dy}, {dx});
  }
};
using GlobalAvgPool = AvgPool;
using GlobalAvgPoolBackward = AvgPoolBackward;

}  // namespace tutti::op
