// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/optim/update.hpp>

namespace tutti {

// Parameters that only the first steps of a run train. In later steps they stay as they are, without decay.
struct EarlyTraining {
  std::string parameters{};  // patterns of their names, as of find_parameters()
  std::int64_t steps = 0;    // 0: all parameters are trained in every step
  // The steps of the run, if the rate of these parameters falls linearly from its peak to 0 in `steps`. The schedule
  // must fall linearly from its peak to 0 in the run. 0: their rate follows the schedule.
  std::int64_t of_steps = 0;

  // Returns the factor of their rate in step `step`, from 1; 0: the step does not train them.
  [[nodiscard]] double factor(std::int64_t step) const {
    if (step > steps) return 0;
    if (of_steps == 0) return 1;
    if (step > of_steps) return 0;  // after the run
    const auto done = static_cast<double>(step - 1);
    return (1 - done / static_cast<double>(steps)) / (1 - done / static_cast<double>(of_steps));
  }
  // Throws a UsageError if a number is out of its range.
  TUTTI_CORE_FUNCTION void require_valid() const;
};

// How a step changes a model's weights. Constant during training.
struct UpdateRules {
  // Adjacent elements with the same numbers; one run for each tensor if the optimizer needs whole tensors.
  struct Run {
    std::size_t begin = 0, end = 0;
    double lr_scale = 1, weight_decay = 0;
    std::size_t rows = 0, cols = 0;  // of a matrix that Muon updates; 0: not one
    bool early = false;              // only steps of UpdateRules::early train it
    bool has_ratio = true;           // UpdateRules::factor is of this run too
  };
  std::vector<Run> runs;
  UpdateOp op;
  // The factor of each run's gradients, as numbers for a device that computes it itself, and as a function for the
  // host. Both are empty if the optimizer does not need whole tensors; a user-defined optimizer has only the function.
  std::optional<TrustRatio> trust;
  std::function<double(const SquaredNorms&, double lr)> factor;
  // The factor gets the norm of the gradient without the decay, and the decay as a number (SquaredNorms).
  bool adds_norms = false;
  double clip_norm = 0;             // largest norm of all gradients that a step applies; 0: no clipping
  double max_grad_norm = 0;         // the optimizer's own limit, after clip_norm; 0: no limit
  bool dynamic_loss_scale = false;  // the StepFinisher holds its exponent
  EarlyTraining early{};

  // Returns the rate of a run in step `step`, from 1, or a negative number if the step does not train it.
  [[nodiscard]] double rate(const Run& r, double lr, std::int64_t step) const {
    if (!r.early) return lr * r.lr_scale;
    const double share = early.factor(step);
    return share > 0 ? lr * r.lr_scale * share : -1;
  }
  // Calls f(begin, end) for the elements that step `step`, from 1, trains, with adjacent runs together.
  template <class F>
  void for_trained(std::int64_t step, F&& f) const {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (rate(runs[i], 1, step) < 0) continue;
      const std::size_t begin = runs[i].begin;
      while (i + 1 < runs.size() && rate(runs[i + 1], 1, step) >= 0) ++i;
      f(begin, runs[i].end);
    }
  }
};

// Returns the factor of all gradients, which have the global norm `norm`: clip_norm in PyTorch's form, with its guard
// against a norm of zero, then max_grad_norm in timm's, without one.
[[nodiscard]] inline double clip_factor(const UpdateRules& r, double norm) {
  double clip = 1;
  if (r.clip_norm > 0) clip = std::min(1.0, r.clip_norm / (norm + 1e-6));
  if (r.max_grad_norm > 0) clip /= std::max(norm * clip / r.max_grad_norm, 1.0);
  return clip;
}

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void EarlyTraining::require_valid() const {
  if (steps < 0 || of_steps < 0) fail<UsageError>("early training", "0 steps or more", std::min(steps, of_steps));
  if (steps > 0 && parameters.empty())
    fail<UsageError>("early training", "patterns of parameters' names", "none", "e.g. whitening.bias");
}
#endif

}  // namespace tutti
