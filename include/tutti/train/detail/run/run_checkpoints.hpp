// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>

#include <tutti/core/clock.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/detail/files/save_checkpoint.hpp>
#include <tutti/train/detail/fit/fit_options.hpp>
#include <tutti/train/detail/run/run_context.hpp>

namespace tutti::detail {

// Decides when a run saves its state, and saves it.
class RunCheckpoints {
 public:
  explicit RunCheckpoints(RunContext& run) : run_(run) {}

  // Returns whether the time between two checkpoints has passed. If so, starts it again. Only rank 0 has a clock, so
  // that all ranks save after the same step.
  [[nodiscard]] bool take_due_by_time() {
    const double every = run_.options.save_every_seconds;
    if (every <= 0 || run_.strategy.rank() != 0 || since_save_.seconds() < every) return false;
    since_save_.restart();
    return true;
  }
  // Returns whether the last step must be saved because of its number, or because rank 0 requests it.
  [[nodiscard]] bool due_by_steps() const {
    const std::int64_t every = run_.options.save_every_steps;
    return (every > 0 && run_.passed(every)) || (run_.share.step.flags & step_flag::save) != 0;
  }
  // Returns whether a checkpoint with this metric must be saved as the best so far. All ranks call it and get the same
  // answer. If workers do not wait for each other, only the one that evaluates calls it.
  [[nodiscard]] bool due_as_best(double metric) const {
    const FitOptions& o = run_.options;
    if (!o.save_best) return false;
    if (o.save_every <= 0 && o.save_every_steps <= 0 && o.save_every_seconds <= 0 && !o.save_last) return false;
    const Checkpoints* const mine = run_.coordinator.checkpoints();
    double beats = mine != nullptr && mine->is_best(metric) ? 1 : 0;
    if (!run_.is_independent()) run_.strategy.sum({&beats, 1});
    return beats > 0;
  }

  // Saves the state after the last step. metric: the metric of this state. Returns whether the metric is the best so
  // far. All ranks call it.
  bool save(std::optional<double> metric = {}) {
    since_save_.restart();
    saved_at_ = run_.at.step;
    const SavedCheckpoint done = save_checkpoint(run_.trainer, run_.coordinator, metric);
    run_.result.saved = done.saved;
    run_.result.lost = done.failed;
    return done.best;
  }
  void save_unless_saved() {
    if (saved_at_ != run_.at.step) save();
  }
  // Ends the run here. A later run can resume it.
  void stop() {
    save();
    run_.result.interrupted = run_.over = true;
  }

 private:
  RunContext& run_;
  Stopwatch since_save_;
  std::int64_t saved_at_ = -1;  // step of the last save
};

}  // namespace tutti::detail
