// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/engine/step_end.hpp>
#include <tutti/strategy/changing_members.hpp>
#include <tutti/train/chief.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/report_window.hpp>
#include <tutti/train/run_share.hpp>
#include <tutti/train/save_checkpoint.hpp>
#include <tutti/train/sources.hpp>
#include <tutti/train/trainer.hpp>
#include <tutti/train/utilisation.hpp>
#include <tutti/train/worker_batch.hpp>

namespace tutti::detail {

// One call of fit(): steps, what ranks do together behind each, and where the members of the job come and go, the way
// from one generation to the next. Who survives a peer in a step takes it back and does it again with the others that
// are left; who survives one behind a step does what comes behind it again.
class FitRun {
 public:
  // Sources, or what makes them.
  FitRun(Trainer& trainer, BatchSource* train, BatchSource* test, const MakeSources* make, Chief& chief,
         const FitOptions& o)
      : trainer_(trainer),
        strategy_(trainer.strategy()),
        members_(strategy_.members()),
        sources_(train, test, make),
        chief_(chief),
        o_(o),
        at_(trainer.counters()),
        workers_(strategy_.owns_weights() ? strategy_.size() : 1),
        busy_([&] { return trainer_.utilisation(); }),
        holds_state_(members_ == nullptr || !members_->joining()) {}

  FitResult run() {
    if (members_ != nullptr && members_->starts_anew() && !chief_.saves())
      fail<UsageError>("fit", "checkpoints, from which other processes go on when the members change", "none");
    if (members_ != nullptr && members_->joining()) {
      if (!change_members(false)) return left();
    } else if (!found()) {
      return left();
    }
    if (ends() && share_.unended == 0) {
      chief_.tell([](FitListener& l) { l.finished(0); });
      result_.counters = at_;
      return result_;
    }
    begin();
    while (!over_ && (share_.unended != 0 || !ends())) {
      try {
        if (share_.unended == 0) step();
        end_step();
        if (over_ || ends() || (share_.flags & step_flag::membership) == 0) continue;
        if (all_leave())
          stop();
        else if (members_->starts_anew())
          make_way();
        else if (!change_members(false))
          return left();
      } catch (const CommunicationError&) {
        // One that was given up itself ends here.
        if (members_ == nullptr || members_->starts_anew() || !members_->may_write()) throw;
        if (!change_members(true)) return left();
      }
    }
    train().release();
    const double seconds = since_start_.seconds();
    if (!result_.interrupted && !result_.changes) chief_.tell([&](FitListener& l) { l.finished(seconds); });
    result_.counters = at_;
    return result_;
  }

 private:
  [[nodiscard]] BatchSource& train() const { return *sources_.train(); }
  [[nodiscard]] Position position() const { return {at_.epoch, at_.consumed}; }
  [[nodiscard]] bool ends() const {
    return train().steps_left(position(), o_.epochs) <= 0 || (o_.max_steps > 0 && at_.step >= o_.max_steps) ||
           (o_.batch_per_worker > 0 && o_.total_steps > 0 && schedule_step() >= o_.total_steps);
  }

  // ---- the batch and the rate ----
  [[nodiscard]] std::int64_t global_batch() const {
    return o_.batch_per_worker > 0 ? o_.batch_per_worker * strategy_.size() : share_.first_batch;
  }
  // The schedule counts in steps of the batch that the run began with; where workers wait for no other one, in those of
  // all of them.
  [[nodiscard]] std::int64_t schedule_step() const {
    if (strategy_.owns_weights()) return at_.step;
    return steps_done(position(), train().size(), share_.first_batch, train().placement().epoch_end);
  }
  [[nodiscard]] double rate() const {
    const std::int64_t size = train().size(), batch = share_.first_batch;
    const EpochEnd end = train().placement().epoch_end;
    const std::int64_t all = tutti::steps_left({}, size, batch, end, o_.epochs) * workers_;
    const double lr =
        o_.schedule(SchedulePoint{schedule_step(), tutti::steps_per_epoch(size, batch, end) * workers_,
                                  o_.total_steps > 0 ? o_.total_steps : all, o_.global_batch, strategy_.size()});
    return o_.batch_per_worker > 0 ? lr * rate_factor(at_, o_.ramp_steps) : lr;
  }
  void follow_batch() {
    if (o_.batch_per_worker == 0) {
      at_.rate_batch = at_.rate_step = 0;
      at_.rate_from = at_.rate_to = 1;
      return;
    }
    const std::int64_t of_rate = o_.rate_batch > 0    ? o_.rate_batch
                                 : at_.rate_batch > 0 ? at_.rate_batch
                                                      : share_.first_batch;
    detail::follow_batch(at_, global_batch(), of_rate, o_.ramp_steps);
  }

  // The first generation of the job, or all there is. False where this process has left.
  bool found() {
    sources_.make(o_, strategy_.rank(), strategy_.size());
    share_.first_batch = sources_.first_batch();
    try {
      count_generations();
      take_place();
      chief_.follow();
      follow_batch();
      if (ends()) return true;
      if (o_.batch_per_worker > 0)
        sources_.start(position(), strategy_.rank(), strategy_.size(), global_batch());
      else
        train().start(position());
      return true;
    } catch (const CommunicationError&) {
      if (members_ == nullptr || !members_->may_write()) throw;
      return change_members(true);
    }
  }
  // Generations grow over a run that is resumed, also from an earlier step than the last.
  void count_generations() {
    if (members_ == nullptr && at_.generation == 0) return;
    auto latest = static_cast<double>(strategy_.rank() == 0 ? chief_.latest_generation() : 0);
    share_.before_generations = std::max<std::int64_t>(at_.generation, std::llround(latest));
    strategy_.sum({&latest, 1});
    share_.before_generations = std::max<std::int64_t>(at_.generation, std::llround(latest));
    name_generation();
  }
  void name_generation() {
    at_.generation = share_.before_generations +
                     (members_ != nullptr ? static_cast<std::int64_t>(strategy_.membership().generation) : 1);
  }

  [[nodiscard]] static double share_of(double seconds, const Rate& rate) {
    return std::clamp(seconds / std::max(rate.seconds(), 1e-9), 0.0, 1.0);
  }
  // Others' steps may have come between.
  [[nodiscard]] bool passed(std::int64_t every) const { return at_.step / every > share_.before / every; }

  // Where workers wait for no other one, one that comes late goes on beside them.
  void take_place() {
    if (!strategy_.owns_weights() || !strategy_.came_late()) return;
    const Placement of = train().placement();
    const std::int64_t size = train().size();
    Position p{at_.epoch, at_.consumed};
    for (std::int64_t n = trainer_.steps_behind() / workers_; n > 0 && p.epoch < o_.epochs; --n)
      p = advance(p, size, of.global_batch, of.epoch_end);
    at_.epoch = p.epoch;
    at_.consumed = p.consumed;
  }

  void begin() {
    if (chief_.listens()) busy_.begin();
    for (auto* w : {&steps_, &summaries_}) {
      w->waited = train().seconds_waited();
      w->exchanged = trainer_.seconds_waited().value_or(0);
    }
    epoch_waited_ = steps_.waited;
    epoch_exchanged_ = steps_.exchanged;
    skipped_before_ = train().skipped();
    epoch_watch_.restart();
    say_epoch();
  }
  void say_epoch() {
    if (members_ != nullptr && strategy_.rank() == 0) members_->epoch_begins(at_.epoch);
  }

  // ---- a step ----
  // What this rank says to all in a step of this batch.
  [[nodiscard]] std::uint32_t wanted(const Batch& batch) {
    std::uint32_t flags = o_.stop_requested() ? step_flag::stop : 0;
    // One clock for all: they save after the same step.
    if (o_.save_every_seconds > 0 && strategy_.rank() == 0 && since_save_.seconds() >= o_.save_every_seconds) {
      flags |= step_flag::save;
      since_save_.restart();
    }
    if (members_ == nullptr) return flags;
    if (members_->stop_requested()) flags |= step_flag::stop;
    if (!asked_to_leave_ && o_.leave_requested && o_.leave_requested()) {
      asked_to_leave_ = true;
      members_->ask_to_leave();
    }
    const auto change = members_->change();
    if (change == ChangingMembers::Change::broken)
      fail<CommunicationError>("members", "those of the generation", "a change of them");
    if (change == ChangingMembers::Change::after_step ||
        (change == ChangingMembers::Change::after_epoch && batch.last_of_epoch))
      flags |= step_flag::membership;
    return flags;
  }

  void step() {
    if (members_ != nullptr) stands_[static_cast<std::size_t>(at_.step) % stands_.size()] = {share_, skipped_rows_};
    const Batch& batch = train().next();
    chief_.require_right();
    const std::uint32_t mine = wanted(batch);
    const double lr = rate();
    const std::int64_t before = at_.step;
    const Position began = position();
    Trainer::Pending pending = trainer_.step(batch, lr, mine);
    std::uint32_t flags = pending.flags();
    // Who leaves behind an epoch leaves behind its last step.
    if (members_ != nullptr && batch.last_of_epoch) flags |= pending.wait().flags;
    skipped_rows_ += static_cast<double>(batch.skipped);
    if (batch.skipped > 0)
      for (const auto& m : train().take_skip_messages()) o_.record_skipped(m);
    chief_.audit(batch, at_.step);
    at_.epoch = batch.after.epoch;
    at_.consumed = batch.after.consumed;
    for (Rate* r : {&steps_.rate, &summaries_.rate, &epoch_rate_}) r->add(batch.global_count);
    share_.began = began;
    share_.step = at_.step;
    share_.before = before;
    share_.epoch_number = batch.epoch + 1;
    share_.step_in_epoch = batch.step_in_epoch + 1;
    share_.world = strategy_.size();
    share_.batch = train().placement().global_batch;
    share_.generation = at_.generation;
    share_.flags = flags;
    share_.last_of_epoch = batch.last_of_epoch ? 1 : 0;
    share_.lr = lr;
    share_.unended = 1;
    // Where steps run ahead, asking waits for them.
    if (!trainer_.runs_ahead() || reports() || summarises() || epoch_done())
      take_metrics();
    else
      own_ = {};
    if (chief_.listens()) busy_.step(reports(), summarises(), epoch_done());
  }
  void take_metrics() {
    own_ = trainer_.take_metrics();
    own_.rows -= std::exchange(skipped_rows_, 0);
    steps_.metrics += own_;
    summaries_.metrics += own_;
    epoch_ += own_;
  }

  // A run that ends within an epoch is reported, evaluated and saved like the end of one.
  [[nodiscard]] bool epoch_done() const { return share_.last_of_epoch != 0 || ends(); }
  [[nodiscard]] bool reports() const {
    const bool due = passed(std::max<std::int64_t>(o_.report_every, 1)) || (o_.report_first && at_.step == 1);
    return due || (epoch_done() && (o_.report_epochs || ends()));
  }
  [[nodiscard]] bool summarises() const { return o_.summary_every > 0 && (passed(o_.summary_every) || ends()); }
  [[nodiscard]] bool saves_by_steps() const {
    return (o_.save_every_steps > 0 && passed(o_.save_every_steps)) || (share_.flags & step_flag::save) != 0;
  }

  // ---- what ranks do together behind it ----
  void end_step() {
    chief_.require_right();
    if (reports()) {
      const StepReport r = report_on(steps_, busy_.steps);
      chief_.tell([&](FitListener& l) { l.step(r); });
    }
    if (summarises()) {
      const StepReport r = report_on(summaries_, busy_.summaries);
      chief_.tell([&](FitListener& l) { l.summary(r); });
    }
    const bool stop = (share_.flags & step_flag::stop) != 0;
    const bool done = epoch_done();
    bool reached = false;
    if (done)
      reached = end_epoch();
    else if (!stop && saves_by_steps())
      save();
    if (stop && !reached && !ends()) this->stop();
    share_.unended = 0;
    // What ranks do together in this step is done: the members may change.
    if (o_.after_step)
      o_.after_step(
          {share_.epoch_number, at_.step, share_.step_in_epoch, share_.lr, own_.mean_loss(), std::llround(own_.rows)});
    if (done && o_.after_epoch) o_.after_epoch(*result_.last);
    chief_.follow();
    over_ = over_ || reached;
    if (done && !over_) begin_epoch();
  }

  // The run ends here and can be resumed.
  void stop() {
    save();
    result_.interrupted = over_ = true;
  }
  // So do these processes, and others resume it.
  void make_way() {
    if (saved_at_ != at_.step) save();
    result_.left = asked_to_leave_;
    result_.changes = over_ = true;
  }

  [[nodiscard]] StepReport report_on(ReportWindow& w, UtilisationMean& of_window) {
    const Metrics all = trainer_.reduce(w.metrics);
    const double wait = train().seconds_waited() - w.waited;
    const auto exchanged = trainer_.seconds_waited();
    const StepReport r{share_.epoch_number,
                       at_.step,
                       share_.step_in_epoch,
                       train().steps_per_epoch(),
                       o_.epochs,
                       all.mean_loss(),
                       all.top1_rate(),
                       w.rate.value(),
                       share_.lr,
                       rate(),
                       share_of(wait, w.rate),
                       since_start_.seconds(),
                       exchanged ? std::optional(share_of(*exchanged - w.exchanged, w.rate)) : std::nullopt,
                       of_window.take(),
                       share_.batch};
    w.exchanged = exchanged.value_or(0);
    w.metrics = {};
    w.waited += wait;
    w.rate.restart();
    return r;
  }

  // Where workers wait for no other one, one does it for all.
  [[nodiscard]] bool evaluates() const {
    return sources_.test() != nullptr && (!strategy_.owns_weights() || strategy_.rank() == 0);
  }
  // Returns whether the epoch has reached what ends the run.
  bool end_epoch() {
    for (Rate* r : {&epoch_rate_, &steps_.rate, &summaries_.rate}) r->pause();
    Metrics all = share_.epoch;
    all += trainer_.reduce(epoch_);
    EpochReport r{share_.epoch_number,
                  at_.step,
                  o_.epochs,
                  all.mean_loss(),
                  all.top1_rate(),
                  all.topk_rate(),
                  {},
                  {},
                  epoch_rate_.value(),
                  share_.lr,
                  0,
                  false,
                  0};
    r.data_wait = share_of(train().seconds_waited() - epoch_waited_, epoch_rate_);
    if (const auto exchanged = trainer_.seconds_waited())
      r.comm_wait = share_of(*exchanged - epoch_exchanged_, epoch_rate_);
    r.gpu_utilisation = busy_.epoch.take();
    r.skipped = std::llround(share_.skipped + skipped_by_all());
    r.global_batch = share_.batch;
    const bool reached = o_.stop_at_train_top1 > 0 && r.train_top1 >= o_.stop_at_train_top1;
    const bool last_epoch = ends() || reached;
    if (last_epoch) wait_for_pushes();
    if (evaluates() && o_.evaluate_every > 0 && (last_epoch || share_.epoch_number % o_.evaluate_every == 0)) {
      trainer_.pull();
      r.test = evaluate(trainer_, *sources_.test(), o_.metric);
      if (trainer_.has_ema()) trainer_.with_ema([&] { r.test_ema = evaluate(trainer_, *sources_.test(), o_.metric); });
    }
    const bool saves = (o_.save_every > 0 && (last_epoch || share_.epoch_number % o_.save_every == 0)) ||
                       (o_.save_last && last_epoch) || saves_by_steps();
    std::optional<double> metric;
    if (r.test) metric = r.test_ema ? std::max(r.test->judged_by(), r.test_ema->judged_by()) : r.test->judged_by();
    if (saves) {
      save(metric);
      r.best = best_;
    }
    r.seconds = epoch_watch_.seconds();
    chief_.tell([&](FitListener& l) { l.epoch(r); });
    result_.last = r;
    return reached;
  }
  [[nodiscard]] double skipped_by_all() {
    auto skipped = static_cast<double>(train().skipped() - skipped_before_);
    strategy_.sum({&skipped, 1});
    return skipped;
  }
  // Where workers wait for no other one, what is evaluated and saved at the end has the steps of all of them.
  void wait_for_pushes() {
    if (!strategy_.owns_weights() || strategy_.rank() != 0) return;
    while (strategy_.others_at_work() > 0 && !o_.stop_requested())
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    trainer_.pull();
  }
  void begin_epoch() {
    epoch_ = share_.epoch = {};
    share_.skipped = 0;
    skipped_before_ = train().skipped();
    epoch_waited_ = train().seconds_waited();
    epoch_exchanged_ = trainer_.seconds_waited().value_or(0);
    epoch_rate_.restart();
    epoch_watch_.restart();
    for (auto* w : {&steps_, &summaries_}) w->rate.resume();
    busy_.pause_is_over();
    say_epoch();
  }

  void save(std::optional<double> metric = {}) {
    since_save_.restart();
    saved_at_ = at_.step;
    const SavedCheckpoint done = save_checkpoint(trainer_, chief_, metric);
    best_ = done.best;
    result_.saved = done.saved;
  }

  // ---- other members ----
  // Nobody would be left to go on.
  [[nodiscard]] bool all_leave() {
    double leaving = asked_to_leave_ ? 1 : 0;
    strategy_.sum({&leaving, 1});
    return std::llround(leaving) == strategy_.size();
  }
  // Goes on in the next generation. broken: what was under way is to be done again. False where this process has left.
  bool change_members(bool broken) {
    const bool joins = members_->joining();
    const Stopwatch since;
    for (;;) {
      if (!broken && !joins) broken = !sum_up();
      if (broken) roll_back();
      const bool at_end = share_.unended == 0 && (at_.consumed == 0 || share_.last_of_epoch != 0);
      if (!members_->next_generation({static_cast<std::uint64_t>(at_.step), broken, at_end})) return false;
      if (!holds_state_ && members_->has_authority())
        fail<CommunicationError>("members", "one that has the state of the run", "none: all who had it are lost",
                                 "--resume goes on from the last checkpoint");
      try {
        take_state();
        follow(since);
        place();
        return true;
      } catch (const CommunicationError&) {
        if (!members_->may_write()) throw;
        broken = true;
      }
    }
  }
  // Where steps run ahead, more than the last one may have broken.
  void roll_back() {
    trainer_.roll_back();
    if (share_.step > at_.step) {
      const Stand& then = stands_[static_cast<std::size_t>(at_.step) % stands_.size()];
      share_ = then.share;
      skipped_rows_ = then.skipped_rows;
    }
    take_metrics();
  }
  // What each has of the epoch's sums becomes everybody's; false where somebody was lost meanwhile.
  bool sum_up() {
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
      if (!members_->may_write()) throw;
      return false;
    }
  }
  // The trainer's state and what all know of the run are taken over together: whoever is lost meanwhile, they fit.
  void take_state() {
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
  // Some members may have come to the step that others stand at by their state alone, and some may be gone.
  void follow(const Stopwatch& since) {
    const ClosedStep closed{share_.began,  share_.step,      static_cast<int>(share_.world),
                            share_.batch,  sources_.train(), since.seconds(),
                            global_batch()};
    chief_.follow(share_.step > 0 ? &closed : nullptr);
  }
  void place() {
    // What a source that goes has not told of yet is told of with the next.
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
    // Full steps of more images may be more than the epochs have left.
    if (o_.batch_per_worker > 0 && share_.step > 0 && ends()) share_.unended = 1;
  }
  FitResult left() {
    if (sources_.train() != nullptr) train().release();
    result_.left = true;
    result_.counters = at_;
    return result_;
  }

  Trainer& trainer_;
  AnyStrategy& strategy_;
  ChangingMembers* members_;  // null: they stay
  RunSources sources_;
  Chief& chief_;
  const FitOptions& o_;
  Counters& at_;
  int workers_;  // where they wait for no other one, each one's step counts
  FitResult result_;
  RunShare share_;
  std::int64_t saved_at_ = -1;  // step
  // Of the last few steps, what there was before them.
  struct Stand {
    RunShare share;
    double skipped_rows = 0;
  };
  std::array<Stand, StepEnd::kept> stands_;
  bool over_ = false, best_ = false, asked_to_leave_ = false;
  Stopwatch since_start_, since_save_, epoch_watch_;
  UtilisationReadings busy_;
  Metrics epoch_;  // this rank's, not summed yet
  Metrics own_;    // of the step, if they are known
  Rate epoch_rate_;
  ReportWindow steps_, summaries_;
  double epoch_waited_ = 0, epoch_exchanged_ = 0;
  std::int64_t skipped_before_ = 0;
  double skipped_rows_ = 0;  // that no metrics were reduced by yet
  bool holds_state_;         // false: of a newcomer that has not taken it over yet
};

}  // namespace tutti::detail

namespace tutti {

TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, Chief& chief,
                                  const FitOptions& o) {
  return detail::FitRun(trainer, &train, test, nullptr, chief, o).run();
}
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, const MakeSources& make, Chief& chief, const FitOptions& o) {
  return detail::FitRun(trainer, nullptr, nullptr, &make, chief, o).run();
}

}  // namespace tutti
