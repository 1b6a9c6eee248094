// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/data/batch_source.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/detail/fit/fit_options.hpp>
#include <tutti/train/detail/run/run_context.hpp>
#include <tutti/train/detail/run/worker_batch.hpp>

namespace tutti::detail {

// The global batch and the learning rate of a run's steps, and the step after which it ends.
class RunSchedule {
 public:
  explicit RunSchedule(RunContext& run) : run_(run) {}

  // For workers that do not wait for each other: the steps of all of them count.
  void count_steps_of(std::int64_t workers) { workers_ = workers; }
  // For assigned steps: the rates are those for this batch and number of workers, even if that number changes later.
  void fix(std::int64_t batch, int workers) {
    batch_ = batch;
    founders_ = workers;
  }

  [[nodiscard]] std::int64_t global_batch() const { return global_batch_of(run_.strategy.size()); }
  [[nodiscard]] std::int64_t global_batch_of(int ranks) const {
    const std::int64_t each = run_.options.batch_per_worker;
    return each > 0 ? each * ranks : run_.share.first_batch;
  }

  // Returns the number of the next step in the schedule. The schedule counts in steps of the batch at the beginning of
  // the run. If workers do not wait for each other, it counts the steps of all of them.
  [[nodiscard]] std::int64_t step() const {
    if (run_.is_independent()) return run_.at.step;
    const BatchSource& train = run_.train();
    return steps_done(run_.position(), train.size(), run_.share.first_batch, train.placement().epoch_end);
  }
  // Returns the point of the next step in the schedules.
  [[nodiscard]] SchedulePoint point() const {
    const FitOptions& o = run_.options;
    const std::int64_t size = run_.train().size(), batch = batch_ > 0 ? batch_ : run_.share.first_batch;
    const EpochEnd end = run_.train().placement().epoch_end;
    const std::int64_t all = tutti::steps_left({}, size, batch, end, o.epochs) * workers_;
    return {step(), tutti::steps_per_epoch(size, batch, end) * workers_, o.total_steps > 0 ? o.total_steps : all,
            o.global_batch, ranks()};
  }
  // Returns the learning rate of the next step.
  [[nodiscard]] double rate() const {
    const FitOptions& o = run_.options;
    const double lr = o.schedule(point());
    return o.batch_per_worker > 0 ? lr * rate_factor(run_.at, o.ramp_steps) : lr;
  }
  // Call it when a run begins and after its members have changed, because the rate changes with the global batch.
  void follow_batch() {
    const FitOptions& o = run_.options;
    Counters& at = run_.at;
    if (o.batch_per_worker == 0) {
      at.rate_batch = at.rate_step = 0;
      at.rate_from = at.rate_to = 1;
      return;
    }
    const std::int64_t of_rate = o.rate_batch > 0    ? o.rate_batch
                                 : at.rate_batch > 0 ? at.rate_batch
                                                     : run_.share.first_batch;
    detail::follow_batch(at, global_batch(), of_rate, o.ramp_steps);
  }

  // Returns whether the last evaluations were not better than an earlier one, so often that the run ends.
  [[nodiscard]] bool is_stale() const {
    return run_.options.patience > 0 && run_.at.evaluations_since_best >= run_.options.patience;
  }
  // Returns whether no step is left at the run's position.
  [[nodiscard]] bool ends() const {
    const FitOptions& o = run_.options;
    return is_stale() || run_.train().steps_left(run_.position(), o.epochs) <= 0 ||
           (o.max_steps > 0 && run_.at.step >= o.max_steps) ||
           (o.batch_per_worker > 0 && o.total_steps > 0 && step() >= o.total_steps);
  }

 private:
  // Returns the number of ranks that a schedule gets: it must not follow the processes if there are logical ranks.
  [[nodiscard]] int ranks() const {
    if (const int logical = run_.trainer.options().logical_ranks; logical > 0) return logical;
    return founders_ > 0 ? founders_ : run_.strategy.size();
  }

  RunContext& run_;
  std::int64_t workers_ = 1;
  std::int64_t batch_ = 0;  // batch of a step of one worker; 0: the global batch at the beginning
  int founders_ = 0;        // 0: the current number of ranks
};

}  // namespace tutti::detail
