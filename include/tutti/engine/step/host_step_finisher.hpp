// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
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
#include <tutti/engine/step/integer_block.hpp>
#include <tutti/engine/step/integer_sums.hpp>
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
  // gradients updates the weights and sends them back. integers: the sums of logical ranks, or null.
  HostStepFinisher(Backend& backend, const ModelState& state, const UpdateRules& rules, bool updates = true,
                   IntegerSums* integers = nullptr)
      : b_(backend),
        m_(state),
        rules_(rules),
        updates_(updates),
        integers_(integers),
        op_(rules.op),
        flags_(integers != nullptr ? DType::i32 : state.dtype, state.flags) {}

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
  // Sets the momentum of the following steps (with_momentum()).
  void set_momentum(double momentum) { op_ = with_momentum(rules_.op, momentum); }
  // Sets what the random numbers of the next micro-batch depend on.
  void set_key(const BatchKey& k) { scalars_.key = k; }
  void begin() override {
    scalars_.loss_scale = rules_.dynamic_loss_scale ? scale_.value() : numbers_.loss_scale;
    scalars_.inv_global_batch = numbers_.inverse_batch;
    if (integers_ != nullptr) integers_->begin(std::exchange(repeats_, false));
    if (!copies_states()) return;
    if (copied_ == last_ + 1) return restore_states();  // the step is repeated
    if (before_.bytes() == 0) before_ = Buffer(b_.memory(), state_bytes());
    b_.memory().copy(before_.data(), m_.states, state_bytes());
    copied_ = last_ + 1;
  }
  // Sets the running statistics to those before the step: each logical rank begins with them.
  void restore_states() {
    if (copied_ == last_ + 1) b_.memory().copy(m_.states, before_.data(), state_bytes());
  }
  // Returns whether the last update() has changed nothing, because the step must be repeated from begin() in all ranks
  // (IntegerSums).
  [[nodiscard]] bool repeats() const noexcept { return repeats_; }
  void add(const void* metrics, bool, bool last) override {
    std::array<double, 4> of_part{};
    if (metrics != nullptr) b_.memory().copy_out(of_part.data(), metrics, sizeof of_part);
    if (integers_ != nullptr) {
      of_part[0] = round_to_2_24(of_part[0]);
      integers_->add_metrics(of_part);
    }
    for (std::size_t i = 0; i < of_part.size(); ++i) now().metrics[i] += of_part[i];
    if (!math::is_finite(of_part[0])) numbers_.flags |= step_flag::not_finite;
    if (last && ranks_ > 1) flags_.write(b_.memory(), numbers_.flags);
  }

  // Ends the run like add() if the loss is not finite, and otherwise has no effect: for a pass that is not reported.
  void check(const void* metrics) {
    std::array<double, 4> of_part{};
    if (metrics != nullptr) b_.memory().copy_out(of_part.data(), metrics, sizeof of_part);
    if (math::is_finite(of_part[0])) return;
    numbers_.flags |= step_flag::not_finite;
    now().metrics[0] = of_part[0];
  }

  // Throws the errors of the exchange and leaves the weights as they were.
  void update(Exchange& sums) override {
    StepOutcome& o = now();
    if (integers_ != nullptr) return update_by_integers(sums);
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
      apply(sums);
    if (ranks_ > 1) take_states();
    end_update();
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
    repeats_ = false;
    if (copies_states() && copied_ == step + 1) b_.memory().copy(m_.states, before_.data(), state_bytes());
  }

 private:
  [[nodiscard]] StepOutcome& now() { return outcomes_[last_ % kept]; }
  [[nodiscard]] std::size_t state_bytes() const { return m_.state_count * size_of(m_.dtype); }
  [[nodiscard]] double scale() const { return scalars_.loss_scale; }
  [[nodiscard]] bool copies_states() const { return (ranks_ > 1 || integers_ != nullptr) && m_.state_count != 0; }

  // The sums hold all logical ranks, so the rest of the step is that of one rank.
  void update_by_integers(Exchange& sums) {
    StepOutcome& o = now();
    o.flags = numbers_.flags;
    if (ranks_ > 1) {
      sums.wait_on_host();
      o.flags = flags_.read(b_.memory());
    }
    if ((o.flags & step_flag::not_finite) != 0) {
      restore_states();
      return halt((numbers_.flags & step_flag::not_finite) != 0 ? Halt::loss : Halt::loss_elsewhere);
    }
    if (sums.shared_matrices() != nullptr) keep_levels();
    const SumCheck check = integers_->check();
    if (check == SumCheck::repeat) {
      repeats_ = true;
      o.metrics = {};
      return;
    }
    const bool fit = check == SumCheck::fits;
    const bool halts = rules_.dynamic_loss_scale ? !scale_.after_step(fit) : !fit;
    if (!halts) o.metrics = integers_->metrics();
    if (fit) {
      apply(sums);
      integers_->take_states(m_.states);
    } else {
      restore_states();
    }
    if (halts) return halt(Halt::gradients);
    end_update();
  }
  void end_update() {
    StepOutcome& o = now();
    average(m_.average, m_.weights, m_.count);
    average(m_.state_average, m_.states, m_.state_count);
    if (numbers_.takes_average) {
      b_.memory().copy(m_.weights, m_.average, m_.count * size_of(m_.dtype));
      b_.memory().copy(m_.states, m_.state_average, state_bytes());
    }
    for (std::size_t i = 0; i < o.sums.size(); ++i) o.sums[i] += o.metrics[i];
  }

  void halt(Halt why) {
    StepOutcome& o = now();
    o.halted_step = numbers_.step;
    o.halt = why;
    o.halted_loss = o.metrics[0];
    o.halted_rows = o.metrics[3];
  }

  // check() has changed the levels before other ranks may be lost in apply().
  void keep_levels() {
    levels_.resize(integers_->layout().bytes());
    b_.memory().copy_out(levels_.data(), integers_->levels(), levels_.size());
  }
  // Of all gradients that the step applies.
  [[nodiscard]] double squared_norm() {
    double squares = 0;
    rules_.for_trained(numbers_.step, [&](std::size_t begin, std::size_t end) {
      squares += b_.squared_norms(call(begin, end)).gradients;
    });
    return squares;
  }
  // Throws the errors of an exchange of matrices and then has changed nothing.
  void apply(Exchange& sums) {
    const bool clips = (rules_.clip_norm > 0 || rules_.max_grad_norm > 0) && !rules_.runs.empty();
    const SharedMatrices* const shared = sums.shared_matrices();
    const bool at_once = clips || shared != nullptr;
    if (integers_ != nullptr && at_once) integers_->restore(m_.gradients);
    const double clip = clips ? clip_factor(rules_, math::sqrt(squared_norm())) : 1;
    if (shared != nullptr) orthogonalise(sums, *shared, clip);
    for (std::size_t i = 0; i < rules_.runs.size(); ++i) {
      const UpdateRules::Run& r = rules_.runs[i];
      UpdateCall u = call(r.begin, r.end);
      if (shared != nullptr && shared->shares.owner(i) >= 0) u.orthogonal = result(*shared, i);
      u.lr = rules_.rate(r, numbers_.lr, numbers_.step);
      if (u.lr < 0) {
        if (integers_ != nullptr && !at_once) integers_->restore(r.begin, r.end, m_.gradients);
        continue;
      }
      u.weight_decay = r.weight_decay;
      u.rows = r.rows;
      u.cols = r.cols;
      u.gradient_scale *= clip;
      if (integers_ != nullptr && !at_once) {
        if (!rules_.factor && !takes_tensors(rules_.op)) {
          update_from_integers(r, u);
          continue;
        }
        integers_->restore(r.begin, r.end, m_.gradients);
      }
      if (rules_.factor && r.has_ratio) u.factor = ratio(u);
      b_.update(op_, u);
    }
  }
  [[nodiscard]] double ratio(UpdateCall u) {
    if (!rules_.adds_norms) return rules_.factor(b_.squared_norms(u), u.lr);
    const double decay = std::exchange(u.weight_decay, 0);
    SquaredNorms n = b_.squared_norms(u);
    n.weight_decay = decay;
    return rules_.factor(n, u.lr);
  }
  [[nodiscard]] std::byte* result(const SharedMatrices& s, std::size_t run) const {
    return s.results.data() + s.shares.place(run) * size_of(m_.dtype);
  }
  // Computes this rank's matrices and gets those of the others.
  void orthogonalise(Exchange& sums, const SharedMatrices& s, double clip) {
    std::fill(s.results.begin(), s.results.end(), std::byte{0});
    for (std::size_t i = 0; i < rules_.runs.size(); ++i) {
      if (s.shares.owner(i) != s.rank) continue;
      UpdateCall u = call(rules_.runs[i].begin, rules_.runs[i].end);
      u.rows = rules_.runs[i].rows;
      u.cols = rules_.runs[i].cols;
      u.gradient_scale *= clip;
      u.orthogonal = result(s, i);
      u.only_orthogonal = true;
      b_.update(op_, u);
    }
    try {
      sums.exchange_matrices();
    } catch (...) {
      if (integers_ != nullptr) b_.memory().copy_in(integers_->levels(), levels_.data(), levels_.size());
      throw;
    }
  }
  // Restores and updates a few elements at a time, so that the restored gradients are read from a cache.
  void update_from_integers(const UpdateRules::Run& r, const UpdateCall& whole) {
    constexpr std::size_t most = std::size_t{1} << 17;
    for (std::size_t begin = r.begin; begin < r.end; begin += most) {
      const std::size_t end = std::min(begin + most, r.end);
      integers_->restore(begin, end, m_.gradients);
      UpdateCall u = call(begin, end);
      u.lr = whole.lr;
      u.weight_decay = whole.weight_decay;
      u.gradient_scale = whole.gradient_scale;
      b_.update(op_, u);
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
    for (const auto& [begin, end] : m_.frozen_states) {
      const std::size_t unit = size_of(m_.dtype);
      b_.memory().copy_out(host_states_.data() + begin * unit, static_cast<std::byte*>(m_.states) + begin * unit,
                           (end - begin) * unit);
    }
    b_.memory().copy_in(m_.states, host_states_.data(), host_states_.size());
  }
  void average(void* to, const void* from, std::size_t count) {
    if (to != nullptr && numbers_.ema_decay != 1) b_.average(m_.dtype, to, from, count, numbers_.ema_decay);
  }

  Backend& b_;
  const ModelState& m_;
  const UpdateRules& rules_;
  bool updates_;
  IntegerSums* integers_;
  UpdateOp op_;
  bool repeats_ = false;
  StepFlags flags_;
  int ranks_ = 1;
  StepNumbers numbers_;
  StepScalars scalars_;
  LossScale scale_;
  std::array<StepOutcome, kept> outcomes_;
  std::uint64_t last_ = 0, copied_ = 0;          // copied_: 1 + the number of the step that before_ belongs to
  Buffer before_;                                // the running statistics before the step
  std::vector<std::byte> host_states_, levels_;  // levels_: before a step with shared matrices
};

}  // namespace tutti
