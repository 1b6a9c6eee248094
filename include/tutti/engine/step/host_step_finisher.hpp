// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/step/loss_scale.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/engine/step/step_flags.hpp>
#include <tutti/optim/update_rules.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// Ends a step on the host: waits for the sums, checks the result of the step and starts the backend's passes over the
// arenas, run by run.
class HostStepFinisher final : public StepFinisher {
 public:
  // The references and everything that the state names outlive this object. updates: false if the receiver of the
  // gradients updates the weights and sends them back.
  HostStepFinisher(Backend& backend, const ModelState& state, const UpdateRules& rules, bool updates = true)
      : b_(backend), m_(state), rules_(rules), updates_(updates), flags_(state.dtype, state.flags) {}

  [[nodiscard]] bool runs_ahead() const override { return false; }
  // Ranks that do not update do not share flags or statistics.
  void begin_generation(int ranks) override { ranks_ = updates_ ? ranks : 1; }
  // Returns whether this rank's micro-batches of this step so far are finite.
  [[nodiscard]] bool finite() const { return (numbers_.flags & step_flag::not_finite) == 0; }

  void send(std::uint64_t step, const StepNumbers& n) override {
    numbers_ = n;
    StepOutcome o;
    o.step = n.step;
    if (!n.begins_sums) o.sums = now().sums;
    last_ = step;
    now() = o;
  }
  [[nodiscard]] const StepScalars* scalars() const override { return &scalars_; }
  void begin() override {
    scalars_ = {rules_.dynamic_loss_scale ? scale_.value() : numbers_.loss_scale, numbers_.inverse_batch};
    if (ranks_ == 1 || m_.state_count == 0) return;
    if (before_.bytes() == 0) before_ = Buffer(b_.memory(), state_bytes());
    b_.memory().copy(before_.data(), m_.states, state_bytes());
    copied_ = last_ + 1;
  }
  void add(const void* metrics, bool, bool last) override {
    std::array<double, 4> of_part{};
    if (metrics != nullptr) b_.memory().copy_out(of_part.data(), metrics, sizeof of_part);
    for (std::size_t i = 0; i < of_part.size(); ++i) now().metrics[i] += of_part[i];
    if (!math::is_finite(of_part[0])) numbers_.flags |= step_flag::not_finite;
    if (last && ranks_ > 1) flags_.write(b_.memory(), numbers_.flags);
  }

  // Throws the errors of the exchange and leaves the weights as they were.
  void update(Exchange& sums) override {
    StepOutcome& o = now();
    o.flags = numbers_.flags;
    if (ranks_ > 1) {
      sums.wait_on_host();
      o.flags = flags_.read(b_.memory());
    }
    if ((o.flags & step_flag::not_finite) != 0)
      return halt((numbers_.flags & step_flag::not_finite) != 0 ? Halt::loss : Halt::loss_elsewhere);
    bool fit = true;
    if (rules_.dynamic_loss_scale && !rules_.runs.empty()) {
      fit = math::is_finite(squared_norm());
      if (!scale_.after_step(fit)) return halt(Halt::gradients);
    }
    if (!updates_)
      sums.wait_on_host();
    else if (fit)
      apply();
    if (ranks_ > 1) take_states();
    average(m_.average, m_.weights, m_.count);
    average(m_.state_average, m_.states, m_.state_count);
    for (std::size_t i = 0; i < o.sums.size(); ++i) o.sums[i] += o.metrics[i];
  }
  void started(std::uint64_t) override {}

  [[nodiscard]] bool done(std::uint64_t) override { return true; }
  void wait(std::uint64_t) override {}
  [[nodiscard]] StepOutcome outcome(std::uint64_t step) const override {
    StepOutcome o = outcomes_[step % kept];
    o.scale_exponent = scale_.exponent;
    o.scale_steps = scale_.steps;
    return o;
  }

  void set_scale(std::int64_t exponent, std::int64_t steps) override { scale_ = {exponent, steps}; }
  void resume() override {}
  // Restores what a step changes before all its sums have arrived. Has no effect if the step failed before it
  // started.
  void roll_back(std::uint64_t step) override {
    if (ranks_ > 1 && copied_ == step + 1) b_.memory().copy(m_.states, before_.data(), state_bytes());
  }

 private:
  [[nodiscard]] StepOutcome& now() { return outcomes_[last_ % kept]; }
  [[nodiscard]] std::size_t state_bytes() const { return m_.state_count * size_of(m_.dtype); }
  [[nodiscard]] double scale() const { return scalars_.loss_scale; }

  void halt(Halt why) {
    StepOutcome& o = now();
    o.halted_step = numbers_.step;
    o.halt = why;
    o.halted_loss = o.metrics[0];
    o.halted_rows = o.metrics[3];
  }

  // Of all gradients.
  [[nodiscard]] double squared_norm() { return b_.squared_norms(call(0, rules_.runs.back().end)).gradients; }
  void apply() {
    const bool clips = (rules_.clip_norm > 0 || rules_.max_grad_norm > 0) && !rules_.runs.empty();
    const double clip = clips ? clip_factor(rules_, math::sqrt(squared_norm())) : 1;
    for (const UpdateRules::Run& r : rules_.runs) {
      UpdateCall u = call(r.begin, r.end);
      u.lr = numbers_.lr * r.lr_scale;
      u.weight_decay = r.weight_decay;
      u.rows = r.rows;
      u.cols = r.cols;
      u.gradient_scale *= clip;
      if (rules_.factor) u.factor = rules_.factor(b_.squared_norms(u), u.lr);
      b_.update(rules_.op, u);
    }
  }
  [[nodiscard]] UpdateCall call(std::size_t begin, std::size_t end) const {
    const std::size_t at = begin * size_of(m_.dtype);
    UpdateCall u;
    u.dtype = m_.dtype;
    u.weights = static_cast<std::byte*>(m_.weights) + at;
    u.gradients = static_cast<const std::byte*>(m_.gradients) + at;
    for (std::size_t i = 0; i < u.slots.size(); ++i)
      if (m_.slots[i] != nullptr) u.slots[i] = static_cast<std::byte*>(m_.slots[i]) + at;
    u.count = end - begin;
    u.step = numbers_.step;
    u.gradient_scale = 1 / scale();
    return u;
  }

  // Takes the mean of the running statistics. Batch norm uses the statistics of a rank's own rows, but with the mean
  // every rank evaluates the same net, and the checkpoint of one rank holds the state of all.
  void take_states() {
    if (m_.state_count == 0) return;
    host_states_.resize(state_bytes());
    b_.memory().copy_out(host_states_.data(), m_.state_sums, host_states_.size());
    const auto divide = [&](auto n) {
      for (std::size_t i = 0; i < host_states_.size(); i += sizeof n) {
        auto v = n;
        std::memcpy(&v, host_states_.data() + i, sizeof v);
        v /= n;
        std::memcpy(host_states_.data() + i, &v, sizeof v);
      }
    };
    if (m_.dtype == DType::f64)
      divide(static_cast<double>(ranks_));
    else
      divide(static_cast<float>(ranks_));
    b_.memory().copy_in(m_.states, host_states_.data(), host_states_.size());
  }
  void average(void* to, const void* from, std::size_t count) {
    if (to != nullptr && numbers_.ema_decay != 1) b_.average(m_.dtype, to, from, count, numbers_.ema_decay);
  }

  Backend& b_;
  const ModelState& m_;
  const UpdateRules& rules_;
  bool updates_;
  StepFlags flags_;
  int ranks_ = 1;
  StepNumbers numbers_;
  StepScalars scalars_;
  LossScale scale_;
  std::array<StepOutcome, kept> outcomes_;
  std::uint64_t last_ = 0, copied_ = 0;  // copied_: 1 + the number of the step that before_ belongs to
  Buffer before_;                        // the running statistics before the step
  std::vector<std::byte> host_states_;
};

}  // namespace tutti
