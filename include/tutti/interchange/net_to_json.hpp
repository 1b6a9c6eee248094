// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/shape.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/io/json/json.hpp>

// A net as JSON: a file's description of its net, sufficient to make the net again without the program that trained it.
//
//   {"input": [3, 32, 32], "tensors": {"conv1.weight": [16, 3, 3, 3], ...}, "states": {"bn1.running_mean": [16], ...},
//    "nodes": [{"op": "conv2d", "name": "conv1", "in": [0, "conv1.weight"], "kernel": [3, 3], "stride": 1,
//    "padding": 1}, ...]}
//
// An input of a node is the index of an earlier node in the list, or the name of a tensor. The first node reads the
// images and the last node makes the logits. Data that only training needs (initial values, rates, dropouts, the loss)
// is omitted.
namespace tutti::interchange {

namespace detail {

[[nodiscard]] inline io::Json json_of(const Shape& s) {
  io::Json::Array list;
  for (const std::int64_t d : s.dims()) list.emplace_back(d);
  return list;
}
[[nodiscard]] inline io::Json json_of(std::span<const float> values) {
  io::Json::Array list;
  for (const float v : values) list.emplace_back(v);
  return list;
}
// Adds an op's attributes. Returns false if JSON cannot describe the op.
inline bool add_attributes(const Op& op, io::Json& to) {
  const auto window = [&](const op::Window& w) {
    to.set("kernel", io::Json::array({w.kernel_h, w.kernel_w})).set("stride", w.stride).set("padding", w.padding);
  };
  if (const auto* o = std::get_if<op::Normalize>(&op)) {
    to.set("mean", json_of(o->mean)).set("inverse_stddev", json_of(o->inv_std));
  } else if (const auto* c = std::get_if<op::Conv2d>(&op)) {
    window(*c);
    if (c->groups > 1) to.set("groups", c->groups);
  } else if (const auto* p = std::get_if<op::MaxPool>(&op)) {
    window(*p);
  } else if (const auto* a = std::get_if<op::AvgPool>(&op)) {
    if (a->global()) return true;
    window(a->window);
    to.set("count_padding", a->count_padding);
    if (a->ceil) to.set("ceil", true);
  } else if (const auto* n = std::get_if<op::BatchNorm>(&op)) {
    to.set("eps", n->eps).set("relu", n->relu).set("residual", n->residual);
  } else if (const auto* l = std::get_if<op::LayerNorm>(&op)) {
    to.set("eps", l->eps);
  } else {
    return std::holds_alternative<op::Relu>(op) || std::holds_alternative<op::Activation>(op) ||
           std::holds_alternative<op::Add>(op) || std::holds_alternative<op::Bias>(op) ||
           std::holds_alternative<op::Multiply>(op) || std::holds_alternative<op::Concat>(op) ||
           std::holds_alternative<op::Linear>(op);
  }
  return true;
}

}  // namespace detail

// Returns the JSON of a graph that a Builder has recorded. Returns no value if the graph has an op that a file cannot
// describe, such as a user-defined one.
[[nodiscard]] inline std::optional<io::Json> net_to_json(const Graph& g) {
  std::vector<std::int64_t> place(g.values.size(), -1);  // index of the node that makes a value
  io::Json::Array nodes;
  io::Json tensors = io::Json::object(), states = io::Json::object();
  if (g.logits == no_value) return std::nullopt;
  for (const Node& n : g.nodes) {
    if (std::holds_alternative<op::SoftmaxCrossEntropy>(n.op)) continue;
    if (std::holds_alternative<op::Dropout>(n.op)) {
      place[static_cast<std::size_t>(n.outputs[0])] = place[static_cast<std::size_t>(n.inputs[0])];
      continue;
    }
    io::Json node = io::Json::object({{"op", name_of(n.op)}, {"name", n.name}});
    io::Json::Array in;
    for (const ValueId v : n.inputs) {
      const Value& value = g[v];
      if (value.storage == Storage::parameter || value.storage == Storage::state) {
        (value.storage == Storage::state ? states : tensors).set(value.name, detail::json_of(value.shape));
        in.emplace_back(value.name);
      } else if (place[static_cast<std::size_t>(v)] >= 0) {
        in.emplace_back(place[static_cast<std::size_t>(v)]);
      } else if (v != g.images) {
        return std::nullopt;
      }
    }
    node.set("in", std::move(in));
    if (!detail::add_attributes(n.op, node)) return std::nullopt;
    place[static_cast<std::size_t>(n.outputs[0])] = static_cast<std::int64_t>(nodes.size());
    nodes.push_back(std::move(node));
  }
  if (nodes.empty() || place[static_cast<std::size_t>(g.logits)] != static_cast<std::int64_t>(nodes.size()) - 1)
    return std::nullopt;
  const Shape& image = g[g.images].shape;
  return io::Json::object({{"input", io::Json::array({image[1], image[2], image[3]})},
                           {"tensors", std::move(tensors)},
                           {"states", std::move(states)},
                           {"nodes", std::move(nodes)}});
}

}  // namespace tutti::interchange
