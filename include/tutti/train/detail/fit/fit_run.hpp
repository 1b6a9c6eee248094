// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/span.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/detail/fit/report_window.hpp>
#include <tutti/train/detail/fit/run_share.hpp>
#include <tutti/train/detail/fit/sources.hpp>
#include <tutti/train/detail/fit/step_feed.hpp>
#include <tutti/train/detail/fit/utilisation.hpp>
#include <tutti/train/detail/fit/worker_batch.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti::detail {

// One call of fit(): steps, what ranks do together after each, and changes of members. A rank that survives a peer in a
// step rolls the step back and repeats it with the remaining ranks; after a step it repeats what follows the step.
class FitRun {
 public:
  // Sources, or the function that makes them.
  FitRun(Trainer& trainer, BatchSource* train, BatchSource* test, const MakeSources* make, Coordinator& coordinator,
         const FitOptions& o)
      : trainer_(trainer),
        strategy_(trainer.strategy()),
        members_(strategy_.members()),
        sources_(train, test, make),
        coordinator_(coordinator),
        o_(o),
        at_(trainer.counters()),
        assignments_(members_ != nullptr ? members_->step_assignments() : nullptr),
        workers_(strategy_.owns_weights() && assignments_ == nullptr ? strategy_.size() : 1),
        busy_([&] { return trainer_.utilisation(); }),
        holds_state_(members_ == nullptr || !members_->joining()) {}

  FitResult run() {
    if (members_ != nullptr && members_->restarts_processes() && !coordinator_.saves())
      fail<UsageError>("fit", "checkpoints, from which other processes go on when the members change", "none");
    if (const std::int64_t rows = rows_before_members(); rows > 0) trainer_.executor().prepare(rows, true);
    if (assignments_ != nullptr) {
      if (!begin_assigned()) return leave_result();
    } else if (members_ != nullptr && members_->joining()) {
      read_ahead();
      if (!change_members(false)) return leave_result();
    } else if (!start_first_generation()) {
      return leave_result();
    }
    if (ends() && share_.finish_pending == 0) {
      end_assigned();
      coordinator_.tell([](FitListener& l) { l.finished(0); });
      result_.counters = at_;
      return result_;
    }
    if (sources_.test() != nullptr)
      if (auto images = sources_.test()->schema()) trainer_.set_test_images(std::move(images));
    begin();
    while (!over_ && (share_.finish_pending != 0 || !ends())) {
      try {
        if (share_.finish_pending == 0) step();
        if (gone_) return leave_result();
        end_step();
        if (over_ || ends()) continue;
        if ((share_.flags & step_flag::membership) == 0) {
          plan_ahead();
          continue;
        }
        if (all_leave())
          stop();
        else if (members_->restarts_processes())
          stop_for_restart();
        else if (!change_members(false))
          return leave_result();
      } catch (const CommunicationError&) {
        if (assignments_ != nullptr && left_in_order()) return leave_result();
        // A process that was given up itself ends here.
        if (members_ == nullptr || assignments_ != nullptr || members_->restarts_processes() ||
            !members_->await_lease())
          throw;
        if (!change_members(true)) return leave_result();
      }
    }
    train().release();
    end_assigned();
    const double seconds = since_start_.seconds();
    if (!result_.interrupted && !result_.changes) coordinator_.tell([&](FitListener& l) { l.finished(seconds); });
    result_.counters = at_;
    return result_;
  }

 private:
  [[nodiscard]] BatchSource& train() const { return *sources_.train(); }
  [[nodiscard]] Position position() const { return {at_.epoch, at_.consumed}; }
  [[nodiscard]] bool ends() const {
    if (assignments_ != nullptr) return ended_;
    return train().steps_left(position(), o_.epochs) <= 0 || (o_.max_steps > 0 && at_.step >= o_.max_steps) ||
           (o_.batch_per_worker > 0 && o_.total_steps > 0 && schedule_step() >= o_.total_steps);
  }

  // ---- the batch and the rate ----
  [[nodiscard]] std::int64_t global_batch() const { return global_batch_of(strategy_.size()); }
  [[nodiscard]] std::int64_t global_batch_of(int ranks) const {
    return o_.batch_per_worker > 0 ? o_.batch_per_worker * ranks : share_.first_batch;
  }
  // The schedule counts steps of the batch at the beginning of the run; if steps are assigned, those of all workers.
  [[nodiscard]] std::int64_t schedule_step() const {
    if (strategy_.owns_weights()) return at_.step;
    return steps_done(position(), train().size(), share_.first_batch, train().placement().epoch_end);
  }
  [[nodiscard]] double rate() const {
    const std::int64_t size = train().size(), batch = feed_ ? feed_->batch() : share_.first_batch;
    const EpochEnd end = train().placement().epoch_end;
    const std::int64_t all = tutti::steps_left({}, size, batch, end, o_.epochs) * workers_;
    const double lr = o_.schedule(SchedulePoint{schedule_step(), tutti::steps_per_epoch(size, batch, end) * workers_,
                                                o_.total_steps > 0 ? o_.total_steps : all, o_.global_batch,
                                                assignments_ != nullptr ? assignments_->founders() : strategy_.size()});
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

  // Starts the first generation of the job, or the only one. Returns false if this process has left.
  bool start_first_generation();
  // Generation numbers grow over a run that is resumed, also if it resumes from an earlier step than the last.
  void count_generations();
  void name_generation();

  [[nodiscard]] static double share_of(double seconds, const Rate& rate) {
    return std::clamp(seconds / std::max(rate.seconds(), 1e-9), 0.0, 1.0);
  }
  // Steps of other workers may have come between.
  [[nodiscard]] bool passed(std::int64_t every) const { return at_.step / every > share_.before / every; }

  // If workers do not wait for each other, a late one continues together with them.
  void take_place();

  void begin() {
    if (coordinator_.listens()) busy_.begin();
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

  // ---- a step ---- Returns the flags that this rank sends to all in a step of this batch.
  [[nodiscard]] std::uint32_t wanted(const Batch& batch) {
    std::uint32_t flags = o_.stop_requested() ? step_flag::stop : 0;
    // One clock for all ranks: they save after the same step.
    if (o_.save_every_seconds > 0 && strategy_.rank() == 0 && since_save_.seconds() >= o_.save_every_seconds) {
      flags |= step_flag::save;
      since_save_.restart();
    }
    if (members_ == nullptr) return flags;
    if (members_->stop_requested()) flags |= step_flag::stop;
    ask_to_leave();
    if (assignments_ != nullptr) return flags;
    const auto change = members_->change();
    if (change == ElasticMembership::Change::broken)
      fail<CommunicationError>("members", "those of the generation", "a change of them");
    if (change == ElasticMembership::Change::after_step ||
        (change == ElasticMembership::Change::after_epoch && batch.last_of_epoch))
      flags |= step_flag::membership;
    return flags;
  }

  void step() {
    if (members_ != nullptr)
      snapshots_[static_cast<std::size_t>(at_.step) % snapshots_.size()] = {share_, skipped_rows_};
    const Span span(Lane::step, "step", {}, at_.step + 1);
    Batch batch = next();
    const std::int64_t images = batch.global_count;
    // For a push: as if each founder of the job had made one at the same time.
    if (feed_) batch.global_count *= assignments_->founders();
    coordinator_.require_lease();
    const std::uint32_t mine = wanted(batch);
    const double lr = rate();
    const std::int64_t before = at_.step;
    const Position began = position();
    Trainer::Pending pending = trainer_.step(batch, lr, mine);
    std::uint32_t flags = pending.flags();
    // A process that leaves after an epoch leaves after its last step.
    if (members_ != nullptr && batch.last_of_epoch) flags |= pending.wait().flags;
    skipped_rows_ += static_cast<double>(batch.skipped);
    if (batch.skipped > 0) name_skipped(train());
    coordinator_.audit(batch, at_.step);
    at_.epoch = batch.after.epoch;
    at_.consumed = batch.after.consumed;
    for (Rate* r : {&steps_.rate, &summaries_.rate, &epoch_rate_}) r->add(images);
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
    share_.finish_pending = 1;
    if (feed_) end_assigned_step(batch);
    // If steps run asynchronously on a device, this query waits for them.
    if (!trainer_.runs_ahead() || reports() || summarises() || epoch_done())
      take_metrics();
    else
      own_ = {};
    if (coordinator_.listens()) busy_.step(reports(), summarises(), epoch_done());
  }
  [[nodiscard]] Batch next() {
    const Span span(Lane::step, "wait for data");
    return feed_ ? feed_->next() : train().next();
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
  // Returns true if a checkpoint of this metric shall be saved as the best so far. All ranks call it and get the same
  // answer.
  [[nodiscard]] bool saves_as_best(double metric);
  [[nodiscard]] bool saves_by_steps() const {
    return (o_.save_every_steps > 0 && passed(o_.save_every_steps)) || (share_.flags & step_flag::save) != 0;
  }

  // ---- the common work of the ranks after a step ----
  void end_step();
  // Ends the run here; it can be resumed.
  void stop();
  // Ends these processes; others resume the run.
  void stop_for_restart();

  [[nodiscard]] StepReport report_on(ReportWindow& w, UtilisationMean& of_window);
  // If workers do not wait for each other, one of them evaluates for all.
  [[nodiscard]] bool evaluates() const {
    return sources_.test() != nullptr && (!strategy_.owns_weights() || strategy_.rank() == 0);
  }
  // Returns true if the epoch has reached a condition that ends the run.
  bool end_epoch();
  void tell_mistakes(MistakeSum& seen, const EpochReport& r);
  [[nodiscard]] double skipped_by_all();
  // Calls record_skipped() for each bad record of the source that has not been named yet.
  void name_skipped(BatchSource& source);
  // If workers do not wait for each other, the final evaluation and checkpoint include the steps of all.
  void wait_for_pushes();
  void begin_epoch();
  void save(std::optional<double> metric = {});

  // ---- assigned steps: workers do not wait for each other, and servers have the state ---- Returns false if this
  // process has left.
  bool begin_assigned();
  // After a step and a change of members: this worker's rank may have changed.
  void follow_members();
  // Waits until there is a step for this worker, or no further one.
  void await_step();
  void end_assigned_step(const Batch& batch);
  void note_progress();
  // A process that was released in the middle of an operation has no right to end it.
  [[nodiscard]] bool left_in_order() const {
    return members_->change() != ElasticMembership::Change::none && !members_->next_generation({});
  }
  void end_assigned();
  void ask_to_leave() {
    if (asked_to_leave_ || !o_.leave_requested || !o_.leave_requested()) return;
    asked_to_leave_ = true;
    members_->ask_to_leave();
  }

  // ---- other members ---- Returns true if this process continues from one generation to the next.
  [[nodiscard]] bool changes_in_place() const {
    return members_ != nullptr && assignments_ == nullptr && !members_->restarts_processes();
  }
  // Records the shares of a step that this rank has with one rank more or fewer; their plans are made between steps.
  void foresee();
  void plan_ahead();
  // Rows of the plan that is made before there are members; 0: none. With limited micro-batches it is the largest plan,
  // so that no change fails for lack of memory. Otherwise it is the smallest share of a joining process.
  [[nodiscard]] std::int64_t rows_before_members() const {
    if (!changes_in_place()) return 0;
    const std::int64_t most = trainer_.options().micro_batch;
    const std::int64_t all = o_.batch_per_worker > 0 ? o_.batch_per_worker : o_.global_batch;
    if (most > 0) return std::min(most, all);
    if (!members_->joining()) return 0;
    return o_.batch_per_worker > 0 ? all : part_of(all, 0, members_->most_members()).count;
  }
  // For a process that will join: its source reads data before others wait for it.
  void read_ahead();
  // Returns true if no member would remain.
  [[nodiscard]] bool all_leave();
  // Continues in the next generation. broken: the current step is repeated. Returns false if this process has left.
  bool change_members(bool broken);
  // If steps run asynchronously on a device, more than the last one may be broken.
  void roll_back();
  // Adds up the epoch's sums of all ranks. Returns false if a rank was lost meanwhile.
  bool sum_up();
  // Takes over the trainer's state and the common facts of the run together: they stay consistent if a rank is lost
  // meanwhile.
  void take_state();
  // Some members may have reached the current step only by taking over the state, and some may have left.
  void follow(const Stopwatch& since);
  void place();
  FitResult leave_result();

  Trainer& trainer_;
  AnyStrategy& strategy_;
  ElasticMembership* members_;  // null: they do not change
  RunSources sources_;
  Coordinator& coordinator_;
  const FitOptions& o_;
  Counters& at_;
  StepAssignments* assignments_;  // null: each step is shared by all ranks
  std::optional<StepFeed> feed_;
  std::int64_t passed_epochs_ = 0;     // of this worker, for assigned steps
  bool ended_ = false, gone_ = false;  // no assigned step remains; this process was released
  int workers_;                        // if they do not wait for each other, the step of each counts
  FitResult result_;
  RunShare share_;
  std::int64_t saved_at_ = -1;              // step
  std::vector<std::int64_t> shares_ahead_;  // rows; their plans are still to be made
  // The state before each of the last few steps.
  struct StepSnapshot {
    RunShare share;
    double skipped_rows = 0;
  };
  std::array<StepSnapshot, StepFinisher::kept> snapshots_;
  bool over_ = false, best_ = false, asked_to_leave_ = false;
  Stopwatch since_start_, since_save_, epoch_watch_;
  UtilisationReadings busy_;
  Metrics epoch_;  // of this rank, not summed yet
  Metrics own_;    // of the step, if they are known
  Rate epoch_rate_;
  ReportWindow steps_, summaries_;
  double epoch_waited_ = 0, epoch_exchanged_ = 0;
  std::int64_t skipped_before_ = 0;
  double skipped_rows_ = 0;      // not yet in reduced metrics
  std::set<std::string> named_;  // messages about skipped records
  bool holds_state_;             // false: a newcomer that has not taken it over yet
};

}  // namespace tutti::detail

#include <tutti/train/detail/fit/fit_dealt.hpp>
#include <tutti/train/detail/fit/fit_generations.hpp>
#include <tutti/train/detail/fit/fit_step_end.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, Coordinator& coordinator,
                                  const FitOptions& o) {
  FitOptions with = o;
  if (with.global_batch == 0) with.global_batch = train.placement().global_batch;
  return detail::FitRun(trainer, &train, test, nullptr, coordinator, with).run();
}
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, const MakeSources& make, Coordinator& coordinator,
                                  const FitOptions& o) {
  FitOptions with = o;
  if (with.global_batch == 0) with.global_batch = 128;
  return detail::FitRun(trainer, nullptr, nullptr, &make, coordinator, with).run();
}

}  // namespace tutti
