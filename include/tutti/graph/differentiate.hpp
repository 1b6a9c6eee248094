// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/custom.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

namespace detail {

// Appends backward nodes to a graph, walking the forward nodes in reverse.
template <class = void>
class Differentiator {
 public:
  explicit Differentiator(Graph& g) : g_(g), pending_(g.values.size()) {}

  void run() {
    if (g_.metrics == no_value) fail<UsageError>("differentiate", "a model that ends in softmax_cross_entropy", "none");
    const auto forward = static_cast<NodeId>(g_.nodes.size());
    for (NodeId i = forward - 1; i >= 0; --i) {
      const Node n = g_.nodes[static_cast<std::size_t>(i)];  // a copy: the vector grows
      visit_op(n.op, [&](const auto& o) { backward(n, i, o); });
    }
  }

 private:
  [[nodiscard]] bool wanted(ValueId v) const { return g_[v].requires_grad; }

  void contribute(ValueId v, ValueId gradient) { pending_[static_cast<std::size_t>(v)].push_back(gradient); }

  ValueId new_gradient(ValueId of) {
    const Value& v = g_[of];
    Value d{"d " + v.name, v.shape, v.per_row};
    if (v.storage == Storage::parameter) {
      d.name = v.name;
      d.storage = Storage::gradient;
      d.precision = Precision::master;
    }
    const ValueId id = g_.add_value(std::move(d));
    if (g_[of].storage == Storage::parameter) {
      if (g_[of].gradient != no_value)
        fail<UsageError>("differentiate", "each parameter used by one op", "'" + g_[of].name + "' used twice",
                         "apply a shared parameter in one op");
      g_[of].gradient = id;
    }
    pending_.resize(g_.values.size());
    return id;
  }

  void emit(const Node& of, const Op& op, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
            std::shared_ptr<const void> owned = {}) {
    g_.add_node({op, std::move(inputs), std::move(outputs), of.name, true, std::move(owned)});
  }

  // Adds contributions up until at most `most` are left.
  std::vector<ValueId> gradients(const Node& n, ValueId v, std::size_t most = 1) {
    auto list = pending_[static_cast<std::size_t>(v)];
    while (list.size() > most) {
      const ValueId b = list.back();
      list.pop_back();
      const ValueId a = list.back();
      list.pop_back();
      const ValueId sum = new_gradient(v);
      emit(n, op::Add{}, {a, b}, {sum});
      list.push_back(sum);
    }
    return list;
  }
  // The gradient of a node's only differentiable output, or no_value where nothing depends on it.
  ValueId gradient(const Node& n) {
    const auto list = gradients(n, n.outputs[0]);
    return list.empty() ? no_value : list[0];
  }

  void backward(const Node&, NodeId, const op::Normalize&) {}

  void backward(const Node&, NodeId i, const op::SoftmaxCrossEntropy&) {
    Node& n = g_.nodes[static_cast<std::size_t>(i)];
    const ValueId logits = n.inputs[0];
    if (!wanted(logits)) return;
    std::get<op::SoftmaxCrossEntropy>(n.op).backward = true;
    const ValueId d = new_gradient(logits);
    Node& again = g_.nodes[static_cast<std::size_t>(i)];
    again.outputs.push_back(d);
    g_[d].producer = i;
    contribute(logits, d);
  }

  void backward(const Node& n, NodeId, const op::Conv2d& o) {
    const ValueId dy = gradient(n);
    if (dy == no_value) return;
    // Weights first: their gradient can travel while the data gradient is computed.
    if (wanted(n.inputs[1]))
      emit(n, op::Conv2dBackwardWeights{o}, {again(n, n.inputs[0]), dy}, {new_gradient(n.inputs[1])});
    if (wanted(n.inputs[0])) {
      const ValueId dx = new_gradient(n.inputs[0]);
      emit(n, op::Conv2dBackwardData{o}, {dy, n.inputs[1]}, {dx});
      contribute(n.inputs[0], dx);
    }
  }

  // A convolution's or gelu's input for the backward pass. The output of batch norm (+ relu) without a residual is
  // computed again from what batch norm keeps anyway: it costs less than writing it to memory and reading it back, and
  // takes no memory.
  ValueId again(const Node& of, ValueId x) {
    if (g_[x].producer < 0) return x;
    const Node made = g_.nodes[static_cast<std::size_t>(g_[x].producer)];
    const auto* bn = std::get_if<op::BatchNorm>(&made.op);
    if (bn == nullptr || bn->residual || made.outputs[0] != x) return x;
    Value v{g_[x].name + " again", g_[x].shape, g_[x].per_row};
    const ValueId id = g_.add_value(std::move(v));
    pending_.resize(g_.values.size());
    emit(of, op::BatchNormInference{bn->eps, bn->relu, false, true},
         {made.inputs[0], made.inputs[1], made.inputs[2], made.outputs[1], made.outputs[2]}, {id});
    return id;
  }

  void backward(const Node& n, NodeId, const op::BatchNorm& o) {
    // Two contributions are read by the op itself; it saves a pass over memory.
    const auto dy = gradients(n, n.outputs[0], 2);
    if (dy.empty()) return;
    const bool mask_from_y = o.relu && o.residual;
    std::vector<ValueId> in = dy;
    in.insert(in.end(), {n.inputs[0], n.inputs[1], n.inputs[2], n.outputs[1], n.outputs[2]});
    if (mask_from_y) in.push_back(n.outputs[0]);
    const ValueId dx = new_gradient(n.inputs[0]);
    std::vector<ValueId> out{dx};
    for (std::size_t p : {1U, 2U}) out.push_back(gradient_or_scratch(n.inputs[p]));
    if (o.residual) out.push_back(new_gradient(n.inputs[5]));
    emit(n, op::BatchNormBackward{o.relu, o.residual, dy.size() == 2}, std::move(in), out);
    if (wanted(n.inputs[0])) contribute(n.inputs[0], dx);
    if (o.residual && wanted(n.inputs[5])) contribute(n.inputs[5], out[3]);
  }
  // A parameter that does not learn still has its gradient computed, into scratch.
  ValueId gradient_or_scratch(ValueId p) {
    if (wanted(p)) return new_gradient(p);
    const ValueId id = g_.add_value({"d " + g_[p].name, g_[p].shape, false, Storage::activation, Precision::master});
    pending_.resize(g_.values.size());
    return id;
  }

  void backward(const Node&, NodeId, const op::BatchNormInference&) {
    fail<UsageError>("differentiate", "a training graph", "one made for inference");
  }

  void backward(const Node& n, NodeId, const op::Relu&) {
    through(n, [&](ValueId dy, ValueId dx) { emit(n, op::ReluBackward{}, {dy, n.outputs[0]}, {dx}); });
  }
  void backward(const Node& n, NodeId, const op::Gelu&) {
    through(n, [&](ValueId dy, ValueId dx) { emit(n, op::GeluBackward{}, {dy, again(n, n.inputs[0])}, {dx}); });
  }
  void backward(const Node& n, NodeId, const op::Add&) {
    const ValueId dy = gradient(n);
    if (dy == no_value) return;
    for (ValueId v : n.inputs)
      if (wanted(v)) contribute(v, dy);
  }
  void backward(const Node& n, NodeId, const op::Bias&) {
    const ValueId dy = gradient(n);
    if (dy == no_value) return;
    if (wanted(n.inputs[1])) emit(n, op::BiasBackward{}, {dy}, {new_gradient(n.inputs[1])});
    if (wanted(n.inputs[0])) contribute(n.inputs[0], dy);
  }
  void backward(const Node& n, NodeId, const op::MaxPool& o) {
    through(n, [&](ValueId dy, ValueId dx) { emit(n, op::MaxPoolBackward{o}, {dy, n.outputs[1]}, {dx}); });
  }
  void backward(const Node& n, NodeId, const op::GlobalAvgPool&) {
    through(n, [&](ValueId dy, ValueId dx) { emit(n, op::GlobalAvgPoolBackward{}, {dy}, {dx}); });
  }
  void backward(const Node& n, NodeId, const op::Linear&) {
    const ValueId dy = gradient(n);
    if (dy == no_value) return;
    if (wanted(n.inputs[1]) || wanted(n.inputs[2])) {
      const ValueId db = gradient_or_scratch(n.inputs[2]);
      emit(n, op::LinearBackwardWeights{}, {n.inputs[0], dy}, {gradient_or_scratch(n.inputs[1]), db});
    }
    if (wanted(n.inputs[0])) {
      const ValueId dx = new_gradient(n.inputs[0]);
      emit(n, op::LinearBackwardData{}, {dy, n.inputs[1]}, {dx});
      contribute(n.inputs[0], dx);
    }
  }
  void backward(const Node& n, NodeId, const op::Custom& o) {
    std::vector<ValueId> in;
    for (ValueId y : n.outputs) {
      const auto list = gradients(n, y);
      if (list.empty()) {
        if (in.empty() && n.outputs.size() == 1) return;
        fail<UsageError>("differentiate", "a loss that depends on every output of '" + o.def->name + "'", "not all");
      }
      in.push_back(list[0]);
    }
    if (o.def->backward.empty())
      fail<UsageError>("differentiate", "a gradient for the custom op '" + o.def->name + "'", "none",
                       "fill CustomOp::backward");
    in.insert(in.end(), n.inputs.begin(), n.inputs.end());
    in.insert(in.end(), n.outputs.begin(), n.outputs.end());
    std::vector<ValueId> out;
    for (ValueId x : n.inputs) {
      const bool learn = wanted(x);
      const ValueId dx = g_[x].storage == Storage::parameter && !learn ? gradient_or_scratch(x) : new_gradient(x);
      out.push_back(dx);
      if (learn && g_[x].storage != Storage::parameter) contribute(x, dx);
    }
    emit(n, op::CustomBackward{o.def}, std::move(in), std::move(out), n.owned);
  }
  // The backward of non-differentiated ops never occurs in a forward graph.
  template <class O>
  void backward(const Node& n, NodeId, const O&) {
    fail<UsageError>("differentiate", "a forward graph", "a backward op in '" + n.name + "'");
  }

  template <class F>
  void through(const Node& n, F&& f) {
    const ValueId dy = gradient(n);
    if (dy == no_value || !wanted(n.inputs[0])) return;
    const ValueId dx = new_gradient(n.inputs[0]);
    f(dy, dx);
    contribute(n.inputs[0], dx);
  }

  Graph& g_;
  std::vector<std::vector<ValueId>> pending_;  // gradient contributions of each value
};

}  // namespace detail

// Appends the backward pass: afterwards every trainable parameter that the loss depends on has a gradient value,
// written once, in the order in which the nodes stand.
template <class = void>
[[nodiscard]] Graph differentiate(Graph g) {
  detail::Differentiator<>(g).run();
  return g;
}

TUTTI_CORE_INSTANCE(template Graph differentiate<>(Graph));

}  // namespace tutti
