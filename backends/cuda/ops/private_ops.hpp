// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/graph/ops/op.hpp>
#include <tutti/graph/ops/window.hpp>

namespace tutti::cuda {

// Ops that only this backend has. fuse_norms() creates them in a differentiated graph. Below, a = relu(scale[c] * x +
// bias[c]) is the result of batch norm and relu for x; a need not be in memory.

// x, w [, scale, bias] -> y, sum, square_sum
// y = conv(activate ? a : x, w), and for each channel the sums over N, H and W of y and of its squares.
struct Conv2dStatistics : op::Window {
  static constexpr OpInfo info{.name = "conv2d_statistics", .gradient = true, .weights = true};
  bool activate = false;
};
// x, dy, scale, bias -> dw, the weight gradient of conv(a, w).
struct Conv2dBackwardWeightsActivated : op::Window {
  static constexpr OpInfo info{.name = "conv2d_backward_weights_activated", .gradient = true};
};
// x, gamma, beta, running_mean, running_var, sum, square_sum [, residual] -> [y,] mean, inv_std [, scale, bias]
// A BatchNorm that gets the sums and computes the last step of the statistics. With `output` it returns y like
// BatchNorm, otherwise scale and bias. mask: returns a mask after inv_std, like BatchNormWithMask.
struct BatchNormFromSums {
  static constexpr OpInfo info{.name = "batch_norm_from_sums", .gradient = true};
  float eps = 1e-5F, momentum = 0.1F;
  bool relu = false, residual = false, output = true, mask = false;
};
// x, gamma, beta, running_mean, running_var, residual -> y, mean, inv_std, mask
// A BatchNorm with residual and relu. mask [N, C / 8, H, W], u8: bit c % 8 of element c / 8 tells whether y > 0.
struct BatchNormWithMask {
  static constexpr OpInfo info{.name = "batch_norm_with_mask", .gradient = true};
  float eps = 1e-5F, momentum = 0.1F;
};
// dy [, dy2], x, gamma, beta, mean, inv_std, mask -> dx, dgamma, dbeta, dresidual
// The gradient of a batch norm with residual and relu, which gets the mask instead of y.
struct BatchNormBackwardFromMask {
  static constexpr OpInfo info{.name = "batch_norm_backward_from_mask", .gradient = true};
  bool second = false;
};
// In a block of y = relu(norm(x) + norm(s)), the two norms have these four ops. s is the input of the norm in the
// shortcut. Either the norms run together, so that norm(s) is neither written nor read, or separately; the bits are the
// same (norm_shortcut.hpp).
// s, gamma, beta, running_mean, running_var -> norm(s), mean, inv_std
// A BatchNorm. If the norms run together, it only computes the statistics, and norm(s) stays undefined.
struct BatchNormOfShortcut {
  static constexpr OpInfo info{.name = "batch_norm_of_shortcut", .gradient = true};
  float eps = 1e-5F, momentum = 0.1F;
};
// x, gamma, beta, running_mean, running_var, norm(s), s, and gamma, beta, mean and inv_std of s
//   -> y, mean, inv_std, mask
// A BatchNormWithMask. If the norms run together, it computes norm(s) from s.
struct BatchNormAddShortcut {
  static constexpr OpInfo info{.name = "batch_norm_add_shortcut", .gradient = true};
  float eps = 1e-5F, momentum = 0.1F;
  float shortcut_eps = 1e-5F, shortcut_momentum = 0.1F;
};
// dy [, dy2], x, gamma, beta, mean, inv_std, mask, s, and gamma, mean and inv_std of s -> dx, dgamma, dbeta, ds, sums
// A BatchNormBackwardFromMask. If the norms run together, it also computes ds, and sums [2 C], dbeta and dgamma of s;
// otherwise ds contains the gradient of norm(s).
struct BatchNormBackwardAddShortcut {
  static constexpr OpInfo info{.name = "batch_norm_backward_add_shortcut", .gradient = true};
  bool second = false;
};
// ds, s, gamma, beta, mean, inv_std, sums -> dgamma, dbeta
// The rest of the shortcut's BatchNormBackward, at its place in the order of the parameters' gradients. If the norms
// run separately, it replaces the gradient of norm(s) in ds by that of s.
struct BatchNormBackwardOfShortcut {
  static constexpr OpInfo info{.name = "batch_norm_backward_of_shortcut", .gradient = true};
};
// dy, w, x, gamma, beta, mean, inv_std -> g, dgamma, dbeta, from_g, from_x, constant
// The backward pass through conv and relu(batch_norm(x)) up to the inputs of BatchNormBackwardApply. g is the gradient
// of relu's output. Elements for which the relu was not active are undefined.
struct Conv2dBackwardDataNorm : op::Window {
  static constexpr OpInfo info{.name = "conv2d_backward_data_norm", .gradient = true, .weights = true};
};
// g, x, gamma, beta, mean, inv_std, from_g, from_x, constant -> dx
// dx = from_g * (g if the relu was active, else 0) + from_x * x + constant, with factors per channel.
struct BatchNormBackwardApply {
  static constexpr OpInfo info{.name = "batch_norm_backward_apply", .gradient = true};
};

}  // namespace tutti::cuda
