// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/engine/cpu/convolution_end.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

namespace detail {

class EndAdder {
 public:
  explicit EndAdder(Graph& g) : g_(g), uses_(count_uses(g)), reader_(g.values.size(), -1), gone_(g.nodes.size(), 0) {
    for (std::size_t i = 0; i < g.nodes.size(); ++i)
      for (const ValueId v : g.nodes[i].inputs) reader_[at(v)] = static_cast<NodeId>(i);
  }

  void run() {
    for (std::size_t i = 0; i < g_.nodes.size(); ++i)
      if (gone_[i] == 0 && std::holds_alternative<op::Conv2d>(g_.nodes[i].op)) add_end(static_cast<NodeId>(i));
    std::vector<Node> kept;
    for (std::size_t i = 0; i < g_.nodes.size(); ++i)
      if (gone_[i] == 0) kept.push_back(std::move(g_.nodes[i]));
    g_.nodes = std::move(kept);
    for (std::size_t i = 0; i < g_.nodes.size(); ++i)
      for (const ValueId v : g_.nodes[i].outputs) g_[v].producer = static_cast<NodeId>(i);
  }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  // Returns the only node that reads the first output of this one, if it is an O; otherwise -1.
  template <class O>
  [[nodiscard]] NodeId only_reader(NodeId i) const {
    const ValueId y = g_.nodes[at(i)].outputs[0];
    const NodeId r = reader_[at(y)];
    return uses_[at(y)] == 1 && r >= 0 && gone_[at(r)] == 0 && std::holds_alternative<O>(g_.nodes[at(r)].op) ? r : -1;
  }

  void add_end(NodeId conv) {
    const NodeId bias = only_reader<op::Bias>(conv);
    if (bias < 0) return;
    Node n = g_.nodes[at(conv)];
    cpu::EndedConvolution ended{{}, n.op};
    n.inputs.push_back(g_.nodes[at(bias)].inputs[1]);
    NodeId last = bias;
    if (const NodeId add = only_reader<op::Add>(bias); add >= 0) {
      const std::vector<ValueId>& in = g_.nodes[at(add)].inputs;
      n.inputs.push_back(in[0] == g_.nodes[at(bias)].outputs[0] ? in[1] : in[0]);
      ended.residual = true;
      gone_[at(last)] = 1;
      last = add;
    }
    if (const NodeId relu = only_reader<op::Relu>(last); relu >= 0) {
      ended.relu = true;
      gone_[at(last)] = 1;
      last = relu;
    }
    // It takes the place of the last op: the other summand may not exist before.
    gone_[at(conv)] = 1;
    n.outputs = g_.nodes[at(last)].outputs;
    become(n, ended);
    g_.nodes[at(last)] = std::move(n);
  }

  Graph& g_;
  std::vector<int> uses_;
  std::vector<NodeId> reader_;  // of each value: the last node that reads it
  std::vector<char> gone_;
};

}  // namespace detail

// Makes one op of each convolution and the bias, sum and relu behind it, if no other op reads the values between them.
// g: the graph of fold_norms(). For a backend with Backend::ends_convolutions().
inline void add_ends(Graph& g) { detail::EndAdder(g).run(); }

}  // namespace tutti
