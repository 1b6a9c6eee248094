// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include <tutti/optim/update.hpp>

namespace tutti {

// How a step changes a model's weights: fixed for as long as it trains.
struct UpdateRules {
  // Neighbouring elements with the same numbers; a tensor each where the optimizer looks at whole tensors.
  struct Run {
    std::size_t begin = 0, end = 0;
    double lr_scale = 1, weight_decay = 0;
  };
  std::vector<Run> runs;
  UpdateOp op;
  // What each run's gradients are multiplied by, for a device that computes it itself, and for the host; neither where
  // the optimizer does not look at tensors, the host's alone where it is one of a user's own.
  std::optional<TrustRatio> trust;
  std::function<double(const SquaredNorms&, double lr)> factor;
  double clip_norm = 0;             // largest norm of all runs' gradients; 0: none
  bool dynamic_loss_scale = false;  // its exponent belongs to the StepEnd
};

}  // namespace tutti
