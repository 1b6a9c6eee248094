// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/graph/builder.hpp>

// Layers: functions that record ops on a builder. To add a layer, add such a function.
namespace tutti::nn {

struct ConvOptions {  // Options of conv() with a square kernel.
  std::int64_t out = 0;
  int kernel = 3;
  int stride = 1;
  int padding = -1;  // -1: (kernel - 1) / 2
  bool bias = false;
  Initializer init{Init::he_normal, 1};
  int groups = 1;  // as many as there are channels: depthwise
  // A convolution with a stride and 16 channels or more reads the blurred input, which is name.blur: the rule of FFCV's
  // and Mosaic ML's BlurPool.
  bool blur = false;
};

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

// Convolution, x [N,C,H,W] -> [N,out,H',W']. Parameters name.weight [out,C/groups,k,k] (and name.bias).
inline ValueId conv(Builder& b, const std::string& name, ValueId x, const ConvOptions& o) {
  if (b.shape(x).rank() != 4 || o.out < 1)
    fail<ShapeError>(name, "an input [N,C,H,W] and 1 output channel or more", {to_string(b.shape(x)), " and ", o.out});
  if (o.blur && o.stride > 1 && b.shape(x)[1] >= 16) x = blur(b, name + ".blur", x);
  const std::int64_t inputs = b.shape(x)[1] / std::max(o.groups, 1);
  if (inputs < 1) fail<ShapeError>(name, {b.shape(x)[1], " groups or less"}, o.groups);
  const ValueId w = b.parameter(name + ".weight", Shape{o.out, inputs, o.kernel, o.kernel}, o.init);
  const int padding = o.padding >= 0 ? o.padding : (o.kernel - 1) / 2;
  ValueId y = b.conv2d(name, x, w, {o.kernel, o.kernel, o.stride, padding}, o.groups);
  if (o.bias) y = b.bias(name, y, b.parameter(name + ".bias", Shape{o.out}, {Init::zeros}, false));
  return y;
}

struct BatchNormOptions {  // Options of batch_norm().
  bool relu = false;
  ValueId residual = no_value;  // added before the relu
  float eps = 1e-5F;
  float momentum = 0.1F;  // weight of the current batch in the running statistics
  bool zero_gamma = false;
  bool fixed_gamma = false;  // gamma stays 1
  bool beta_decay = false;
  double beta_lr_scale = 1;  // multiplies beta's learning rate
};

// Batch norm (+ residual) (+ relu), one op. Parameters name.weight, name.bias; states name.running_mean, .running_var.
inline ValueId batch_norm(Builder& b, const std::string& name, ValueId x, const BatchNormOptions& o = {}) {
  if (b.shape(x).rank() != 4) fail<ShapeError>(name, "an input [N,C,H,W]", to_string(b.shape(x)));
  const Shape c{b.shape(x)[1]};
  Builder::BatchNormInputs in{};
  in.gamma = b.parameter(name + ".weight", c, {o.zero_gamma ? Init::zeros : Init::ones, 1}, false, !o.fixed_gamma);
  in.beta = b.parameter(name + ".bias", c, {Init::zeros}, o.beta_decay, true, o.beta_lr_scale);
  in.running_mean = b.state(name + ".running_mean", c, {Init::zeros});
  in.running_var = b.state(name + ".running_var", c, {Init::ones, 1});
  in.residual = o.residual;
  return b.batch_norm(name, x, in, {o.eps, o.momentum, o.relu, false});
}

// conv -> batch_norm (-> + residual) (-> relu).
inline ValueId conv_bn(Builder& b, const std::string& conv_name, const std::string& bn_name, ValueId x,
                       const ConvOptions& c, const BatchNormOptions& n) {
  return batch_norm(b, bn_name, conv(b, conv_name, x, c), n);
}

// Linear layer, x [N,C] or [N,C,1,1] -> [N,out]. Parameters name.weight [out,C], name.bias.
inline ValueId linear(Builder& b, const std::string& name, ValueId x, std::int64_t out, Initializer init,
                      bool decay_bias = false) {
  if (out < 1) fail<ShapeError>(name, "1 output or more", out);
  const ValueId w = b.parameter(name + ".weight", Shape{out, b.shape(x).row_numel()}, std::move(init));
  return b.linear(name, x, w, b.parameter(name + ".bias", Shape{out}, {Init::zeros}, decay_bias));
}

}  // namespace tutti::nn
