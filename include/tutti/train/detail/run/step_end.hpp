// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include <tutti/core/math.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/train/detail/evaluation/evaluate.hpp>
#include <tutti/train/detail/fit/fit_options.hpp>
#include <tutti/train/detail/run/run_members.hpp>
#include <tutti/train/mistakes.hpp>

namespace tutti::detail {

// The common work of the ranks after a step and after an epoch: reports, evaluation, checkpoints.
class StepEnd {
 public:
  StepEnd(RunParts& parts, RunMembers& members) : parts_(parts), run_(parts.run), members_(members) {}

  // If a run ends within an epoch, it is reported, evaluated and saved as at the end of an epoch.
  [[nodiscard]] bool ends_epoch() const { return run_.share.step.ends_epoch != 0 || members_.ends(); }
  [[nodiscard]] bool reports() const { return reports_anyway() || members_.ends(); }
  [[nodiscard]] bool summarises() const {
    const std::int64_t every = run_.options.summary_every;
    return every > 0 && (run_.passed(every) || members_.ends());
  }

  // Does all common work after the last step. All ranks call it. After an interrupted call it may be called again.
  void run() {
    const FitOptions& o = run_.options;
    const StepShare& step = run_.share.step;
    run_.coordinator.require_lease();
    const bool reported = reports(), summarised = summarises();
    if (reported) {
      const StepReport r = parts_.reports.take_step(reports_anyway());
      run_.coordinator.tell([&](FitListener& l) { l.step(r); });
    }
    if (summarised) {
      const StepReport r = parts_.reports.take_summary();
      run_.coordinator.tell([&](FitListener& l) { l.summary(r); });
    }
    const bool stop = (step.flags & step_flag::stop) != 0;
    const bool done = ends_epoch();
    bool reached = false;
    if (done)
      reached = end_epoch();
    else if (!stop && parts_.checkpoints.due_by_steps())
      parts_.checkpoints.save();
    if (stop && !reached && !members_.ends()) parts_.checkpoints.stop();
    run_.share.finish_pending = 0;
    parts_.reports.close(reported, summarised, done);
    // The common work of the ranks after this step is done, so the members may change.
    const Metrics& own = parts_.reports.own();
    if (o.after_step)
      o.after_step({step.epoch, run_.at.step, step.in_epoch, step.lr, own.mean_loss(), math::llround(own.rows)});
    if (done && o.after_epoch) o.after_epoch(*run_.result.last);
    run_.coordinator.on_membership_change();
    run_.over = run_.over || reached;
    if (!done || run_.over) return;
    parts_.reports.begin_epoch();
    members_.epoch_begins();
  }

 private:
  // Returns whether the last step is reported, wherever the run ends.
  [[nodiscard]] bool reports_anyway() const {
    const FitOptions& o = run_.options;
    const bool due = run_.passed(std::max<std::int64_t>(o.report_every, 1)) || (o.report_first && run_.at.step == 1);
    return due || (run_.share.step.ends_epoch != 0 && o.report_epochs);
  }
  // Returns true if the epoch has reached a condition that ends the run.
  bool end_epoch() {
    const FitOptions& o = run_.options;
    const std::int64_t epoch = run_.share.step.epoch;
    EpochReport r = parts_.reports.take_epoch();
    const bool reached = o.stop_at_train_top1 > 0 && r.train_top1 >= o.stop_at_train_top1;
    const bool last_epoch = members_.ends() || reached;
    const auto due = [&](std::int64_t every) { return every > 0 && (last_epoch || epoch % every == 0); };
    if (last_epoch) members_.await_others();
    if (evaluates() && due(o.evaluate_every)) evaluate_into(r);
    bool saves = due(o.save_every) || (o.save_last && last_epoch) || parts_.checkpoints.due_by_steps();
    std::optional<double> metric;
    if (r.test) metric = r.test_ema ? std::max(r.test->judged_by(), r.test_ema->judged_by()) : r.test->judged_by();
    if (metric) count_evaluation(*metric);
    const bool stale = parts_.schedule.is_stale();
    if (stale) saves = saves || o.save_every > 0 || o.save_last;
    if (!saves && metric) saves = parts_.checkpoints.due_as_best(*metric);
    if (saves) r.best = parts_.checkpoints.save(metric);
    r.seconds = parts_.reports.epoch_seconds();
    run_.coordinator.tell([&](FitListener& l) { l.epoch(r); });
    run_.result.last = r;
    run_.result.stale = stale;
    return reached || stale;
  }
  // All ranks have the same value. A step that is repeated after the loss of a rank counts once.
  void count_evaluation(double value) {
    Counters& at = run_.at;
    if (at.evaluated_step == at.step) return;
    const bool better = at.evaluated_step == 0 || value > at.best_value;
    at.evaluated_step = at.step;
    at.evaluations_since_best = better ? 0 : at.evaluations_since_best + 1;
    if (better) at.best_value = value;
  }
  // If workers do not wait for each other, rank 0 evaluates for all workers.
  [[nodiscard]] bool evaluates() const {
    return run_.sources.test() != nullptr && (!run_.is_independent() || run_.strategy.rank() == 0);
  }
  void evaluate_into(EpochReport& r) {
    const FitOptions& o = run_.options;
    Trainer& trainer = run_.trainer;
    BatchSource& test = *run_.sources.test();
    trainer.pull();
    const Graph& g = trainer.executor().graph();
    MistakeSum seen(o.mistakes ? g[g.logits].shape[1] : 0);
    const bool averages = trainer.evaluates_ema();
    MistakeSum *const wanted = o.mistakes ? &seen : nullptr, *const of_plain = averages ? nullptr : wanted;
    r.test = evaluate(trainer, test, o.metric, of_plain);
    if (averages) trainer.with_ema([&] { r.test_ema = evaluate(trainer, test, o.metric, wanted); });
    if (o.mistakes) tell_mistakes(seen, r);
    parts_.reports.name_skipped(test);
  }
  void tell_mistakes(MistakeSum& seen, const EpochReport& r) {
    Mistakes m = seen.take(run_.strategy);
    m.epoch = r.epoch;
    m.step = r.step;
    m.averaged = r.test_ema.has_value();
    run_.coordinator.tell([&](FitListener& l) { l.mistakes(m); });
  }

  RunParts& parts_;
  RunContext& run_;
  RunMembers& members_;
};

}  // namespace tutti::detail
