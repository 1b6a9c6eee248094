// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <tutti/core/clock.hpp>
#include <tutti/core/math.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/train/detail/run/report_window.hpp>
#include <tutti/train/detail/run/run_context.hpp>
#include <tutti/train/detail/run/run_schedule.hpp>
#include <tutti/train/detail/run/utilisation.hpp>
#include <tutti/train/report.hpp>

namespace tutti::detail {

// The data for a run's reports: metrics, rates and waiting times since the last report of each kind, and skipped
// records. With logical ranks, each step returns the metrics of all ranks, which are common facts of the run
// (RunShare), so that the loss of a rank loses none of them. Otherwise ranks keep the metrics of their rows, and a
// report sums them. The sum is a common fact, too, until the common work after the step is done.
class RunReports {
 public:
  RunReports(RunContext& run, const RunSchedule& schedule)
      : run_(run), schedule_(schedule), busy_(run.trainer), of_all_(run.trainer.options().logical_ranks > 0) {}

  // Takes over the sums of the epoch so far, and those since the last report, from a checkpoint. Call it before the
  // first generation.
  void resume_epoch() {
    const Counters& at = run_.at;
    if (!of_all_) return;
    run_.share.epoch = {at.epoch_loss, at.epoch_top1_hits, at.epoch_topk_hits, at.epoch_rows};
    run_.share.skipped = at.epoch_skipped;
    run_.share.steps = {at.report_loss, at.report_top1_hits, 0, at.report_rows};
  }
  // Call it before the first step.
  void begin() {
    if (run_.coordinator.listens()) busy_.begin();
    for (auto* w : {&steps_, &summaries_, &epoch_}) {
      w->waited = run_.train().seconds_waited();
      w->exchanged = run_.trainer.seconds_waited().value_or(0);
    }
    skipped_before_ = run_.train().skipped();
    epoch_watch_.restart();
  }
  // Call it after the last report of an epoch, if another epoch follows.
  void begin_epoch() {
    epoch_.metrics = run_.share.epoch = {};
    run_.share.skipped = 0;
    skipped_before_ = run_.train().skipped();
    epoch_.waited = run_.train().seconds_waited();
    epoch_.exchanged = run_.trainer.seconds_waited().value_or(0);
    epoch_.rate.restart();
    epoch_watch_.restart();
    for (auto* w : {&steps_, &summaries_}) w->rate.resume();
    busy_.pause_is_over();
  }

  // ---- a step ----
  void add_images(std::int64_t of_all_ranks) {
    images_ += of_all_ranks;
    for (auto* w : {&steps_, &summaries_, &epoch_}) w->rate.add(of_all_ranks);
  }
  // Call it after take_metrics() of a step, if a listener gets reports. The arguments say which reports are due.
  void read_utilisation(bool of_step, bool of_summary, bool of_epoch) { busy_.step(of_step, of_summary, of_epoch); }
  // Adds the metrics of the steps since the last call. Waits for them. rest: they may have been added before.
  void take_metrics(bool rest = false) {
    Metrics m = run_.trainer.take_metrics();
    if (!of_all_) m.rows -= std::exchange(skipped_rows_, 0);
    if (!rest || m.rows > 0) own_ = m;
    if (of_all_) return take_metrics_of_all(m);
    for (auto* w : {&steps_, &summaries_, &epoch_}) w->metrics += m;
  }
  // Adds a step that another rank has completed: the images of all ranks, and this rank's metrics, in which `skipped`
  // rows could not be read. With logical ranks, the common facts contain the metrics.
  void take_over_step(std::int64_t images, double skipped) {
    for (auto* w : {&steps_, &summaries_, &epoch_}) w->rate.add(images);
    if (of_all_) return;
    skipped_rows_ += skipped;
    take_metrics();
  }
  // Call it when the common work after a step is done. The sums stay until then: the reports of a step are repeated if
  // a rank is lost or leaves meanwhile.
  void close(bool step, bool summary, bool epoch) {
    if (step) run_.share.steps = {};
    if (summary) run_.share.summaries = {};
    if (epoch) {
      run_.share.epoch = {};
      run_.share.skipped = 0;
    }
  }
  // Leaves the metrics of a step for a later call of take_metrics(), because the step may still run on a device.
  void postpone_metrics() { own_ = {}; }
  // Returns the metrics of this rank's rows that the last step has added; with logical ranks, of the rows of all ranks.
  [[nodiscard]] const Metrics& own() const noexcept { return own_; }

  // ---- the reports; all ranks call these ----
  // ends: false if a run that is resumed from this step repeats the report with more steps.
  [[nodiscard]] StepReport take_step(bool ends) {
    if (ends) run_.at.report_loss = run_.at.report_top1_hits = run_.at.report_rows = 0;
    return take(steps_, run_.share.steps, busy_.steps);
  }
  [[nodiscard]] StepReport take_summary() { return take(summaries_, run_.share.summaries, busy_.summaries); }
  // Returns the epoch's report without its evaluation. The rates pause until begin_epoch().
  [[nodiscard]] EpochReport take_epoch() {
    for (auto* w : {&epoch_, &steps_, &summaries_}) w->rate.pause();
    const RunShare& share = run_.share;
    if (!of_all_) sum_epoch();
    const Metrics& all = share.epoch;
    EpochReport r{share.step.epoch,
                  run_.at.step,
                  run_.options.epochs,
                  all.mean_loss(),
                  all.top1_rate(),
                  all.topk_rate(),
                  {},
                  {},
                  epoch_.rate.value(),
                  share.step.lr,
                  0,
                  false,
                  0};
    r.data_wait = share_of(run_.train().seconds_waited() - epoch_.waited, epoch_.rate);
    if (const auto exchanged = run_.trainer.seconds_waited())
      r.comm_wait = share_of(*exchanged - epoch_.exchanged, epoch_.rate);
    r.gpu_utilisation = busy_.epoch.take();
    r.skipped = math::llround(share.skipped);
    r.global_batch = share.step.batch;
    return r;
  }
  [[nodiscard]] double seconds() const { return since_start_.seconds(); }
  [[nodiscard]] double epoch_seconds() const { return epoch_watch_.seconds(); }

  // ---- skipped records ----
  // Returns the number of rows with skipped records that no reduced metrics contain yet.
  [[nodiscard]] double skipped_rows() const noexcept { return skipped_rows_; }
  void set_skipped_rows(double rows) noexcept { skipped_rows_ = rows; }
  // Calls record_skipped() for each bad record of the source that was not reported before.
  void name_skipped(BatchSource& source) {
    for (auto& m : source.take_skip_messages())
      if (const auto [at, is_new] = named_.insert(std::move(m)); is_new) run_.options.record_skipped(*at);
  }

  // ---- a change of members ----
  // Adds the epoch's sums over all ranks to the common facts, which the next generation gets.
  void share_epoch() {
    take_metrics();
    if (!of_all_) sum_epoch();
  }
  // Call it after this rank has taken the common facts of another rank. The last message of a sum may not have reached
  // all ranks. The facts decide whether the sum counts: if not, each rank keeps its part for the next one.
  void follow_facts() {
    for (SumPart& part : parts_) {
      const bool counts = part.number <= run_.share.sums;
      if (counts == std::exchange(part.counts, counts)) continue;
      const double sign = counts ? -1 : 1;
      const Metrics& m = part.metrics;
      if (part.window != nullptr)
        part.window->metrics += {sign * m.loss, sign * m.top1_hits, sign * m.topk_hits, sign * m.rows};
      skipped_before_ += counts ? part.skipped : -part.skipped;
    }
  }
  // Call these before and after another source replaces the training source, because its counts begin at zero. Counts
  // that a source has not reported before it ends are reported with those of the next source.
  void leave_source() { shift_counts(-1); }
  void enter_source() { shift_counts(1); }

 private:
  [[nodiscard]] static double share_of(double seconds, const Rate& rate) {
    return std::clamp(seconds / std::max(rate.seconds(), 1e-9), 0.0, 1.0);
  }
  // The part of this rank in a sum over all ranks.
  struct SumPart {
    std::int64_t number = 0;  // of the sum, from 1
    ReportWindow* window = nullptr;
    Metrics metrics{};
    std::int64_t skipped = 0;
    bool counts = true;  // the common facts contain the sum, or the sum is not complete
  };
  // Another rank may lack the result of the sum before this one, but of no earlier sum.
  const SumPart& begin_sum(const SumPart& part) {
    return parts_[static_cast<std::size_t>(part.number) % parts_.size()] = part;
  }
  // Adds the metrics of a window of all ranks to the common facts `all`.
  void sum(ReportWindow& w, Metrics& all) {
    const SumPart& part = begin_sum({run_.share.sums + 1, &w, std::exchange(w.metrics, {})});
    all += run_.trainer.reduce(part.metrics);
    run_.share.sums = part.number;
  }
  void sum_epoch() {
    sum(epoch_, run_.share.epoch);
    const std::int64_t all = run_.train().skipped();
    const SumPart& part = begin_sum({run_.share.sums + 1, nullptr, {}, all - std::exchange(skipped_before_, all)});
    auto skipped = static_cast<double>(part.skipped);
    run_.strategy.sum({&skipped, 1});
    run_.share.skipped += skipped;
    run_.share.sums = part.number;
  }
  [[nodiscard]] StepReport take(ReportWindow& w, Metrics& all, UtilisationMean& of_window) {
    const StepShare& step = run_.share.step;
    if (!of_all_) sum(w, all);
    const double wait = run_.train().seconds_waited() - w.waited;
    const auto exchanged = run_.trainer.seconds_waited();
    const StepReport r{step.epoch,
                       run_.at.step,
                       step.in_epoch,
                       run_.train().steps_per_epoch(),
                       run_.options.epochs,
                       all.mean_loss(),
                       all.top1_rate(),
                       w.rate.value(),
                       step.lr,
                       schedule_.rate(),
                       share_of(wait, w.rate),
                       since_start_.seconds(),
                       exchanged ? std::optional(share_of(*exchanged - w.exchanged, w.rate)) : std::nullopt,
                       of_window.take(),
                       step.batch};
    w.exchanged = exchanged.value_or(0);
    w.waited += wait;
    w.rate.restart();
    return r;
  }
  void take_metrics_of_all(const Metrics& all) {
    RunShare& share = run_.share;
    share.skipped += static_cast<double>(std::exchange(images_, 0)) - all.rows;
    for (Metrics* m : {&share.steps, &share.summaries, &share.epoch}) *m += all;
    // A checkpoint at the end of an epoch has no epoch to complete.
    const bool over = share.step.ends_epoch != 0;
    const Metrics epoch = over ? Metrics{} : share.epoch;
    Counters& at = run_.at;
    at.epoch_loss = epoch.loss;
    at.epoch_top1_hits = epoch.top1_hits;
    at.epoch_topk_hits = epoch.topk_hits;
    at.epoch_rows = epoch.rows;
    at.epoch_skipped = over ? 0 : share.skipped;
    at.report_loss = share.steps.loss;
    at.report_top1_hits = share.steps.top1_hits;
    at.report_rows = share.steps.rows;
  }
  void shift_counts(int sign) {
    if (run_.sources.train() == nullptr) return;
    const BatchSource& train = run_.train();
    for (auto* w : {&steps_, &summaries_, &epoch_}) w->waited += sign * train.seconds_waited();
    skipped_before_ += sign * train.skipped();
  }

  RunContext& run_;
  const RunSchedule& schedule_;
  ReportWindow steps_, summaries_, epoch_;  // metrics of this rank, not yet summed over ranks
  std::array<SumPart, 2> parts_;            // of the last two sums
  UtilisationReadings busy_;
  bool of_all_;  // each step returns the metrics of all ranks
  Metrics own_;  // metrics of the step, if they are known
  std::int64_t skipped_before_ = 0;
  std::int64_t images_ = 0;  // of the steps of all ranks since the last metrics
  double skipped_rows_ = 0;
  std::set<std::string> named_;  // messages about skipped records that were reported
  Stopwatch since_start_, epoch_watch_;
};

}  // namespace tutti::detail
