// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/data/audit.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/evaluation_sum.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/resident_source.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

struct FitOptions {
  std::int64_t epochs = 1;
  std::int64_t global_batch = 128;
  int accumulate = 1;  // micro-batches a step: each rank's share is cut into this many
  Schedule schedule = schedule::Constant{0.1};
  std::int64_t report_every = 20;     // steps
  std::int64_t evaluate_every = 1;    // epochs; the last one always
  std::int64_t save_every = 1;        // epochs; 0: never
  std::int64_t save_every_steps = 0;  // 0: never
  std::int64_t max_steps = 0;         // stop after this many updates in all; 0: run all epochs
  std::int64_t total_steps = 0;       // that the schedule spans; 0: those of all epochs
  bool report_first = false;          // the first step too
  bool report_epochs = true;          // the last step of an epoch too; of the run always
  std::int64_t evaluation_batch = 256;
  double stop_at_train_top1 = 0;  // end after the first epoch that reaches it; 0: never
  std::function<bool()> stop_requested = [] { return false; };
  // What was wrong with a record of this rank that was skipped.
  std::function<void(const std::string&)> record_skipped = [](const std::string&) {};
};

// How a call of fit() ended.
struct FitResult {
  bool interrupted = false;  // stop_requested, state saved
  Counters counters;
  std::optional<EpochReport> last;
};

namespace detail {

// Images per second of the whole job between two readings.
class Rate {
 public:
  void add(std::int64_t n) { images_ += n; }
  // Leaves out time that does not count, e.g. evaluation.
  void pause() {
    before_ = seconds();
    running_ = false;
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

}  // namespace detail

// One pass over a data set with the present weights (or their EMA), over all ranks.
template <Backend B, DistributedStrategy S>
EvaluationReport evaluate(Trainer<B, S>& trainer, BatchSource& source) {
  const Stopwatch watch;
  Metrics sum;
  EvaluationSum<B> of_batches(trainer.executor());
  source.start({0, 0});
  for (bool last = false; !last;) {
    const Batch& batch = source.next();
    if (batch.count > 0) of_batches.add(view_of(batch, 0, batch.count));
    sum.rows -= static_cast<double>(batch.skipped);
    last = batch.last_of_epoch;
  }
  sum += of_batches.take();
  source.release();
  sum = trainer.reduce(sum);
  return {sum.mean_loss(), sum.top1_rate(), sum.topk_rate(), static_cast<std::int64_t>(sum.rows),
          sum.rows / std::max(watch.seconds(), 1e-9)};
}

// The training loop: from the trainer's counters to the end of the last epoch. Reports to the listeners, evaluates,
// commits and saves. `test` and `checkpoints` and `audit` may be null.
template <Backend B, DistributedStrategy S>
FitResult fit(Trainer<B, S>& trainer, BatchSource& train, BatchSource* test, Checkpoints* checkpoints,
              const std::vector<FitListener*>& listeners, const FitOptions& o, AuditLog* audit = nullptr) {
  const std::int64_t per_epoch = train.steps_per_epoch();
  Counters& at = trainer.counters();
  FitResult result;
  const Stopwatch since_start;
  const auto schedule_at = [&](std::int64_t step) {
    return o.schedule(Progress{step, per_epoch, o.total_steps > 0 ? o.total_steps : per_epoch * o.epochs,
                               o.global_batch, trainer.strategy().size()});
  };
  const auto warn = [&](const std::string& text) {
    for (auto* l : listeners) l->warning(text);
  };
  const auto save = [&] {
    trainer.commit();
    if (checkpoints == nullptr || trainer.strategy().rank() != 0) return false;
    try {
      const std::string path = checkpoints->save(trainer);
      for (auto* l : listeners) l->saved(path);
      return true;
    } catch (const Error& e) {
      // The earlier checkpoint is untouched; losing the run because of a full disk would be worse than going on.
      warn("checkpoint not written: " + std::string(e.what()));
      return false;
    }
  };
  // What the file tells of later steps is of a run that ended before it could save them.
  if (audit != nullptr && !audit->empty()) audit->rollback(at.epoch, at.step + 1);
  const auto ends = [&] { return at.epoch >= o.epochs || (o.max_steps > 0 && at.step >= o.max_steps); };
  if (ends()) {
    result.counters = at;
    return result;
  }
  train.start({at.epoch, at.consumed});
  Metrics window, epoch;
  detail::Rate window_rate, epoch_rate;
  double waited = train.seconds_waited();
  std::int64_t skipped_before = train.skipped();
  Stopwatch epoch_watch;
  std::vector<BatchView> parts;
  double skipped_rows = 0;  // that no metrics were reduced by yet
  while (!ends()) {
    const Batch& batch = train.next();
    const double lr = schedule_at(at.step);
    const std::uint32_t wanted = o.stop_requested() ? step_flag::stop : 0;
    const std::int64_t n = std::clamp<std::int64_t>(o.accumulate, 1, std::max<std::int64_t>(batch.count, 1));
    parts.clear();
    for (std::int64_t p = 0; p < n; ++p)
      parts.push_back(view_of(batch, batch.count * p / n, batch.count * (p + 1) / n));
    const std::uint32_t flags = trainer.step_async(parts, batch.global_count, lr, wanted);
    skipped_rows += static_cast<double>(batch.skipped);
    if (batch.skipped > 0)
      for (const auto& m : train.take_skip_messages()) o.record_skipped(m);
    if (audit != nullptr) audit->step(batch.epoch, at.step, trainer.strategy().rank(), batch.indices);
    at.epoch = batch.after.epoch;
    at.consumed = batch.after.consumed;
    window_rate.add(batch.global_count);
    epoch_rate.add(batch.global_count);
    const std::int64_t epoch_number = batch.epoch + 1, step_in_epoch = batch.step_in_epoch + 1;
    // A run that max_steps ends within an epoch is reported, evaluated and saved like the end of one.
    const bool epoch_done = batch.last_of_epoch || (o.max_steps > 0 && at.step >= o.max_steps);
    const bool due = at.step % std::max<std::int64_t>(o.report_every, 1) == 0 || (o.report_first && at.step == 1);
    const bool reports = due || (epoch_done && (o.report_epochs || ends()));
    // Where steps run ahead, asking waits for them.
    if (!trainer.runs_ahead() || reports || epoch_done) {
      Metrics mine = trainer.take_metrics();
      mine.rows -= std::exchange(skipped_rows, 0);
      window += mine;
      epoch += mine;
    }
    if (reports) {
      const Metrics all = trainer.reduce(window);
      const double wait = train.seconds_waited() - waited;
      waited += wait;
      const StepReport r{epoch_number,
                         at.step,
                         step_in_epoch,
                         per_epoch,
                         o.epochs,
                         all.mean_loss(),
                         all.top1_rate(),
                         window_rate.value(),
                         lr,
                         wait / std::max(window_rate.seconds(), 1e-9),
                         since_start.seconds()};
      for (auto* l : listeners) l->step(r);
      window = {};
      window_rate.restart();
    }
    const bool stop = (flags & step_flag::stop) != 0;
    bool reached = false;
    if (epoch_done) {
      epoch_rate.pause();
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
      auto skipped = static_cast<double>(train.skipped() - skipped_before);
      skipped_before = train.skipped();
      trainer.strategy().sum({&skipped, 1});
      r.skipped = std::llround(skipped);
      reached = o.stop_at_train_top1 > 0 && r.train_top1 >= o.stop_at_train_top1;
      const bool last_epoch = ends() || reached;
      if (test != nullptr && (last_epoch || epoch_number % std::max<std::int64_t>(o.evaluate_every, 1) == 0)) {
        r.test = evaluate(trainer, *test);
        if (trainer.has_ema()) trainer.with_ema([&] { r.test_ema = evaluate(trainer, *test); });
      }
      const bool saves = o.save_every > 0 && (last_epoch || epoch_number % o.save_every == 0);
      if (saves && save() && r.test)
        r.best = checkpoints->mark_if_best(at.step,
                                           r.test_ema ? std::max(r.test->top1, r.test_ema->top1) : r.test->top1, warn);
      r.seconds = epoch_watch.seconds();
      for (auto* l : listeners) l->epoch(r);
      result.last = r;
      epoch = {};
      epoch_rate.restart();
      window_rate.restart();
      epoch_watch.restart();
      waited = train.seconds_waited();
    } else if (!stop && o.save_every_steps > 0 && at.step % o.save_every_steps == 0) {
      save();
    }
    if (reached) break;
    if (stop && !ends()) {
      save();
      result.interrupted = true;
      break;
    }
  }
  train.release();
  result.counters = at;
  return result;
}

}  // namespace tutti
