// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/weighted_graph.hpp>
#include <tutti/interchange/model_card.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/io/protobuf.hpp>
#include <tutti/version.hpp>

// Writes nets as ONNX files (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3).
namespace tutti::interchange {

// The input and output of an ONNX file's net.
struct OnnxOptions {
  // false: the input is (pixel - mean) / stddev for each channel, like the result of torchvision's normalize. true: the
  // input is pixels from 0 to 255.
  bool pixels = false;
  bool probabilities = false;  // the output is the softmax of the logits
};

namespace detail {

// The messages that a net needs. The numbers in the calls are those of the messages' fields.
namespace onnx {

inline constexpr std::int64_t ir_version = 8, opset = 17, type_float = 1;
namespace pb = io::protobuf;

struct Attribute {
  std::string_view name;
  std::variant<std::int64_t, float, std::vector<std::int64_t>> value;
};

inline std::string encode(const Attribute& a) {
  std::string out;
  pb::append_bytes(out, 1, a.name);
  std::int64_t type = 0;
  if (const auto* f = std::get_if<float>(&a.value)) {
    pb::append_float(out, 2, *f);
    type = 1;
  } else if (const auto* i = std::get_if<std::int64_t>(&a.value)) {
    pb::append_int(out, 3, *i);
    type = 2;
  } else {
    for (const std::int64_t v : std::get<std::vector<std::int64_t>>(a.value)) pb::append_int(out, 8, v);
    type = 7;
  }
  pb::append_int(out, 20, type);
  return out;
}

// Returns a tensor of f32.
inline std::string tensor(std::string_view name, std::span<const std::int64_t> dims, std::span<const float> values) {
  std::string out;
  for (const std::int64_t d : dims) pb::append_int(out, 1, d);
  pb::append_int(out, 2, type_float);
  pb::append_bytes(out, 8, name);
  pb::append_bytes(out, 9, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  return out;
}

// Returns an input or output of f32 with a variable first extent.
inline std::string value_info(std::string_view name, std::span<const std::int64_t> row_dims) {
  std::string dims, any, type, tensor_type, out;
  pb::append_bytes(any, 2, "batch");
  pb::append_bytes(dims, 1, any);
  for (const std::int64_t d : row_dims) {
    std::string dim;
    pb::append_int(dim, 1, d);
    pb::append_bytes(dims, 1, dim);
  }
  pb::append_int(tensor_type, 1, type_float);
  pb::append_bytes(tensor_type, 2, dims);
  pb::append_bytes(type, 1, tensor_type);
  pb::append_bytes(out, 1, name);
  pb::append_bytes(out, 2, type);
  return out;
}

class GraphWriter {
 public:
  GraphWriter(const WeightedGraph& net, const OnnxOptions& o) : net_(net), g_(net.graph), o_(o) {
    names_.resize(g_.values.size());
    used_ = {"images", "logits", "probabilities"};
  }

  std::string write() {
    const std::vector<int> uses = tutti::detail::count_uses(g_);
    for (std::size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      // A bias directly after a convolution becomes the convolution's own.
      const Node* const next = i + 1 < g_.nodes.size() ? &g_.nodes[i + 1] : nullptr;
      const bool takes_bias = std::holds_alternative<op::Conv2d>(n.op) && next != nullptr &&
                              std::holds_alternative<op::Bias>(next->op) && next->inputs[0] == n.outputs[0] &&
                              uses[static_cast<std::size_t>(n.outputs[0])] == 1;
      add(n, takes_bias ? next : nullptr);
      if (takes_bias) ++i;
    }
    if (o_.probabilities) node("Softmax", "softmax", {name(g_.logits)}, "probabilities", {{"axis", std::int64_t{1}}});
    std::string graph = std::move(nodes_);
    pb::append_bytes(graph, 2, "net");
    graph += initializers_;
    const Shape &image = g_[g_.images].shape, &logits = g_[g_.logits].shape;
    pb::append_bytes(graph, 11, value_info("images", image.dims().subspan(1)));
    pb::append_bytes(graph, 12, value_info(o_.probabilities ? "probabilities" : "logits", logits.dims().subspan(1)));
    return graph;
  }

 private:
  using Attributes = std::vector<Attribute>;

  void node(std::string_view op, std::string_view name, const std::vector<std::string>& in, std::string_view out,
            const Attributes& attributes = {}) {
    std::string n;
    for (const std::string& i : in) pb::append_bytes(n, 1, i);
    pb::append_bytes(n, 2, out);
    pb::append_bytes(n, 3, name);
    pb::append_bytes(n, 4, op);
    for (const Attribute& a : attributes) pb::append_bytes(n, 5, encode(a));
    pb::append_bytes(nodes_, 1, n);
  }

  [[nodiscard]] std::string unique(const std::string& wanted) {
    std::string is = wanted;
    for (int k = 2; !used_.insert(is).second; ++k) is = wanted + "." + std::to_string(k);
    return is;
  }
  std::string constant(const std::string& wanted, std::initializer_list<std::int64_t> dims,
                       std::span<const float> values) {
    std::string is = unique(wanted);
    pb::append_bytes(initializers_, 5, tensor(is, {dims.begin(), dims.size()}, values));
    return is;
  }
  // Returns the name of a parameter or running statistic. The first call for a tensor writes it.
  const std::string& weights(ValueId v) {
    std::string& is = names_[static_cast<std::size_t>(v)];
    if (is.empty()) {
      is = unique(g_[v].name);
      pb::append_bytes(initializers_, 5, tensor(is, g_[v].shape.dims(), net_.of(v)));
    }
    return is;
  }
  // Adds a tensor with one value for each channel. Its shape broadcasts to activations of the rank of x.
  std::string per_channel(const std::string& wanted, ValueId x, std::span<const float> values) {
    const auto channels = static_cast<std::int64_t>(values.size());
    return g_[x].shape.rank() == 4 ? constant(wanted, {1, channels, 1, 1}, values)
                                   : constant(wanted, {1, channels}, values);
  }

  [[nodiscard]] const std::string& name(ValueId v) const { return names_[static_cast<std::size_t>(v)]; }
  // Returns the name of the node's output.
  const std::string& made(const Node& n) {
    const ValueId v = n.outputs[0];
    std::string& is = names_[static_cast<std::size_t>(v)];
    is = v == g_.logits ? "logits" : unique(n.name);
    return is;
  }

  static Attributes window(const op::Window& w) {
    using Ints = std::vector<std::int64_t>;
    return {{"kernel_shape", Ints{w.kernel_h, w.kernel_w}},
            {"strides", Ints{w.stride, w.stride}},
            {"pads", Ints(4, w.padding)}};
  }

  void add(const Node& n, const Node* bias) {
    const ValueId x = n.inputs[0];
    if (const auto* o = std::get_if<op::Normalize>(&n.op)) {
      if (!o_.pixels) {
        names_[static_cast<std::size_t>(n.outputs[0])] = "images";
        return;
      }
      const std::string centred = unique(n.name + ".centred");
      node("Sub", centred, {"images", per_channel("mean", n.outputs[0], o->mean)}, centred);
      const std::string factor = per_channel("inverse_stddev", n.outputs[0], o->inv_std);
      node("Mul", n.name, {centred, factor}, made(n));
    } else if (const auto* c = std::get_if<op::Conv2d>(&n.op)) {
      std::vector<std::string> in{name(x), weights(n.inputs[1])};
      if (bias != nullptr) in.push_back(weights(bias->inputs[1]));
      Attributes attributes = window(*c);
      if (c->groups > 1) attributes.push_back({"group", std::int64_t{c->groups}});
      node("Conv", n.name, in, made(bias != nullptr ? *bias : n), attributes);
    } else if (const auto* norm = std::get_if<op::BatchNormInference>(&n.op)) {
      add_norm(n, *norm);
    } else if (std::holds_alternative<op::Relu>(n.op)) {
      node("Relu", n.name, {name(x)}, made(n));
    } else if (const auto* act = std::get_if<op::Activation>(&n.op)) {
      activation(n, act->kind);
    } else if (std::holds_alternative<op::Multiply>(n.op)) {
      const ValueId f = n.inputs[1];
      const bool parameter = g_[f].storage == Storage::parameter;
      node("Mul", n.name, {name(x), parameter ? per_channel(g_[f].name, x, net_.of(f)) : name(f)}, made(n));
    } else if (std::holds_alternative<op::Concat>(n.op)) {
      std::vector<std::string> in;
      for (const ValueId v : n.inputs) in.push_back(name(v));
      node("Concat", n.name, in, made(n), {{"axis", std::int64_t{1}}});
    } else if (const auto* layer = std::get_if<op::LayerNorm>(&n.op)) {
      layer_norm(n, *layer);
    } else if (std::holds_alternative<op::Add>(n.op)) {
      node("Add", n.name, {name(x), name(n.inputs[1])}, made(n));
    } else if (std::holds_alternative<op::Bias>(n.op)) {
      const std::string b = per_channel(g_[n.inputs[1]].name, x, net_.of(n.inputs[1]));
      node("Add", n.name, {name(x), b}, made(n));
    } else if (const auto* p = std::get_if<op::MaxPool>(&n.op)) {
      node("MaxPool", n.name, {name(x)}, made(n), window(*p));
    } else if (const auto* a = std::get_if<op::AvgPool>(&n.op)) {
      Attributes attributes;
      if (!a->global()) {
        attributes = window(a->window);
        attributes.push_back({"count_include_pad", std::int64_t{a->count_padding}});
        if (a->ceil) attributes.push_back({"ceil_mode", std::int64_t{1}});
      }
      node(a->global() ? "GlobalAveragePool" : "AveragePool", n.name, {name(x)}, made(n), attributes);
    } else if (std::holds_alternative<op::Linear>(n.op)) {
      std::string flat = name(x);
      if (g_[x].shape.rank() != 2) {
        flat = unique(n.name + ".flat");
        node("Flatten", flat, {name(x)}, flat, {{"axis", std::int64_t{1}}});
      }
      node("Gemm", n.name, {flat, weights(n.inputs[1]), weights(n.inputs[2])}, made(n), {{"transB", std::int64_t{1}}});
    } else {
      fail<UsageError>("ONNX", "an op that exists in ONNX", {name_of(n.op), " (", n.name, ")"});
    }
  }
  // Adds a batch norm that could not be folded into a convolution.
  void add_norm(const Node& n, const op::BatchNormInference& b) {
    if (b.saved_inv_std) fail<UsageError>("ONNX", "a net for inference", {"a net for training (", n.name, ")"});
    const std::string &out = made(n), plain = b.relu || b.residual ? unique(n.name + ".plain") : out;
    node("BatchNormalization", n.name,
         {name(n.inputs[0]), weights(n.inputs[1]), weights(n.inputs[2]), weights(n.inputs[3]), weights(n.inputs[4])},
         plain, {{"epsilon", b.eps}});
    std::string sum = plain;
    if (b.residual) {
      sum = b.relu ? unique(n.name + ".sum") : out;
      node("Add", n.name + ".add", {plain, name(n.inputs[5])}, sum);
    }
    if (b.relu) node("Relu", n.name + ".relu", {sum}, out);
  }
  void activation(const Node& n, op::ActivationKind kind) {
    const std::string& x = name(n.inputs[0]);
    if (kind == op::ActivationKind::gelu) return gelu(n);
    if (kind == op::ActivationKind::silu) {
      const std::string gate = unique(n.name + ".sigmoid");
      node("Sigmoid", gate, {x}, gate);
      return node("Mul", n.name, {x, gate}, made(n));
    }
    if (kind == op::ActivationKind::relu6) {
      const std::string low = constant(n.name + ".low", {}, std::vector<float>{0.0F});
      return node("Clip", n.name, {x, low, constant(n.name + ".high", {}, std::vector<float>{6.0F})}, made(n));
    }
    node(kind == op::ActivationKind::sigmoid ? "Sigmoid" : "HardSwish", n.name, {x}, made(n));
  }
  // ONNX normalises the last axes, so the channels go there and back.
  void layer_norm(const Node& n, const op::LayerNorm& o) {
    using Ints = std::vector<std::int64_t>;
    const bool turns = g_[n.inputs[0]].shape.rank() == 4;
    const std::string& out = made(n);
    std::string x = name(n.inputs[0]);
    if (turns) {
      const std::string last = unique(n.name + ".channels_last");
      node("Transpose", last, {x}, last, {{"perm", Ints{0, 2, 3, 1}}});
      x = last;
    }
    const std::string normal = turns ? unique(n.name + ".normal") : out;
    node("LayerNormalization", normal, {x, weights(n.inputs[1]), weights(n.inputs[2])}, normal,
         {{"axis", std::int64_t{-1}}, {"epsilon", o.eps}});
    if (turns) node("Transpose", n.name, {normal}, out, {{"perm", Ints{0, 3, 1, 2}}});
  }
  // Adds x * (0.5 + 0.5 * erf(x / sqrt(2))). ONNX has an op for it only since opset 20.
  void gelu(const Node& n) {
    const std::string& x = name(n.inputs[0]);
    if (half_.empty()) {
      half_ = constant("half", {}, std::vector<float>{0.5F});
      one_ = constant("one", {}, std::vector<float>{1.0F});
      root_two_ = constant("root_two", {}, std::vector<float>{1.41421356237F});
    }
    const auto step = [&](std::string_view op, const char* what, const std::vector<std::string>& in) {
      std::string out = unique(n.name + what);
      node(op, out, in, out);
      return out;
    };
    const std::string scaled = step("Div", ".scaled", {x, root_two_});
    const std::string sum = step("Add", ".plus_one", {step("Erf", ".erf", {scaled}), one_});
    const std::string product = step("Mul", ".product", {x, sum});
    node("Mul", n.name, {product, half_}, made(n));
  }

  const WeightedGraph& net_;
  const Graph& g_;
  const OnnxOptions& o_;
  std::string nodes_, initializers_, half_, one_, root_two_;
  std::vector<std::string> names_;  // by ValueId
  std::set<std::string> used_;
};

}  // namespace onnx

}  // namespace detail

// Returns a model file of opset 17 with an input "images" [batch, channels, height, width] and an output "logits" or
// "probabilities" [batch, classes], all f32. The metadata is from the card: "classes" (a JSON list), "mean" and "std"
// (for pixels from 0 to 1, as torchvision's normalize takes them), "image" (the preparation of images), "model". net:
// an inference_graph(), if possible after fold_norms(). Throws UsageError for an op that ONNX does not have, and if the
// file would be larger than 2 GB, the limit of a protocol buffer.
[[nodiscard]] inline std::string to_onnx(const WeightedGraph& net, const ModelCard& card, const OnnxOptions& o = {}) {
  namespace onnx = detail::onnx;
  namespace pb = io::protobuf;
  std::string model, opset;
  pb::append_int(model, 1, onnx::ir_version);
  pb::append_bytes(model, 2, "tutti");
  pb::append_bytes(model, 3, version);
  pb::append_bytes(model, 7, onnx::GraphWriter(net, o).write());
  pb::append_bytes(opset, 1, "");
  pb::append_int(opset, 2, onnx::opset);
  pb::append_bytes(model, 8, opset);
  const auto metadata = [&](std::string_view key, const std::string& value) {
    std::string entry;
    pb::append_bytes(entry, 1, key);
    pb::append_bytes(entry, 2, value);
    pb::append_bytes(model, 14, entry);
  };
  metadata("model", card.name);
  metadata("input", o.pixels ? "pixels: RGB, 0 to 255" : "normalized: (pixel / 255 - mean) / std");
  for (const Node& n : net.graph.nodes)
    if (const auto* normalize = std::get_if<op::Normalize>(&n.op)) {
      io::Json::Array mean, stddev;
      // Rounds to six digits, so that 0.485 does not become 0.48500001.
      const auto rounded = [](double v) { return std::round(v * 1e6) / 1e6; };
      for (const float m : normalize->mean) mean.emplace_back(rounded(static_cast<double>(m) / 255));
      for (const float s : normalize->inv_std) stddev.emplace_back(rounded(1 / (255 * static_cast<double>(s))));
      metadata("mean", io::write_json(io::Json(std::move(mean))));
      metadata("std", io::write_json(io::Json(std::move(stddev))));
    }
  metadata("image", io::write_json(json_of(card.image)));
  if (!card.classes.empty()) {
    io::Json::Array names;
    for (const std::string& c : card.classes) names.emplace_back(c);
    metadata("classes", io::write_json(io::Json(std::move(names))));
  }
  if (model.size() >= (std::size_t{1} << 31)) fail<UsageError>("ONNX", "a model under 2 GB", {model.size(), " bytes"});
  return model;
}

}  // namespace tutti::interchange
