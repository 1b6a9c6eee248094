// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <tutti/core/text_part.hpp>
#include <tutti/nn/channels.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/layers.hpp>

namespace tutti::models {

// ConvNeXt (Liu et al. 2022) with torchvision's form and parameter names. The defaults are those of ConvNeXt-T.
// torchvision's two fully connected layers of a block are 1x1 convolutions here: their weights have the shape
// [out, in, 1, 1], and files with [out, in] fit.
struct ConvnextOptions {
  int classes = 1000;
  std::array<int, 4> blocks{3, 3, 9, 3};
  std::array<std::int64_t, 4> channels{96, 192, 384, 768};
  double drop_path = 0.1;     // rate of stochastic depth of the last block; it grows evenly over the blocks
  double layer_scale = 1e-6;  // initial factors
  float label_smoothing = 0;
  int top_k = 5;
  bool decay_bias = false;  // weight decay also applies to the classifier's bias
};

namespace detail {

inline ValueId convnext_block(Builder& b, const std::string& name, ValueId x, double layer_scale, double drop) {
  const std::int64_t channels = b.shape(x)[1];
  const Initializer init{Init::normal, 0.02};
  ValueId y =
      nn::conv(b, name + ".block.0", x,
               {.out = channels, .kernel = 7, .bias = true, .init = init, .groups = static_cast<int>(channels)});
  y = nn::layer_norm(b, name + ".block.2", y);
  y = nn::conv(b, name + ".block.3", y, {.out = 4 * channels, .kernel = 1, .bias = true, .init = init});
  y = b.gelu(name + ".block.4", y);
  y = nn::conv(b, name + ".block.5", y, {.out = channels, .kernel = 1, .bias = true, .init = init});
  y = nn::layer_scale(b, name + ".layer_scale", y, layer_scale);
  return b.add(name + ".add", nn::drop_path(b, name + ".stochastic_depth", y, drop), x);
}

}  // namespace detail

// Records the network and its loss. x: images of 32 pixels or more in height and width.
inline void convnext(Builder& b, ValueId x, const ConvnextOptions& o = {}) {
  const Initializer init{Init::normal, 0.02};
  x = nn::conv(b, "features.0.0", x,
               {.out = o.channels[0], .kernel = 4, .stride = 4, .padding = 0, .bias = true, .init = init});
  x = nn::layer_norm(b, "features.0.1", x);
  const int all = o.blocks[0] + o.blocks[1] + o.blocks[2] + o.blocks[3];
  int block = 0;
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const std::string name = concat({"features.", 2 * stage + 1});
    if (stage > 0) {
      const std::string down = concat({"features.", 2 * stage});
      x = nn::conv(b, down + ".1", nn::layer_norm(b, down + ".0", x),
                   {.out = o.channels[stage], .kernel = 2, .stride = 2, .padding = 0, .bias = true, .init = init});
    }
    for (int i = 0; i < o.blocks[stage]; ++i)
      x = detail::convnext_block(b, concat({name, ".", i}), x, o.layer_scale,
                                 all > 1 ? o.drop_path * block++ / (all - 1) : 0);
  }
  x = nn::layer_norm(b, "classifier.0", b.global_avg_pool("avgpool", x));
  b.softmax_cross_entropy(nn::linear(b, "classifier.2", x, o.classes, init, o.decay_bias), o.label_smoothing, o.top_k);
}

}  // namespace tutti::models
