// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/math.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/text_part.hpp>
#include <tutti/nn/activations.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::models {

// A small net for small images that learns in few epochs, after Jordan 2024 ("94% on CIFAR-10 in 3.29 seconds on a
// single GPU"). The first layer whitens 2x2 patches, and only its biases are learned (models/whitening.hpp). Three
// blocks follow, each of convolution, max pooling, batch norm, GELU, convolution, batch norm, GELU, and then a linear
// layer. A third convolution and batch norm of each block are optional; then the output of the block's first GELU is
// added to theirs before the last GELU. The weights of the linear layer, and their learning rate, include the scale of
// the output.
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
  bool third_conv = false;
  bool silu = false;  // in the blocks, in place of GELU
  // Standard deviation of the linear layer's weights before the scale of the output; 0: PyTorch's default.
  double fc_deviation = 0;
  double fc_lr_scale = 1;       // multiplies the linear layer's rate
  bool uniform_biases = false;  // of the first layer: PyTorch's default in place of zeros

  // The nets of KellerJordan/cifar10-airbench, with the rates of their recipes.
  [[nodiscard]] static CifarFastOptions airbench94() {
    CifarFastOptions o;
    o.bn_eps = 1e-12F;
    return o;
  }
  [[nodiscard]] static CifarFastOptions airbench96() {
    CifarFastOptions o = airbench94();
    o.widths = {128, 384, 512};
    o.bn_momentum = 0.1F;
    o.third_conv = true;
    return o;
  }
  // The net that chooses images in airbench96_faster.py.
  [[nodiscard]] static CifarFastOptions airbench96_proxy() {
    CifarFastOptions o = airbench96();
    o.widths = {32, 64, 64};
    o.third_conv = false;
    return o;
  }
  // airbench94_muon.py. The head's rate is in units of that of the biases.
  [[nodiscard]] static CifarFastOptions airbench94_muon() {
    CifarFastOptions o = airbench94();
    o.output_scale = 1.0 / 256;
    o.beta_lr_scale = 1;
    o.fc_deviation = 1;
    o.fc_lr_scale = 0.67 / 0.053;
    o.uniform_biases = true;
    return o;
  }
  // hiverge/cifar10-speedrun.
  [[nodiscard]] static CifarFastOptions hive94() {
    CifarFastOptions o = airbench94_muon();
    o.bn_momentum = 1 - 0.5566F;
    o.fc_lr_scale = 0.5415 / 0.0573;
    o.silu = true;
    return o;
  }
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
  const auto activation = [&](const char* which, ValueId v) {
    return o.silu ? nn::silu(b, name + ".silu" + which, v) : b.gelu(name + ".gelu" + which, v);
  };
  x = b.max_pool(name + ".pool", nn::conv(b, name + ".conv1", x, conv), {2, 2, 2, 0});
  x = activation("1", nn::batch_norm(b, name + ".bn1", x, bn));
  nn::BatchNormOptions last = bn;
  last.residual = x;
  x = activation("2", nn::conv_bn(b, name + ".conv2", name + ".bn2", x, conv, bn));
  return o.third_conv ? activation("3", nn::conv_bn(b, name + ".conv3", name + ".bn3", x, conv, last)) : x;
}

}  // namespace detail

TUTTI_CORE_FUNCTION void cifar_fast(Builder& b, ValueId x, const CifarFastOptions& o) {
  const std::int64_t channels = b.shape(x)[1], patch = 4 * channels;
  if (o.classes < 2 || *std::min_element(o.widths.begin(), o.widths.end()) < 1)
    fail<UsageError>("cifar_fast", "2 classes or more and 1 channel or more",
                     {o.classes, " classes, ", *std::min_element(o.widths.begin(), o.widths.end()), " channels"});
  if (o.fc_deviation < 0) fail<UsageError>("cifar_fast", "a deviation of 0 or more", o.fc_deviation);
  if (!(o.output_scale > 0)) fail<UsageError>("cifar_fast", "an output scale over 0", o.output_scale);
  Initializer init{Init::he_normal, 1};
  if (!o.whitening.empty()) {
    if (static_cast<std::int64_t>(o.whitening.size()) != 2 * patch * patch)
      fail<ShapeError>("whitening", {2 * patch * patch, " weights"}, o.whitening.size());
    init = {Init::values, 1, std::make_shared<const std::vector<float>>(o.whitening)};
  }
  const ValueId w = b.parameter("whitening.weight", Shape{2 * patch, channels, 2, 2}, std::move(init), false, false);
  const Initializer biases = o.uniform_biases ? Initializer{Init::uniform, 1 / math::sqrt(static_cast<double>(patch))}
                                              : Initializer{Init::zeros};
  const ValueId bias = b.parameter("whitening.bias", Shape{2 * patch}, biases);
  x = b.gelu("whitening.gelu", b.bias("whitening.sum", b.conv2d("whitening", x, w, {2, 2, 1, 0}), bias));
  for (std::size_t i = 0; i < o.widths.size(); ++i)
    x = detail::cifar_fast_block(b, o, concat({"layer", i + 1}), x, o.widths[i]);
  const auto h = static_cast<int>(b.shape(x)[2]), width = static_cast<int>(b.shape(x)[3]);
  if (h * width > 1) x = b.max_pool("pool", x, {h, width, std::max(h, width), 0});
  // With SGD, a factor s after a layer equals weights that are s times as large, with a rate that is s * s times as
  // high.
  const double s = o.output_scale;
  const Initializer head = o.fc_deviation > 0 ? Initializer{Init::uniform, s * o.fc_deviation * math::sqrt(3.0)}
                                              : Initializer{Init::he_uniform, s * detail::torch_gain};
  const ValueId fc = b.parameter("fc.weight", Shape{o.classes, b.shape(x)[1]}, head, true, true, s * s * o.fc_lr_scale);
  const ValueId none = b.parameter("fc.bias", Shape{o.classes}, {Init::zeros}, false, false);
  b.softmax_cross_entropy(b.linear("fc", x, fc, none), o.label_smoothing, o.top_k);
}

#endif

}  // namespace tutti::models
