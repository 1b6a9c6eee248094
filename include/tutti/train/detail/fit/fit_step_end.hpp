// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include <tutti/core/math.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/train/detail/files/save_checkpoint.hpp>
#include <tutti/train/detail/fit/fit_run.hpp>
#include <tutti/train/mistakes.hpp>

// The common work of the ranks after a step and after an epoch.
namespace tutti::detail {

inline void FitRun::end_step() {
  coordinator_.require_lease();
  if (reports()) {
    const StepReport r = report_on(steps_, busy_.steps);
    coordinator_.tell([&](FitListener& l) { l.step(r); });
  }
  if (summarises()) {
    const StepReport r = report_on(summaries_, busy_.summaries);
    coordinator_.tell([&](FitListener& l) { l.summary(r); });
  }
  const bool stop = (share_.flags & step_flag::stop) != 0;
  const bool done = epoch_done();
  bool reached = false;
  if (done)
    reached = end_epoch();
  else if (!stop && saves_by_steps())
    save();
  if (stop && !reached && !ends()) this->stop();
  share_.finish_pending = 0;
  // The common work of the ranks in this step is done: the members may change.
  if (o_.after_step)
    o_.after_step(
        {share_.epoch_number, at_.step, share_.step_in_epoch, share_.lr, own_.mean_loss(), math::llround(own_.rows)});
  if (done && o_.after_epoch) o_.after_epoch(*result_.last);
  coordinator_.on_membership_change();
  over_ = over_ || reached;
  if (done && !over_) begin_epoch();
}

inline void FitRun::stop() {
  save();
  result_.interrupted = over_ = true;
}

inline StepReport FitRun::report_on(ReportWindow& w, UtilisationMean& of_window) {
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

inline bool FitRun::end_epoch() {
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
  r.skipped = math::llround(share_.skipped + skipped_by_all());
  r.global_batch = share_.batch;
  const bool reached = o_.stop_at_train_top1 > 0 && r.train_top1 >= o_.stop_at_train_top1;
  const bool last_epoch = ends() || reached;
  if (last_epoch) wait_for_pushes();
  if (evaluates() && o_.evaluate_every > 0 && (last_epoch || share_.epoch_number % o_.evaluate_every == 0)) {
    trainer_.pull();
    const Graph& g = trainer_.executor().graph();
    MistakeSum seen(o_.mistakes ? g[g.logits].shape[1] : 0);
    MistakeSum *const wanted = o_.mistakes ? &seen : nullptr, *const of_plain = trainer_.has_ema() ? nullptr : wanted;
    r.test = evaluate(trainer_, *sources_.test(), o_.metric, of_plain);
    if (trainer_.has_ema())
      trainer_.with_ema([&] { r.test_ema = evaluate(trainer_, *sources_.test(), o_.metric, wanted); });
    if (o_.mistakes) tell_mistakes(seen, r);
    name_skipped(*sources_.test());
  }
  bool saves = (o_.save_every > 0 && (last_epoch || share_.epoch_number % o_.save_every == 0)) ||
               (o_.save_last && last_epoch) || saves_by_steps();
  std::optional<double> metric;
  if (r.test) metric = r.test_ema ? std::max(r.test->judged_by(), r.test_ema->judged_by()) : r.test->judged_by();
  // If each worker is independent, only the one that evaluates saves.
  if (!saves && metric) saves = saves_as_best(*metric);
  if (saves) {
    save(metric);
    r.best = best_;
  }
  r.seconds = epoch_watch_.seconds();
  coordinator_.tell([&](FitListener& l) { l.epoch(r); });
  result_.last = r;
  return reached;
}

inline bool FitRun::saves_as_best(double metric) {
  if (!o_.save_best) return false;
  if (o_.save_every <= 0 && o_.save_every_steps <= 0 && o_.save_every_seconds <= 0 && !o_.save_last) return false;
  const Checkpoints* const mine = coordinator_.checkpoints();
  double beats = mine != nullptr && mine->is_best(metric) ? 1 : 0;
  if (!strategy_.owns_weights()) strategy_.sum({&beats, 1});
  return beats > 0;
}

inline void FitRun::tell_mistakes(MistakeSum& seen, const EpochReport& r) {
  Mistakes m = seen.take(strategy_);
  m.epoch = r.epoch;
  m.step = r.step;
  m.averaged = r.test_ema.has_value();
  coordinator_.tell([&](FitListener& l) { l.mistakes(m); });
}

inline void FitRun::name_skipped(BatchSource& source) {
  for (auto& m : source.take_skip_messages())
    if (const auto [at, is_new] = named_.insert(std::move(m)); is_new) o_.record_skipped(*at);
}

inline double FitRun::skipped_by_all() {
  auto skipped = static_cast<double>(train().skipped() - skipped_before_);
  strategy_.sum({&skipped, 1});
  return skipped;
}

inline void FitRun::wait_for_pushes() {
  if (!strategy_.owns_weights() || strategy_.rank() != 0) return;
  while (assignments_ == nullptr && strategy_.others_at_work() > 0 && !o_.stop_requested())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  trainer_.pull();
}

inline void FitRun::begin_epoch() {
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

inline void FitRun::save(std::optional<double> metric) {
  since_save_.restart();
  saved_at_ = at_.step;
  const SavedCheckpoint done = save_checkpoint(trainer_, coordinator_, metric);
  best_ = done.best;
  result_.saved = done.saved;
  result_.lost = done.failed;
}

}  // namespace tutti::detail
