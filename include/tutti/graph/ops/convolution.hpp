// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/core/error.hpp>
#include <tutti/graph/ops/op.hpp>
#include <tutti/graph/ops/window.hpp>

namespace tutti::op {

struct Conv2dBackwardData : Window {  // dy, w -> dx
  static constexpr OpInfo info{.name = "conv2d_backward_data", .gradient = true, .weights = true};
  int groups = 1;
};
struct Conv2dBackwardWeights : Window {  // x, dy -> dw
  static constexpr OpInfo info{.name = "conv2d_backward_weights", .gradient = true};
  int groups = 1;
};

// x, w [outputs, channels / groups, kernel_h, kernel_w] -> y. Channels and outputs are cut into groups, and each group
// of outputs reads its own group of channels. As many groups as channels: depthwise.
struct Conv2d : Window {
  static constexpr OpInfo info{.name = "conv2d", .weights = true};
  int groups = 1;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const;

  template <class G>
  void gradient(G& g) const {
    const ValueId dy = g.incoming();
    if (dy == no_value) return;
    const Window& window = *this;
    // The weights come first: their gradient can be sent while the data gradient is computed.
    if (g.wanted(1)) {
      const ValueId dw = g.make(1);
      g.add(Conv2dBackwardWeights{window, groups}, {g.recompute(0), dy}, {dw});
    }
    if (g.wanted(0)) {
      const ValueId dx = g.make(0);
      g.add(Conv2dBackwardData{window, groups}, {dy, g.input(1)}, {dx});
      g.pass(0, dx);
    }
  }
};

inline OpOutputs Conv2d::outputs(const OpInputs& in) const {
  const Shape &x = in.activation(0, 4), &w = in.parameter(1);
  if (groups < 1 || x[1] % groups != 0)
    fail<ShapeError>(in.layer(), {"a number of groups that divides ", x[1], " channels"}, groups);
  if (w.rank() != 4 || w[1] != x[1] / groups || w[0] % groups != 0 || w[2] != kernel_h || w[3] != kernel_w)
    fail<ShapeError>(in.layer(),
                     {"weights [O, ", x[1] / groups, ", ", kernel_h, ", ", kernel_w, "]",
                      groups > 1 ? concat({" with O a multiple of ", groups}) : ""},
                     to_string(w));
  return one_output(in, over(in.layer(), x, w[0]));
}

}  // namespace tutti::op
