// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <thread>

#include <tutti/cluster/step_assignments.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/train/detail/run/changing_members.hpp>
#include <tutti/train/detail/run/step_feed.hpp>

namespace tutti::detail {

// Workers that do not wait for each other, and that join and leave one by one. Servers have the state, and assign steps
// to each worker (StepAssignments). Rank 0 evaluates and saves for all workers.
class AssignedSteps final : public ChangingMembers {
 public:
  AssignedSteps(RunParts& parts, ElasticMembership& members, StepAssignments& assignments)
      : ChangingMembers(parts, members), assignments_(assignments) {}

  [[nodiscard]] bool begin() override {
    if (members_.joining()) {
      if (!members_.next_generation({})) return false;
      run_.trainer.reform();
    }
    // run_.at.step is the step at the position from which all steps count, plus the number of steps since then.
    const std::int64_t first = run_.at.step - run_.trainer.steps_behind(), most = run_.options.max_steps;
    make_sources();
    RunShare& share = run_.share;
    feed_.emplace(assignments_, run_.train(), run_.position(),
                  std::max<std::int64_t>(share.first_batch / assignments_.founders(), 1), run_.options.epochs,
                  most > 0 ? most - first : std::numeric_limits<std::int64_t>::max());
    parts_.schedule.fix(feed_->batch(), assignments_.founders());
    share.before_generations = std::max(run_.at.generation, run_.coordinator.latest_generation());
    name_generation();
    run_.coordinator.on_membership_change();
    const bool stays = await_step();
    if ((share.step.flags & step_flag::stop) != 0) parts_.checkpoints.stop();
    // The worker that should have evaluated and saved was lost, so this worker does it.
    if (ended_ && run_.strategy.rank() == 0 && run_.at.step > first) {
      share.step.number = run_.at.step;
      share.finish_pending = share.step.ends_epoch = 1;
      share.step.epoch = feed_->last_epoch() + 1;
    }
    return stays;
  }
  [[nodiscard]] bool ends() const override { return ended_; }

  [[nodiscard]] Batch next() override { return feed_->next(); }
  // A push counts as if each founder of the job had made one at the same time.
  [[nodiscard]] std::int64_t weight() const override { return assignments_.founders(); }
  [[nodiscard]] std::uint32_t flags(const Batch&) override { return request_flags(); }
  // Reports the step and waits for the next one, which shows whether the epoch ends for this worker.
  [[nodiscard]] bool step_started(const Batch& batch) override {
    feed_->complete();
    if (!await_step()) return false;
    if (ended_) note_progress();
    StepShare& step = run_.share.step;
    step.number = run_.at.step;
    // The epoch ends for this worker when its next step is in a later epoch. A step that a lost worker left may be in
    // an earlier epoch.
    const std::int64_t epoch = ended_ ? feed_->last_epoch() : std::max(batch.epoch, passed_epochs_);
    const bool goes_on = !ended_ && (step.flags & step_flag::stop) == 0;
    step.ends_epoch = ended_ || (goes_on && feed_->epoch() > epoch) ? 1 : 0;
    step.epoch = epoch + 1;
    if (step.ends_epoch == 0) return true;
    passed_epochs_ = epoch + 1;
    run_.at.epoch = epoch + 1;
    run_.at.consumed = 0;
    return true;
  }
  // A process that was released in the middle of an operation must not end the job with an error.
  [[nodiscard]] bool recover() override {
    if (members_.change() != ElasticMembership::Change::none && !members_.next_generation({})) return false;
    throw;
  }

  // Needs no wait, because rank 0 ends its steps after all other workers.
  void await_others() override {
    if (run_.strategy.rank() == 0) run_.trainer.pull();
  }
  void end() override {
    if (run_.strategy.rank() == 0 && !run_.result.interrupted) assignments_.end_all();
  }

 private:
  // Reads the progress of all workers, which only the servers know.
  void note_progress() {
    (void)run_.strategy.others_at_work();
    run_.at.step = std::max(run_.at.step, run_.strategy.progress());
  }
  // Follows changes of members after a step. The rank of this worker may have changed. Returns false if this process
  // has left.
  [[nodiscard]] bool follow_members() {
    while (members_.change() != ElasticMembership::Change::none) {
      const Stopwatch since;
      if (!members_.next_generation({static_cast<std::uint64_t>(run_.at.step), false, false})) return false;
      note_progress();
      std::int64_t& before = run_.share.before_generations;
      if (run_.strategy.rank() == 0)
        before = std::max(before, run_.coordinator.latest_generation() + 1 -
                                      static_cast<std::int64_t>(run_.strategy.membership().generation));
      name_generation();
      report_change(since);
      epoch_begins();
    }
    return true;
  }
  // Waits for a step of this worker, or for the end of all steps. If other workers are lost, this worker gets their
  // steps. If no step is left, waits until rank 0 has ended the job: rank 0 may be lost, too. Returns false if this
  // process has left.
  [[nodiscard]] bool await_step() {
    using Kind = StepFeed::Kind;
    for (;;) {
      if (!follow_members()) return false;
      const Kind what = feed_->poll(true);
      ended_ = what == Kind::over || (what == Kind::done && run_.strategy.rank() == 0);
      if (what == Kind::step || ended_) return true;
      if (run_.options.stop_requested() || members_.stop_requested()) {
        run_.share.step.flags |= step_flag::stop;
        return true;
      }
      ask_to_leave();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  StepAssignments& assignments_;
  std::optional<StepFeed> feed_;
  std::int64_t passed_epochs_ = 0;  // number of epochs that have ended for this worker
  bool ended_ = false;              // no step is left
};

}  // namespace tutti::detail
