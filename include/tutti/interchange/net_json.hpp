// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/interchange/net_to_json.hpp>
#include <tutti/io/json/json.hpp>

// Reads a net from the JSON of net_to_json.hpp.
namespace tutti::interchange {

namespace detail {

inline constexpr std::int64_t most_nodes = 100'000, most_row_elements = std::int64_t{1} << 28;

[[nodiscard]] inline std::vector<float> floats_of(const io::Json& json, const std::string& where) {
  std::vector<float> values;
  for (const io::Json& v : json.as_array(where)) values.push_back(static_cast<float>(v.as_double(where)));
  return values;
}
[[nodiscard]] inline int int_of(const io::Json& json, const std::string& where) {
  const std::int64_t v = json.as_integer(where);
  // The product of two such numbers must also fit an int.
  if (v < -10'000 || v > 10'000) fail<DataError>(where, "a number of up to 10000", v);
  return static_cast<int>(v);
}
[[nodiscard]] inline Shape shape_of(const io::Json& json, const std::string& where) {
  std::vector<std::int64_t> dims;
  for (const io::Json& d : json.as_array(where)) dims.push_back(d.as_integer(where));
  return Shape(std::span<const std::int64_t>(dims));
}

// Records the nodes of such a description with a Builder.
class NetReader {
 public:
  NetReader(const io::Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  [[nodiscard]] Graph read() {
    const Shape input = shape_of(json_.at("input", where_), where_ + " input");
    if (input.rank() != 3 || input.numel() < 1 || input.numel() > most_row_elements)
      fail<DataError>({where_, " input"}, "channels, height and width of an image", to_string(input));
    Builder b(input[0], input[1], input[2]);
    const auto& nodes = json_.at("nodes", where_).as_array(where_ + " nodes");
    if (nodes.empty() || static_cast<std::int64_t>(nodes.size()) > most_nodes)
      fail<DataError>({where_, " nodes"}, "1 to 100000 nodes", nodes.size());
    for (const io::Json& n : nodes) {
      made_.push_back(record(b, n));
      if (b.shape(made_.back()).row_numel() > most_row_elements)
        fail<DataError>(where_, "at most 2^28 values per image", to_string(b.shape(made_.back())));
    }
    Graph g = std::move(b).take();
    g.logits = made_.back();
    if (g[g.logits].shape.rank() != 2)
      fail<DataError>(where_, "logits from the last node", to_string(g[g.logits].shape));
    return g;
  }

 private:
  ValueId input(Builder& b, const io::Json& in, const std::string& at) {
    if (in.is_integer()) {
      const std::int64_t k = in.as_integer(at);
      if (k < 0 || k >= static_cast<std::int64_t>(made_.size()))
        fail<DataError>(at, "an input that is an earlier node", k);
      return made_[static_cast<std::size_t>(k)];
    }
    const std::string& name = in.as_string(at);
    if (const auto found = tensors_.find(name); found != tensors_.end()) return found->second;
    for (const bool state : {false, true}) {
      const char* const list = state ? "states" : "tensors";
      const io::Json* const shape = json_.at(list, where_).find(name);
      if (shape == nullptr) continue;
      const Shape s = shape_of(*shape, where_ + " " + list + " " + printable(name));
      return tensors_[name] = state ? b.state(name, s, {}) : b.parameter(name, s, {});
    }
    fail<DataError>(at, "a tensor of the net", {"'", printable(name), "'"});
  }

  ValueId record(Builder& b, const io::Json& n) {
    const std::string name = n.at("name", where_).as_string(where_);
    const std::string at = where_ + " node '" + printable(name) + "'";
    const std::string& op = n.at("op", at).as_string(at);
    const auto number = [&](const char* key) { return int_of(n.at(key, at), at + " " + key); };
    const auto flag = [&](const char* key) { return n.at(key, at).as_bool(at + " " + key); };
    if (op == op::Normalize::info.name)
      return b.normalize(floats_of(n.at("mean", at), at), floats_of(n.at("inverse_stddev", at), at));
    std::vector<ValueId> in;
    for (const io::Json& i : n.at("in", at).as_array(at)) in.push_back(input(b, i, at));
    const auto window = [&] {
      const auto& kernel = n.at("kernel", at).as_array(at);
      if (kernel.size() != 2) fail<DataError>(at, "a kernel of two extents", kernel.size());
      return op::Window{int_of(kernel[0], at), int_of(kernel[1], at), number("stride"), number("padding")};
    };
    const auto is = [&](const OpInfo& info, std::size_t inputs) {
      if (op != info.name) return false;
      if (in.size() != inputs) fail<DataError>(at, {inputs, " inputs"}, in.size());
      return true;
    };
    if (is(op::Conv2d::info, 2))
      return b.record(name, op::Conv2d{window(), n.find("groups") != nullptr ? number("groups") : 1}, in);
    if (is(op::MaxPool::info, 1)) return b.record(name, op::MaxPool{window()}, in);
    if (op == op::BatchNorm::info.name) {
      op::BatchNorm norm;
      norm.eps = static_cast<float>(n.at("eps", at).as_double(at));
      norm.relu = flag("relu");
      norm.residual = flag("residual");
      (void)is(op::BatchNorm::info, norm.residual ? 6 : 5);
      if (!(norm.eps > 0 && norm.eps < 1)) fail<DataError>(at, "an eps over 0 and under 1", norm.eps);
      return b.record(name, norm, in);
    }
    if (is(op::Relu::info, 1)) return b.record(name, op::Relu{}, in);
    using Kind = op::ActivationKind;
    for (const Kind kind : {Kind::gelu, Kind::sigmoid, Kind::silu, Kind::hard_swish, Kind::relu6})
      if (is({.name = op::name_of(kind, false)}, 1)) return b.record(name, op::Activation{kind}, in);
    if (is(op::Add::info, 2)) return b.record(name, op::Add{}, in);
    if (is(op::Bias::info, 2)) return b.record(name, op::Bias{}, in);
    if (is(op::Multiply::info, 2)) return b.record(name, op::Multiply{}, in);
    if (op == op::Concat::info.name) return b.record(name, op::Concat{}, in);
    if (is(op::LayerNorm::info, 3))
      return b.record(name, op::LayerNorm{static_cast<float>(n.at("eps", at).as_double(at))}, in);
    if (is({.name = "global_avg_pool"}, 1)) return b.record(name, op::AvgPool{}, in);
    if (is(op::AvgPool::info, 1)) {
      const op::AvgPool pool{{window(), flag("count_padding"), n.find("ceil") != nullptr && flag("ceil")}};
      if (pool.global()) fail<DataError>(at, "a kernel of 1 row or more", pool.window.kernel_h);
      return b.record(name, pool, in);
    }
    if (is(op::Linear::info, 3)) return b.record(name, op::Linear{}, in);
    fail<DataError>(at, "an op that this version supports", {"'", printable(op), "'"});
  }

  const io::Json& json_;
  std::string where_;
  std::vector<ValueId> made_;  // the output of each node
  std::map<std::string, ValueId> tensors_;
};

}  // namespace detail

// Returns the graph of such a description, without a loss. Throws DataError that says what is wrong. `where` names the
// source of the JSON.
[[nodiscard]] inline Graph net_of_json(const io::Json& json, const std::string& where) {
  try {
    return detail::NetReader(json, where).read();
  } catch (const UsageError& e) {  // a shape that is impossible
    throw DataError(error_message(where, "a net with matching shapes", e.what()));
  }
}

}  // namespace tutti::interchange
