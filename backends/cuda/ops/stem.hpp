// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include <tutti/backends/cuda/ops/conv_op.hpp>
#include <tutti/backends/cuda/ops/private_ops.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti::cuda {

// Pads normalised images of fewer than 4 channels with channels of zeros if only convolutions read them. Normalisation
// then writes the images in the library's form. Otherwise they would be copied into that form twice: in the forward
// pass and for the gradient of the weights.
inline void widen_images(Graph& g, DType compute) {
  const auto takes = [&](const Node& n, ValueId x) {
    for (std::size_t i = 1; i < n.inputs.size(); ++i)
      if (n.inputs[i] == x) return false;
    const auto* const statistics = op_cast<Conv2dStatistics>(n.op);
    return std::holds_alternative<op::Conv2d>(n.op) || std::holds_alternative<op::Conv2dBackwardWeights>(n.op) ||
           (statistics != nullptr && !statistics->activate);
  };
  for (const Node& n : g.nodes) {
    if (!std::holds_alternative<op::Normalize>(n.op)) continue;
    const ValueId x = n.outputs[0];
    bool convolutions = x != g.logits && g[x].shape.rank() == 4;
    for (const Node& reader : g.nodes)
      for (const ValueId v : reader.inputs) convolutions = convolutions && (v != x || takes(reader, x));
    if (!convolutions) continue;
    Shape& s = g[x].shape;
    if (s[1] < 4) s[1] = padded_in_channels(compute, s[1]);
  }
}

}  // namespace tutti::cuda
