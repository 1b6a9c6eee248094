// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/span.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/train/detail/fit/fit_run.hpp>

// The beginning of a run, and the transition from one generation of its members to the next.
namespace tutti::detail {

inline bool FitRun::start_first_generation() {
  sources_.make(o_, strategy_.rank(), strategy_.size());
  share_.first_batch = sources_.first_batch();
  try {
    count_generations();
    take_place();
    coordinator_.on_membership_change();
    follow_batch();
    if (ends()) return true;
    if (o_.batch_per_worker > 0)
      sources_.start(position(), strategy_.rank(), strategy_.size(), global_batch());
    else
      train().start(position());
    foresee();
    return true;
  } catch (const CommunicationError&) {
    if (members_ == nullptr || !members_->await_lease()) throw;
    return change_members(true);
  }
}

inline void FitRun::read_ahead() {
  BatchSource* const source = sources_.train();
  if (source == nullptr) return;  // a function makes it after the rank is known
  // The maximum number of rows of this process.
  const std::int64_t most = trainer_.options().micro_batch;
  Placement of = source->placement();
  of.rank = 0;
  of.world = static_cast<int>(most > 0 ? std::max<std::int64_t>(o_.global_batch / most, 1) : o_.global_batch);
  const Position p{std::clamp<std::int64_t>(o_.epochs - 1, 0, members_->epoch_of_joining()), 0};
  source->start(p, of);
  if (source->steps_left(p, o_.epochs) <= 0) return;
  (void)source->next();
  source->release();
  (void)source->take_skip_messages();  // they come again with the step
}

inline void FitRun::count_generations() {
  if (members_ == nullptr && at_.generation == 0) return;
  auto latest = static_cast<double>(strategy_.rank() == 0 ? coordinator_.latest_generation() : 0);
  share_.before_generations = std::max<std::int64_t>(at_.generation, math::llround(latest));
  strategy_.sum({&latest, 1});
  share_.before_generations = std::max<std::int64_t>(at_.generation, math::llround(latest));
  name_generation();
}

inline void FitRun::name_generation() {
  at_.generation = share_.before_generations +
                   (members_ != nullptr ? static_cast<std::int64_t>(strategy_.membership().generation) : 1);
}

inline void FitRun::take_place() {
  if (!strategy_.owns_weights()) return;
  // Servers accept no gradients before rank 0 has sent them weights.
  if (members_ == nullptr && !trainer_.synchronised()) trainer_.synchronise();
  if (!strategy_.came_late()) return;
  const Placement of = train().placement();
  const std::int64_t size = train().size();
  Position p{at_.epoch, at_.consumed};
  for (std::int64_t n = trainer_.steps_behind() / workers_; n > 0 && p.epoch < o_.epochs; --n)
    p = advance(p, size, of.global_batch, of.epoch_end);
  at_.epoch = p.epoch;
  at_.consumed = p.consumed;
}

inline void FitRun::stop_for_restart() {
  if (saved_at_ != at_.step) save();
  result_.left = asked_to_leave_;
  result_.changes = over_ = true;
}

inline bool FitRun::all_leave() {
  // The request may have come after this step began: new processes would not know it.
  ask_to_leave();
  double leaving = asked_to_leave_ ? 1 : 0;
  strategy_.sum({&leaving, 1});
  return math::llround(leaving) == strategy_.size();
}

inline bool FitRun::change_members(bool broken) {
  const bool joins = members_->joining();
  const Stopwatch since;
  const Span span(Lane::membership, broken ? "members change, one is lost" : joins ? "join" : "members change");
  for (;;) {
    if (!broken && !joins) broken = !sum_up();
    if (broken) roll_back();
    const bool at_end = share_.finish_pending == 0 && (at_.consumed == 0 || share_.last_of_epoch != 0);
    if (!members_->next_generation({static_cast<std::uint64_t>(at_.step), broken, at_end})) return false;
    if (!holds_state_ && members_->has_authority())
      fail<CommunicationError>("members", "one that has the state of the run", "none: all who had it are lost",
                               "--resume continues from the last checkpoint");
    try {
      take_state();
      follow(since);
      place();
      return true;
    } catch (const CommunicationError&) {
      if (!members_->await_lease()) throw;
      broken = true;
    }
  }
}

inline void FitRun::roll_back() {
  trainer_.roll_back();
  if (share_.step > at_.step) {
    const StepSnapshot& then = snapshots_[static_cast<std::size_t>(at_.step) % snapshots_.size()];
    share_ = then.share;
    skipped_rows_ = then.skipped_rows;
  }
  take_metrics();
}

inline bool FitRun::sum_up() {
  try {
    take_metrics();
    Metrics all = trainer_.reduce(epoch_);
    const double skipped = skipped_by_all();
    share_.epoch += all;
    share_.skipped += skipped;
    epoch_ = {};
    skipped_before_ = train().skipped();
    return true;
  } catch (const CommunicationError&) {
    if (!members_->await_lease()) throw;
    return false;
  }
}

inline void FitRun::take_state() {
  RunShare theirs = share_;
  const StateSpan span{"run",
                       DType::i64,
                       {static_cast<std::int64_t>(sizeof theirs / sizeof(std::int64_t))},
                       std::as_writable_bytes(std::span(&theirs, 1))};
  trainer_.reform({&span, 1});
  share_ = theirs;
  holds_state_ = true;
  name_generation();
}

inline void FitRun::follow(const Stopwatch& since) {
  const CompletedStep closed{share_.began,  share_.step,      static_cast<int>(share_.world),
                             share_.batch,  sources_.train(), since.seconds(),
                             global_batch()};
  coordinator_.on_membership_change(share_.step > 0 ? &closed : nullptr);
}

inline void FitRun::place() {
  // Counts that a source has not reported before it ends are reported with the next one.
  const auto count = [&](int sign) {
    if (sources_.train() == nullptr) return;
    for (double* t : {&steps_.waited, &summaries_.waited, &epoch_waited_}) *t += sign * train().seconds_waited();
    skipped_before_ += sign * train().skipped();
  };
  count(-1);
  sources_.make(o_, strategy_.rank(), strategy_.size());
  count(1);
  follow_batch();
  sources_.start(position(), strategy_.rank(), strategy_.size(), global_batch());
  foresee();
  // Full steps of more images may be more than the remaining steps of the epochs.
  if (o_.batch_per_worker > 0 && share_.step > 0 && ends()) share_.finish_pending = 1;
}

inline void FitRun::foresee() {
  shares_ahead_.clear();
  if (!changes_in_place()) return;
  const int rank = strategy_.rank(), size = strategy_.size();
  const EpochEnd end = train().placement().epoch_end;
  // A joining rank comes after all others; a leaving rank may come before this one.
  for (const auto& [r, n] : {std::pair{rank - 1, size - 1}, {rank, size - 1}, {rank, size + 1}}) {
    if (r < 0 || r >= n) continue;
    const std::int64_t batch = global_batch_of(n), last = train().size() % batch;
    for (const std::int64_t of_all : {end == EpochEnd::short_step ? last : 0, batch})
      if (const std::int64_t rows = part_of(of_all, r, n).count; rows > 0) shares_ahead_.push_back(rows);
  }
}

inline void FitRun::plan_ahead() {
  while (!shares_ahead_.empty() && !trainer_.plan_ahead(shares_ahead_.back())) shares_ahead_.pop_back();
}

inline FitResult FitRun::leave_result() {
  if (sources_.train() != nullptr) train().release();
  result_.left = true;
  result_.counters = at_;
  return result_;
}

}  // namespace tutti::detail
