// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/span.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/step/host_step_finisher.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/detail/trainer/gradient_exchange.hpp>
#include <tutti/train/detail/trainer/gradient_sum.hpp>
#include <tutti/train/detail/trainer/state.hpp>
#include <tutti/train/detail/trainer/step_parts.hpp>
#include <tutti/train/detail/trainer/weight_perturbation.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

// Runs the forward and backward passes of a step over this rank's micro-batches, adds their gradients, and hands them
// to the exchange as soon as they are final. With SAM, each logical rank has two passes.
class StepPasses {
 public:
  // All arguments must outlive this. counters: of the trainer. host: checks metrics and keeps running statistics, also
  // if another finisher ends the step.
  StepPasses(Backend& backend, AnyStrategy& strategy, const TrainerOptions& o, Executor& executor,
             GradientExchange& exchange, const UpdateRules& rules, const Counters& counters, HostStepFinisher& host)
      : b_(backend),
        s_(strategy),
        o_(o),
        e_(executor),
        exchange_(exchange),
        rules_(rules),
        counters_(counters),
        host_(host),
        sum_(backend),
        integers_(exchange.integers()),
        end_(&host) {
    // One bucket's readiness calls back into the exchange.
    on_ready_ = [this](std::size_t ready) { take_ready(ready); };
    if (o_.sam.rho > 0)
      perturbation_ = std::make_unique<WeightPerturbation>(b_, e_, rules.runs.empty() ? 0 : rules.runs.back().end);
  }

  // Returns the seconds in which this rank computed the gradients of the last step, without waiting for other ranks.
  [[nodiscard]] double seconds_computed() const noexcept { return computed_; }
  // Records the end of the backward pass, relative to `since`; null: no recording.
  void trace(StepTrace* t, const Stopwatch* since) noexcept {
    trace_ = t;
    since_ = since;
  }

  // Runs step `number` over these micro-batches, up to the updated weights. finisher: ends the step.
  void run(StepFinisher& finisher, std::uint64_t number, const StepParts& parts, std::int64_t global_rows) {
    end_ = &finisher;
    computing_.restart();
    sent_before_ = exchange_.seconds_sent();
    BatchKey key{o_.seed, static_cast<std::uint64_t>(counters_.step), parts.first_rank};
    for (std::size_t begin = 0, end = 0; begin < parts.views.size(); begin = end, ++key.logical_rank) {
      if (begin > 0) host_.restore_states();  // the step itself begins the first rank
      end = parts.end_of_rank(begin);
      const std::int64_t rows = parts.rows(begin, end);
      const auto pass = [&](Pass p) { run_pass(number, parts, {begin, end}, key, p); };
      const bool twice = rows > 0 && o_.sam.perturbs(counters_.step + 1);
      pass(twice ? Pass::first : Pass::whole);
      if (!twice) continue;
      try {
        // By the mean over the rows of this rank, not over those of all ranks.
        const double scale = static_cast<double>(global_rows) / static_cast<double>(rows) / end_->scalars()->loss_scale;
        perturbation_->perturb(o_.sam.rho, scale, rules_, counters_.step + 1);
        pass(Pass::second);
      } catch (...) {
        perturbation_->restore();
        throw;
      }
    }
  }

 private:
  void run_pass(std::uint64_t number, const StepParts& parts, std::pair<std::size_t, std::size_t> views, BatchKey key,
                Pass pass) {
    for (std::size_t i = views.first; i < views.second; ++i) {
      place_ = {parts, pass, i, views.first, views.second};
      host_.set_key(key);
      key.first_row += parts.views[i].rows;
      start_part(number, parts.views[i]);
    }
  }
  void add() {
    const void* metrics = part_rows_ > 0 ? e_.metrics_data() : nullptr;
    if (place_.pass == Pass::second) {
      // The first pass was reported, and its images are in the running statistics.
      host_.check(std::exchange(metrics, nullptr));
      perturbation_->restore_states();
    }
    end_->add(metrics, place_.begins_step, place_.ends_step);
    if (place_.ends_rank) integers_->end_rank(e_.state_data());
    if (s_.owns_weights() && !host_.finite()) exchange_.hold_back();
  }

  // Returns the sums that take the gradients of the current part, or null.
  [[nodiscard]] IntegerSums* integers_of_part() const { return place_.pass == Pass::first ? nullptr : integers_; }
  // Returns whether other parts of this pass have gradients that are added to those of the current one.
  [[nodiscard]] bool adds_up() const { return !place_.alone_in_pass() && integers_of_part() == nullptr; }

  void start_part(std::uint64_t number, const BatchView& part) {
    part_rows_ = part.rows;
    exchange_.begin();
    // Without a listener there is no callback between the segments of a plan. Integers of gradients that are in a cache
    // are worth it.
    IntegerSums* const to = integers_of_part();
    const bool caches = to != nullptr && b_.memory().on_host();
    const bool listens = part.rows > 0 && (caches || (place_.ends_step && !adds_up() && !exchange_.alone()));
    if (adds_up()) sum_.reserve(e_.parameters());
    e_.give_gradients_to(caches ? to : nullptr);
    key_.assign({place_.key(), s_.membership().generation, end_->variant(number)});
    e_.start(
        part, end_->scalars(), span_of(key_), listens ? on_ready_ : silent_,
        [&] {
          if (place_.begins_step) end_->begin();
          if (caches) to->begin_part(place_.ends_step, e_.gradient_data());
        },
        [&] { end_part(); });
  }
  void end_part() {
    const ArenaLayout& p = e_.parameters();
    IntegerSums* const to = integers_of_part();
    if (part_rows_ == 0) b_.memory().zero(e_.gradient_data(), p.bytes());
    if (place_.pass == Pass::second && place_.ends_pass) perturbation_->restore();
    const bool shares = place_.ends_step && (to != nullptr || !exchange_.alone());
    if (!shares) add();
    if (adds_up()) sum_.add(p, e_.gradient_data(), place_.begins_pass, place_.ends_pass);
    if (shares || (to != nullptr && part_rows_ > 0)) take_ready(exchange_.trainable());
    if (!place_.ends_step) return;
    computed_ = computing_.seconds() - (exchange_.seconds_sent() - sent_before_);
    if (trace_ != nullptr) trace_->backward_end = since_->seconds();
    const Span span(Lane::step, "update");
    end_->update(exchange_);
    if (end_->runs_ahead())
      e_.repack();
    else if (!host_.repeats())
      e_.parameters_changed();
  }
  // The gradients of these slices are final.
  void take_ready(std::size_t slices) {
    if (place_.ends_step)
      exchange_.send(slices, [this] { add(); });
    else
      exchange_.add(slices);
  }

  Backend& b_;
  AnyStrategy& s_;
  const TrainerOptions& o_;
  Executor& e_;
  GradientExchange& exchange_;
  const UpdateRules& rules_;
  const Counters& counters_;
  HostStepFinisher& host_;
  GradientSum sum_;
  IntegerSums* integers_;                             // of logical ranks, or null
  std::unique_ptr<WeightPerturbation> perturbation_;  // of SAM, or null
  StepFinisher* end_;                                 // of the current step
  Executor::OnReady on_ready_, silent_;
  std::vector<std::uint64_t> key_;
  PartPlace place_;  // of the current part
  std::int64_t part_rows_ = 0;
  StepTrace* trace_ = nullptr;
  const Stopwatch* since_ = nullptr;
  Stopwatch computing_;
  double computed_ = 0, sent_before_ = 0;  // seconds
};

}  // namespace tutti
