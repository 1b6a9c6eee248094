// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

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

// gelu: x * Phi(x), with the distribution function Phi of the normal distribution: PyTorch's nn.GELU(), not its
// approximation by tanh. Far from zero, and for infinities, the result is relu's. Hendrycks and Gimpel 2016.
// sigmoid: 1 / (1 + exp(-x)).
// silu: x * sigmoid(x), also known as swish. Elfwing et al. 2017.
// hard_swish: x * min(max(x + 3, 0), 6) / 6, with a slope of 0 at -3 and 1 at 3. Howard et al. 2019.
// relu6: min(max(x, 0), 6), with a slope of 0 at 0 and 6. Sandler et al. 2018.
enum class ActivationKind : std::uint8_t { gelu, sigmoid, silu, hard_swish, relu6 };

// Returns the name of the op, or of its gradient.
[[nodiscard]] constexpr std::string_view name_of(ActivationKind kind, bool backward) {
  constexpr std::string_view names[][2] = {{"gelu", "gelu_backward"},
                                           {"sigmoid", "sigmoid_backward"},
                                           {"silu", "silu_backward"},
                                           {"hard_swish", "hard_swish_backward"},
                                           {"relu6", "relu6_backward"}};
  return names[static_cast<int>(kind)][backward ? 1 : 0];
}

struct ActivationBackward {  // dy, x (of sigmoid: y) -> dx
  static constexpr OpInfo info{.name = "activation_backward", .gradient = true};
  ActivationKind kind = ActivationKind::gelu;
};
struct Activation {  // x -> y, element by element. name_of() returns the kind.
  static constexpr OpInfo info{.name = "activation"};
  ActivationKind kind = ActivationKind::gelu;

  [[nodiscard]] static OpOutputs outputs(const OpInputs& in) { return one_output(in, in.activation(0)); }
  template <class G>
  void gradient(G& g) const {
    const auto [dy, dx] = g.through();
    if (dx == no_value) return;
    g.add(ActivationBackward{kind}, {dy, kind == ActivationKind::sigmoid ? g.output(0) : g.recompute(0)}, {dx});
  }
};
using Gelu = Activation;
using GeluBackward = ActivationBackward;

}  // namespace tutti::op
