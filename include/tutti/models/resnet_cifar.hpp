// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::models {

// The CIFAR ResNet of depth 6n+2: He et al. 2016, section 4.2. Three stages of n basic blocks with 16, 32 and 64
// channels (times width / 16). A projection (1x1 convolution and batch norm) is used if the shape changes.
struct ResnetCifarOptions {
  int depth = 20;
  int classes = 10;
  std::int64_t width = 16;
  bool zero_gamma = false;  // the last batch norm of a block starts at 0: Goyal et al. 2017
  bool xavier = false;      // use Xavier's initializer (Glorot and Bengio 2010) instead of He's
  // Uses pre-activation units (He et al. 2016b), with a batch norm on the input, and a projection in the first unit of
  // every stage. This is the network that the elastic MXNet scripts call resnet for images of up to 28 pixels. If the
  // depth is 9n+2 and at least 164, the units are bottlenecks with four times as many channels.
  bool preactivation = false;
  float bn_eps = 1e-5F;
  float bn_momentum = 0.1F;
  float label_smoothing = 0;
  int top_k = 5;
};

// Records the network and its loss on the builder's images.
TUTTI_CORE_FUNCTION void resnet_cifar(Builder& b, ValueId x, const ResnetCifarOptions& o = {});

#if TUTTI_CORE_DEFINITIONS

namespace detail {

inline nn::ConvOptions cifar_conv(const ResnetCifarOptions& o, std::int64_t out, int kernel, int stride) {
  return {out, kernel, stride, -1, false, {o.xavier ? Init::xavier_normal : Init::he_normal, 1}};
}

inline ValueId basic_block(Builder& b, const ResnetCifarOptions& o, const std::string& name, ValueId x,
                           std::int64_t out, int stride) {
  ValueId shortcut = x;
  if (stride != 1 || b.shape(x)[1] != out)
    shortcut = nn::conv_bn(b, name + ".downsample.0", name + ".downsample.1", x, cifar_conv(o, out, 1, stride),
                           {.eps = o.bn_eps, .momentum = o.bn_momentum});
  ValueId y = nn::conv_bn(b, name + ".conv1", name + ".bn1", x, cifar_conv(o, out, 3, stride),
                          {.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum});
  return nn::conv_bn(
      b, name + ".conv2", name + ".bn2", y, cifar_conv(o, out, 3, 1),
      {.relu = true, .residual = shortcut, .eps = o.bn_eps, .momentum = o.bn_momentum, .zero_gamma = o.zero_gamma});
}

inline ValueId preactivation_unit(Builder& b, const ResnetCifarOptions& o, const std::string& name, ValueId x,
                                  std::int64_t out, int stride, bool project) {
  const nn::BatchNormOptions bn{.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum};
  const ValueId a = nn::batch_norm(b, name + ".bn1", x, bn);
  const ValueId shortcut = project ? nn::conv(b, name + ".downsample.0", a, cifar_conv(o, out, 1, stride)) : x;
  const ValueId y = nn::conv_bn(b, name + ".conv1", name + ".bn2", a, cifar_conv(o, out, 3, stride), bn);
  return b.add(name + ".add", nn::conv(b, name + ".conv2", y, cifar_conv(o, out, 3, 1)), shortcut);
}

inline ValueId preactivation_bottleneck(Builder& b, const ResnetCifarOptions& o, const std::string& name, ValueId x,
                                        std::int64_t out, int stride, bool project) {
  const nn::BatchNormOptions bn{.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum};
  const ValueId a = nn::batch_norm(b, name + ".bn1", x, bn);
  const ValueId shortcut = project ? nn::conv(b, name + ".downsample.0", a, cifar_conv(o, out, 1, stride)) : x;
  ValueId y = nn::conv_bn(b, name + ".conv1", name + ".bn2", a, cifar_conv(o, out / 4, 1, 1), bn);
  y = nn::conv_bn(b, name + ".conv2", name + ".bn3", y, cifar_conv(o, out / 4, 3, stride), bn);
  return b.add(name + ".add", nn::conv(b, name + ".conv3", y, cifar_conv(o, out, 1, 1)), shortcut);
}

}  // namespace detail

TUTTI_CORE_FUNCTION void resnet_cifar(Builder& b, ValueId x, const ResnetCifarOptions& o) {
  const bool bottleneck = o.preactivation && o.depth >= 164 && (o.depth - 2) % 9 == 0;
  const int n = (o.depth - 2) / (bottleneck ? 9 : 6);
  if (n < 1 || (!bottleneck && 6 * n + 2 != o.depth))
    fail<UsageError>("resnet_cifar", "a depth of 6n+2 (8, 14, 20, 32, 44, 50, 56, 110, ...)", o.depth);
  if (o.width < 1 || o.classes < 2)
    fail<UsageError>("resnet_cifar", "a width of 1 or more and 2 classes or more", {o.width, " and ", o.classes});
  const nn::BatchNormOptions bn{.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum};
  if (o.preactivation) {
    x = nn::batch_norm(b, "bn_data", x, {.eps = o.bn_eps, .momentum = o.bn_momentum, .fixed_gamma = true});
    x = nn::conv(b, "conv1", x, detail::cifar_conv(o, o.width, 3, 1));
  } else {
    x = nn::conv_bn(b, "conv1", "bn1", x, detail::cifar_conv(o, o.width, 3, 1), bn);
  }
  for (int stage = 0; stage < 3; ++stage)
    for (int block = 0; block < n; ++block) {
      const std::string name = concat({"layer", stage + 1, ".", block});
      const int stride = stage > 0 && block == 0 ? 2 : 1;
      const std::int64_t out = (bottleneck ? 4 : 1) * o.width << stage;
      x = bottleneck        ? detail::preactivation_bottleneck(b, o, name, x, out, stride, block == 0)
          : o.preactivation ? detail::preactivation_unit(b, o, name, x, out, stride, block == 0)
                            : detail::basic_block(b, o, name, x, out, stride);
    }
  if (o.preactivation) x = nn::batch_norm(b, "bn1", x, bn);
  x = b.global_avg_pool("avgpool", x);
  b.softmax_cross_entropy(
      nn::linear(b, "fc", x, o.classes,
                 {o.xavier ? Init::xavier_normal : Init::he_uniform, o.xavier ? 1.0 : 0.4082482904638631}),
      o.label_smoothing, o.top_k);
}

#endif

}  // namespace tutti::models
