// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/graph/builder.hpp>

// Activations besides the builder's relu and gelu.
namespace tutti::nn {

// Returns 1 / (1 + exp(-x)).
inline ValueId sigmoid(Builder& b, const std::string& name, ValueId x) {
  return b.record(name, op::Activation{op::ActivationKind::sigmoid}, {x});
}

// Returns x * sigmoid(x): PyTorch's nn.SiLU(), also known as swish.
inline ValueId silu(Builder& b, const std::string& name, ValueId x) {
  return b.record(name, op::Activation{op::ActivationKind::silu}, {x});
}

// Returns x * min(max(x + 3, 0), 6) / 6: PyTorch's nn.Hardswish().
inline ValueId hard_swish(Builder& b, const std::string& name, ValueId x) {
  return b.record(name, op::Activation{op::ActivationKind::hard_swish}, {x});
}

// Returns min(max(x, 0), 6): PyTorch's nn.ReLU6().
inline ValueId relu6(Builder& b, const std::string& name, ValueId x) {
  return b.record(name, op::Activation{op::ActivationKind::relu6}, {x});
}

}  // namespace tutti::nn
