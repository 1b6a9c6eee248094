// SPDX-License-Identifier: MIT
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

namespace tutti::cuda {

// A fully connected layer: x [rows, inputs], w [outputs, inputs], y [rows, outputs], row by row in memory. `type` is
// the type of x, w and y. bias, dw and db are always f32.
struct LinearProblem {
  std::int64_t rows, inputs, outputs;
  DType type;
  bool wide = false;  // y is f32, whatever the type of x and w

  auto operator<=>(const LinearProblem&) const = default;  // NOLINT(modernize-use-nullptr): there is no pointer
};

enum class LinearPass : std::uint8_t { forward, backward_data, backward_weights };

[[nodiscard]] inline std::string to_string(const LinearProblem& p) {
  return std::string(name_of(p.type)) + " " + std::to_string(p.rows) + "x" + std::to_string(p.inputs) + " to " +
         std::to_string(p.outputs) + (p.wide ? " in f32" : "");
}
[[nodiscard]] inline std::string to_string(LinearPass pass) {
  switch (pass) {
    case LinearPass::forward:
      return "forward";
    case LinearPass::backward_data:
      return "backward data";
    case LinearPass::backward_weights:
      return "backward weights";
  }
  return "?";
}

// A matrix as cuBLAS reads it: column by column. Therefore tutti's matrices appear transposed.
struct GemmMatrix {
  std::int64_t rows, columns, step;  // step: elements from one column to the next
};

// D [m, n] = op(A) op(B), with A and B as they are in memory; k is the summed extent.
struct GemmLayout {
  std::int64_t m, n, k;
  GemmMatrix a, b, d;
  bool transpose_a, transpose_b;
  bool swapped;  // A is the second operand of the pass, B the first
};

// forward: x, w -> y. backward_data: dy, w -> dx. backward_weights: x, dy -> dw.
[[nodiscard]] inline GemmLayout gemm_layout(LinearPass pass, const LinearProblem& p) {
  if (p.rows < 1 || p.inputs < 1 || p.outputs < 1) fail<ShapeError>("linear", "extents of 1 or more", to_string(p));
  const GemmMatrix x{p.inputs, p.rows, p.inputs}, w{p.inputs, p.outputs, p.inputs}, y{p.outputs, p.rows, p.outputs};
  switch (pass) {
    case LinearPass::forward:  // y' [outputs, rows] = w x'
      return {p.outputs, p.rows, p.inputs, w, x, y, true, false, true};
    case LinearPass::backward_data:  // dx' [inputs, rows] = w' dy'
      return {p.inputs, p.rows, p.outputs, w, y, x, false, false, true};
    case LinearPass::backward_weights:  // dw' [inputs, outputs] = x' dy
      return {p.inputs, p.outputs, p.rows, x, y, w, false, true, false};
  }
  fail("linear", "a pass", "none");
}

}  // namespace tutti::cuda
