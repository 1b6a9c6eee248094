// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::models {

// The Wide ResNet for small images: Zagoruyko and Komodakis 2016, with the form and the names of the authors' program
// (group0.block0.conv0, bn1, convdim; .weight is added). Pre-activation blocks of two 3x3 convolutions, and a 1x1
// convolution of the activated input if the shape changes.
struct WideResnetOptions {
  int depth = 28;  // 6n + 4
  std::int64_t widen = 10;
  int classes = 10;
  double dropout = 0;  // between the convolutions of a block
  float bn_eps = 1e-5F;
  float bn_momentum = 0.1F;
  float label_smoothing = 0;
  int top_k = 5;
};

// Records the network and its loss. Throws UsageError for a depth that is not 6n + 4.
inline void wide_resnet(Builder& b, ValueId x, const WideResnetOptions& o = {}) {
  const int blocks = (o.depth - 4) / 6;
  if (blocks < 1 || 6 * blocks + 4 != o.depth) fail<UsageError>("wide_resnet", "a depth of 6n+4 (10, 16, 28)", o.depth);
  if (o.widen < 1) fail<UsageError>("wide_resnet", "a factor of 1 or more for the channels", o.widen);
  const nn::BatchNormOptions relu{.relu = true, .eps = o.bn_eps, .momentum = o.bn_momentum};
  const auto conv = [&](const std::string& name, ValueId in, std::int64_t out, int kernel, int stride) {
    return nn::conv(b, name, in, {.out = out, .kernel = kernel, .stride = stride});
  };
  x = conv("conv0", x, 16, 3, 1);
  for (int group = 0; group < 3; ++group)
    for (int block = 0; block < blocks; ++block) {
      const std::string name = concat({"group", group, ".block", block, "."});
      const std::int64_t out = 16 * o.widen << group;
      const int stride = group > 0 && block == 0 ? 2 : 1;
      const ValueId a = nn::batch_norm(b, name + "bn0", x, relu);
      const ValueId shortcut = block == 0 ? conv(name + "convdim", a, out, 1, stride) : x;
      ValueId y = nn::batch_norm(b, name + "bn1", conv(name + "conv0", a, out, 3, stride), relu);
      y = nn::dropout(b, name + "dropout", y, o.dropout);
      x = b.add(name + "add", conv(name + "conv1", y, out, 3, 1), shortcut);
    }
  x = b.global_avg_pool("avgpool", nn::batch_norm(b, "bn", x, relu));
  b.softmax_cross_entropy(nn::linear(b, "fc", x, o.classes, {Init::he_uniform, 0.4082482904638631}), o.label_smoothing,
                          o.top_k);
}

}  // namespace tutti::models
