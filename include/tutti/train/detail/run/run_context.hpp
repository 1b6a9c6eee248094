// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/data/batch_source.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/detail/fit/fit_options.hpp>
#include <tutti/train/detail/fit/sources.hpp>
#include <tutti/train/detail/run/run_share.hpp>
#include <tutti/train/trainer.hpp>

// The data to which all parts of a run refer.
namespace tutti::detail {

// The arguments of one call of fit(), its position, and its result.
struct RunContext {
  Trainer& trainer;
  AnyStrategy& strategy;
  Coordinator& coordinator;
  const FitOptions& options;
  Counters& at;  // the trainer's counters
  RunSources sources;
  RunShare share{};
  FitResult result{};
  bool over = false;  // the run ends before its last step

  [[nodiscard]] BatchSource& train() const { return *sources.train(); }
  [[nodiscard]] Position position() const { return {at.epoch, at.consumed}; }
  // Returns whether workers do not wait for each other, because servers own the weights.
  [[nodiscard]] bool is_independent() const { return strategy.owns_weights(); }
  // Returns whether the number of steps, also of other workers, passed a multiple of `every` in the last step.
  [[nodiscard]] bool passed(std::int64_t every) const { return at.step / every > share.step.before / every; }
};

}  // namespace tutti::detail
