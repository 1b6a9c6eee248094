// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/data/sampler.hpp>
#include <tutti/train/detail/trainer/state.hpp>

// Learning rates for a global batch that depends on the number of workers (FitOptions::batch_per_worker). The rate is
// proportional to the batch, as in Goyal et al., "Accurate, large minibatch SGD", 2017. After a change of the batch,
// the rate changes gradually over several steps.
namespace tutti::detail {

// Returns the factor of the schedule's rate in the next step.
[[nodiscard]] inline double rate_factor(const Counters& c, std::int64_t ramp_steps) {
  if (ramp_steps <= 0 || c.step >= c.rate_step + ramp_steps) return c.rate_to;
  const double t = static_cast<double>(c.step - c.rate_step) / static_cast<double>(ramp_steps);
  return c.rate_from + (c.rate_to - c.rate_from) * std::max(t, 0.0);
}

// Sets the batch from the next step on. rate_batch: the batch for which the schedule's rate is meant.
inline void follow_batch(Counters& c, std::int64_t batch, std::int64_t rate_batch, std::int64_t ramp_steps) {
  if (c.rate_batch > 0 && c.rate_batch != rate_batch) {
    const double was = static_cast<double>(c.rate_batch) / static_cast<double>(rate_batch);
    c.rate_from *= was;
    c.rate_to *= was;
  }
  c.rate_batch = rate_batch;
  const double to = static_cast<double>(batch) / static_cast<double>(rate_batch);
  if (to == c.rate_to && c.step > 0) return;
  c.rate_from = c.step > 0 ? rate_factor(c, ramp_steps) : to;
  c.rate_to = to;
  c.rate_step = c.step;
}

// Returns the run's position in steps of this global batch. The position depends only on the number of samples that
// the run has trained, so the run's steps may have had other batch sizes.
[[nodiscard]] inline std::int64_t steps_done(Position at, std::int64_t size, std::int64_t batch, EpochEnd end) {
  if (end == EpochEnd::run_on) return (at.epoch * size + at.consumed) / batch;
  return at.epoch * steps_per_epoch(size, batch) + at.consumed / batch;
}

}  // namespace tutti::detail
