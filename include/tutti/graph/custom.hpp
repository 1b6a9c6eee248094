// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/tensor/view.hpp>

namespace tutti {

// A user-defined op. Its kernels get whole tensors (activations NHWC in memory) and may run on any thread.
struct CustomOp {
  using Shapes = std::vector<Shape>;
  using Kernel = std::function<void(std::span<const TensorRef> in, std::span<const TensorRef> out)>;

  std::string name;
  // Shapes of the inputs (one row) -> shapes of the outputs. Throws ShapeError if the inputs do not fit.
  std::function<Shapes(const Shapes&)> shape;
  // For each backend name: inputs -> outputs.
  std::map<std::string, Kernel> forward;
  // For each backend name: gradients of the outputs, then the forward's inputs, then its outputs -> gradients of the
  // inputs. If empty, the op has no gradient, and differentiating a graph that trains through it is an error.
  std::map<std::string, Kernel> backward;
};

}  // namespace tutti
