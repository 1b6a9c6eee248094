// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/shape.hpp>

namespace tutti {

using ValueId = std::int32_t;
using NodeId = std::int32_t;
inline constexpr ValueId no_value = -1;

// Where a value lives.
enum class Storage : std::uint8_t {
  image,      // the batch's images, u8
  labels,     // the batch's labels, i32
  parameter,  // parameter arena, master precision
  state,      // state arena (running statistics), master precision
  gradient,   // gradient arena, master precision
  activation  // activation arena or scratch
};

// Which of a run's types a value has: decided when the plan is made.
enum class Precision : std::uint8_t { compute, master, metric, u8, i32 };

enum class Init : std::uint8_t {  // how a parameter begins
  zeros,
  ones,
  normal,
  uniform,
  he_normal,
  he_uniform,
  xavier_normal,
  xavier_uniform,
  dirac,  // of a convolution: the first outputs repeat the inputs, as many as there are; the others are he_uniform
  values  // given
};

struct Initializer {  // and with which gain
  Init kind = Init::zeros;
  double scale = 1;  // standard deviation (normal), half width (uniform); gain for He, Xavier and the rest of dirac
  std::shared_ptr<const std::vector<float>> given{};  // of Init::values, in the tensor's order
};

struct Value {  // of the graph: its shape, and what it is
  std::string name;
  Shape shape;           // with one row where per_row
  bool per_row = false;  // the first extent is the batch
  Storage storage = Storage::activation;
  Precision precision = Precision::compute;
  NodeId producer = -1;
  bool requires_grad = false;
  // Of parameters and states only.
  Initializer init{};
  bool trainable = true;
  bool decay = true;
  double lr_scale = 1;          // what multiplies the learning rate; what weight decay takes off a step stays the same
  ValueId gradient = no_value;  // of parameters, after differentiation
};

// The shape as it is printed: the batch as N.
[[nodiscard]] inline std::string to_string(const Value& v) {
  if (!v.per_row) return to_string(v.shape);
  std::string r = "[N";
  for (int i = 1; i < v.shape.rank(); ++i) r += ", " + std::to_string(v.shape[i]);
  return r + "]";
}

}  // namespace tutti
