// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/models/convnext.hpp>
#include <tutti/models/mobilenet_v2.hpp>
#include <tutti/models/resnet.hpp>

namespace tutti::models {

// The nets for ImageNet by torchvision's names, or timm's for resnet50d and seresnet50: what --model accepts.
inline constexpr std::string_view imagenet_nets[] = {"resnet18",   "resnet34",        "resnet50",        "resnet101",
                                                     "resnet152",  "resnext50_32x4d", "wide_resnet50_2", "resnet50d",
                                                     "seresnet50", "mobilenet_v2",    "convnext_tiny"};

// Returns the name of the net's classifier: the layer whose weights begin anew for other classes.
[[nodiscard]] constexpr std::string_view classifier_of(std::string_view net) {
  return net == "mobilenet_v2" ? "classifier.1" : net == "convnext_tiny" ? "classifier.2" : "fc";
}

// Records a net by its name, and its loss. Nets other than ResNets use from the options only those that they have too:
// classes, loss, batch norm and decay_bias. drop_path: rate of stochastic depth of the last block of ResNets and
// ConvNeXt; default: that of the options, and ConvNeXt's own. Throws UsageError for an unknown name.
inline void imagenet_net(Builder& b, ValueId x, std::string_view name, ResnetOptions o = {},
                         std::optional<double> drop_path = {}) {
  if (name == "mobilenet_v2")
    return mobilenet_v2(b, x,
                        {.classes = o.classes,
                         .bn_eps = o.bn_eps,
                         .bn_momentum = o.bn_momentum,
                         .label_smoothing = o.label_smoothing,
                         .top_k = o.top_k,
                         .decay_bias = o.decay_bias});
  if (name == "convnext_tiny") {
    ConvnextOptions own{
        .classes = o.classes, .label_smoothing = o.label_smoothing, .top_k = o.top_k, .decay_bias = o.decay_bias};
    if (drop_path) own.drop_path = *drop_path;
    return convnext(b, x, own);
  }
  if (drop_path) o.drop_path = *drop_path;
  if (!resnet_variant(name, o)) {
    if (std::find(std::begin(imagenet_nets), std::end(imagenet_nets), name) == std::end(imagenet_nets))
      fail<UsageError>("net", "a net of --model", name);
    o.depth = std::stoi(std::string(name.substr(6)));
  }
  resnet(b, x, o);
}

}  // namespace tutti::models
