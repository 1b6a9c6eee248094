// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/graph/ops.hpp>
#include <tutti/graph/value.hpp>

namespace tutti {

struct Node {  // One op and its values.
  Op op;
  std::vector<ValueId> inputs, outputs;
  std::string name;  // the layer to which it belongs
  bool backward = false;
  std::shared_ptr<const void> owned{};  // data that the op refers to
};

// Replaces the node's op by a private op of a backend.
template <class O>
void become(Node& n, const O& o) {
  const auto own = std::make_shared<const PrivateOpOf<O>>(o);
  n.op = op::Private{own.get()};
  n.owned = own;
}

// A recorded model: a plain value with its nodes in the order of recording. differentiate() appends the nodes of the
// backward pass.
struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  ValueId images = no_value, labels = no_value, logits = no_value, metrics = no_value;

  [[nodiscard]] Value& operator[](ValueId v) { return values[static_cast<std::size_t>(v)]; }
  [[nodiscard]] const Value& operator[](ValueId v) const { return values[static_cast<std::size_t>(v)]; }

  ValueId add_value(Value v) {
    values.push_back(std::move(v));
    return static_cast<ValueId>(values.size() - 1);
  }
  NodeId add_node(Node n) {
    const auto id = static_cast<NodeId>(nodes.size());
    for (ValueId v : n.outputs) (*this)[v].producer = id;
    nodes.push_back(std::move(n));
    return id;
  }
};

}  // namespace tutti
