// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/graph/graph.hpp>
#include <tutti/tensor/arena.hpp>

namespace tutti::detail {

// Returns the begins and ends, in elements, of the running statistics of frozen batch norms (freeze_statistics()).
// states: the arena of a model's running statistics.
[[nodiscard]] inline std::vector<std::pair<std::size_t, std::size_t>> frozen_states(const Graph& g,
                                                                                    const ArenaLayout& states) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (const Node& n : g.nodes) {
    const auto* const norm = std::get_if<op::BatchNorm>(&n.op);
    if (norm == nullptr || !norm->frozen) continue;
    for (const ValueId v : n.inputs)
      if (g[v].storage == Storage::state)
        if (const Slice* const s = states.find(g[v].name)) found.emplace_back(s->offset, s->offset + s->count);
  }
  return found;
}

}  // namespace tutti::detail
