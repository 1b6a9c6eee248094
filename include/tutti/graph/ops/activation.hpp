// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

struct ReluBackward {  // dy, y -> dx
  static constexpr OpInfo info{.name = "relu_backward", .gradient = true};
};
struct Relu {  // x -> y
  static constexpr OpInfo info{.name = "relu"};

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in) { return one_output(in, in.activation(0)); }
  template <class G>
  void gradient(G& g) const {
    if (const auto [dy, dx] = g.through(); dx != no_value) g.add(ReluBackward{}, {dy, g.output(0)}, {dx});
  }
};

struct GeluBackward {  // dy, x -> dx
  static constexpr OpInfo info{.name = "gelu_backward", .gradient = true};
};
// x -> x * Phi(x), with the distribution function Phi of the normal distribution: PyTorch's nn.GELU(), not its
// approximation by tanh. Far from zero, and for infinities, the result is relu's. Hendrycks and Gimpel 2016.
struct Gelu {
  static constexpr OpInfo info{.name = "gelu"};

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in) { return one_output(in, in.activation(0)); }
  template <class G>
  void gradient(G& g) const {
    if (const auto [dy, dx] = g.through(); dx != no_value) g.add(GeluBackward{}, {dy, g.recompute(0)}, {dx});
  }
};

}  // namespace tutti::op
