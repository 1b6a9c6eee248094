// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/graph/value.hpp>

// The parts of an op. Each file of this folder contains a family of ops: small structs in namespace op, with the
// attributes of the op. Comments list operands as "inputs -> outputs". Shapes are logical (activations NCHW,
// convolution weights OIHW, linear weights OI). The loops in engine/reference define what an op computes. Each op has
//
//   static constexpr OpInfo info;                  its name and properties
//   OpOutputs outputs(const OpInputs& in) const;   the shapes that follow from its inputs; throws ShapeError if these
//                                                  do not fit. Builder::record() returns the first output.
//   void gradient(G& g) const;                     template <class G>: adds the backward nodes with the functions
//                                                  of detail::Gradient (graph/differentiate.hpp)
//
// Gradient ops have only `info`. An op contains small data only: it refers to other data, which Node::owned keeps
// alive. Therefore an Op can be copied as plain bytes, which compiles much faster than a table of copy functions.
namespace tutti {

struct OpInfo {  // Properties of a kind of op, for passes and planners.
  std::string_view name;
  bool gradient = false;  // an op of the backward pass: only differentiate() and backends create it
  bool weights = false;   // its second input is weights, which a backend may need in a layout of its own
};

// The values that an op will read. The functions check requirements of the op, and throw a ShapeError that names the
// layer.
class OpInputs {
 public:
  OpInputs(const std::string& layer, const std::vector<Value>& graph, const std::vector<ValueId>& inputs)
      : layer_(layer), graph_(graph), inputs_(inputs) {}

  [[nodiscard]] const std::string& layer() const noexcept { return layer_; }
  [[nodiscard]] std::size_t size() const noexcept { return inputs_.size(); }
  [[nodiscard]] const Value& operator[](std::size_t k) const;
  [[nodiscard]] const Shape& shape(std::size_t k) const { return (*this)[k].shape; }

  // Returns the shape of an activation, with one row: [1, ...]. Throws if the input is the raw u8 images, the labels or
  // a parameter.
  [[nodiscard]] const Shape& activation(std::size_t k) const;
  [[nodiscard]] const Shape& activation(std::size_t k, int rank) const;
  [[nodiscard]] const Shape& parameter(std::size_t k) const;
  [[nodiscard]] const Shape& parameter_or_state(std::size_t k) const;
  // Requires two activations of the same shape.
  void need_same(std::size_t a, std::size_t b) const;

 private:
  const std::string& layer_;
  const std::vector<Value>& graph_;
  const std::vector<ValueId>& inputs_;
};

// An output of an op: an activation with one row, or a value that is kept for the backward pass.
struct OpOutput {
  std::string name;
  Shape shape;
  bool per_row = true;
  Precision precision = Precision::compute;
};
using OpOutputs = std::vector<OpOutput>;

// Returns the outputs of most ops: one activation.
[[nodiscard]] inline OpOutputs one_output(const OpInputs& in, const Shape& shape) { return {{in.layer(), shape}}; }

inline const Value& OpInputs::operator[](std::size_t k) const {
  if (k >= inputs_.size()) fail<UsageError>(layer_, {k + 1, " inputs or more"}, inputs_.size());
  return graph_[static_cast<std::size_t>(inputs_[k])];
}
inline const Shape& OpInputs::activation(std::size_t k) const {
  const Value& x = (*this)[k];
  if (!x.per_row || x.precision != Precision::compute)
    fail<ShapeError>(layer_, "an activation", {"'", x.name, "' ", to_string(x)},
                     x.storage == Storage::image ? "normalize() the images first" : "");
  return x.shape;
}
inline const Shape& OpInputs::activation(std::size_t k, int rank) const {
  const Shape& s = activation(k);
  if (s.rank() != rank) fail<ShapeError>(layer_, {"an input of ", rank, " dimensions"}, to_string((*this)[k]));
  return s;
}
inline const Shape& OpInputs::parameter(std::size_t k) const {
  const Value& x = (*this)[k];
  if (x.storage != Storage::parameter) fail<ShapeError>(layer_, "a parameter", {"'", x.name, "' ", to_string(x)});
  return x.shape;
}
inline const Shape& OpInputs::parameter_or_state(std::size_t k) const {
  const Value& x = (*this)[k];
  if (x.storage != Storage::parameter && x.storage != Storage::state)
    fail<ShapeError>(layer_, "a parameter or a state", {"'", x.name, "' ", to_string(x)});
  return x.shape;
}
inline void OpInputs::need_same(std::size_t a, std::size_t b) const {
  const Shape &first = activation(a), &second = activation(b);
  if (first != second)
    fail<ShapeError>(layer_, "two inputs of one shape", {to_string((*this)[a]), " and ", to_string((*this)[b])});
}

}  // namespace tutti
