// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <tutti/graph/fuse.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

// A graph with the values of its parameters and running statistics.
struct WeightedGraph {
  Graph graph;
  std::vector<std::vector<float>> values;  // by ValueId; empty for computed values

  [[nodiscard]] std::vector<float>& of(ValueId v) { return values[static_cast<std::size_t>(v)]; }
  [[nodiscard]] const std::vector<float>& of(ValueId v) const { return values[static_cast<std::size_t>(v)]; }
};

// Returns the graph for inference: batch norms use their running statistics and are merged with the ops after them
// (fuse()), and there are neither dropouts nor a loss. Parameters and statistics keep their ids.
[[nodiscard]] inline Graph inference_graph(const Graph& forward) {
  Graph g = inference(fuse(without_dropout(forward)));
  std::vector<Node> kept;
  for (Node& n : g.nodes)
    if (n.outputs[0] != g.metrics) kept.push_back(std::move(n));
  g.nodes = std::move(kept);
  for (std::size_t i = 0; i < g.nodes.size(); ++i)
    for (const ValueId v : g.nodes[i].outputs) g[v].producer = static_cast<NodeId>(i);
  g.metrics = no_value;
  return g;
}

}  // namespace tutti
