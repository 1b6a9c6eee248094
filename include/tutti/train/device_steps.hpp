// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/device_step.hpp>
#include <tutti/core/error.hpp>
#include <tutti/dist/any_strategy.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/executor.hpp>
#include <tutti/train/gradient_exchange.hpp>
#include <tutti/train/gradient_sum.hpp>
#include <tutti/train/loss_scale.hpp>
#include <tutti/train/state.hpp>
#include <tutti/train/trainer_options.hpp>
#include <tutti/train/weight_average.hpp>

namespace tutti {

// The message of a step whose numbers were not finite. `seen`: what was, instead of a finite loss.
[[noreturn]] inline void fail_not_finite(std::int64_t step, const std::string& seen) {
  fail<NotFiniteError>("step " + std::to_string(step), "a finite loss", seen,
                       "lower --lr, lengthen --warmup-epochs or set --clip-norm; the last checkpoint is kept");
}
[[noreturn]] inline void fail_not_finite_gradients(std::int64_t step) {
  fail<NotFiniteError>("step " + std::to_string(step), "finite gradients", "others, at a loss scale of 1",
                       "lower --lr or set --clip-norm");
}

// Training steps that a device does from the first op to the updated weights without the host (DeviceStep), as one
// captured piece where the backend captures. The host stays at most a few steps ahead, and learns afterwards what they
// came to: of a single rank when somebody asks or `DeviceStep::kept` steps later, of several ranks one step later, at
// the same step on all of them.
class DeviceSteps {
 public:
  // device: made with what lies where (DeviceUpdate). counters: of the trainer, who outlives this.
  DeviceSteps(Backend& backend, AnyStrategy& strategy, const TrainerOptions& o, Executor& executor,
              GradientExchange& exchange, GradientSum& sum, Counters& counters, std::unique_ptr<DeviceStep> device)
      : b_(backend),
        s_(strategy),
        o_(o),
        e_(executor),
        exchange_(exchange),
        sum_(sum),
        counters_(counters),
        device_(std::move(device)) {
    // One bucket's readiness calls back into the exchange.
    if (!exchange_.alone()) on_ready_ = [this](std::size_t ready) { exchange_.reduce_until(ready, [this] { add(); }); };
  }

  // Starts a step of these micro-batches. counts: its metrics go into take_metrics(). Returns the flags that are known:
  // a single rank's own, of several ranks those that all raised in the step before.
  std::uint32_t start(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags,
                      bool counts) {
    if (next_ >= settled_ + DeviceStep::kept) (void)look_at(next_ - DeviceStep::kept);
    send_scale();
    const std::int64_t step = counters_.step + 1;
    s_.begin_step(step, true);
    const std::uint64_t number =
        device_->send({lr, 1.0 / static_cast<double>(global_rows), o_.loss_scale,
                       WeightAverage::decay(o_.ema_decay, step), step, flags, counts, begins_sums_});
    begins_sums_ = false;
    for (std::size_t i = 0; i < parts.size(); ++i) start_part(parts[i], i == 0, i + 1 == parts.size());
    device_->started(number);
    next_ = number + 1;
    s_.finish();
    counters_.batches += static_cast<std::int64_t>(parts.size());
    counters_.step += 1;
    if (exchange_.alone()) return flags;
    return number > settled_ ? look_at(number - 1) : std::exchange(settled_flags_, 0);
  }

  // Waits for all steps that were started. Their scale of the loss goes into the counters. Throws NotFiniteError, with
  // the step's number in the counters and the weights as they were before it, where one was not finite; DataError where
  // its labels were wrong.
  void settle() {
    if (settled_ == next_) return;
    settled_flags_ = look_at(next_ - 1);
    settled_ = next_;
    s_.settled();
  }
  // Waits for the last step; its flags are not told again.
  [[nodiscard]] StepResult last() {
    settle();
    settled_flags_ = 0;
    const StepOutcome o = device_->outcome(next_ - 1);
    return {{o.metrics[0], o.metrics[1], o.metrics[2], o.metrics[3]}, o.flags};
  }
  // Of this rank's rows, summed over the steps that count since it was asked last. Waits.
  Metrics take_metrics() {
    settle();
    if (begins_sums_) return {};
    begins_sums_ = true;
    const StepOutcome o = device_->outcome(next_ - 1);
    return {o.sums[0], o.sums[1], o.sums[2], o.sums[3]};
  }
  // The state is replaced from outside: what was started before does not count.
  void forget() {
    begins_sums_ = true;
    settled_ = next_;
    settled_flags_ = 0;
    sent_exponent_ = -1;
    device_->resume();
  }

 private:
  void add() { device_->add(part_rows_ > 0 ? e_.metrics_data() : nullptr, first_, last_); }

  void start_part(const BatchView& part, bool first, bool last) {
    first_ = first;
    last_ = last;
    part_rows_ = part.rows;
    exchange_.begin();
    const bool sole = first && last, listens = sole && part.rows > 0 && !exchange_.alone();
    if (!sole) sum_.reserve(e_.parameters());
    key_.assign({(first ? 1U : 0U) + (last ? 2U : 0U), s_.membership().generation});
    e_.start(
        part, key_, listens ? on_ready_ : silent_,
        [&] {
          if (first) device_->begin();
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
    if (shares) {
      exchange_.reduce_until(exchange_.trainable(), [this] { add(); });
      exchange_.order_device();
    }
    device_->update();
    e_.repack();
  }

  // The counters are the trainer's to change, e.g. by a checkpoint.
  void send_scale() {
    if (!o_.dynamic_loss_scale ||
        (counters_.scale_exponent == sent_exponent_ && counters_.scale_steps == sent_scale_steps_))
      return;
    sent_exponent_ = counters_.scale_exponent;
    sent_scale_steps_ = counters_.scale_steps;
    device_->set_scale(sent_exponent_, sent_scale_steps_);
  }

  // Waits for a step and looks at what it came to; returns the flags of all ranks.
  std::uint32_t look_at(std::uint64_t number) {
    wait(number);
    const StepOutcome o = device_->outcome(number);
    if (o.halted_step != 0) stop(o);
    if (number + 1 == next_ && o_.dynamic_loss_scale) take_scale(o);
    return o.flags;
  }
  void take_scale(const StepOutcome& o) {
    counters_.scale_exponent = sent_exponent_ = o.scale_exponent;
    counters_.scale_steps = sent_scale_steps_ = o.scale_steps;
  }
  void wait(std::uint64_t number) {
    try {
      wait_for(number);
    } catch (...) {
      settled_ = next_;  // errors are told once
      throw;
    }
  }
  void wait_for(std::uint64_t number) {
    if (exchange_.alone()) return device_->wait(number);
    // Who waits for other ranks' gradients notices that one is gone.
    s_.wait_until([&] { return device_->done(number); }, "a step");
  }
  [[noreturn]] void stop(const StepOutcome& o) {
    wait(next_ - 1);
    counters_.step = o.halted_step - 1;
    if (o_.dynamic_loss_scale) take_scale(o);
    forget();
    device_->require_good_data();
    if (o.halt == Halt::gradients) fail_not_finite_gradients(o.halted_step);
    fail_not_finite(o.halted_step,
                    o.halt == Halt::loss_elsewhere
                        ? "one on another rank that is not"
                        : std::to_string(o.halted_rows > 0 ? o.halted_loss / o.halted_rows : o.halted_loss));
  }
  Backend& b_;
  AnyStrategy& s_;
  const TrainerOptions& o_;
  Executor& e_;
  GradientExchange& exchange_;
  GradientSum& sum_;
  Counters& counters_;
  std::unique_ptr<DeviceStep> device_;
  Executor::OnReady on_ready_, silent_;
  std::vector<std::uint64_t> key_;
  std::uint64_t next_ = 0, settled_ = 0;  // steps started, and of those looked at
  std::uint32_t settled_flags_ = 0;       // of the last of these
  bool first_ = true, last_ = true;
  std::int64_t part_rows_ = 0;
  bool begins_sums_ = true;
  std::int64_t sent_exponent_ = -1, sent_scale_steps_ = 0;
};

}  // namespace tutti
