// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/nn/layers.hpp>

// Average pooling.
namespace tutti::nn {

// Average over a window, x [N,C,H,W] -> [N,C,H',W']. count_padding: the padding's zeros count, as in PyTorch by
// default. A last window that does not fit into the image is left out, unless `ceil`, PyTorch's ceil_mode, which is
// only for means that do not count the padding.
inline ValueId avg_pool(Builder& b, const std::string& name, ValueId x, op::Window window, bool count_padding = true,
                        bool ceil = false) {
  return b.record(name, op::AvgPool{{window, count_padding, ceil}}, {x});
}

}  // namespace tutti::nn
