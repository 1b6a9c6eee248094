// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/core/error.hpp>
#include <tutti/engine/step/step_finisher.hpp>

namespace tutti::detail {

// Throws the NotFiniteError of a step that ended with Halt. loss_scale: 1 if it is dynamic.
[[noreturn]] inline void fail_not_finite(const StepOutcome& o, double loss_scale) {
  const std::string step = "step " + std::to_string(o.halted_step);
  if (o.halt == Halt::gradients)
    fail<NotFiniteError>(step, "finite gradients", {"infinite or NaN gradients at a loss scale of ", loss_scale},
                         "lower --lr or set --clip-norm");
  fail<NotFiniteError>(step, "a finite loss",
                       o.halt == Halt::loss_elsewhere
                           ? "a loss on another rank that is not finite"
                           : std::to_string(o.halted_rows > 0 ? o.halted_loss / o.halted_rows : o.halted_loss),
                       "lower --lr, lengthen --warmup-epochs or set --clip-norm; the last checkpoint is kept");
}

}  // namespace tutti::detail
