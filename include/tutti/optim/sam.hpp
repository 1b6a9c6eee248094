// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/separate.hpp>

namespace tutti {

// Sharpness-aware minimisation, Foret et al. 2021: a step takes the gradient at w + rho * g / |g| in place of w, where
// g is the gradient at w, without weight decay. Such a step has two passes over its images. It depends only on the
// number of the step, so a run that resumes or changes its members needs no state for it.
struct Sam {
  double rho = 0;          // length of the perturbation of all weights together; 0: no SAM
  std::int64_t every = 1;  // SAM is used in each step whose number, from 1, is a multiple of this

  [[nodiscard]] bool perturbs(std::int64_t step) const { return rho > 0 && step % every == 0; }
  // Throws a UsageError if a number is out of its range.
  TUTTI_CORE_FUNCTION void require_valid() const;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void Sam::require_valid() const {
  if (!(rho >= 0) || !math::is_finite(rho)) fail<UsageError>("SAM", "a rho of 0 or more", rho);
  if (every < 1) fail<UsageError>("SAM", "1 step or more between two steps with SAM", every);
}
#endif

}  // namespace tutti
