// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/core/text_part.hpp>

namespace tutti {

using ValueId = std::int32_t;
using NodeId = std::int32_t;
inline constexpr ValueId no_value = -1;

// The memory that holds a value.
enum class Storage : std::uint8_t {
  image,      // the batch's images, u8
  labels,     // the batch's labels, i32
  parameter,  // parameter arena, master precision
  state,      // state arena (running statistics), master precision
  gradient,   // gradient arena, master precision
  activation  // activation arena or scratch
};

// The role of a value, for which the plan chooses the data type in a run.
enum class Precision : std::uint8_t { compute, master, metric, u8, i32 };

enum class Init : std::uint8_t {  // The initial values of a parameter.
  zeros,
  ones,
  normal,
  uniform,
  he_normal,
  he_uniform,
  xavier_normal,
  xavier_uniform,
  // of a convolution: the first outputs copy the inputs, as many as there are inputs; the other outputs are he_uniform
  dirac,
  values  // the values in Initializer::given
};

struct Initializer {  // The initial values and their gain.
  Initializer() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): Init::xavier_normal is an initializer of gain 1
  Initializer(Init how, double gain = 1, std::shared_ptr<const std::vector<float>> values = {})
      : kind(how), scale(gain), given(std::move(values)) {}

  Init kind = Init::zeros;
  // standard deviation (normal), half of the width (uniform); gain (He, Xavier, and the he_uniform outputs of dirac)
  double scale = 1;
  std::shared_ptr<const std::vector<float>> given{};  // for Init::values: in the order of the tensor
};

struct Value {  // A value of the graph: its shape and its properties.
  std::string name;
  Shape shape;           // with one row if per_row is set
  bool per_row = false;  // the first extent is the batch
  Storage storage = Storage::activation;
  Precision precision = Precision::compute;
  NodeId producer = -1;
  bool requires_grad = false;
  // For parameters and states only.
  Initializer init{};
  bool trainable = true;
  bool decay = true;
  double lr_scale = 1;          // multiplies the learning rate, but not the effect of weight decay (scale_rate())
  ValueId gradient = no_value;  // for parameters: set by differentiate()
};

// Returns the shape as text, with N for the number of rows if per_row is set.
[[nodiscard]] inline std::string to_string(const Value& v) {
  if (!v.per_row) return to_string(v.shape);
  std::string r = "[N";
  for (int i = 1; i < v.shape.rank(); ++i) r += concat({", ", v.shape[i]});
  return r += "]";
}

}  // namespace tutti
