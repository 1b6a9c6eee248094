// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/core/error.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/models/cifar_fast.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>

namespace tutti::bench {

inline constexpr const char* model_names =
    "resnet20, resnet56, resnet110, resnet18, resnet50, resnet50-32 or cifar_fast";

// Builds a net by name. resnet50-32 is ResNet-50 with the stem for 224x224, on images of 32x32 with ten classes.
// cifar_fast is the net of the fast recipe with random weights in its first layer.
inline Builder make_model(const std::string& name) {
  const bool large = name == "resnet50";
  Builder b(3, large ? 224 : 32, large ? 224 : 32);
  const ValueId x = b.normalize({125, 123, 114}, {1 / 52.F, 1 / 51.F, 1 / 51.F});
  if (name == "resnet20" || name == "resnet56" || name == "resnet110")
    models::resnet_cifar(b, x, {.depth = std::stoi(name.substr(6))});
  else if (name == "resnet18")
    models::resnet(b, x, {.depth = 18, .classes = 10, .cifar_stem = true});
  else if (large || name == "resnet50-32")
    models::resnet(b, x, {.depth = 50, .classes = large ? 1000 : 10});
  else if (name == "cifar_fast")
    models::cifar_fast(b, x, {.label_smoothing = 0.2F});
  else
    fail<UsageError>("--model", model_names, name);
  return b;
}

}  // namespace tutti::bench
