// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <string>

#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::models {

// The ResNets of He et al. 2016 with torchvision's form and parameter names: 18 and 34 with basic blocks; 50, 101 and
// 152 with bottlenecks.
struct ResnetOptions {
  int depth = 50;
  int classes = 1000;
  bool cifar_stem = false;     // a 3x3 stem without pooling, for small images
  bool stride_in_1x1 = false;  // the original form (v1); the default is v1.5, with the stride in the 3x3 convolution
  bool zero_gamma = false;     // the last batch norm of a block starts at 0: Goyal et al. 2017
  bool glorot = false;      // convolutions start uniform as in Glorot and Bengio 2010; otherwise as in He et al. 2015
  bool blur = false;        // strided convolutions of 16 channels or more read a blurred input (nn::ConvOptions)
  bool decay_bias = false;  // weight decay also applies to the classifier's bias
  float bn_eps = 1e-5F;
  float bn_momentum = 0.1F;
  float label_smoothing = 0;
  int top_k = 5;
};

// Records the network and its loss.
TUTTI_CORE_FUNCTION void resnet(Builder& b, ValueId x, const ResnetOptions& o = {});

#if TUTTI_CORE_DEFINITIONS

namespace detail {

inline nn::ConvOptions resnet_conv(const ResnetOptions& o, std::int64_t out, int kernel, int stride) {
  return {out, kernel, stride, -1, false, {o.glorot ? Init::xavier_uniform : Init::he_normal, 1}, 1, o.blur};
}

inline ValueId resnet_block(Builder& b, const ResnetOptions& o, const std::string& name, ValueId x, std::int64_t width,
                            int stride, bool bottleneck) {
  const std::int64_t out = bottleneck ? 4 * width : width;
  const nn::BatchNormOptions relu{.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum};
  ValueId shortcut = x;
  if (stride != 1 || b.shape(x)[1] != out)
    shortcut = nn::conv_bn(b, name + ".downsample.0", name + ".downsample.1", x, resnet_conv(o, out, 1, stride),
                           {.eps = o.bn_eps, .momentum = o.bn_momentum});
  const nn::BatchNormOptions last{
      .relu = true, .residual = shortcut, .eps = o.bn_eps, .momentum = o.bn_momentum, .zero_gamma = o.zero_gamma};
  if (!bottleneck) {
    const ValueId y = nn::conv_bn(b, name + ".conv1", name + ".bn1", x, resnet_conv(o, width, 3, stride), relu);
    return nn::conv_bn(b, name + ".conv2", name + ".bn2", y, resnet_conv(o, out, 3, 1), last);
  }
  const int first = o.stride_in_1x1 ? stride : 1;
  ValueId y = nn::conv_bn(b, name + ".conv1", name + ".bn1", x, resnet_conv(o, width, 1, first), relu);
  y = nn::conv_bn(b, name + ".conv2", name + ".bn2", y, resnet_conv(o, width, 3, stride / first), relu);
  return nn::conv_bn(b, name + ".conv3", name + ".bn3", y, resnet_conv(o, out, 1, 1), last);
}

}  // namespace detail

TUTTI_CORE_FUNCTION void resnet(Builder& b, ValueId x, const ResnetOptions& o) {
  std::array<int, 4> blocks{};
  switch (o.depth) {
    case 18:
      blocks = {2, 2, 2, 2};
      break;
    case 34:
    case 50:
      blocks = {3, 4, 6, 3};
      break;
    case 101:
      blocks = {3, 4, 23, 3};
      break;
    case 152:
      blocks = {3, 8, 36, 3};
      break;
    default:
      fail<UsageError>("resnet", "a depth of 18, 34, 50, 101 or 152", o.depth);
  }
  const bool bottleneck = o.depth >= 50;
  const nn::BatchNormOptions relu{.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum};
  x = nn::conv_bn(b, "conv1", "bn1", x, detail::resnet_conv(o, 64, o.cifar_stem ? 3 : 7, o.cifar_stem ? 1 : 2), relu);
  if (!o.cifar_stem) x = b.max_pool("maxpool", x, {3, 3, 2, 1});
  for (int stage = 0; stage < 4; ++stage)
    for (int i = 0; i < blocks[static_cast<std::size_t>(stage)]; ++i)
      x = detail::resnet_block(b, o, concat({"layer", stage + 1, ".", i}), x, std::int64_t{64} << stage,
                               stage > 0 && i == 0 ? 2 : 1, bottleneck);
  x = b.global_avg_pool("avgpool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, o.classes, {Init::he_uniform, 0.4082482904638631}, o.decay_bias),
                          o.label_smoothing, o.top_k);
}

#endif

}  // namespace tutti::models
