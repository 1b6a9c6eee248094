// SPDX-License-Identifier: MIT
#pragma once

// What fit.hpp declares.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/chief.hpp>
#include <tutti/train/evaluation_sum.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/logits.hpp>
#include <tutti/train/resident_source.hpp>
#include <tutti/train/utilisation.hpp>
#include <tutti/train/while_ranks_work.hpp>

namespace tutti {

namespace detail {

// Where workers wait for no other one, what is evaluated and saved at the end has the steps of all of them.
inline void wait_for_pushes(Trainer& trainer, const std::function<bool()>& stop_requested) {
  AnyStrategy& s = trainer.strategy();
  if (!s.owns_weights() || s.rank() != 0) return;
  while (s.others_at_work() > 0 && !stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  trainer.pull();
}

// Images per second of the whole job between two readings.
class Rate {
 public:
  void add(std::int64_t n) { images_ += n; }
  // Leaves out time that does not count, e.g. evaluation.
  void pause() {
    before_ = seconds();
    running_ = false;
  }
  void resume() {
    running_ = true;
    watch_.restart();
  }
  [[nodiscard]] double seconds() const { return before_ + (running_ ? watch_.seconds() : 0); }
  [[nodiscard]] double value() const { return seconds() > 0 ? static_cast<double>(images_) / seconds() : 0; }
  void restart() {
    images_ = 0;
    before_ = 0;
    running_ = true;
    watch_.restart();
  }

 private:
  std::int64_t images_ = 0;
  double before_ = 0;
  bool running_ = true;
  Stopwatch watch_;
};

// What happened since the last report of one kind.
struct ReportWindow {
  Metrics metrics;
  Rate rate;
  double waited = 0, exchanged = 0;  // seconds for data and for other ranks, at its start
};

}  // namespace detail

TUTTI_CORE_FUNCTION EvaluationReport evaluate(Trainer& trainer, BatchSource& source, const BatchMetric& metric) {
  const Stopwatch watch;
  Metrics sum;
  EvaluationSum of_batches(trainer.executor());
  detail::LogitsOnHost logits(trainer.executor());
  double own = 0;
  PiecewiseWork pass(trainer.strategy());
  source.start({0, 0});
  for (bool last = false; !last;) {
    const Batch& batch = source.next();
    if (batch.count > 0) of_batches.add(view_of(batch, 0, batch.count));
    if (batch.count > 0 && metric) own += metric(logits.of_last_run(batch.count), batch.labels);
    sum.rows -= static_cast<double>(batch.skipped);
    last = batch.last_of_epoch;
    pass.go_on();
  }
  sum += of_batches.take();
  source.release();
  pass.end();
  sum = trainer.reduce(sum);
  EvaluationReport report{sum.mean_loss(), sum.top1_rate(), sum.topk_rate(), static_cast<std::int64_t>(sum.rows),
                          sum.rows / std::max(watch.seconds(), 1e-9)};
  if (metric) {
    trainer.strategy().sum({&own, 1});
    report.metric = sum.rows > 0 ? own / sum.rows : 0;
  }
  return report;
}

TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, Chief& chief,
                                  const FitOptions& o) {
  const std::int64_t per_epoch = train.steps_per_epoch();
  Counters& at = trainer.counters();
  FitResult result;
  const Stopwatch since_start;
  // Where workers wait for no other one, each one's step counts.
  const int workers = trainer.strategy().owns_weights() ? trainer.strategy().size() : 1;
  const auto schedule_at = [&](std::int64_t step) {
    return o.schedule(SchedulePoint{step, per_epoch * workers,
                                    o.total_steps > 0 ? o.total_steps : train.steps_left({}, o.epochs) * workers,
                                    o.global_batch, trainer.strategy().size()});
  };
  // There one does it for all.
  const bool evaluates = test != nullptr && (!trainer.strategy().owns_weights() || trainer.strategy().rank() == 0);
  Stopwatch since_save;
  // All ranks call it. best: whether the metric of the state, if there is one, is the best yet.
  bool best = false;
  const auto save = [&](std::optional<double> metric = {}) {
    since_save.restart();
    Checkpoints* const checkpoints = chief.checkpoints();
    best = result.saved = false;
    if (checkpoints == nullptr && trainer.strategy().owns_weights()) return;
    trainer.commit();
    try {
      std::string path;
      std::vector<std::string> complaints;
      const auto write = [&] {
        path = checkpoints->save(trainer);
        if (metric)
          best = checkpoints->mark_if_best(at.step, *metric, [&](const std::string& c) { complaints.push_back(c); });
      };
      while_ranks_work(trainer.strategy(), "saving a checkpoint",
                       checkpoints != nullptr ? std::function<void()>(write) : nullptr);
      if (path.empty()) return;
      result.saved = true;
      chief.tell([&](FitListener& l) { l.saved(path); });
      for (const auto& c : complaints) chief.warn(c);
    } catch (const CommunicationError&) {
      throw;
    } catch (const Error& e) {
      // The earlier checkpoint is untouched; losing the run because of a full disk would be worse than going on.
      chief.warn("checkpoint not written: " + std::string(e.what()));
    }
  };
  chief.follow();
  const auto ends = [&] {
    return train.steps_left({at.epoch, at.consumed}, o.epochs) <= 0 || (o.max_steps > 0 && at.step >= o.max_steps);
  };
  if (ends()) {
    chief.tell([](FitListener& l) { l.finished(0); });
    result.counters = at;
    return result;
  }
  detail::UtilisationReadings busy([&] { return trainer.utilisation(); });
  if (chief.listens()) busy.begin();
  train.start({at.epoch, at.consumed});
  Metrics epoch;
  detail::Rate epoch_rate;
  detail::ReportWindow steps, summaries;
  for (auto* w : {&steps, &summaries}) {
    w->waited = train.seconds_waited();
    w->exchanged = trainer.seconds_waited().value_or(0);
  }
  double epoch_waited = steps.waited, epoch_exchanged = steps.exchanged;
  const auto share = [](double seconds, const detail::Rate& rate) {
    return std::clamp(seconds / std::max(rate.seconds(), 1e-9), 0.0, 1.0);
  };
  std::int64_t skipped_before = train.skipped();
  Stopwatch epoch_watch;
  double skipped_rows = 0;  // that no metrics were reduced by yet
  while (!ends()) {
    const Batch& batch = train.next();
    const double lr = schedule_at(at.step);
    std::uint32_t wanted = o.stop_requested() ? step_flag::stop : 0;
    // One clock for all: they save after the same step.
    if (o.save_every_seconds > 0 && trainer.strategy().rank() == 0 && since_save.seconds() >= o.save_every_seconds) {
      wanted |= step_flag::save;
      since_save.restart();
    }
    const std::int64_t before = at.step;
    const std::uint32_t flags = trainer.step(batch, lr, wanted).flags();
    // Others' steps may have come between.
    const auto passed = [&](std::int64_t every) { return at.step / every > before / every; };
    skipped_rows += static_cast<double>(batch.skipped);
    if (batch.skipped > 0)
      for (const auto& m : train.take_skip_messages()) o.record_skipped(m);
    chief.audit(batch, at.step);
    at.epoch = batch.after.epoch;
    at.consumed = batch.after.consumed;
    steps.rate.add(batch.global_count);
    summaries.rate.add(batch.global_count);
    epoch_rate.add(batch.global_count);
    const std::int64_t epoch_number = batch.epoch + 1, step_in_epoch = batch.step_in_epoch + 1;
    // A run that ends within an epoch is reported, evaluated and saved like the end of one.
    const bool epoch_done = batch.last_of_epoch || ends();
    const bool due = passed(std::max<std::int64_t>(o.report_every, 1)) || (o.report_first && at.step == 1);
    const bool reports = due || (epoch_done && (o.report_epochs || ends()));
    const bool summarises = o.summary_every > 0 && (passed(o.summary_every) || ends());
    // Where steps run ahead, asking waits for them.
    if (!trainer.runs_ahead() || reports || summarises || epoch_done) {
      Metrics mine = trainer.take_metrics();
      mine.rows -= std::exchange(skipped_rows, 0);
      steps.metrics += mine;
      summaries.metrics += mine;
      epoch += mine;
    }
    if (chief.listens()) busy.step(reports, summarises, epoch_done);
    const auto report_on = [&](detail::ReportWindow& w, detail::UtilisationMean& of_window) {
      const Metrics all = trainer.reduce(w.metrics);
      const double wait = train.seconds_waited() - w.waited;
      const auto exchanged = trainer.seconds_waited();
      const StepReport r{epoch_number,
                         at.step,
                         step_in_epoch,
                         per_epoch,
                         o.epochs,
                         all.mean_loss(),
                         all.top1_rate(),
                         w.rate.value(),
                         lr,
                         schedule_at(at.step),
                         share(wait, w.rate),
                         since_start.seconds(),
                         exchanged ? std::optional(share(*exchanged - w.exchanged, w.rate)) : std::nullopt,
                         of_window.take()};
      w.exchanged = exchanged.value_or(0);
      w.metrics = {};
      w.waited += wait;
      w.rate.restart();
      return r;
    };
    if (reports) {
      const StepReport r = report_on(steps, busy.steps);
      chief.tell([&](FitListener& l) { l.step(r); });
    }
    if (summarises) {
      const StepReport r = report_on(summaries, busy.summaries);
      chief.tell([&](FitListener& l) { l.summary(r); });
    }
    const bool stop = (flags & step_flag::stop) != 0;
    const auto saves_by_steps = [&] {
      return (o.save_every_steps > 0 && passed(o.save_every_steps)) || (flags & step_flag::save) != 0;
    };
    bool reached = false;
    if (epoch_done) {
      for (auto* r : {&epoch_rate, &steps.rate, &summaries.rate}) r->pause();
      const Metrics all = trainer.reduce(epoch);
      EpochReport r{epoch_number,
                    at.step,
                    o.epochs,
                    all.mean_loss(),
                    all.top1_rate(),
                    all.topk_rate(),
                    {},
                    {},
                    epoch_rate.value(),
                    lr,
                    0,
                    false,
                    0};
      const double data = train.seconds_waited();
      r.data_wait = share(data - std::exchange(epoch_waited, data), epoch_rate);
      if (const auto exchanged = trainer.seconds_waited())
        r.comm_wait = share(*exchanged - std::exchange(epoch_exchanged, *exchanged), epoch_rate);
      r.gpu_utilisation = busy.epoch.take();
      auto skipped = static_cast<double>(train.skipped() - skipped_before);
      skipped_before = train.skipped();
      trainer.strategy().sum({&skipped, 1});
      r.skipped = std::llround(skipped);
      reached = o.stop_at_train_top1 > 0 && r.train_top1 >= o.stop_at_train_top1;
      const bool last_epoch = ends() || reached;
      if (last_epoch) detail::wait_for_pushes(trainer, o.stop_requested);
      if (evaluates && o.evaluate_every > 0 && (last_epoch || epoch_number % o.evaluate_every == 0)) {
        trainer.pull();
        r.test = evaluate(trainer, *test, o.metric);
        if (trainer.has_ema()) trainer.with_ema([&] { r.test_ema = evaluate(trainer, *test, o.metric); });
      }
      const bool saves = (o.save_every > 0 && (last_epoch || epoch_number % o.save_every == 0)) ||
                         (o.save_last && last_epoch) || saves_by_steps();
      std::optional<double> metric;
      if (r.test) metric = r.test_ema ? std::max(r.test->judged_by(), r.test_ema->judged_by()) : r.test->judged_by();
      if (saves) {
        save(metric);
        r.best = best;
      }
      r.seconds = epoch_watch.seconds();
      chief.tell([&](FitListener& l) { l.epoch(r); });
      result.last = r;
    } else if (!stop && saves_by_steps()) {
      save();
    }
    if (stop && !reached && !ends()) {
      save();
      result.interrupted = true;
    }
    // What ranks do together in this step is done: the members may change.
    if (o.after_step) o.after_step({epoch_number, at.step, step_in_epoch, lr});
    if (epoch_done && o.after_epoch) o.after_epoch(*result.last);
    chief.follow();
    if (reached || result.interrupted) break;
    if (epoch_done) {
      epoch = {};
      epoch_rate.restart();
      epoch_watch.restart();
      for (auto* w : {&steps, &summaries}) w->rate.resume();
      busy.pause_is_over();
    }
  }
  train.release();
  const double seconds = since_start.seconds();
  if (!result.interrupted) chief.tell([&](FitListener& l) { l.finished(seconds); });
  result.counters = at;
  return result;
}

TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource& test, Checkpoints& checkpoints,
                                  const FitOptions& o) {
  Chief chief(trainer, {.checkpoints = &checkpoints});
  return fit(trainer, train, &test, chief, o);
}

TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, const FitOptions& o) {
  Chief chief(trainer);
  return fit(trainer, train, test, chief, o);
}

}  // namespace tutti
