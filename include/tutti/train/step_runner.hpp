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
#include <tutti/engine/executor.hpp>
#include <tutti/engine/step/host_step_finisher.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/gradient_exchange.hpp>
#include <tutti/train/gradient_sum.hpp>
#include <tutti/train/state.hpp>
#include <tutti/train/trainer_options.hpp>
#include <tutti/train/weight_average.hpp>

namespace tutti {

// Training steps from the first op to the updated weights. Where a device ends them itself (Backend::step_finisher), as
// one captured piece where the backend captures, the host stays at most a few steps ahead and learns afterwards what
// they came to: of a single rank when somebody asks or StepFinisher::kept steps later, of several ranks one step later,
// at the same step on all of them. Elsewhere a step is over when it has been started.
class StepRunner {
 public:
  // All of it outlives this. counters: of the trainer. device: null where the host ends all steps.
  StepRunner(Backend& backend, AnyStrategy& strategy, const TrainerOptions& o, Executor& executor,
             GradientExchange& exchange, Counters& counters, const ModelState& state, const UpdateRules& rules,
             std::unique_ptr<StepFinisher> device)
      : b_(backend),
        s_(strategy),
        o_(o),
        e_(executor),
        exchange_(exchange),
        counters_(counters),
        sum_(backend),
        host_(backend, state, rules, !strategy.owns_weights()),
        device_(std::move(device)),
        end_(device_ ? device_.get() : &host_) {
    // One bucket's readiness calls back into the exchange.
    on_ready_ = [this](std::size_t ready) { exchange_.send(ready, [this] { add(); }); };
    // What several ranks need is there before others join: no change fails for want of it.
    if (device_ && s_.members() != nullptr) device_->begin_generation(2);
    begin_generation();
  }

  [[nodiscard]] bool runs_ahead() const noexcept { return end_->runs_ahead(); }
  // Of as many ranks as the strategy has now; nothing is under way.
  void begin_generation() {
    const int ranks = s_.size();
    host_.begin_generation(ranks);
    if (device_) device_->begin_generation(ranks);
    if (StepFinisher* const to = select_finisher(); to != end_) switch_finisher(to);
  }
  // As StepFinisher has it.
  [[nodiscard]] std::span<std::byte> spare() { return runs_ahead() ? end_->spare() : std::span<std::byte>(); }
  // Writes down each step from now on, which the host then ends; null: no more.
  void trace(StepTrace* t) {
    settle();
    trace_ = t;
    exchange_.trace(t, &since_);
    switch_finisher(select_finisher());
  }

  // Starts a step of these micro-batches; next() - 1 names it. Returns the flags of all ranks that are known: of this
  // step where it is over or the rank is alone, else of the step before.
  std::uint32_t start(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags) {
    if (std::exchange(broken_, false)) settled_ = known_ = next_;  // nobody rolled back
    // Memory that a plan takes or gives back waits for the device, and this for ranks that may be gone.
    if (runs_ahead() && std::any_of(parts.begin(), parts.end(),
                                    [&](const BatchView& p) { return p.rows > 0 && !e_.has_plan(p.rows, true); }))
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
    counters_.batches += static_cast<std::int64_t>(parts.size());
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

  // Waits for all steps that were started. Their scale of the loss goes into the counters. Throws NotFiniteError, with
  // the counters and the weights as they were before it, where one was not finite; DataError where its labels were
  // wrong.
  void settle() {
    if (settled_ == next_ || broken_) return;
    settled_flags_ = collect(next_ - 1);
    settled_ = next_;
    s_.settled();
  }
  // Waits for a step, one of the last few, and all others; its flags are not told again.
  [[nodiscard]] StepResult result(std::uint64_t number) {
    settle();
    settled_flags_ = 0;
    if (number < first_of_end_)
      fail<UsageError>("step", "a step to be waited for before trace() is called", "one from before it");
    if (number + StepFinisher::kept < next_)
      fail<UsageError>("step", {"one of the last ", StepFinisher::kept, " steps to be waited for"},
                       {"the one ", next_ - 1 - number, " steps before the last"});
    const StepOutcome o = end_->outcome(number);
    return {{o.metrics[0], o.metrics[1], o.metrics[2], o.metrics[3]}, o.flags};
  }
  // Of this rank's rows, summed over the steps since it was asked last. Waits.
  Metrics take_metrics() {
    settle();
    Metrics m = std::exchange(waiting_, {});
    if (std::exchange(begins_sums_, true)) return m;
    const StepOutcome o = end_->outcome(next_ - 1);
    return m += {o.sums[0], o.sums[1], o.sums[2], o.sums[3]};
  }
  // The state is replaced from outside: what was started before does not count.
  void forget() {
    waiting_ = {};
    begins_sums_ = true;
    broken_ = false;
    settled_ = known_ = next_;
    settled_flags_ = 0;
    sent_ = {-1, 0};
    end_->resume();
  }
  // Undoes a step that broke off, and what was started after it: weights, statistics and counters are those of the last
  // step that is known to be whole. Whatever is not broken is waited for.
  void roll_back() {
    try {
      settle();
    } catch (const CommunicationError&) {
      broken_ = true;
    }
    if (!broken_) return;
    // What take_metrics() is to tell of the steps that are whole.
    Metrics whole = waiting_;
    if (!begins_sums_ && known_ > sums_since_) {
      const StepOutcome o = end_->outcome(known_ - 1);
      whole += {o.sums[0], o.sums[1], o.sums[2], o.sums[3]};
    }
    if (known_ < next_) {
      end_->roll_back(known_);
      counters_ = before_[known_ % StepFinisher::kept];
      e_.parameters_changed();
    }
    forget();
    waiting_ = whole;
  }

 private:
  struct Scale {
    std::int64_t exponent = -1, steps = 0;
    friend bool operator==(const Scale&, const Scale&) = default;
  };

  // A device does not see what passes through the host, where ranks have come to one that was alone.
  [[nodiscard]] StepFinisher* select_finisher() {
    return device_ && trace_ == nullptr && !exchange_.staged() ? device_.get() : &host_;
  }
  void switch_finisher(StepFinisher* to) {
    waiting_ = take_metrics();
    end_ = to;
    first_of_end_ = next_;
    sent_ = {-1, 0};
  }

  void run(std::uint64_t number, std::span<const BatchView> parts, std::int64_t global_rows, double lr,
           std::uint32_t flags) {
    const std::int64_t step = counters_.step + 1;
    s_.begin_step(step, runs_ahead());
    end_->send(number, {lr, 1.0 / static_cast<double>(global_rows), o_.loss_scale,
                        WeightAverage::decay(o_.ema_decay, step), step, flags, begins_sums_});
    if (std::exchange(begins_sums_, false)) sums_since_ = number;
    if (trace_ != nullptr) {
      *trace_ = {};
      since_.restart();
    }
    for (std::size_t i = 0; i < parts.size(); ++i) start_part(number, parts[i], i == 0, i + 1 == parts.size());
    end_->started(number);
    s_.finish();
    if (trace_ != nullptr) trace_->end = since_.seconds();
  }
  void add() {
    end_->add(part_rows_ > 0 ? e_.metrics_data() : nullptr, first_, last_);
    if (s_.owns_weights() && !host_.finite()) exchange_.hold_back();
  }

  void start_part(std::uint64_t number, const BatchView& part, bool first, bool last) {
    first_ = first;
    last_ = last;
    part_rows_ = part.rows;
    exchange_.begin();
    // Where nobody listens, nothing is asked between the segments of a plan.
    const bool sole = first && last, listens = sole && part.rows > 0 && !exchange_.alone();
    if (!sole) sum_.reserve(e_.parameters());
    key_.assign({(first ? 1U : 0U) + (last ? 2U : 0U), s_.membership().generation, end_->variant(number)});
    e_.start(
        part, end_->scalars(), span_of(key_), listens ? on_ready_ : silent_,
        [&] {
          if (first) end_->begin();
        },
        [&] { end_part(sole); });
  }
  void end_part(bool sole) {
    const ArenaLayout& p = e_.parameters();
    if (part_rows_ == 0) b_.memory().zero(e_.gradient_data(), p.bytes());
    const bool shares = last_ && !exchange_.alone();
    if (!shares) add();
    if (!sole) sum_.add(p, e_.gradient_data(), first_, last_);
    if (!last_) return;
    if (shares) exchange_.send(exchange_.trainable(), [this] { add(); });
    if (trace_ != nullptr) trace_->backward_end = since_.seconds();
    const Span span(Lane::step, "update");
    end_->update(exchange_);
    if (runs_ahead())
      e_.repack();
    else
      e_.parameters_changed();
  }

  // The counters are the trainer's to change, e.g. by a checkpoint.
  void send_scale() {
    const Scale now{counters_.scale_exponent, counters_.scale_steps};
    if (!o_.dynamic_loss_scale || now == sent_) return;
    sent_ = now;
    end_->set_scale(now.exponent, now.steps);
  }

  // Waits for a step and looks at what it came to; returns the flags of all ranks.
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
      settled_ = next_;  // errors are told once
      throw;
    }
  }
  void wait_for(std::uint64_t number) {
    if (exchange_.alone() || !runs_ahead()) return end_->wait(number);
    // Who waits for other ranks' gradients notices that one is gone.
    s_.wait_until([&] { return end_->done(number); }, "a step");
  }
  [[noreturn]] void stop(std::uint64_t number, const StepOutcome& o) {
    wait(next_ - 1);
    counters_ = before_[(number - static_cast<std::uint64_t>(o.step - o.halted_step)) % StepFinisher::kept];
    if (o_.dynamic_loss_scale) take_scale(o);
    forget();
    end_->require_good_data();
    const std::string step = "step " + std::to_string(o.halted_step);
    if (o.halt == Halt::gradients)
      fail<NotFiniteError>(step, "finite gradients", "others, at a loss scale of 1", "lower --lr or set --clip-norm");
    fail<NotFiniteError>(step, "a finite loss",
                         o.halt == Halt::loss_elsewhere
                             ? "one on another rank that is not"
                             : std::to_string(o.halted_rows > 0 ? o.halted_loss / o.halted_rows : o.halted_loss),
                         "lower --lr, lengthen --warmup-epochs or set --clip-norm; the last checkpoint is kept");
  }

  Backend& b_;
  AnyStrategy& s_;
  const TrainerOptions& o_;
  Executor& e_;
  GradientExchange& exchange_;
  Counters& counters_;
  GradientSum sum_;
  HostStepFinisher host_;
  std::unique_ptr<StepFinisher> device_;
  StepFinisher* end_;  // one of them
  Executor::OnReady on_ready_, silent_;
  std::vector<std::uint64_t> key_;
  std::array<Counters, StepFinisher::kept> before_;
  // Steps started; of those waited for; of those known to be whole.
  std::uint64_t next_ = 0, settled_ = 0, known_ = 0;
  std::uint64_t first_of_end_ = 0;  // of the present end
  std::uint64_t sums_since_ = 0;    // the first step of the metrics that take_metrics() will tell
  bool broken_ = false;
  std::uint32_t settled_flags_ = 0;  // of the last one that was waited for
  bool first_ = true, last_ = true;
  std::int64_t part_rows_ = 0;
  Metrics waiting_;  // of steps that another end did
  bool begins_sums_ = true;
  Scale sent_;
  StepTrace* trace_ = nullptr;
  Stopwatch since_;
};

}  // namespace tutti
