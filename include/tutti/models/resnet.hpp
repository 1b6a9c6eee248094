// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/nn/layers.hpp>
#if TUTTI_CORE_DEFINITIONS
#include <tutti/nn/channels.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/pooling.hpp>
#endif

namespace tutti::models {

// The ResNets of He et al. 2016 with torchvision's form and parameter names: 18 and 34 with basic blocks; 50, 101 and
// 152 with bottlenecks. And the variants of the bottleneck form: ResNeXt (Xie et al. 2017), Wide ResNet (Zagoruyko and
// Komodakis 2016), ResNet-D (He et al. 2019) and SE-ResNet (Hu et al. 2018), the last two as in timm. resnet_variant()
// sets their options.
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
  int groups = 1;             // of the 3x3 convolutions
  std::int64_t width = 64;    // channels of a group of the first stage's 3x3 convolutions
  bool deep_stem = false;     // ResNet-D's stem: three 3x3 convolutions
  bool avg_shortcut = false;  // ResNet-D's shortcuts: an average pool has the stride, not the 1x1 convolution
  bool squeeze = false;       // squeeze-and-excitation at the end of each block, with 1/16 of the channels
  double drop_path = 0;       // rate of stochastic depth of the last block; it grows evenly over the blocks
};

// Sets the options of a variant by torchvision's or timm's name: resnext50_32x4d, wide_resnet50_2, resnet50d or
// seresnet50. Returns false, and changes nothing, if there is no such variant.
TUTTI_CORE_FUNCTION bool resnet_variant(std::string_view name, ResnetOptions& o);

// Records the network and its loss.
TUTTI_CORE_FUNCTION void resnet(Builder& b, ValueId x, const ResnetOptions& o = {});

#if TUTTI_CORE_DEFINITIONS

namespace detail {

inline nn::ConvOptions resnet_conv(const ResnetOptions& o, std::int64_t out, int kernel, int stride) {
  return {out, kernel, stride, -1, false, {o.glorot ? Init::xavier_uniform : Init::he_normal, 1}, 1, o.blur};
}

inline ValueId resnet_shortcut(Builder& b, const ResnetOptions& o, const std::string& name, ValueId x, std::int64_t out,
                               int stride) {
  const nn::BatchNormOptions norm{.eps = o.bn_eps, .momentum = o.bn_momentum};
  if (stride == 1 && b.shape(x)[1] == out) return x;
  if (!o.avg_shortcut)
    return nn::conv_bn(b, name + ".downsample.0", name + ".downsample.1", x, resnet_conv(o, out, 1, stride), norm);
  if (stride > 1) x = nn::avg_pool(b, name + ".downsample.0", x, {stride, stride, stride, 0}, false, true);
  return nn::conv_bn(b, name + ".downsample.1", name + ".downsample.2", x, resnet_conv(o, out, 1, 1), norm);
}

// drop: rate of stochastic depth.
inline ValueId resnet_block(Builder& b, const ResnetOptions& o, const std::string& name, ValueId x, std::int64_t width,
                            int stride, bool bottleneck, double drop) {
  const std::int64_t out = bottleneck ? 4 * width : width;
  const nn::BatchNormOptions relu{.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum};
  const ValueId shortcut = resnet_shortcut(b, o, name, x, out, stride);
  const bool apart = o.squeeze || drop > 0;  // ops between the last batch norm and the sum
  const nn::BatchNormOptions last{.relu = !apart,
                                  .residual = apart ? no_value : shortcut,
                                  .eps = o.bn_eps,
                                  .momentum = o.bn_momentum,
                                  .zero_gamma = o.zero_gamma};
  ValueId y = no_value;
  if (!bottleneck) {
    y = nn::conv_bn(b, name + ".conv1", name + ".bn1", x, resnet_conv(o, width, 3, stride), relu);
    y = nn::conv_bn(b, name + ".conv2", name + ".bn2", y, resnet_conv(o, out, 3, 1), last);
  } else {
    const int first = o.stride_in_1x1 ? stride : 1;
    const std::int64_t inner = width * o.width / 64 * o.groups;
    nn::ConvOptions middle = resnet_conv(o, inner, 3, stride / first);
    middle.groups = o.groups;
    y = nn::conv_bn(b, name + ".conv1", name + ".bn1", x, resnet_conv(o, inner, 1, first), relu);
    y = nn::conv_bn(b, name + ".conv2", name + ".bn2", y, middle, relu);
    y = nn::conv_bn(b, name + ".conv3", name + ".bn3", y, resnet_conv(o, out, 1, 1), last);
  }
  if (!apart) return y;
  if (o.squeeze) y = nn::squeeze_excitation(b, name + ".se", y, out / 16);
  return b.relu(name + ".relu", b.add(name + ".add", nn::drop_path(b, name + ".drop_path", y, drop), shortcut));
}

inline ValueId resnet_stem(Builder& b, const ResnetOptions& o, ValueId x) {
  const nn::BatchNormOptions relu{.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum};
  const int stride = o.cifar_stem ? 1 : 2;
  if (!o.deep_stem) return nn::conv_bn(b, "conv1", "bn1", x, resnet_conv(o, 64, o.cifar_stem ? 3 : 7, stride), relu);
  x = nn::conv_bn(b, "conv1.0", "conv1.1", x, resnet_conv(o, 32, 3, stride), relu);
  x = nn::conv_bn(b, "conv1.3", "conv1.4", x, resnet_conv(o, 32, 3, 1), relu);
  return nn::conv_bn(b, "conv1.6", "bn1", x, resnet_conv(o, 64, 3, 1), relu);
}

}  // namespace detail

TUTTI_CORE_FUNCTION bool resnet_variant(std::string_view name, ResnetOptions& o) {
  const bool next = name == "resnext50_32x4d", wide = name == "wide_resnet50_2", d = name == "resnet50d";
  const bool se = name == "seresnet50";
  if (!next && !wide && !d && !se) return false;
  o.depth = 50;
  o.groups = next ? 32 : 1;
  o.width = next ? 4 : wide ? 128 : 64;
  o.deep_stem = o.avg_shortcut = d;
  o.squeeze = se;
  return true;
}

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
  if (!bottleneck && (o.groups != 1 || o.width != 64))
    fail<UsageError>("resnet", "a depth of 50 or more for groups or another width", o.depth);
  const int all = blocks[0] + blocks[1] + blocks[2] + blocks[3];
  int block = 0;
  x = detail::resnet_stem(b, o, x);
  if (!o.cifar_stem) x = b.max_pool("maxpool", x, {3, 3, 2, 1});
  for (int stage = 0; stage < 4; ++stage)
    for (int i = 0; i < blocks[static_cast<std::size_t>(stage)]; ++i)
      x = detail::resnet_block(b, o, concat({"layer", stage + 1, ".", i}), x, std::int64_t{64} << stage,
                               stage > 0 && i == 0 ? 2 : 1, bottleneck, o.drop_path * block++ / (all - 1));
  x = b.global_avg_pool("avgpool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, o.classes, {Init::he_uniform, 0.4082482904638631}, o.decay_bias),
                          o.label_smoothing, o.top_k);
}

#endif

}  // namespace tutti::models
