// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include <tutti/optim/update.hpp>

namespace tutti {

// How a step changes a model's weights. Constant during training.
struct UpdateRules {
  // Adjacent elements with the same numbers; one run for each tensor if the optimizer needs whole tensors.
  struct Run {
    std::size_t begin = 0, end = 0;
    double lr_scale = 1, weight_decay = 0;
    std::size_t rows = 0, cols = 0;  // of a matrix that Muon updates; 0: not one
  };
  std::vector<Run> runs;
  UpdateOp op;
  // The factor of each run's gradients, as numbers for a device that computes it itself, and as a function for the
  // host. Both are empty if the optimizer does not need whole tensors; a user-defined optimizer has only the function.
  std::optional<TrustRatio> trust;
  std::function<double(const SquaredNorms&, double lr)> factor;
  double clip_norm = 0;             // largest norm of all runs' gradients; 0: no clipping
  double max_grad_norm = 0;         // the optimizer's own limit, after clip_norm; 0: no limit
  bool dynamic_loss_scale = false;  // the StepFinisher holds its exponent
};

// Returns the factor of all gradients, which have the global norm `norm`: clip_norm in PyTorch's form, with its guard
// against a norm of zero, then max_grad_norm in timm's, without one.
[[nodiscard]] inline double clip_factor(const UpdateRules& r, double norm) {
  double clip = 1;
  if (r.clip_norm > 0) clip = std::min(1.0, r.clip_norm / (norm + 1e-6));
  if (r.max_grad_norm > 0) clip /= std::max(norm * clip / r.max_grad_norm, 1.0);
  return clip;
}

}  // namespace tutti
