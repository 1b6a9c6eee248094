// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
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
// default; otherwise the mean is over the pixels of the image.
struct AvgWindow {
  Window window{0, 0, 1, 0};
  bool count_padding = true;
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
    return one_output(in, window.over(in.layer(), x, x[1]));
  }
  template <class G>
  void gradient(G& g) const {
    if (const auto [dy, dx] = g.through(); dx != no_value) g.add(AvgPoolBackward{*this}, {dy}, {dx});
  }
};
using GlobalAvgPool = AvgPool;
using GlobalAvgPoolBackward = AvgPoolBackward;

}  // namespace tutti::op
