// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>

#include <tutti/core/clock.hpp>
#include <tutti/train/detail/fit/fit_run.hpp>

// A run with assigned steps (StepAssignments). Its workers come and go independently of each other.
namespace tutti::detail {

inline bool FitRun::begin_assigned() {
  if (members_->joining()) {
    if (!members_->next_generation({})) return false;
    trainer_.reform();
  }
  // Includes the position from which all steps count, and the steps since then.
  const std::int64_t first = at_.step - trainer_.steps_behind();
  sources_.make(o_, strategy_.rank(), strategy_.size());
  share_.first_batch = sources_.first_batch();
  feed_.emplace(*assignments_, train(), position(),
                std::max<std::int64_t>(share_.first_batch / assignments_->founders(), 1), o_.epochs,
                o_.max_steps > 0 ? o_.max_steps - first : std::numeric_limits<std::int64_t>::max());
  share_.before_generations = std::max(at_.generation, coordinator_.latest_generation());
  holds_state_ = true;
  name_generation();
  coordinator_.on_membership_change();
  await_step();
  if ((share_.flags & step_flag::stop) != 0) stop();
  // The worker that was to evaluate and save is lost.
  if (ended_ && strategy_.rank() == 0 && at_.step > first) {
    share_.step = at_.step;
    share_.finish_pending = share_.last_of_epoch = 1;
    share_.epoch_number = feed_->last_epoch() + 1;
  }
  return !gone_;
}

// Only servers know the progress of all.
inline void FitRun::note_progress() {
  (void)strategy_.others_at_work();
  at_.step = std::max(at_.step, strategy_.progress());
}

inline void FitRun::follow_members() {
  while (members_->change() != ElasticMembership::Change::none) {
    const Stopwatch since;
    gone_ = !members_->next_generation({static_cast<std::uint64_t>(at_.step), false, false});
    if (gone_) return;
    note_progress();
    if (strategy_.rank() == 0)
      share_.before_generations =
          std::max(share_.before_generations,
                   coordinator_.latest_generation() + 1 - static_cast<std::int64_t>(strategy_.membership().generation));
    name_generation();
    follow(since);
    say_epoch();
  }
}

// Other workers may still be lost, and this worker then does their steps. The coordinator reports the end of the job,
// and may be lost too.
inline void FitRun::await_step() {
  using Kind = StepFeed::Kind;
  for (;;) {
    follow_members();
    if (gone_) return;
    const Kind what = feed_->poll(true);
    ended_ = what == Kind::over || (what == Kind::done && strategy_.rank() == 0);
    if (what == Kind::step || ended_) return;
    if (o_.stop_requested() || members_->stop_requested()) {
      share_.flags |= step_flag::stop;
      return;
    }
    ask_to_leave();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

inline void FitRun::end_assigned_step(const Batch& batch) {
  feed_->complete();
  await_step();
  if (gone_) return;
  if (ended_) note_progress();
  share_.step = at_.step;
  // The epoch ends for this worker when it continues after it. Steps of a lost worker may lie before that.
  const std::int64_t epoch = ended_ ? feed_->last_epoch() : std::max(batch.epoch, passed_epochs_);
  const bool goes_on = !ended_ && (share_.flags & step_flag::stop) == 0;
  share_.last_of_epoch = ended_ || (goes_on && feed_->epoch() > epoch) ? 1 : 0;
  share_.epoch_number = epoch + 1;
  if (share_.last_of_epoch == 0) return;
  passed_epochs_ = epoch + 1;
  at_.epoch = epoch + 1;
  at_.consumed = 0;
}

inline void FitRun::end_assigned() {
  if (assignments_ != nullptr && strategy_.rank() == 0 && !result_.interrupted) assignments_->end_all();
}

}  // namespace tutti::detail
