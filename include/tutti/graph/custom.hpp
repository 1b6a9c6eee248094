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
  // Returns the shapes of the outputs for the shapes of the inputs, both with one row. Throws ShapeError if the inputs
  // do not fit.
  std::function<Shapes(const Shapes&)> shape;
  // The forward kernel for each backend name: inputs -> outputs.
  std::map<std::string, Kernel> forward;
  // The backward kernel for each backend name: gradients of the outputs, inputs and outputs of the forward kernel ->
  // gradients of the inputs. If empty, the op has no gradient, and differentiate() throws if it needs one.
  std::map<std::string, Kernel> backward;
};

}  // namespace tutti
