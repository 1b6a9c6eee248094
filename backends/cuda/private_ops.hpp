// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/graph/ops/op.hpp>
#include <tutti/graph/ops/window.hpp>

namespace tutti::cuda {

// Ops of this backend's own: fuse_norms() makes them, of a differentiated graph; no other backend meets them. With
// a = relu(scale[c] * x + bias[c]), what batch norm and relu make of x, which then need not be in memory:

// x, w [, scale, bias] -> y, sum, square_sum
// y = conv(activate ? a : x, w), and per channel the sums over N, H and W of y and of its squares.
struct Conv2dStatistics : op::Window {
  static constexpr OpInfo info{.name = "conv2d_statistics", .gradient = true, .weights = true};
  bool activate = false;
};
// x, dy, scale, bias -> dw: of conv(a, w).
struct Conv2dBackwardWeightsActivated : op::Window {
  static constexpr OpInfo info{.name = "conv2d_backward_weights_activated", .gradient = true};
};
// x, gamma, beta, running_mean, running_var, sum, square_sum [, residual] -> [y,] mean, inv_std [, scale, bias]
// A BatchNorm whose statistics are known but for their last step. With `output` y as BatchNorm's, else scale and bias.
struct BatchNormFromSums {
  static constexpr OpInfo info{.name = "batch_norm_from_sums", .gradient = true};
  float eps = 1e-5F, momentum = 0.1F;
  bool relu = false, residual = false, output = true;
};
// dy, w, x, gamma, beta, mean, inv_std -> g, dgamma, dbeta, from_g, from_x, constant
// Back through conv and relu(batch_norm(x)) to what BatchNormBackwardApply needs. g is the gradient of relu's output;
// where the relu was not active it may be anything.
struct Conv2dBackwardDataNorm : op::Window {
  static constexpr OpInfo info{.name = "conv2d_backward_data_norm", .gradient = true, .weights = true};
};
// g, x, gamma, beta, mean, inv_std, from_g, from_x, constant -> dx
// dx = from_g * (g where the relu was active, else 0) + from_x * x + constant, factors per channel.
struct BatchNormBackwardApply {
  static constexpr OpInfo info{.name = "batch_norm_backward_apply", .gradient = true};
};

}  // namespace tutti::cuda
