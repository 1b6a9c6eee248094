// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/ops/private_ops.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti::cuda {

// Selects which chains of a differentiated graph are fused into tutti's own ops (private_ops.hpp).
struct NormFusions {
  bool statistics = true;  // conv -> batch norm: the convolution computes the sums that the batch norm needs
  // Requires `statistics`. Batch norm + relu -> one convolution: the convolution computes the value between them, which
  // is never in memory. The gradient of the weights recomputes it.
  bool activation = true;
  bool backward = true;  // data gradient -> relu -> batch norm, backward: the data gradient computes the norm's sums
  // Keeps outputs of batch norms in memory for the gradient of the weights instead of computing them again. For devices
  // with large and slow memory.
  bool keep = false;
  // A batch norm with residual and relu writes a bit for each value, which its gradient reads instead of the value.
  bool mask = false;
  // Requires `mask`. Such a batch norm and the batch norm that computes only its residual may run together, forward and
  // backward (norm_shortcut.hpp).
  bool shortcut = false;
};

// The layers with fused ops: convolutions in `statistics` and `activation`, batch norms in `backward` and `shortcuts`.
// any(): whether convolutions compute a part of a batch norm.
struct FusedLayers {
  std::vector<std::string> statistics, activation, backward, shortcuts;
  [[nodiscard]] bool any() const { return !statistics.empty() || !backward.empty(); }
};

namespace detail {

class NormFuser {
 public:
  NormFuser(Graph& g, const NormFusions& o) : g_(g), o_(o), removed_(g.nodes.size(), 0) {}

  FusedLayers run() {
    if (o_.statistics) each(&NormFuser::statistics);
    if (o_.statistics && o_.activation) each(&NormFuser::activation);
    if (o_.backward) each(&NormFuser::backward);
    if (o_.keep) each(&NormFuser::keep);
    if (o_.mask) each(&NormFuser::mask);
    if (o_.mask && o_.shortcut) each(&NormFuser::shortcut);
    compact();
    return std::move(fused_);
  }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] Node& node(NodeId i) { return g_.nodes[at(i)]; }

  void each(void (NormFuser::*pass)(NodeId)) {
    readers_.assign(g_.values.size(), {});
    for (std::size_t i = 0; i < g_.nodes.size(); ++i)
      if (!removed_[i])
        for (ValueId v : g_.nodes[i].inputs) readers_[at(v)].push_back(static_cast<NodeId>(i));
    for (NodeId i = 0; i < static_cast<NodeId>(g_.nodes.size()); ++i)
      if (!removed_[at(i)]) (this->*pass)(i);
  }

  // Adds a value with one element for each channel of `like`.
  ValueId per_channel(const std::string& name, ValueId like, Precision precision) {
    Value v{name, Shape{g_[like].shape[1]}, false};
    v.precision = precision;
    return g_.add_value(std::move(v));
  }

  void statistics(NodeId j) {
    const auto* const plain = std::get_if<op::BatchNorm>(&node(j).op);
    if (plain == nullptr) return;
    const op::BatchNorm bn = *plain;
    const ValueId x = node(j).inputs[0];
    if (g_[x].producer < 0) return;
    const NodeId i = g_[x].producer;
    if (const auto* const conv = std::get_if<op::Conv2d>(&node(i).op); conv != nullptr && conv->groups == 1) {
      const op::Window window = *conv;
      const ValueId sum = per_channel(node(i).name + ".sum", x, Precision::master),
                    square_sum = per_channel(node(i).name + ".square_sum", x, Precision::master);
      become(node(i), Conv2dStatistics{window, false});
      node(i).outputs.insert(node(i).outputs.end(), {sum, square_sum});
      fused_.statistics.push_back(node(i).name);
    }
    if (op_cast<Conv2dStatistics>(node(i).op) == nullptr) return;
    Node& n = node(j);
    become(n, BatchNormFromSums{bn.eps, bn.momentum, bn.relu, bn.residual, true});
    n.inputs.insert(n.inputs.begin() + 5, node(i).outputs.begin() + 1, node(i).outputs.begin() + 3);
  }

  void activation(NodeId j) {
    const auto* const plain = op_cast<BatchNormFromSums>(node(j).op);
    if (plain == nullptr || !plain->relu || plain->residual) return;
    BatchNormFromSums bn = *plain;
    const ValueId y = node(j).outputs[0], x = node(j).inputs[0], mean = node(j).outputs[1], spread = node(j).outputs[2];
    if (y == g_.logits) return;
    NodeId conv = -1;
    for (NodeId r : readers_[at(y)]) {
      const auto* const c = op_cast<Conv2dStatistics>(node(r).op);
      if (conv >= 0 || c == nullptr || c->activate || node(r).inputs[0] != y) return;
      conv = r;
    }
    if (conv < 0) return;
    // Finds the backward node that recomputes y. Only the gradient of this convolution's weights may read its output.
    NodeId recomputed = -1, weights = -1;
    for (NodeId r : readers_[at(x)]) {
      const auto* const made = std::get_if<op::BatchNormInference>(&node(r).op);
      if (made == nullptr || !made->saved_inv_std || node(r).inputs[3] != mean || node(r).inputs[4] != spread) continue;
      const auto& readers = readers_[at(node(r).outputs[0])];
      if (recomputed >= 0 || !made->relu || made->residual || readers.size() != 1) return;
      if (!std::holds_alternative<op::Conv2dBackwardWeights>(node(readers[0]).op)) return;
      if (node(readers[0]).inputs[0] != node(r).outputs[0]) return;
      recomputed = r;
      weights = readers[0];
    }

    const ValueId scale = per_channel(node(j).name + ".scale", x, Precision::compute),
                  bias = per_channel(node(j).name + ".bias", x, Precision::compute);
    bn.output = false;
    become(node(j), bn);
    node(j).outputs = {mean, spread, scale, bias};
    Conv2dStatistics activated = *op_cast<Conv2dStatistics>(node(conv).op);
    activated.activate = true;
    become(node(conv), activated);
    node(conv).inputs = {x, node(conv).inputs[1], scale, bias};
    fused_.activation.push_back(node(conv).name);
    if (weights < 0) return;
    removed_[at(recomputed)] = 1;
    const op::Window& of_weights = std::get<op::Conv2dBackwardWeights>(node(weights).op);
    const op::Window window = of_weights;
    become(node(weights), Conv2dBackwardWeightsActivated{window});
    node(weights).inputs = {x, node(weights).inputs[1], scale, bias};
  }

  // Fuses only adjacent nodes: the order of the parameters' gradients must not change.
  void backward(NodeId d) {
    const auto* const data = std::get_if<op::Conv2dBackwardData>(&node(d).op);
    if (data == nullptr || data->groups > 1 || at(d) + 1 >= g_.nodes.size() || removed_[at(d) + 1]) return;
    const op::Window window = *data;
    const auto* const bn = std::get_if<op::BatchNormBackward>(&node(d + 1).op);
    const ValueId g = node(d).outputs[0];
    if (bn == nullptr || !bn->relu || bn->residual || bn->second || node(d + 1).inputs[0] != g) return;
    if (readers_[at(g)].size() != 1) return;
    const std::vector<ValueId> norm(node(d + 1).inputs.begin() + 1, node(d + 1).inputs.end()),
        out = node(d + 1).outputs;
    const std::string& name = node(d + 1).name;
    const ValueId from_g = per_channel(name + ".from_g", norm[0], Precision::master),
                  from_x = per_channel(name + ".from_x", norm[0], Precision::master),
                  constant = per_channel(name + ".constant", norm[0], Precision::master);
    Node &first = node(d), &second = node(d + 1);
    become(first, Conv2dBackwardDataNorm{window});
    first.inputs.insert(first.inputs.end(), norm.begin(), norm.end());
    first.outputs = {g, out[1], out[2], from_g, from_x, constant};
    become(second, BatchNormBackwardApply{});
    second.inputs = {g};
    second.inputs.insert(second.inputs.end(), norm.begin(), norm.end());
    second.inputs.insert(second.inputs.end(), {from_g, from_x, constant});
    second.outputs = {out[0]};
    fused_.backward.push_back(second.name);
  }

  void keep(NodeId recomputed) {
    const auto* const made = std::get_if<op::BatchNormInference>(&node(recomputed).op);
    if (made == nullptr || !made->saved_inv_std) return;
    // The forward node that computes mean and inv_std also has the output, unless a fusion has removed the output.
    const Node& forward = node(g_[node(recomputed).inputs[3]].producer);
    if (forward.outputs[0] == node(recomputed).inputs[3]) return;
    const ValueId copy = node(recomputed).outputs[0];
    for (NodeId r : readers_[at(copy)])
      for (ValueId& v : node(r).inputs)
        if (v == copy) v = forward.outputs[0];
    removed_[at(recomputed)] = 1;
  }

  void mask(NodeId i) {
    const auto* const plain = std::get_if<op::BatchNormBackward>(&node(i).op);
    if (plain == nullptr || !plain->relu || !plain->residual || plain->frozen) return;
    const bool second = plain->second;
    const ValueId y = node(i).inputs.back();
    const Shape& s = g_[y].shape;
    if (s[1] % 8 != 0 || g_[y].producer < 0) return;
    Node& forward = node(g_[y].producer);
    if (forward.outputs[0] != y) return;
    Value bits{forward.name + ".mask", Shape{1, s[1] / 8, s[2], s[3]}, true};
    bits.precision = Precision::u8;
    if (const auto* const bn = std::get_if<op::BatchNorm>(&forward.op)) {
      become(forward, BatchNormWithMask{bn->eps, bn->momentum});
    } else if (const auto* const sums = op_cast<BatchNormFromSums>(forward.op); sums != nullptr && sums->output) {
      BatchNormFromSums with = *sums;
      with.mask = true;
      become(forward, with);
    } else {
      return;
    }
    forward.outputs.push_back(g_.add_value(std::move(bits)));
    node(i).inputs.back() = forward.outputs.back();
    become(node(i), BatchNormBackwardFromMask{second});
  }

  // No node moves: the order of the parameters' gradients must not change.
  void shortcut(NodeId i) {
    const auto* const with_mask = op_cast<BatchNormWithMask>(node(i).op);
    if (with_mask == nullptr) return;
    const BatchNormWithMask adding = *with_mask;
    const ValueId residual = node(i).inputs[5], mask = node(i).outputs[3];
    const NodeId j = g_[residual].producer;
    const auto* const bn = j < 0 ? nullptr : std::get_if<op::BatchNorm>(&node(j).op);
    if (bn == nullptr || bn->relu || bn->residual || residual == g_.logits || readers_[at(residual)].size() != 1)
      return;
    const op::BatchNorm plain = *bn;
    if (readers_[at(mask)].size() != 1) return;
    const NodeId a = readers_[at(mask)][0];
    const auto* const from_mask = op_cast<BatchNormBackwardFromMask>(node(a).op);
    if (from_mask == nullptr) return;
    const bool second = from_mask->second;
    const ValueId dresidual = node(a).outputs[3];
    if (readers_[at(dresidual)].size() != 1) return;
    const NodeId b = readers_[at(dresidual)][0];
    const auto* const of = std::get_if<op::BatchNormBackward>(&node(b).op);
    if (of == nullptr || of->relu || of->residual || of->second || node(b).inputs[0] != dresidual ||
        node(b).inputs[4] != node(j).outputs[1])
      return;

    // Copies: the vectors of a node are the sources of another one's.
    const std::vector<ValueId> in = node(j).inputs, out = node(j).outputs, back = node(b).inputs;
    become(node(j), BatchNormOfShortcut{plain.eps, plain.momentum});
    become(node(i), BatchNormAddShortcut{adding.eps, adding.momentum, plain.eps, plain.momentum});
    node(i).inputs.insert(node(i).inputs.end(), {in[0], in[1], in[2], out[1], out[2]});
    become(node(a), BatchNormBackwardAddShortcut{second});
    node(a).inputs.insert(node(a).inputs.end(), {in[0], in[1], out[1], out[2]});
    Value v{node(b).name + ".sums", Shape{2 * g_[in[0]].shape[1]}, false};
    v.precision = Precision::master;
    const ValueId ds = node(b).outputs[0], sums = g_.add_value(std::move(v));
    node(a).outputs[3] = ds;
    node(a).outputs.push_back(sums);
    become(node(b), BatchNormBackwardOfShortcut{});
    node(b).inputs = {ds, back[1], back[2], back[3], back[4], back[5], sums};
    node(b).outputs.erase(node(b).outputs.begin());
    fused_.shortcuts.push_back(node(j).name);
  }

  // Removes the unused nodes and renumbers the producers. All of them are in the backward pass. Therefore forward nodes
  // keep the numbers that they have in the graph of evaluations.
  void compact() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < g_.nodes.size(); ++i) {
      if (removed_[i]) continue;
      if (kept != i) g_.nodes[kept] = std::move(g_.nodes[i]);
      ++kept;
    }
    g_.nodes.resize(kept);
    for (Value& v : g_.values) v.producer = -1;
    for (std::size_t i = 0; i < g_.nodes.size(); ++i)
      for (ValueId v : g_.nodes[i].outputs) g_[v].producer = static_cast<NodeId>(i);
  }

  Graph& g_;
  NormFusions o_;
  std::vector<char> removed_;
  std::vector<std::vector<NodeId>> readers_;  // of each value that is an input
  FusedLayers fused_;
};

}  // namespace detail

// Rewrites chains around batch norms of a differentiated graph into tutti's own ops. The parameters, their gradients,
// the order of the gradients, and the numbers of the forward nodes do not change.
inline FusedLayers fuse_norms(Graph& g, const NormFusions& o) { return detail::NormFuser(g, o).run(); }

}  // namespace tutti::cuda
