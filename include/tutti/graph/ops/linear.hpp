// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/core/error.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

struct LinearBackwardData {  // dy, w -> dx
  static constexpr OpInfo info{.name = "linear_backward_data", .gradient = true, .weights = true};
};
struct LinearBackwardWeights {  // x, dy -> dw, db
  static constexpr OpInfo info{.name = "linear_backward_weights", .gradient = true};
};

struct Linear {  // x [N,I], w [O,I], b [O] -> y [N,O]
  static constexpr OpInfo info{.name = "linear", .weights = true};

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in);

  template <class G>
  void gradient(G& g) const {
    const ValueId dy = g.incoming();
    if (dy == no_value) return;
    if (g.wanted(1) || g.wanted(2)) {
      const ValueId db = g.make_or_scratch(2), dw = g.make_or_scratch(1);
      g.add(LinearBackwardWeights{}, {g.input(0), dy}, {dw, db});
    }
    if (g.wanted(0)) {
      const ValueId dx = g.make(0);
      g.add(LinearBackwardData{}, {dy, g.input(1)}, {dx});
      g.pass(0, dx);
    }
  }
};

inline OpOutputs Linear::outputs(const OpInputs& in) {
  const Shape &x = in.activation(0), &w = in.parameter(1);
  if (w.rank() != 2 || w[1] != x.row_numel() || in.parameter(2) != Shape{w[0]})
    fail<ShapeError>(in.layer(), {"weights [O, ", x.row_numel(), "] and a bias [O]"},
                     {to_string(w), " and ", to_string(in.shape(2))});
  if (x.rank() == 4 && x[2] * x[3] != 1)
    fail<ShapeError>(in.layer(), "an input of 1x1 pixels", to_string(in[0]), "pool it first, e.g. global_avg_pool");
  return one_output(in, Shape{1, w[0]});
}

}  // namespace tutti::op
