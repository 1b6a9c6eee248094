// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/span.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/detail/fit/fit_options.hpp>
#include <tutti/train/detail/run/assigned_steps.hpp>
#include <tutti/train/detail/run/elastic_members.hpp>
#include <tutti/train/detail/run/fixed_members.hpp>
#include <tutti/train/detail/run/independent_workers.hpp>
#include <tutti/train/detail/run/restarted_members.hpp>
#include <tutti/train/detail/run/run_members.hpp>
#include <tutti/train/detail/run/step_end.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti::detail {

// One call of fit(): its steps, the common work of ranks after each step, and changes of members.
class FitRun {
 public:
  FitRun(RunParts& parts, RunMembers& members) : parts_(parts), run_(parts.run), members_(members) {}

  FitResult run() {
    if (!members_.begin()) return leave();
    if (members_.ends() && run_.share.finish_pending == 0) {
      members_.end();
      run_.coordinator.tell([](FitListener& l) { l.finished(0); });
      return result();
    }
    if (run_.sources.test() != nullptr)
      if (auto images = run_.sources.test()->schema()) run_.trainer.set_test_images(std::move(images));
    parts_.reports.begin();
    members_.epoch_begins();
    while (!run_.over && (run_.share.finish_pending != 0 || !members_.ends())) {
      try {
        if (run_.share.finish_pending == 0 && !step()) return leave();
        step_end_.run();
        if (run_.over || members_.ends()) continue;
        if (!members_.go_on()) return leave();
        if (!run_.over) parts_.shares.follow();
      } catch (const CommunicationError&) {
        if (!members_.recover()) return leave();
      }
    }
    run_.train().release();
    members_.end();
    parts_.shares.end();
    const double seconds = parts_.reports.seconds();
    if (!run_.result.interrupted && !run_.result.changes)
      run_.coordinator.tell([&](FitListener& l) { l.finished(seconds); });
    return result();
  }

 private:
  // Returns false if this process has left the job.
  [[nodiscard]] bool step() {
    RunReports& reports = parts_.reports;
    Counters& at = run_.at;
    const Span span(Lane::step, "step", {}, at.step + 1);
    Batch batch = next();
    const std::int64_t images = batch.global_count;
    batch.global_count *= members_.weight();
    run_.coordinator.require_lease();
    const std::uint32_t mine = flags(batch);
    const double lr = parts_.schedule.rate();
    if (run_.options.momentum) run_.trainer.set_momentum((*run_.options.momentum)(parts_.schedule.point()));
    const std::int64_t before = at.step;
    const Position began = run_.position();
    Trainer::Pending pending = run_.trainer.step(batch, lr, mine);
    std::uint32_t flags = pending.flags();
    // Waits for the flags of an epoch's last step: a process that leaves after the epoch must know it in this step.
    if (members_.may_change() && batch.last_of_epoch) flags |= pending.wait().flags;
    parts_.shares.step(batch);
    reports.set_skipped_rows(reports.skipped_rows() + static_cast<double>(batch.skipped));
    if (batch.skipped > 0) reports.name_skipped(run_.train());
    at.epoch = batch.after.epoch;
    at.consumed = batch.after.consumed;
    reports.add_images(images);
    StepShare& done = run_.share.step;
    done.began = began;
    done.number = at.step;
    done.before = before;
    done.epoch = batch.epoch + 1;
    done.in_epoch = batch.step_in_epoch + 1;
    done.world = run_.strategy.size();
    done.batch = run_.train().placement().global_batch;
    done.generation = at.generation;
    done.flags = flags;
    done.ends_epoch = batch.last_of_epoch ? 1 : 0;
    done.lr = lr;
    run_.share.finish_pending = 1;
    // Throws if this process may not write now. Then the step is complete, and the next generation writes its samples.
    run_.coordinator.audit(batch, at.step);
    const bool stays = members_.step_started(batch);
    // If steps run asynchronously on a device, this call waits for them.
    if (!run_.trainer.runs_ahead() || step_end_.reports() || step_end_.summarises() || step_end_.ends_epoch())
      reports.take_metrics();
    else
      reports.postpone_metrics();
    if (run_.coordinator.listens())
      reports.read_utilisation(step_end_.reports(), step_end_.summarises(), step_end_.ends_epoch());
    return stays;
  }
  [[nodiscard]] Batch next() {
    const Span span(Lane::step, "wait for data");
    return members_.next();
  }
  // Returns the flags that this rank sends to all ranks in a step of this batch.
  [[nodiscard]] std::uint32_t flags(const Batch& batch) {
    std::uint32_t flags = run_.options.stop_requested() ? step_flag::stop : 0;
    if (parts_.checkpoints.take_due_by_time()) flags |= step_flag::save;
    return flags | members_.flags(batch);
  }

  FitResult leave() {
    if (run_.sources.train() != nullptr) run_.train().release();
    run_.result.left = true;
    return result();
  }
  [[nodiscard]] FitResult result() {
    run_.result.counters = run_.at;
    return run_.result;
  }

  RunParts& parts_;
  RunContext& run_;
  RunMembers& members_;
  StepEnd step_end_{parts_, members_};
};

// Refuses what would make the bits of logical ranks depend on the processes.
inline void require_logical_ranks(const RunContext& run) {
  if (run.trainer.options().logical_ranks == 0) return;
  if (run.strategy.owns_weights())
    fail<UsageError>("fit", "a strategy whose ranks do each step together, for logical ranks",
                     "servers that own the weights", "use --strategy ps, or train without logical ranks");
  if (run.options.batch_per_worker > 0)
    fail<UsageError>("fit", "a global batch that does not follow the number of workers, for logical ranks",
                     {"a batch of ", run.options.batch_per_worker, " for each worker"},
                     "leave batch_per_worker out, or train without logical ranks");
}

// Runs fit() with the class for the members that the strategy has.
inline FitResult run_fit(RunParts& parts) {
  AnyStrategy& strategy = parts.run.strategy;
  if (parts.run.options.patience > 0 && strategy.owns_weights())
    fail<UsageError>("fit", "no early stopping with servers that own the weights, because only one worker evaluates",
                     {"a patience of ", parts.run.options.patience}, "use --strategy ps, or leave the patience out");
  require_logical_ranks(parts.run);
  ElasticMembership* const members = strategy.members();
  if (members == nullptr) {
    if (strategy.owns_weights()) {
      IndependentWorkers workers(parts);
      return FitRun(parts, workers).run();
    }
    FixedMembers ranks(parts);
    return FitRun(parts, ranks).run();
  }
  if (StepAssignments* const assignments = members->step_assignments()) {
    AssignedSteps workers(parts, *members, *assignments);
    return FitRun(parts, workers).run();
  }
  if (members->restarts_processes()) {
    RestartedMembers ranks(parts, *members);
    return FitRun(parts, ranks).run();
  }
  ElasticMembers ranks(parts, *members);
  return FitRun(parts, ranks).run();
}

}  // namespace tutti::detail
