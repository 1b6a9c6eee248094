// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

// Merges batch_norm -> add -> relu and batch_norm -> relu, which were recorded as separate ops, into one batch_norm, if
// no other op reads the values between them. g: a forward graph, before differentiate().
[[nodiscard]] TUTTI_CORE_FUNCTION Graph fuse(Graph g);

// Returns the same forward graph for images of another size. Throws a ShapeError that names the layer if the net takes
// no images of this size.
[[nodiscard]] TUTTI_CORE_FUNCTION Graph with_image_size(Graph g, std::int64_t height, std::int64_t width);

// Returns the same forward graph for evaluation: batch norm with its running statistics, dropouts with a rate of 0,
// labels that are not mixed, no gradients. Nodes keep their numbers.
[[nodiscard]] TUTTI_CORE_FUNCTION Graph inference(Graph g);

// Returns the same forward graph without its dropouts: the ops after them read their inputs.
[[nodiscard]] TUTTI_CORE_FUNCTION Graph without_dropout(Graph g);

namespace detail {

// Returns the number of reads of each value.
inline std::vector<int> count_uses(const Graph& g) {
  std::vector<int> uses(g.values.size(), 0);
  for (const Node& n : g.nodes)
    for (ValueId v : n.inputs) ++uses[static_cast<std::size_t>(v)];
  if (g.logits != no_value) ++uses[static_cast<std::size_t>(g.logits)];
  return uses;
}

}  // namespace detail

#if TUTTI_CORE_DEFINITIONS

TUTTI_CORE_FUNCTION Graph fuse(Graph g) {
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<int> uses = detail::count_uses(g);
    for (std::size_t i = 0; i < g.nodes.size() && !changed; ++i) {
      Node& n = g.nodes[i];
      const bool is_add = std::holds_alternative<op::Add>(n.op);
      if (!is_add && !std::holds_alternative<op::Relu>(n.op)) continue;
      for (std::size_t k = 0; k < n.inputs.size() && !changed; ++k) {
        const ValueId x = n.inputs[k];
        const NodeId producer = g[x].producer;
        if (producer < 0 || uses[static_cast<std::size_t>(x)] != 1) continue;
        Node& bn_node = g.nodes[static_cast<std::size_t>(producer)];
        auto* bn = std::get_if<op::BatchNorm>(&bn_node.op);
        if (bn == nullptr || bn->relu || bn_node.outputs[0] != x) continue;
        if (is_add && bn->residual) continue;
        // The fused node takes the position of the last merged node: the residual may not exist before it.
        Node fused = bn_node;
        auto& attributes = std::get<op::BatchNorm>(fused.op);
        if (is_add) {
          attributes.residual = true;
          fused.inputs.push_back(n.inputs[1 - k]);
        } else {
          attributes.relu = true;
        }
        fused.outputs[0] = n.outputs[0];
        n = std::move(fused);
        g.nodes.erase(g.nodes.begin() + producer);
        changed = true;
      }
    }
    if (changed)
      for (std::size_t i = 0; i < g.nodes.size(); ++i)
        for (ValueId v : g.nodes[i].outputs) g[v].producer = static_cast<NodeId>(i);
  }
  return g;
}

TUTTI_CORE_FUNCTION Graph without_dropout(Graph g) {
  std::vector<Node> kept;
  for (Node& n : g.nodes) {
    if (!std::holds_alternative<op::Dropout>(n.op)) {
      for (const ValueId v : n.outputs) g[v].producer = static_cast<NodeId>(kept.size());
      kept.push_back(std::move(n));
      continue;
    }
    const ValueId from = n.outputs[0], to = n.inputs[0];
    g[from].producer = -1;
    for (Node& reader : g.nodes) std::replace(reader.inputs.begin(), reader.inputs.end(), from, to);
    if (g.logits == from) g.logits = to;
  }
  g.nodes = std::move(kept);
  return g;
}

TUTTI_CORE_FUNCTION Graph with_image_size(Graph g, std::int64_t height, std::int64_t width) {
  const Shape& own = g[g.images].shape;
  if (own[2] == height && own[3] == width) return g;
  g[g.images].shape = Shape{1, own[1], height, width};
  for (const Node& n : g.nodes) {
    const OpInputs in{n.name, g.values, n.inputs};
    OpOutputs out;
    Ops::visit_forward(n.op, [&](const auto& op) {
      if constexpr (requires { op.outputs(in); }) out = op.outputs(in);
    });
    for (std::size_t i = 0; i < std::min(out.size(), n.outputs.size()); ++i) g[n.outputs[i]].shape = out[i].shape;
  }
  return g;
}

TUTTI_CORE_FUNCTION Graph inference(Graph g) {
  for (Node& n : g.nodes)
    if (const auto* bn = std::get_if<op::BatchNorm>(&n.op)) {
      n.op = op::BatchNormInference{bn->eps, bn->relu, bn->residual};
      n.outputs.resize(1);
    } else if (auto* drop = std::get_if<op::Dropout>(&n.op)) {
      drop->rate = 0;
    }
  if (g.labels != no_value) g[g.labels].shape = Shape{1};
  return g;
}

#endif

}  // namespace tutti
