// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/nn/layers.hpp>

// Average pooling and blurs.
namespace tutti::nn {

// Average over a window, x [N,C,H,W] -> [N,C,H',W']. count_padding: the padding's zeros count, as in PyTorch by
// default. A last window that does not fit into the image is left out.
inline ValueId avg_pool(Builder& b, const std::string& name, ValueId x, op::Window window, bool count_padding = true) {
  return b.record(name, op::AvgPool{{window, count_padding}}, {x});
}

// Binomial blur of 3x3 pixels, [1, 2, 1] / 4 in both directions, x [N,C,H,W] -> [N,C,H',W']: a depthwise convolution
// with constant weights, name.weight [C,1,3,3]. Zhang 2019, Making Convolutional Networks Shift-Invariant Again.
inline ValueId blur(Builder& b, const std::string& name, ValueId x, int stride = 1) {
  if (b.shape(x).rank() != 4) fail<ShapeError>(name, "an input [N,C,H,W]", to_string(b.shape(x)));
  const std::int64_t channels = b.shape(x)[1];
  auto weights = std::make_shared<std::vector<float>>();
  for (std::int64_t c = 0; c < channels; ++c)
    for (const float row : {0.25F, 0.5F, 0.25F})
      for (const float column : {0.25F, 0.5F, 0.25F}) weights->push_back(row * column);
  const ValueId w =
      b.parameter(name + ".weight", Shape{channels, 1, 3, 3}, {Init::values, 1, std::move(weights)}, false, false);
  return b.conv2d(name, x, w, {3, 3, stride, 1}, static_cast<int>(channels));
}

// Convolution. One with a stride and 16 channels or more reads the blurred input, which is name.blur: the rule of
// FFCV's and Mosaic ML's BlurPool.
inline ValueId blurred_conv(Builder& b, const std::string& name, ValueId x, const ConvOptions& o) {
  if (o.stride > 1 && b.shape(x).rank() == 4 && b.shape(x)[1] >= 16) x = blur(b, name + ".blur", x);
  return conv(b, name, x, o);
}

}  // namespace tutti::nn
