// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/span.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/step/host_step_finisher.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/detail/trainer/gradient_exchange.hpp>
#include <tutti/train/detail/trainer/state.hpp>
#include <tutti/train/detail/trainer/step_errors.hpp>
#include <tutti/train/detail/trainer/step_parts.hpp>
#include <tutti/train/detail/trainer/step_passes.hpp>
#include <tutti/train/detail/trainer/weight_average.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

// Runs training steps from the first op to the updated weights. If a device ends them itself (Backend::step_finisher),
// in one captured piece if the backend captures, the host is at most a few steps in front and learns the results later.
// With a single rank that is when a caller asks, or StepFinisher::kept steps later; with several ranks it is one step
// later, at the same step on all of them. Otherwise a step has ended when its start returns.
class StepRunner {
 public:
  // All arguments must outlive this. counters: of the trainer. device: null if the host ends all steps.
  StepRunner(Backend& backend, AnyStrategy& strategy, const TrainerOptions& o, Executor& executor,
             GradientExchange& exchange, Counters& counters, const ModelState& state, const UpdateRules& rules,
             std::unique_ptr<StepFinisher> device)
      : s_(strategy),
        o_(o),
        e_(executor),
        exchange_(exchange),
        rules_(rules),
        counters_(counters),
        host_(backend, state, rules, !strategy.owns_weights(), exchange.integers()),
        device_(std::move(device)),
        end_(device_ ? device_.get() : &host_),
        passes_(backend, strategy, o, executor, exchange, rules, counters, host_) {
    // Allocates for several ranks before others join: no change fails for lack of memory.
    if (device_ && s_.members() != nullptr) device_->begin_generation(2);
    begin_generation();
  }

  [[nodiscard]] bool runs_ahead() const noexcept { return end_->runs_ahead(); }
  // Starts with the strategy's current number of ranks; no step is running.
  void begin_generation() {
    const int ranks = s_.size();
    exchange_.share_matrices(rules_);
    host_.begin_generation(ranks);
    if (device_) device_->begin_generation(ranks);
    if (StepFinisher* const to = select_finisher(); to != end_) switch_finisher(to);
  }
  // The host ends steps whose momentum was set.
  void set_momentum(double momentum) {
    host_.set_momentum(momentum);
    if (std::exchange(sets_momentum_, true) || end_ == &host_) return;
    settle();
    switch_finisher(select_finisher());
  }
  // Returns the seconds in which this rank computed the gradients of the last step, without waiting for other ranks.
  [[nodiscard]] double seconds_computed() const noexcept { return passes_.seconds_computed(); }
  // Returns StepFinisher's spare memory.
  [[nodiscard]] std::span<std::byte> spare() { return runs_ahead() ? end_->spare() : std::span<std::byte>(); }
  // Records each step from now on; the host then ends the steps. null: stops recording.
  void trace(StepTrace* t) {
    settle();
    trace_ = t;
    exchange_.trace(t, &since_);
    passes_.trace(t, &since_);
    switch_finisher(select_finisher());
  }

  // Starts a step of these micro-batches; its number is next() - 1. Returns the known flags of all ranks: those of this
  // step if it has ended or there is one rank, otherwise those of the step before.
  std::uint32_t start(const StepParts& parts, std::int64_t global_rows, double lr, std::uint32_t flags) {
    if (std::exchange(broken_, false)) settled_ = known_ = next_;  // the caller did not roll back
    broken_step_ = {};
    // Plans that allocate or free memory wait for the device, which may wait for lost ranks.
    if (runs_ahead() && std::any_of(parts.views.begin(), parts.views.end(), [&](const BatchView& p) {
          return p.rows > 0 && !e_.has_plan(p.rows, true, p.size);
        }))
      settle();
    if (next_ >= known_ + StepFinisher::kept) (void)collect(known_);
    send_scale();
    before_[next_ % StepFinisher::kept] = counters_;
    const std::uint64_t number = next_++;
    try {
      run(number, parts, global_rows, lr, flags);
    } catch (...) {
      broken_ = true;
      throw;
    }
    counters_.batches += parts.batches;
    counters_.samples += global_rows;
    counters_.step = s_.owns_weights() ? s_.progress() : counters_.step + 1;
    if (!runs_ahead()) {
      settled_ = next_;
      return collect(number);
    }
    if (exchange_.alone()) return flags;
    return number > settled_ ? collect(number - 1) : std::exchange(settled_flags_, 0);
  }
  [[nodiscard]] std::uint64_t next() const noexcept { return next_; }

  // Waits for all started steps and writes their loss scale into the counters. Throws NotFiniteError if a step was not
  // finite, with the counters and the weights as before it; DataError if its labels were wrong.
  void settle() {
    if (settled_ == next_ || broken_) return;
    settled_flags_ = collect(next_ - 1);
    settled_ = next_;
    s_.settled();
  }
  // Waits for all steps and returns the result of one of the last few; its flags are not reported again.
  [[nodiscard]] StepResult result(std::uint64_t number) {
    settle();
    settled_flags_ = 0;
    if (number < first_of_end_)
      fail<UsageError>("step", "a step that was started after trace() was called", "an earlier step");
    if (number + StepFinisher::kept < next_)
      fail<UsageError>("step", {"one of the last ", StepFinisher::kept, " steps"},
                       {"the step ", next_ - 1 - number, " steps before the last"});
    const StepOutcome o = end_->outcome(number);
    return {{o.metrics[0], o.metrics[1], o.metrics[2], o.metrics[3]}, o.flags};
  }
  // Returns the metrics of this rank's rows, summed over the steps since the last call. Waits.
  Metrics take_metrics() {
    settle();
    Metrics m = std::exchange(waiting_, {});
    if (std::exchange(begins_sums_, true)) return m;
    const StepOutcome o = end_->outcome(next_ - 1);
    return m += {o.sums[0], o.sums[1], o.sums[2], o.sums[3]};
  }
  // The state is replaced from outside: earlier steps do not count.
  void forget() {
    waiting_ = {};
    begins_sums_ = true;
    broken_ = false;
    settled_ = known_ = next_;
    settled_flags_ = 0;
    sent_ = {-1, 0};
    end_->resume();
  }
  // Undoes a broken step and all later ones: weights, statistics and counters are those of the last step that is known
  // to be complete. Waits for all steps that are not broken.
  void roll_back() {
    try {
      settle();
    } catch (const CommunicationError&) {
      broken_ = true;
    }
    if (!broken_) return;
    // The metrics of complete steps for take_metrics().
    Metrics whole = waiting_;
    if (!begins_sums_ && known_ > sums_since_) {
      const StepOutcome o = end_->outcome(known_ - 1);
      whole += {o.sums[0], o.sums[1], o.sums[2], o.sums[3]};
    }
    if (known_ < next_) {
      note_broken();
      end_->roll_back(known_);
      counters_ = before_[known_ % StepFinisher::kept];
      e_.parameters_changed();
    }
    forget();
    waiting_ = whole;
  }
  // Call it after roll_back() and after the state of another rank has replaced that of this one. If that rank has
  // completed the first step that was broken here, take_metrics() returns this rank's rows of that step, too.
  void take_over_step() {
    const Broken b = std::exchange(broken_step_, {});
    if (b.step == counters_.step) waiting_ += b.metrics;
  }

 private:
  // The first step that roll_back() has undone, and the metrics of this rank's rows in it. step: 0 for no step.
  struct Broken {
    std::int64_t step = 0;
    Metrics metrics{};
  };
  // Another rank can complete a step only if this rank has sent everything, and then its metrics are known.
  void note_broken() {
    broken_step_ = {};
    // With logical ranks, the ranks that have completed the step know the metrics of all rows.
    if (exchange_.integers() != nullptr || !end_->done(known_)) return;
    const StepOutcome o = end_->outcome(known_);
    const std::int64_t step = before_[known_ % StepFinisher::kept].step + 1;
    if (o.step == step) broken_step_ = {step, {o.metrics[0], o.metrics[1], o.metrics[2], o.metrics[3]}};
  }
  struct Scale {
    std::int64_t exponent = -1, steps = 0;
    friend bool operator==(const Scale&, const Scale&) = default;
  };

  // A device does not see data that passes through the host, if ranks have joined one that was alone.
  [[nodiscard]] StepFinisher* select_finisher() {
    return device_ && trace_ == nullptr && !sets_momentum_ && !exchange_.staged() ? device_.get() : &host_;
  }
  void switch_finisher(StepFinisher* to) {
    waiting_ = take_metrics();
    end_ = to;
    first_of_end_ = next_;
    sent_ = {-1, 0};
  }

  void run(std::uint64_t number, const StepParts& parts, std::int64_t global_rows, double lr, std::uint32_t flags) {
    const std::int64_t step = counters_.step + 1;
    s_.begin_step(step, runs_ahead());
    end_->send(number, {lr, 1.0 / static_cast<double>(global_rows), o_.loss_scale,
                        o_.ema_decay > 0 ? o_.ema.remaining(o_.ema_decay, step) : 1, step, flags, begins_sums_,
                        o_.ema_decay > 0 && o_.ema.returns(step)});
    if (std::exchange(begins_sums_, false)) sums_since_ = number;
    if (trace_ != nullptr) {
      *trace_ = {};
      since_.restart();
    }
    passes_.run(*end_, number, parts, global_rows);
    while (host_.repeats()) {
      if (trace_ != nullptr) trace_->buckets.clear();
      passes_.run(*end_, number, parts, global_rows);
    }
    end_->started(number);
    s_.finish();
    if (trace_ != nullptr) trace_->end = since_.seconds();
  }
  // The trainer may change the counters, e.g. after loading a checkpoint.
  void send_scale() {
    const Scale now{counters_.scale_exponent, counters_.scale_steps};
    if (!o_.dynamic_loss_scale || now == sent_) return;
    sent_ = now;
    end_->set_scale(now.exponent, now.steps);
  }

  // Waits for a step and checks its result. Returns the flags of all ranks.
  std::uint32_t collect(std::uint64_t number) {
    wait(number);
    const StepOutcome o = end_->outcome(number);
    if (o.halted_step != 0) stop(number, o);
    known_ = number + 1;
    if (known_ == next_ && o_.dynamic_loss_scale) take_scale(o);
    return o.flags;
  }
  void take_scale(const StepOutcome& o) {
    sent_ = {o.scale_exponent, o.scale_steps};
    counters_.scale_exponent = o.scale_exponent;
    counters_.scale_steps = o.scale_steps;
  }
  void wait(std::uint64_t number) {
    try {
      wait_for(number);
    } catch (...) {
      broken_ = true;
      settled_ = next_;  // errors are reported once
      throw;
    }
  }
  void wait_for(std::uint64_t number) {
    if (exchange_.alone() || !runs_ahead()) return end_->wait(number);
    // A wait for other ranks' gradients detects a lost rank.
    s_.wait_until([&] { return end_->done(number); }, "a step");
  }
  [[noreturn]] void stop(std::uint64_t number, const StepOutcome& o) {
    wait(next_ - 1);
    counters_ = before_[(number - static_cast<std::uint64_t>(o.step - o.halted_step)) % StepFinisher::kept];
    if (o_.dynamic_loss_scale) take_scale(o);
    forget();
    end_->require_good_data();
    detail::fail_not_finite(o, o_.dynamic_loss_scale ? 1.0 : o_.loss_scale);
  }

  AnyStrategy& s_;
  const TrainerOptions& o_;
  Executor& e_;
  GradientExchange& exchange_;
  const UpdateRules& rules_;
  Counters& counters_;
  HostStepFinisher host_;
  std::unique_ptr<StepFinisher> device_;
  StepFinisher* end_;  // one of them
  StepPasses passes_;
  std::array<Counters, StepFinisher::kept> before_;
  // Number of steps that were started; that were waited for; that are known to be complete.
  std::uint64_t next_ = 0, settled_ = 0, known_ = 0;
  std::uint64_t first_of_end_ = 0;  // of the current finisher
  std::uint64_t sums_since_ = 0;    // the first step of the next metrics of take_metrics()
  bool broken_ = false;
  Broken broken_step_;
  std::uint32_t settled_flags_ = 0;  // of the last step that was waited for
  bool sets_momentum_ = false;
  Metrics waiting_;  // of steps of another finisher
  bool begins_sums_ = true;
  Scale sent_;
  StepTrace* trace_ = nullptr;
  Stopwatch since_;
};

}  // namespace tutti
