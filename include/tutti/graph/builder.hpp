// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/custom.hpp>
#include <tutti/graph/graph.hpp>

namespace tutti {

// Records a model. Every call checks its shapes and throws ShapeError on the spot, naming the layer. Values are handles
// into the builder's graph.
class Builder {
 public:
  // Images of [channels, height, width] and labels: what every classifier reads.
  Builder(std::int64_t channels, std::int64_t height, std::int64_t width) {
    for (auto d : {channels, height, width})
      if (d < 1) fail<ShapeError>("images", "extents of 1 or more", std::to_string(d));
    graph_.images =
        graph_.add_value({"images", Shape{1, channels, height, width}, true, Storage::image, Precision::u8});
    graph_.labels = graph_.add_value({"labels", Shape{1}, true, Storage::labels, Precision::i32});
  }

  [[nodiscard]] ValueId images() const noexcept { return graph_.images; }
  [[nodiscard]] ValueId labels() const noexcept { return graph_.labels; }
  [[nodiscard]] const Shape& shape(ValueId v) const { return graph_[v].shape; }
  [[nodiscard]] const Graph& graph() const noexcept { return graph_; }
  [[nodiscard]] Graph take() && { return std::move(graph_); }

  // A learned tensor, or one that stays as it is. Names are torchvision's ("layer1.0.conv1.weight") and unique. `rate`
  // multiplies the learning rate.
  ValueId parameter(const std::string& name, const Shape& shape, Initializer init, bool decay = true,
                    bool trainable = true, double rate = 1) {
    if (!(rate > 0 && rate <= 1e6)) fail<UsageError>(name, "a rate over 0 and up to 1e6", std::to_string(rate));
    Value v{unique(name), shape, false, Storage::parameter, Precision::master};
    v.requires_grad = trainable;
    v.init = std::move(init);
    v.trainable = trainable;
    v.decay = decay;
    v.rate = rate;
    return graph_.add_value(std::move(v));
  }
  // A tensor that training changes without a gradient, e.g. running statistics.
  ValueId state(const std::string& name, const Shape& shape, Initializer init) {
    Value v{unique(name), shape, false, Storage::state, Precision::master};
    v.init = std::move(init);
    v.trainable = false;
    return graph_.add_value(std::move(v));
  }

  ValueId normalize(std::vector<float> mean, std::vector<float> inv_std) {
    const Shape s = shape(graph_.images);
    if (static_cast<std::int64_t>(mean.size()) != s[1] || mean.size() != inv_std.size())
      fail<ShapeError>("normalize", std::to_string(s[1]) + " means and deviations", std::to_string(mean.size()));
    auto factors =
        std::make_shared<const std::array<std::vector<float>, 2>>(std::array{std::move(mean), std::move(inv_std)});
    const op::Normalize o{(*factors)[0], (*factors)[1]};
    return record("normalize", o, {graph_.images}, {s}, std::move(factors));
  }

  ValueId conv2d(const std::string& name, ValueId x, ValueId w, op::Window window) {
    const Shape &xs = need_rank(name, x, 4), ws = need_parameter(name, w);
    if (ws.rank() != 4 || ws[1] != xs[1] || ws[2] != window.kernel_h || ws[3] != window.kernel_w)
      fail<ShapeError>(name,
                       "weights [O, " + std::to_string(xs[1]) + ", " + std::to_string(window.kernel_h) + ", " +
                           std::to_string(window.kernel_w) + "]",
                       to_string(ws));
    const Shape ys = window_shape(name, xs, ws[0], window);
    return record(name, op::Conv2d{window}, {x, w}, {ys});
  }

  struct BatchNormInputs {
    ValueId gamma, beta, running_mean, running_var;
    ValueId residual = no_value;
  };
  ValueId batch_norm(const std::string& name, ValueId x, const BatchNormInputs& in, op::BatchNorm attributes) {
    const Shape xs = need_rank(name, x, 4);
    for (ValueId p : {in.gamma, in.beta, in.running_mean, in.running_var})
      if (need_tensor(name, p) != Shape{xs[1]})
        fail<ShapeError>(name, "per-channel tensors " + to_string(Shape{xs[1]}), to_string(shape(p)));
    std::vector<ValueId> inputs{x, in.gamma, in.beta, in.running_mean, in.running_var};
    attributes.residual = in.residual != no_value;
    if (attributes.residual) {
      same_shape(name, x, in.residual);
      inputs.push_back(in.residual);
    }
    const ValueId y = record(name, attributes, inputs, {xs});
    for (const char* what : {".mean", ".inv_std"}) {
      const ValueId s = graph_.add_value({name + what, Shape{xs[1]}, false, Storage::activation, Precision::master});
      graph_[s].producer = graph_[y].producer;
      graph_.nodes.back().outputs.push_back(s);
    }
    return y;
  }

  ValueId relu(const std::string& name, ValueId x) { return record(name, op::Relu{}, {x}, {need_rows(name, x)}); }
  ValueId gelu(const std::string& name, ValueId x) { return record(name, op::Gelu{}, {x}, {need_rows(name, x)}); }
  ValueId add(const std::string& name, ValueId a, ValueId b) {
    same_shape(name, a, b);
    return record(name, op::Add{}, {a, b}, {shape(a)});
  }
  ValueId bias(const std::string& name, ValueId x, ValueId b) {
    const Shape xs = need_rows(name, x);
    if (xs.rank() < 2 || need_parameter(name, b) != Shape{xs[1]})
      fail<ShapeError>(name, "a bias of one value a channel", to_string(shape(b)) + " for " + to_string(graph_[x]));
    return record(name, op::Bias{}, {x, b}, {xs});
  }
  ValueId max_pool(const std::string& name, ValueId x, op::Window window) {
    const Shape xs = need_rank(name, x, 4);
    if (window.kernel_h * window.kernel_w > 255 || window.padding * 2 > std::min(window.kernel_h, window.kernel_w))
      fail<ShapeError>(name, "a window of at most 255 places, padded by at most half its size",
                       std::to_string(window.kernel_h) + "x" + std::to_string(window.kernel_w));
    const Shape ys = window_shape(name, xs, xs[1], window);
    const ValueId y = record(name, op::MaxPool{window}, {x}, {ys});
    const ValueId which = graph_.add_value({name + ".which", ys, true, Storage::activation, Precision::u8});
    graph_[which].producer = graph_[y].producer;
    graph_.nodes.back().outputs.push_back(which);
    return y;
  }
  ValueId global_avg_pool(const std::string& name, ValueId x) {
    const Shape xs = need_rank(name, x, 4);
    return record(name, op::GlobalAvgPool{}, {x}, {Shape{1, xs[1], 1, 1}});
  }
  ValueId linear(const std::string& name, ValueId x, ValueId w, ValueId b) {
    const Shape xs = need_rows(name, x), ws = need_parameter(name, w);
    if (ws.rank() != 2 || ws[1] != xs.row_numel() || need_parameter(name, b) != Shape{ws[0]})
      fail<ShapeError>(name, "weights [O, " + std::to_string(xs.row_numel()) + "] and a bias [O]",
                       to_string(ws) + " and " + to_string(shape(b)));
    if (xs.rank() == 4 && xs[2] * xs[3] != 1)
      fail<ShapeError>(name, "an input of 1x1 pixels", to_string(graph_[x]), "pool it first, e.g. global_avg_pool");
    return record(name, op::Linear{}, {x, w, b}, {Shape{1, ws[0]}});
  }
  // Ends the model: `logits` [N, classes].
  void softmax_cross_entropy(ValueId logits, float label_smoothing = 0, int top_k = 5) {
    const Shape s = need_rank("loss", logits, 2);
    if (!(label_smoothing >= 0 && label_smoothing < 1))
      fail<UsageError>("loss", "label smoothing in [0, 1)", std::to_string(label_smoothing));
    if (graph_.metrics != no_value) fail<UsageError>("loss", "one loss", "a second one");
    graph_.logits = logits;
    Node n{op::SoftmaxCrossEntropy{label_smoothing, static_cast<int>(std::min<std::int64_t>(top_k, s[1])), false},
           {logits, graph_.labels},
           {},
           "loss"};
    graph_.metrics = graph_.add_value({"metrics", Shape{4}, false, Storage::activation, Precision::metric});
    n.outputs = {graph_.metrics};
    graph_.add_node(std::move(n));
  }

  // An op of the user's own on per-row inputs (and parameters); returns its outputs.
  std::vector<ValueId> custom(const std::string& name, std::shared_ptr<const CustomOp> def,
                              const std::vector<ValueId>& inputs) {
    CustomOp::Shapes shapes;
    for (ValueId v : inputs) shapes.push_back(shape(v));
    const CustomOp::Shapes outs = def->shape(shapes);
    if (outs.empty()) fail<ShapeError>(name, "an op with one output or more", "none");
    for (const Shape& s : outs)
      if (s.rank() < 1 || s[0] != 1) fail<ShapeError>(name, "outputs of one row, [1, ...]", to_string(s));
    const op::Custom o{def.get()};
    record(name, o, inputs, outs, std::move(def));
    return graph_.nodes.back().outputs;
  }

 private:
  std::string unique(const std::string& name) {
    if (name.empty() || !names_.insert(name).second)
      fail<UsageError>("builder", "a parameter name of its own", "'" + name + "' again");
    return name;
  }
  // What the batch flows through: an activation, not the raw u8 images, labels or a parameter.
  const Shape& need_rows(const std::string& name, ValueId v) const {
    const Value& x = graph_[v];
    if (!x.per_row || x.precision != Precision::compute)
      fail<ShapeError>(name, "an activation", "'" + x.name + "' " + to_string(x),
                       v == graph_.images ? "normalize() the images first" : "");
    return x.shape;
  }
  const Shape& need_tensor(const std::string& name, ValueId v) const {
    const Value& x = graph_[v];
    if (x.storage != Storage::parameter && x.storage != Storage::state)
      fail<ShapeError>(name, "a parameter or a state", "'" + x.name + "' " + to_string(x));
    return x.shape;
  }
  const Shape& need_parameter(const std::string& name, ValueId v) const {
    if (graph_[v].storage != Storage::parameter)
      fail<ShapeError>(name, "a parameter", "'" + graph_[v].name + "' " + to_string(graph_[v]));
    return shape(v);
  }
  const Shape& need_rank(const std::string& name, ValueId v, int rank) const {
    need_rows(name, v);
    if (shape(v).rank() != rank)
      fail<ShapeError>(name, "an input of " + std::to_string(rank) + " dimensions", to_string(graph_[v]));
    return shape(v);
  }
  void same_shape(const std::string& name, ValueId a, ValueId b) const {
    need_rows(name, a);
    need_rows(name, b);
    if (shape(a) != shape(b))
      fail<ShapeError>(name, "two inputs of one shape", to_string(graph_[a]) + " and " + to_string(graph_[b]));
  }
  static Shape window_shape(const std::string& name, const Shape& xs, std::int64_t channels, const op::Window& w) {
    if (w.kernel_h < 1 || w.kernel_w < 1 || w.stride < 1 || w.padding < 0)
      fail<ShapeError>(name, "a kernel and stride of 1 or more",
                       "kernel " + std::to_string(w.kernel_h) + "x" + std::to_string(w.kernel_w) + ", stride " +
                           std::to_string(w.stride));
    if (xs[2] + 2 * w.padding < w.kernel_h || xs[3] + 2 * w.padding < w.kernel_w)
      fail<ShapeError>(name, "an image at least as large as the kernel", to_string(xs));
    return Shape{1, channels, w.out_h(xs[2]), w.out_w(xs[3])};
  }
  ValueId record(const std::string& name, const Op& op, const std::vector<ValueId>& inputs,
                 const std::vector<Shape>& outs, std::shared_ptr<const void> owned = {}) {
    bool grad = false;
    for (ValueId v : inputs) grad = grad || graph_[v].requires_grad;
    Node n{op, inputs, {}, name};
    n.owned = std::move(owned);
    for (const Shape& s : outs) {
      Value v{name, s, true};
      v.requires_grad = grad;
      n.outputs.push_back(graph_.add_value(std::move(v)));
    }
    const ValueId first = n.outputs.front();
    graph_.add_node(std::move(n));
    return first;
  }

  Graph graph_;
  std::set<std::string> names_;
};

}  // namespace tutti
