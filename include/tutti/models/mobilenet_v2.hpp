// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include <tutti/core/text_part.hpp>
#include <tutti/nn/activations.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::models {

// MobileNetV2 (Sandler et al. 2018) with torchvision's form and parameter names.
struct MobilenetV2Options {
  int classes = 1000;
  double dropout = 0.2;  // before the classifier
  float bn_eps = 1e-5F;
  float bn_momentum = 0.1F;
  float label_smoothing = 0;
  int top_k = 5;
  bool decay_bias = false;  // weight decay also applies to the classifier's bias
};

namespace detail {

class MobilenetV2 {
 public:
  MobilenetV2(Builder& b, const MobilenetV2Options& o) : b_(b), o_(o) {}

  void record(ValueId x) {
    struct Stage {
      int expansion;
      std::int64_t out;
      int blocks, stride;
    };
    constexpr Stage stages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    x = conv("features.0.0", "features.0.1", x, {.out = 32, .stride = 2});
    int n = 1;
    for (const Stage& s : stages)
      for (int i = 0; i < s.blocks; ++i)
        x = block(concat({"features.", n++, ".conv."}), x, s.out, s.expansion, i == 0 ? s.stride : 1);
    x = conv("features.18.0", "features.18.1", x, {.out = 1280, .kernel = 1});
    x = nn::dropout(b_, "classifier.0", b_.global_avg_pool("avgpool", x), o_.dropout);
    b_.softmax_cross_entropy(nn::linear(b_, "classifier.1", x, o_.classes, {Init::normal, 0.01}, o_.decay_bias),
                             o_.label_smoothing, o_.top_k);
  }

 private:
  [[nodiscard]] nn::BatchNormOptions norm(ValueId residual = no_value) const {
    return {.residual = residual, .eps = o_.bn_eps, .momentum = o_.bn_momentum};
  }
  // Convolution, batch norm and relu6.
  ValueId conv(const std::string& name, const std::string& bn, ValueId x, const nn::ConvOptions& c) {
    return nn::relu6(b_, name + ".relu6", nn::conv_bn(b_, name, bn, x, c, norm()));
  }
  // An inverted residual.
  ValueId block(const std::string& name, ValueId x, std::int64_t out, int expansion, int stride) {
    const std::int64_t in = b_.shape(x)[1], inner = in * expansion;
    int k = 0;
    ValueId y = x;
    if (expansion != 1) {
      y = conv(name + "0.0", name + "0.1", y, {.out = inner, .kernel = 1});
      ++k;
    }
    const std::string depthwise = name + std::to_string(k);
    y = conv(depthwise + ".0", depthwise + ".1", y,
             {.out = inner, .stride = stride, .groups = static_cast<int>(inner)});
    return nn::conv_bn(b_, name + std::to_string(k + 1), name + std::to_string(k + 2), y, {.out = out, .kernel = 1},
                       norm(stride == 1 && in == out ? x : no_value));
  }

  Builder& b_;
  const MobilenetV2Options& o_;
};

}  // namespace detail

// Records the network and its loss. x: images of 32 pixels or more in height and width.
inline void mobilenet_v2(Builder& b, ValueId x, const MobilenetV2Options& o = {}) {
  detail::MobilenetV2(b, o).record(x);
}

}  // namespace tutti::models
