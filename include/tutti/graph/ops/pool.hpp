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

struct GlobalAvgPoolBackward {  // dy -> dx
  static constexpr OpInfo info{.name = "global_avg_pool_backward", .gradient = true};
};
struct GlobalAvgPool {  // x [N,C,H,W] -> y [N,C,1,1]
  static constexpr OpInfo info{.name = "global_avg_pool"};

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in) {
    return one_output(in, Shape{1, in.activation(0, 4)[1], 1, 1});
  }
  template <class G>
  void gradient(G& g) const {
    if (const auto [dy, dx] = g.through(); dx != no_value) g.add(GlobalAvgPoolBackward{}, {dy}, {dx});
  }
};

}  // namespace tutti::op
