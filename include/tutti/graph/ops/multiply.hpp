// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

struct MultiplyBackward {  // dy, x -> dfactor
  static constexpr OpInfo info{.name = "multiply_backward", .gradient = true};
};
// x, factor -> x * factor. The factors are one for each image and channel, [N,C,1,1], as in squeeze-and-excitation (Hu
// et al. 2018), or a parameter with one for each channel, [C] or [C,1,1], as in layer scale (Touvron et al. 2021).
struct Multiply {
  static constexpr OpInfo info{.name = "multiply"};

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in);
  template <class G>
  void gradient(G& g) const {
    const ValueId dy = g.incoming();
    if (dy == no_value) return;
    if (g.wanted(1)) {
      const ValueId df = g.make(1);
      g.add(MultiplyBackward{}, {dy, g.recompute(0)}, {df});
      if (!g.is_parameter(1)) g.pass(1, df);
    }
    if (g.wanted(0)) {
      const ValueId dx = g.make(0);
      g.add(Multiply{}, {dy, g.input(1)}, {dx});
      g.pass(0, dx);
    }
  }
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION OpOutputs Multiply::outputs(const OpInputs& in) {
  const Shape &x = in.activation(0), &f = in.shape(1);
  const bool fits = x.rank() >= 2 &&
                    (in[1].storage == Storage::parameter ? f == Shape{x[1]} || f == Shape{x[1], 1, 1}
                                                         : x.rank() == 4 && in.activation(1) == Shape{1, x[1], 1, 1});
  if (!fits)
    fail<ShapeError>(in.layer(), {"factors [N, C, 1, 1], or a parameter [C], for ", to_string(in[0])},
                     to_string(in[1]));
  return one_output(in, x);
}
#endif

}  // namespace tutti::op
