// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/nn/activations.hpp>
#include <tutti/nn/channels.hpp>
#include <tutti/nn/dropout.hpp>

#include "engine/op_cases.hpp"

namespace tutti::testing {

// Returns factors of channels, concatenations, layer norms, dropouts and relu6 in every width of channels. The CUDA
// backend has no kernels for them.
inline std::vector<OpCase> channel_op_cases() {
  std::vector<OpCase> cases;
  for (std::int64_t channels : {1, 5, 16, 24, 64, 200}) {
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t h, std::int64_t w, auto record) {
      cases.push_back({name + " of " + std::to_string(channels), rows, channels, h, w, record});
    };
    add("squeeze and excitation", 9, 5, 4, [](Builder& b, ValueId x) { return nn::squeeze_excitation(b, "se", x, 3); });
    add("factors of a batch norm", 3, 3, 2, [](Builder& b, ValueId x) {
      const ValueId y = nn::batch_norm(b, "bn", x, {.relu = true});
      return nn::multiply(b, "m", y, b.global_avg_pool("mean", second_path(b, x)));
    });
    add("layer scale", 9, 5, 4, [](Builder& b, ValueId x) { return nn::layer_scale(b, "gamma", x); });
    // The norm of one channel has no gradient that a difference quotient could show.
    if (channels > 1) add("layer norm", 9, 5, 4, [](Builder& b, ValueId x) { return nn::layer_norm(b, "ln", x); });
    add("layer norm of one pixel, and of a batch norm", 19, 1, 1, [](Builder& b, ValueId x) {
      return nn::layer_norm(b, "ln2", nn::batch_norm(b, "bn", nn::layer_norm(b, "ln", x, 1e-3F)));
    });
    add("concat", 9, 3, 4, [](Builder& b, ValueId x) {
      const ValueId narrow = nn::conv(b, "narrow", x, {.out = 3, .kernel = 1});
      return nn::concat(b, "all", {x, narrow, b.relu("r", x)});
    });
    add("dropout", 9, 5, 4,
        [](Builder& b, ValueId x) { return nn::dropout(b, "d2", second_path(b, nn::dropout(b, "d1", x, 0.25)), 0.5); });
    add("drop path", 19, 3, 3,
        [](Builder& b, ValueId x) { return b.add("sum", second_path(b, x), nn::drop_path(b, "path", x, 0.4)); });
    add("relu6", 3, 7, 5, [](Builder& b, ValueId x) {
      return nn::relu6(b, "r", b.add("twice", b.add("sum", x, x), b.add("sum2", x, x)));
    });
  }
  const auto shard = [](Builder& b, ValueId x) {
    return nn::layer_scale(b, "gamma", nn::dropout(b, "d", nn::layer_norm(b, "ln", x), 0.1));
  };
  cases.push_back({"chunks of unequal rows", 21, 16, 33, 32, shard});
  cases.push_back({"layer norm of 1536", 3, 1536, 2, 2, shard});
  return cases;
}

}  // namespace tutti::testing
