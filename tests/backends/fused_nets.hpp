// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <tutti/graph/builder.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/nn/layers.hpp>

// Small nets that contain every chain that backends/cuda/ops/fuse_norms.hpp can fuse.
namespace tutti::testing {

// A stem, a bottleneck without a projection and one with a projection.
inline Graph bottlenecks(std::int64_t width = 8, std::int64_t size = 6) {
  Builder b(3, size, size);
  ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  x = nn::conv_bn(b, "stem", "stem_bn", x, {.out = 2 * width}, {.relu = true});
  for (const int i : {1, 2}) {
    const std::string name = "block" + std::to_string(i) + ".";
    const int stride = i;
    ValueId shortcut = x;
    if (stride == 2)
      shortcut = nn::conv_bn(b, name + "down", name + "down_bn", x, {.out = 2 * width, .kernel = 1, .stride = 2}, {});
    ValueId y = nn::conv_bn(b, name + "conv1", name + "bn1", x, {.out = width, .kernel = 1}, {.relu = true});
    y = nn::conv_bn(b, name + "conv2", name + "bn2", y, {.out = width, .stride = stride}, {.relu = true});
    x = nn::conv_bn(b, name + "conv3", name + "bn3", y, {.out = 2 * width, .kernel = 1},
                    {.relu = true, .residual = shortcut});
  }
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 5, {}));
  return std::move(b).take();
}
// The number of convolutions of this net, and how many of them have an activated input.
inline constexpr int bottleneck_convolutions = 8, bottleneck_activated = 4;

// A ResNet with 8 layers for small images.
inline Graph cifar(bool preactivation = false, std::int64_t width = 4, std::int64_t size = 8) {
  Builder b(3, size, size);
  models::resnet_cifar(b, b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F}),
                       {.depth = 8, .width = width, .preactivation = preactivation});
  return std::move(b).take();
}
inline Graph resnet50(std::int64_t size) {
  Builder b(3, size, size);
  models::resnet(b, b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F}), {.depth = 50, .classes = 7});
  return std::move(b).take();
}

}  // namespace tutti::testing
