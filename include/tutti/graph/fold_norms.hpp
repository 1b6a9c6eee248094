// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/graph/weighted_graph.hpp>

namespace tutti {

namespace detail {

// The ops before a batch norm: a convolution, and after it possibly a bias or a max pooling.
struct NormSource {
  NodeId convolution = -1, bias = -1;
};

class NormFolder {
 public:
  explicit NormFolder(WeightedGraph net) : net_(std::move(net)), g_(net_.graph), uses_(count_uses(g_)) {}

  WeightedGraph fold() {
    std::vector<Node> nodes = std::move(g_.nodes);
    all_ = &nodes;
    std::vector<std::vector<Node>> behind(nodes.size());  // nodes that replace a node or follow it
    std::vector<char> gone(nodes.size(), 0);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Node n = nodes[i];
      const auto* norm = std::get_if<op::BatchNormInference>(&n.op);
      if (norm == nullptr || norm->saved_inv_std) continue;
      std::vector<double> scale, shift;
      affine_of(n, *norm, scale, shift);
      const NormSource from = source_of(n.inputs[0], scale);
      if (from.convolution < 0) continue;
      // Without a bias, the shift takes the place of beta, which then must belong to this batch norm alone.
      if (from.bias < 0 && uses_[index(n.inputs[2])] != 1) continue;
      gone[i] = 1;
      multiply(nodes[index(from.convolution)], scale);
      ValueId x = n.inputs[0];
      if (from.bias >= 0) {
        std::vector<float>& b = net_.of(nodes[index(from.bias)].inputs[1]);
        for (std::size_t c = 0; c < b.size(); ++c) b[c] = static_cast<float>(b[c] * scale[c] + shift[c]);
      } else {
        // The shift becomes the bias of the convolution and takes the place of beta. The next op, for example a
        // pooling, reads the sum.
        Node& conv = nodes[index(from.convolution)];
        const ValueId out = conv.outputs[0], raw = copy_of(out);
        conv.outputs[0] = raw;
        std::vector<float>& b = net_.of(n.inputs[2]);
        for (std::size_t c = 0; c < b.size(); ++c) b[c] = static_cast<float>(shift[c]);
        behind[index(from.convolution)].push_back({op::Bias{}, {raw, n.inputs[2]}, {out}, conv.name + ".bias"});
      }
      if (norm->residual) {
        const ValueId sum = norm->relu ? copy_of(n.outputs[0]) : n.outputs[0];
        behind[i].push_back({op::Add{}, {x, n.inputs[5]}, {sum}, n.name + ".add"});
        x = sum;
      }
      if (norm->relu) behind[i].push_back({op::Relu{}, {x}, {n.outputs[0]}, n.name + ".relu"});
      if (!norm->residual && !norm->relu) renamed_.emplace_back(n.outputs[0], x);
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (gone[i] == 0) g_.nodes.push_back(std::move(nodes[i]));
      for (Node& n : behind[i]) g_.nodes.push_back(std::move(n));
    }
    finish();
    return std::move(net_);
  }

 private:
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

  void affine_of(const Node& n, const op::BatchNormInference& norm, std::vector<double>& scale,
                 std::vector<double>& shift) const {
    const auto &gamma = net_.of(n.inputs[1]), &beta = net_.of(n.inputs[2]), &mean = net_.of(n.inputs[3]),
               &var = net_.of(n.inputs[4]);
    for (std::size_t c = 0; c < gamma.size(); ++c) {
      const double s =
          static_cast<double>(gamma[c]) / std::sqrt(static_cast<double>(var[c]) + static_cast<double>(norm.eps));
      scale.push_back(s);
      shift.push_back(static_cast<double>(beta[c]) - static_cast<double>(mean[c]) * s);
    }
  }

  // Returns the node that computes x if x has only one reader, otherwise nullptr.
  [[nodiscard]] const Node* maker(ValueId x) const {
    return uses_[index(x)] == 1 && g_[x].producer >= 0 ? &(*all_)[index(g_[x].producer)] : nullptr;
  }
  [[nodiscard]] NormSource source_of(ValueId x, const std::vector<double>& scale) const {
    const Node* n = maker(x);
    // If no scale is negative, scaling and the maximum can be exchanged: the maximum of scaled values is the scaled
    // maximum.
    if (n != nullptr && std::holds_alternative<op::MaxPool>(n->op) &&
        std::all_of(scale.begin(), scale.end(), [](double s) { return s >= 0; })) {
      x = n->inputs[0];
      n = maker(x);
    }
    NormSource from;
    if (n != nullptr && std::holds_alternative<op::Bias>(n->op) && uses_[index(n->inputs[1])] == 1) {
      from.bias = g_[x].producer;
      x = n->inputs[0];
      n = maker(x);
    }
    if (n != nullptr && std::holds_alternative<op::Conv2d>(n->op) && uses_[index(n->inputs[1])] == 1)
      from.convolution = g_[x].producer;
    return from;
  }

  void multiply(const Node& conv, const std::vector<double>& scale) {
    std::vector<float>& w = net_.of(conv.inputs[1]);
    const std::size_t each = w.size() / scale.size();
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(static_cast<double>(w[i]) * scale[i / each]);
  }

  ValueId copy_of(ValueId v) {
    Value value = g_[v];
    value.name += ".raw";
    net_.values.emplace_back();
    return g_.add_value(std::move(value));
  }

  // Renames inputs, and sets the producers of all values. Makes parameters and statistics without readers plain values.
  void finish() {
    for (Node& n : g_.nodes)
      for (ValueId& v : n.inputs)
        for (const auto& [was, is] : renamed_)
          if (v == was) v = is;
    for (const auto& [was, is] : renamed_)
      if (g_.logits == was) g_.logits = is;
    for (std::size_t i = 0; i < g_.nodes.size(); ++i)
      for (const ValueId v : g_.nodes[i].outputs) g_[v].producer = static_cast<NodeId>(i);
    const std::vector<int> uses = count_uses(g_);
    for (std::size_t v = 0; v < g_.values.size(); ++v) {
      Value& value = g_.values[v];
      if ((value.storage != Storage::parameter && value.storage != Storage::state) || uses[v] > 0) continue;
      value.storage = Storage::activation;
      net_.values[v].clear();
    }
  }

  WeightedGraph net_;
  Graph& g_;
  std::vector<int> uses_;
  const std::vector<Node>* all_ = nullptr;
  std::vector<std::pair<ValueId, ValueId>> renamed_;  // (value, the value that replaces it)
};

}  // namespace detail

// Returns the net without the batch norms that follow a convolution: scales the weights of the convolution and adds a
// bias after it. Other batch norms (of pre-activation nets) remain. net: an inference_graph().
[[nodiscard]] inline WeightedGraph fold_norms(WeightedGraph net) { return detail::NormFolder(std::move(net)).fold(); }

}  // namespace tutti
