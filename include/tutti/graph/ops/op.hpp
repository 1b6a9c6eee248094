// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/value.hpp>

// What an op is made of. Each file of this folder holds a family of ops: small structs of namespace op, with the
// attributes of an op. A comment lists operands as "in -> out"; shapes are logical (activations NCHW, convolution
// weights OIHW, linear weights OI). What an op means is its loop in engine/reference. Each has
//
//   static constexpr OpInfo info;                  what it is called
//   OpOutputs outputs(const OpInputs& in) const;   the shapes that follow from its inputs; ShapeError where these do
//                                                  not fit. The first output is what Builder::record() returns.
//   void gradient(G& g) const;                     template <class G>: adds what goes back through it, by calls of
//                                                  detail::Gradient (graph/differentiate.hpp)
//
// but gradients themselves the first alone. What is not small an op refers to, and Node::owned keeps it: then an Op is
// copied as plain bytes, which costs a compiler much less than a table of functions.
namespace tutti {

struct OpInfo {  // what a kind of op is, for passes and planners
  std::string_view name;
  bool gradient = false;  // differentiate() makes it, nobody else
  bool weights = false;   // its second input is weights, of which a backend may want a form of its own
};

// The values that an op is about to read. What they have to be, the op asks for: a ShapeError names the layer.
class OpInputs {
 public:
  OpInputs(const std::string& layer, const std::vector<Value>& graph, const std::vector<ValueId>& inputs)
      : layer_(layer), graph_(graph), inputs_(inputs) {}

  [[nodiscard]] const std::string& layer() const noexcept { return layer_; }
  [[nodiscard]] std::size_t size() const noexcept { return inputs_.size(); }
  [[nodiscard]] const Value& operator[](std::size_t k) const;
  [[nodiscard]] const Shape& shape(std::size_t k) const { return (*this)[k].shape; }

  // What the batch flows through: one row, [1, ...]; not the raw u8 images, labels or a parameter.
  [[nodiscard]] const Shape& activation(std::size_t k) const;
  [[nodiscard]] const Shape& activation(std::size_t k, int rank) const;
  [[nodiscard]] const Shape& parameter(std::size_t k) const;
  [[nodiscard]] const Shape& parameter_or_state(std::size_t k) const;
  // Two activations of one shape.
  void need_same(std::size_t a, std::size_t b) const;

 private:
  const std::string& layer_;
  const std::vector<Value>& graph_;
  const std::vector<ValueId>& inputs_;
};

// What an op makes: an activation, with one row, or else something that is kept for the backward pass.
struct OpOutput {
  std::string name;
  Shape shape;
  bool per_row = true;
  Precision precision = Precision::compute;
};
using OpOutputs = std::vector<OpOutput>;

// The outputs of most ops: one activation.
[[nodiscard]] inline OpOutputs one_output(const OpInputs& in, const Shape& shape) { return {{in.layer(), shape}}; }

inline const Value& OpInputs::operator[](std::size_t k) const {
  if (k >= inputs_.size())
    fail<UsageError>(layer_, std::to_string(k + 1) + " inputs or more", std::to_string(inputs_.size()));
  return graph_[static_cast<std::size_t>(inputs_[k])];
}
inline const Shape& OpInputs::activation(std::size_t k) const {
  const Value& x = (*this)[k];
  if (!x.per_row || x.precision != Precision::compute)
    fail<ShapeError>(layer_, "an activation", "'" + x.name + "' " + to_string(x),
                     x.storage == Storage::image ? "normalize() the images first" : "");
  return x.shape;
}
inline const Shape& OpInputs::activation(std::size_t k, int rank) const {
  const Shape& s = activation(k);
  if (s.rank() != rank)
    fail<ShapeError>(layer_, "an input of " + std::to_string(rank) + " dimensions", to_string((*this)[k]));
  return s;
}
inline const Shape& OpInputs::parameter(std::size_t k) const {
  const Value& x = (*this)[k];
  if (x.storage != Storage::parameter) fail<ShapeError>(layer_, "a parameter", "'" + x.name + "' " + to_string(x));
  return x.shape;
}
inline const Shape& OpInputs::parameter_or_state(std::size_t k) const {
  const Value& x = (*this)[k];
  if (x.storage != Storage::parameter && x.storage != Storage::state)
    fail<ShapeError>(layer_, "a parameter or a state", "'" + x.name + "' " + to_string(x));
  return x.shape;
}
inline void OpInputs::need_same(std::size_t a, std::size_t b) const {
  const Shape &first = activation(a), &second = activation(b);
  if (first != second)
    fail<ShapeError>(layer_, "two inputs of one shape", to_string((*this)[a]) + " and " + to_string((*this)[b]));
}

}  // namespace tutti
