// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::models {

// A small net for small images that learns in few epochs, after Jordan 2024 ("94% on CIFAR-10 in 3.29 seconds on a
// single GPU"). The first layer whitens 2x2 patches, and only its biases are learned (models/whitening.hpp). Three
// blocks follow, each of convolution, max pooling, batch norm, GELU, convolution, batch norm, GELU, and then a linear
// layer. The weights of the linear layer, and their learning rate, include the scale of the output.
struct CifarFastOptions {
  int classes = 10;
  std::array<std::int64_t, 3> widths{64, 256, 256};
  // Weights [8 * channels, channels, 2, 2] of the first layer; random if empty.
  std::vector<float> whitening{};
  double output_scale = 1.0 / 9;
  double beta_lr_scale = 64;  // for the biases of batch norm; the weights of batch norm stay 1
  float bn_eps = 1e-5F;
  float bn_momentum = 0.4F;
  float label_smoothing = 0;
  int top_k = 5;
};

// Records the network and its loss on the builder's images, which must have 15 pixels or more on each side.
TUTTI_CORE_FUNCTION void cifar_fast(Builder& b, ValueId x, const CifarFastOptions& o = {});

#if TUTTI_CORE_DEFINITIONS

namespace detail {

// The initializer of PyTorch's convolutions and linear layers: a uniform distribution with variance 1 / (3 fan_in).
inline constexpr double torch_gain = 0.4082482904638631;

inline ValueId cifar_fast_block(Builder& b, const CifarFastOptions& o, const std::string& name, ValueId x,
                                std::int64_t out) {
  const nn::ConvOptions conv{.out = out, .init = {Init::dirac, torch_gain}};
  const nn::BatchNormOptions bn{.eps = o.bn_eps,
                                .momentum = o.bn_momentum,
                                .fixed_gamma = true,
                                .beta_decay = true,
                                .beta_lr_scale = o.beta_lr_scale};
  x = b.max_pool(name + ".pool", nn::conv(b, name + ".conv1", x, conv), {2, 2, 2, 0});
  x = b.gelu(name + ".gelu1", nn::batch_norm(b, name + ".bn1", x, bn));
  return b.gelu(name + ".gelu2", nn::conv_bn(b, name + ".conv2", name + ".bn2", x, conv, bn));
}

}  // namespace detail

TUTTI_CORE_FUNCTION void cifar_fast(Builder& b, ValueId x, const CifarFastOptions& o) {
  const std::int64_t channels = b.shape(x)[1], patch = 4 * channels;
  if (o.classes < 2 || *std::min_element(o.widths.begin(), o.widths.end()) < 1)
    fail<UsageError>("cifar_fast", "2 classes or more and 1 channel or more",
                     {o.classes, " classes, ", *std::min_element(o.widths.begin(), o.widths.end()), " channels"});
  if (!(o.output_scale > 0)) fail<UsageError>("cifar_fast", "an output scale over 0", o.output_scale);
  Initializer init{Init::he_normal, 1};
  if (!o.whitening.empty()) {
    if (static_cast<std::int64_t>(o.whitening.size()) != 2 * patch * patch)
      fail<ShapeError>("whitening", {2 * patch * patch, " weights"}, o.whitening.size());
    init = {Init::values, 1, std::make_shared<const std::vector<float>>(o.whitening)};
  }
  const ValueId w = b.parameter("whitening.weight", Shape{2 * patch, channels, 2, 2}, std::move(init), false, false);
  const ValueId bias = b.parameter("whitening.bias", Shape{2 * patch}, {Init::zeros});
  x = b.gelu("whitening.gelu", b.bias("whitening.sum", b.conv2d("whitening", x, w, {2, 2, 1, 0}), bias));
  for (std::size_t i = 0; i < o.widths.size(); ++i)
    x = detail::cifar_fast_block(b, o, concat({"layer", i + 1}), x, o.widths[i]);
  const auto h = static_cast<int>(b.shape(x)[2]), width = static_cast<int>(b.shape(x)[3]);
  if (h * width > 1) x = b.max_pool("pool", x, {h, width, std::max(h, width), 0});
  // With SGD, a factor s after a layer equals weights that are s times as large, with a rate that is s * s times as
  // high.
  const double s = o.output_scale;
  const ValueId fc = b.parameter("fc.weight", Shape{o.classes, b.shape(x)[1]},
                                 {Init::he_uniform, s * detail::torch_gain}, true, true, s * s);
  const ValueId none = b.parameter("fc.bias", Shape{o.classes}, {Init::zeros}, false, false);
  b.softmax_cross_entropy(b.linear("fc", x, fc, none), o.label_smoothing, o.top_k);
}

#endif

}  // namespace tutti::models
