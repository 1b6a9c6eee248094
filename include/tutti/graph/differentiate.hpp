// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

// Returns the graph with its backward pass appended. In it every trainable parameter on which the loss depends has a
// gradient value, which one node writes. Gradients become final in the order of the nodes.
[[nodiscard]] TUTTI_CORE_FUNCTION Graph differentiate(Graph g);

#if TUTTI_CORE_DEFINITIONS

namespace detail {

// Builds the backward pass of a graph, node by node from the end. The public functions are for an op's gradient(g). In
// them, input k and output k are those of the current forward node.
class Gradient {
 public:
  explicit Gradient(Graph& g) : g_(g), pending_(g.values.size()) {}

  [[nodiscard]] const std::vector<ValueId>& inputs() const { return node_.inputs; }
  [[nodiscard]] const std::vector<ValueId>& outputs() const { return node_.outputs; }
  [[nodiscard]] ValueId input(std::size_t k) const { return node_.inputs[k]; }
  [[nodiscard]] ValueId output(std::size_t k) const { return node_.outputs[k]; }
  [[nodiscard]] bool is_parameter(std::size_t k) const { return g_[input(k)].storage == Storage::parameter; }
  [[nodiscard]] std::int64_t channels(std::size_t k) const { return g_[input(k)].shape[1]; }
  // Returns whether input k needs a gradient.
  [[nodiscard]] bool wanted(std::size_t k) const { return g_[input(k)].requires_grad; }

  // Returns at most `most` values whose sum is the gradient of output k. If there are more, adds nodes that sum them.
  // Returns an empty list if the loss does not depend on this output.
  [[nodiscard]] std::vector<ValueId> incoming(std::size_t k, std::size_t most) {
    auto list = pending_[static_cast<std::size_t>(output(k))];
    while (list.size() > most) {
      const ValueId b = list.back();
      list.pop_back();
      const ValueId a = list.back();
      list.pop_back();
      const ValueId sum = make_for(output(k));
      add(op::Add{}, {a, b}, {sum});
      list.push_back(sum);
    }
    return list;
  }
  // Returns the complete gradient of the first output, or no_value if the loss does not depend on it.
  [[nodiscard]] ValueId incoming() {
    const auto list = incoming(0, 1);
    return list.empty() ? no_value : list[0];
  }

  // Returns a new value for the gradient of input k. The caller adds the node that computes it.
  ValueId make(std::size_t k) { return make_for(input(k)); }
  // As make(), but returns a value in scratch memory if input k needs no gradient: for ops that always write it.
  ValueId make_or_scratch(std::size_t k) {
    if (wanted(k)) return make(k);
    const Value& p = g_[input(k)];
    return add_value({"d " + p.name, p.shape, false, Storage::activation, Precision::master});
  }
  // Adds a summand to the gradient of input k.
  void pass(std::size_t k, ValueId gradient) { pending_[static_cast<std::size_t>(input(k))].push_back(gradient); }

  // Adds a node of the backward pass, which also keeps the data of the forward node alive (Node::owned).
  template <class O>
  void add(const O& op, std::initializer_list<ValueId> inputs, std::initializer_list<ValueId> outputs) {
    append(Op(std::in_place_type<O>, op), inputs, outputs);
  }
  // The same with lists that were made step by step.
  template <class O>
  void add_lists(const O& op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
    append(Op(std::in_place_type<O>, op), std::move(inputs), std::move(outputs));
  }
  // Replaces the op of the forward node and adds an output.
  void extend(const Op& op, ValueId output) {
    Node& n = g_.nodes[static_cast<std::size_t>(id_)];
    n.op = op;
    n.outputs.push_back(output);
    g_[output].producer = id_;
  }
  // Does the work for an op with one input and one output: returns the gradient of its output and a new value for that
  // of its input. The caller must add the node that computes dx. dx is no_value if there is nothing to compute.
  struct Through {
    ValueId dy, dx;
  };
  [[nodiscard]] Through through() {
    const ValueId dy = incoming();
    if (dy == no_value || !wanted(0)) return {no_value, no_value};
    const ValueId dx = make(0);
    pass(0, dx);
    return {dy, dx};
  }
  // Returns the value of input k for the backward pass. If a batch norm (+ relu) without a residual made it, returns a
  // value that is recomputed from the data that batch norm keeps anyway. That costs less time than to write input k to
  // memory and read it back, and saves its memory.
  [[nodiscard]] ValueId recompute(std::size_t k) {
    const ValueId x = input(k);
    if (g_[x].producer < 0) return x;
    const Node made = g_.nodes[static_cast<std::size_t>(g_[x].producer)];
    const auto* bn = std::get_if<op::BatchNorm>(&made.op);
    if (bn == nullptr || bn->residual || made.outputs[0] != x) return x;
    const ValueId copy = add_value({g_[x].name + " recomputed", g_[x].shape, g_[x].per_row});
    add(op::BatchNormInference{bn->eps, bn->relu, false, true},
        {made.inputs[0], made.inputs[1], made.inputs[2], made.outputs[1], made.outputs[2]}, {copy});
    return copy;
  }

  void run() {
    if (g_.metrics == no_value)
      fail<UsageError>("differentiate", "a model that ends in softmax_cross_entropy", "a model without it");
    for (id_ = static_cast<NodeId>(g_.nodes.size()) - 1; id_ >= 0; --id_) {
      node_ = g_.nodes[static_cast<std::size_t>(id_)];  // a copy: add() may move the nodes
      if (info_of(node_.op).gradient)
        fail<UsageError>("differentiate", "a forward graph", {"a backward op in '", node_.name, "'"});
      Ops::visit_forward(node_.op, [&](const auto& o) { o.gradient(*this); });
    }
  }

 private:
  void append(const Op& op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
    g_.add_node({op, std::move(inputs), std::move(outputs), node_.name, true, node_.owned});
  }
  ValueId add_value(Value v) {
    const ValueId id = g_.add_value(std::move(v));
    pending_.resize(g_.values.size());
    return id;
  }
  ValueId make_for(ValueId of) {
    const Value& v = g_[of];
    Value d{"d " + v.name, v.shape, v.per_row};
    if (v.storage != Storage::parameter) return add_value(std::move(d));
    if (v.gradient != no_value)
      fail<UsageError>("differentiate", "each parameter used by one op", {"'", v.name, "' used twice"},
                       "apply a shared parameter in one op");
    d.name = v.name;
    d.storage = Storage::gradient;
    d.precision = Precision::master;
    const ValueId id = add_value(std::move(d));
    g_[of].gradient = id;
    return id;
  }

  Graph& g_;
  std::vector<std::vector<ValueId>> pending_;  // gradient contributions of each value
  Node node_;
  NodeId id_ = 0;
};

}  // namespace detail

TUTTI_CORE_FUNCTION Graph differentiate(Graph g) {
  detail::Gradient(g).run();
  return g;
}

#endif

}  // namespace tutti
