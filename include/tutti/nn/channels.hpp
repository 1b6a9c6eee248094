// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/nn/activations.hpp>
#include <tutti/nn/layers.hpp>

// Layers that work by channels.
namespace tutti::nn {

// Returns x [N,C,H,W] times factor [N,C,1,1], or times a parameter [C].
inline ValueId multiply(Builder& b, const std::string& name, ValueId x, ValueId factor) {
  return b.record(name, op::Multiply{}, {x, factor});
}

// Returns the channels of all inputs [N,C,H,W] one after the other, at most 16 inputs: torch.cat of axis 1.
inline ValueId concat(Builder& b, const std::string& name, const std::vector<ValueId>& inputs) {
  return b.record(name, op::Concat{}, inputs);
}

// Layer norm over the channels of each pixel, [N,C,H,W] or [N,C]: PyTorch's nn.LayerNorm of the last axis of NHWC, as
// in ConvNeXt. Parameters name.weight, name.bias.
inline ValueId layer_norm(Builder& b, const std::string& name, ValueId x, float eps = 1e-6F) {
  if (b.shape(x).rank() < 2) fail<ShapeError>(name, "an input [N,C,...]", to_string(b.shape(x)));
  const Shape c{b.shape(x)[1]};
  const ValueId gamma = b.parameter(name + ".weight", c, {Init::ones, 1}, false);
  return b.record(name, op::LayerNorm{eps}, {x, gamma, b.parameter(name + ".bias", c, {Init::zeros}, false)});
}

// Returns x [N,C,H,W] times one learned factor for each channel, `initial` at the start. The parameter has the layer's
// name and the shape [C,1,1], as torchvision's layer_scale.
inline ValueId layer_scale(Builder& b, const std::string& name, ValueId x, double initial = 1e-6) {
  if (b.shape(x).rank() != 4) fail<ShapeError>(name, "an input [N,C,H,W]", to_string(b.shape(x)));
  return multiply(b, name, x, b.parameter(name, Shape{b.shape(x)[1], 1, 1}, {Init::ones, initial}, false));
}

// Squeeze-and-excitation (Hu et al. 2018): x [N,C,H,W] times a factor for each channel that two 1x1 convolutions with a
// relu between them and a sigmoid compute from the mean of its pixels. Parameters name.fc1 and name.fc2, .weight and
// .bias, as torchvision and timm have them. reduced: channels between the convolutions.
inline ValueId squeeze_excitation(Builder& b, const std::string& name, ValueId x, std::int64_t reduced) {
  if (b.shape(x).rank() != 4) fail<ShapeError>(name, "an input [N,C,H,W]", to_string(b.shape(x)));
  const ValueId mean = b.global_avg_pool(name + ".avgpool", x);
  const ValueId small =
      b.relu(name + ".relu", conv(b, name + ".fc1", mean, {.out = reduced, .kernel = 1, .bias = true}));
  const ValueId large = conv(b, name + ".fc2", small, {.out = b.shape(x)[1], .kernel = 1, .bias = true});
  return multiply(b, name, x, sigmoid(b, name + ".scale", large));
}

}  // namespace tutti::nn
