// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/graph/custom.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

// Records a model. Every call checks its shapes immediately and throws a ShapeError that names the layer. A ValueId is
// a handle to a value of the builder's graph.
class Builder {
 public:
  // Starts a model that reads images of [channels, height, width] and labels, as every classifier does.
  Builder(std::int64_t channels, std::int64_t height, std::int64_t width);

  [[nodiscard]] ValueId images() const noexcept { return graph_.images; }
  [[nodiscard]] ValueId labels() const noexcept { return graph_.labels; }
  [[nodiscard]] const Shape& shape(ValueId v) const { return graph_[v].shape; }
  [[nodiscard]] const Graph& graph() const noexcept { return graph_; }
  [[nodiscard]] Graph take() && { return std::move(graph_); }

  // Adds a tensor that is learned, or a constant tensor if not `trainable`. Names must be unique, and follow
  // torchvision ("layer1.0.conv1.weight"). decay: weight decay applies. lr_scale: multiplies the learning rate.
  ValueId parameter(const std::string& name, const Shape& shape, Initializer init, bool decay = true,
                    bool trainable = true, double lr_scale = 1);
  // Adds a tensor that training changes without a gradient, for example running statistics.
  ValueId state(const std::string& name, const Shape& shape, Initializer init);

  // Adds an op of any kind, which checks its inputs, and returns its first output. owned: data to which the op refers;
  // the node keeps it alive.
  template <class O>
  ValueId record(const std::string& name, const O& op, const std::vector<ValueId>& inputs,
                 const std::shared_ptr<const void>& owned = {}) {
    return append(name, Op(std::in_place_type<O>, op), inputs, op.outputs({name, graph_.values, inputs}), owned)
        .front();
  }

  ValueId normalize(std::vector<float> mean, std::vector<float> inv_std);
  ValueId conv2d(const std::string& name, ValueId x, ValueId w, op::Window window, int groups = 1);
  struct BatchNormInputs {  // Parameters and states of batch norm.
    ValueId gamma, beta, running_mean, running_var;
    ValueId residual = no_value;
  };
  ValueId batch_norm(const std::string& name, ValueId x, const BatchNormInputs& in, op::BatchNorm attributes);
  ValueId relu(const std::string& name, ValueId x);
  ValueId gelu(const std::string& name, ValueId x);
  ValueId add(const std::string& name, ValueId a, ValueId b);
  ValueId bias(const std::string& name, ValueId x, ValueId b);
  ValueId max_pool(const std::string& name, ValueId x, op::Window window);
  ValueId global_avg_pool(const std::string& name, ValueId x);
  ValueId linear(const std::string& name, ValueId x, ValueId w, ValueId b);
  // Adds the loss, which ends the model. logits: [N, classes].
  void softmax_cross_entropy(ValueId logits, float label_smoothing = 0, int top_k = 5) {
    end(logits, op::SoftmaxCrossEntropy{label_smoothing, top_k});
  }
  // The same with all options of the loss.
  void end(ValueId logits, op::SoftmaxCrossEntropy loss);
  // From here on, the labels of training have the form of MixedLabel (core/mixed_label.hpp). Those of an evaluation do
  // not.
  void mix_labels() { graph_[graph_.labels].shape = Shape{1, 3}; }
  // Adds a user-defined op and returns its outputs. inputs: values with one row for each image, and parameters.
  std::vector<ValueId> custom(const std::string& name, const std::shared_ptr<const CustomOp>& def,
                              const std::vector<ValueId>& inputs);

 private:
  std::string unique(const std::string& name);
  // Adds a node and returns its outputs.
  const std::vector<ValueId>& append(const std::string& name, const Op& op, const std::vector<ValueId>& inputs,
                                     const OpOutputs& outputs, const std::shared_ptr<const void>& owned = {});

  Graph graph_;
  std::set<std::string> names_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION Builder::Builder(std::int64_t channels, std::int64_t height, std::int64_t width) {
  for (auto d : {channels, height, width})
    if (d < 1) fail<ShapeError>("images", "extents of 1 or more", d);
  graph_.images = graph_.add_value({"images", Shape{1, channels, height, width}, true, Storage::image, Precision::u8});
  graph_.labels = graph_.add_value({"labels", Shape{1}, true, Storage::labels, Precision::i32});
}
TUTTI_CORE_FUNCTION ValueId Builder::parameter(const std::string& name, const Shape& shape, Initializer init,
                                               bool decay, bool trainable, double lr_scale) {
  if (!(lr_scale > 0 && lr_scale <= 1e6)) fail<UsageError>(name, "a rate over 0 and up to 1e6", lr_scale);
  Value v{unique(name), shape, false, Storage::parameter, Precision::master};
  v.requires_grad = trainable;
  v.init = std::move(init);
  v.trainable = trainable;
  v.decay = decay;
  v.lr_scale = lr_scale;
  return graph_.add_value(std::move(v));
}
TUTTI_CORE_FUNCTION ValueId Builder::state(const std::string& name, const Shape& shape, Initializer init) {
  Value v{unique(name), shape, false, Storage::state, Precision::master};
  v.init = std::move(init);
  v.trainable = false;
  return graph_.add_value(std::move(v));
}
TUTTI_CORE_FUNCTION ValueId Builder::normalize(std::vector<float> mean, std::vector<float> inv_std) {
  auto factors =
      std::make_shared<const std::array<std::vector<float>, 2>>(std::array{std::move(mean), std::move(inv_std)});
  return record("normalize", op::Normalize{span_of((*factors)[0]), span_of((*factors)[1])}, {graph_.images}, factors);
}
TUTTI_CORE_FUNCTION ValueId Builder::conv2d(const std::string& name, ValueId x, ValueId w, op::Window window,
                                            int groups) {
  return record(name, op::Conv2d{window, groups}, {x, w});
}
TUTTI_CORE_FUNCTION ValueId Builder::batch_norm(const std::string& name, ValueId x, const BatchNormInputs& in,
                                                op::BatchNorm attributes) {
  std::vector<ValueId> inputs{x, in.gamma, in.beta, in.running_mean, in.running_var};
  attributes.residual = in.residual != no_value;
  if (attributes.residual) inputs.push_back(in.residual);
  return record(name, attributes, inputs);
}
TUTTI_CORE_FUNCTION ValueId Builder::relu(const std::string& name, ValueId x) { return record(name, op::Relu{}, {x}); }
TUTTI_CORE_FUNCTION ValueId Builder::gelu(const std::string& name, ValueId x) { return record(name, op::Gelu{}, {x}); }
TUTTI_CORE_FUNCTION ValueId Builder::add(const std::string& name, ValueId a, ValueId b) {
  return record(name, op::Add{}, {a, b});
}
TUTTI_CORE_FUNCTION ValueId Builder::bias(const std::string& name, ValueId x, ValueId b) {
  return record(name, op::Bias{}, {x, b});
}
TUTTI_CORE_FUNCTION ValueId Builder::max_pool(const std::string& name, ValueId x, op::Window window) {
  return record(name, op::MaxPool{window}, {x});
}
TUTTI_CORE_FUNCTION ValueId Builder::global_avg_pool(const std::string& name, ValueId x) {
  return record(name, op::GlobalAvgPool{}, {x});
}
TUTTI_CORE_FUNCTION ValueId Builder::linear(const std::string& name, ValueId x, ValueId w, ValueId b) {
  return record(name, op::Linear{}, {x, w, b});
}
TUTTI_CORE_FUNCTION void Builder::end(ValueId logits, op::SoftmaxCrossEntropy loss) {
  const std::vector<ValueId> inputs{logits, graph_.labels};
  const std::string name = "loss";
  const OpOutputs outputs = loss.outputs({name, graph_.values, inputs});
  if (graph_.metrics != no_value) fail<UsageError>(name, "one loss", "a second loss");
  loss.top_k = static_cast<int>(std::min<std::int64_t>(loss.top_k, shape(logits)[1]));
  graph_.logits = logits;
  graph_.metrics = append(name, loss, inputs, outputs).front();
}
TUTTI_CORE_FUNCTION std::vector<ValueId> Builder::custom(const std::string& name,
                                                         const std::shared_ptr<const CustomOp>& def,
                                                         const std::vector<ValueId>& inputs) {
  record(name, op::Custom{def.get()}, inputs, def);
  return graph_.nodes.back().outputs;
}
TUTTI_CORE_FUNCTION std::string Builder::unique(const std::string& name) {
  if (name.empty() || !names_.insert(name).second)
    fail<UsageError>("builder", "an unused parameter name", {"'", name, "' again"});
  return name;
}
TUTTI_CORE_FUNCTION const std::vector<ValueId>& Builder::append(const std::string& name, const Op& op,
                                                                const std::vector<ValueId>& inputs,
                                                                const OpOutputs& outputs,
                                                                const std::shared_ptr<const void>& owned) {
  bool grad = false;
  for (const ValueId v : inputs) grad = grad || graph_[v].requires_grad;
  Node n{op, inputs, {}, name, false, owned};
  for (const OpOutput& o : outputs) {
    Value v{o.name, o.shape, o.per_row, Storage::activation, o.precision};
    v.requires_grad = grad && o.precision == Precision::compute;
    n.outputs.push_back(graph_.add_value(std::move(v)));
  }
  return graph_.nodes[static_cast<std::size_t>(graph_.add_node(std::move(n)))].outputs;
}
#endif

}  // namespace tutti
