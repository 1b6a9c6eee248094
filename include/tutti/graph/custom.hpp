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

// An op of the user's own. Its kernels see whole tensors (activations NHWC in memory) and may run on any thread.
struct CustomOp {
  using Shapes = std::vector<Shape>;
  using Kernel = std::function<void(std::span<const TensorRef> in, std::span<const TensorRef> out)>;

  std::string name;
  // Shapes of the inputs (one row) -> shapes of the outputs; throws ShapeError where they do not fit.
  std::function<Shapes(const Shapes&)> shape;
  // Per backend name: inputs -> outputs.
  std::map<std::string, Kernel> forward;
  // Per backend name: gradients of the outputs, then the forward's inputs, then its outputs -> gradients of the inputs.
  // Empty: the op has no gradient, and training through it is an error when the graph is differentiated.
  std::map<std::string, Kernel> backward;
};

}  // namespace tutti
