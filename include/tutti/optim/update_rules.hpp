// SPDX-License-Identifier: MIT
#pragma once

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
  };
  std::vector<Run> runs;
  UpdateOp op;
  // The factor of each run's gradients, as numbers for a device that computes it itself, and as a function for the
  // host. Both are empty if the optimizer does not need whole tensors; a user-defined optimizer has only the function.
  std::optional<TrustRatio> trust;
  std::function<double(const SquaredNorms&, double lr)> factor;
  double clip_norm = 0;             // largest norm of all runs' gradients; 0: no clipping
  bool dynamic_loss_scale = false;  // the StepFinisher holds its exponent
};

}  // namespace tutti
