// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <variant>

#include <tutti/graph/graph.hpp>

namespace tutti {

// Changes a recorded model: its batch norms use their running statistics in training too, and training does not change
// these. For fine-tuning with few images or small batches. Returns the number of batch norms. For backends on the host.
inline std::size_t freeze_statistics(Graph& g) {
  std::size_t frozen = 0;
  for (Node& n : g.nodes)
    if (auto* const bn = std::get_if<op::BatchNorm>(&n.op)) {
      bn->frozen = true;
      ++frozen;
    }
  return frozen;
}

}  // namespace tutti
