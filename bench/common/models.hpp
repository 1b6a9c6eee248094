// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <iterator>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/models/imagenet_net.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/models/wide_resnet.hpp>

namespace tutti::bench {

inline constexpr const char* model_names =
    "resnet20, resnet56, resnet110, resnet18, resnet50-32, cifar_fast, wrn28_10, resnet50, resnext50_32x4d, "
    "wide_resnet50_2, resnet50d, seresnet50, mobilenet_v2 or convnext_tiny";

// Builds a net by name, for images of 224x224 in a thousand classes, or of 32x32 in ten. resnet50-32 is ResNet-50 with
// the stem for 224x224, on images of 32x32. cifar_fast is the net of the fast recipe with random weights in its first
// layer. wrn28_10 is the Wide ResNet for small images.
inline Builder make_model(const std::string& name) {
  const bool cifar = name == "resnet20" || name == "resnet56" || name == "resnet110";
  const bool small = cifar || name == "resnet18" || name == "resnet50-32" || name == "cifar_fast" || name == "wrn28_10";
  const bool large = !small && std::find(std::begin(models::imagenet_nets), std::end(models::imagenet_nets), name) !=
                                   std::end(models::imagenet_nets);
  Builder b(3, large ? 224 : 32, large ? 224 : 32);
  const ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  if (cifar)
    models::resnet_cifar(b, x, {.depth = std::stoi(name.substr(6))});
  else if (name == "resnet18")
    models::resnet(b, x, {.depth = 18, .classes = 10, .cifar_stem = true});
  else if (name == "resnet50-32")
    models::resnet(b, x, {.depth = 50, .classes = 10});
  else if (name == "wrn28_10")
    models::wide_resnet(b, x);
  else if (large)
    models::imagenet_net(b, x, name);
  else if (name == "cifar_fast")
    models::cifar_fast(b, x, {.label_smoothing = 0.2F});
  else
    fail<UsageError>("--model", model_names, name);
  return b;
}

}  // namespace tutti::bench
