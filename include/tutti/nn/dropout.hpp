// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>

#include <tutti/graph/builder.hpp>

// Layers that set values to 0 in training. Random numbers: op::Dropout.
namespace tutti::nn {

namespace detail {
inline ValueId drop(Builder& b, const std::string& name, ValueId x, double rate, bool rows) {
  if (!(rate >= 0 && rate < 1)) fail<UsageError>(name, "a rate of 0 or more and under 1", rate);
  if (rate == 0) return x;
  const auto& nodes = b.graph().nodes;
  const auto before = std::count_if(nodes.begin(), nodes.end(),
                                    [](const Node& n) { return std::holds_alternative<op::Dropout>(n.op); });
  return b.record(name, op::Dropout{static_cast<float>(rate), rows, static_cast<std::uint32_t>(before)}, {x});
}
}  // namespace detail

// Returns x with each element set to 0 with this probability and divided by 1 - rate otherwise: PyTorch's nn.Dropout.
// Evaluations and exported nets do not drop, and a rate of 0 adds no op. Throws UsageError unless 0 <= rate < 1.
inline ValueId dropout(Builder& b, const std::string& name, ValueId x, double rate = 0.5) {
  return detail::drop(b, name, x, rate, false);
}

// The same for whole images: each image's x, which is a residual branch, is set to 0 with this probability. Stochastic
// depth, as torchvision's StochasticDepth in the mode "row" and timm's DropPath.
inline ValueId drop_path(Builder& b, const std::string& name, ValueId x, double rate) {
  return detail::drop(b, name, x, rate, true);
}

}  // namespace tutti::nn
