// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/function_ref.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/dist/any_strategy.hpp>
#include <tutti/dist/job_facts.hpp>
#include <tutti/dist/solo.hpp>
#include <tutti/dist/strategy.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/train/executor.hpp>
#include <tutti/train/loss_scale.hpp>
#include <tutti/train/state.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

// Trains a model on a backend with a strategy: forward, backward, reduction while backward goes on, update; and owns
// the optimizer state, the weight EMA and the committed copy of it all.
class Trainer {
 public:
  // A strategy of one's own is taken as it is; backend and strategy outlive this.
  template <DistributedStrategy S>
  Trainer(Backend& backend, S& strategy, const Graph& model, TrainerOptions options)
      : Trainer(Erased{}, backend, AnyStrategy::refer(strategy), model, std::move(options)) {}
  ~Trainer();

  // Its parts refer to each other.
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  [[nodiscard]] Executor& executor() noexcept { return *executor_; }
  [[nodiscard]] const TrainerOptions& options() const noexcept { return o_; }
  [[nodiscard]] AnyStrategy& strategy() noexcept { return s_; }
  // What the loss is multiplied by in this step.
  [[nodiscard]] double loss_scale() { return o_.dynamic_loss_scale ? loss_scale::value(counters()) : o_.loss_scale; }
  // Of all steps that were started. Waits for them where a device moves the loss scale.
  [[nodiscard]] Counters& counters() {
    if (o_.dynamic_loss_scale) settle();
    return counters_;
  }
  // Writes down each step from now on, and waits for it; null ends it.
  void trace(StepTrace* t) noexcept;
  [[nodiscard]] const CommittedState& committed() const noexcept { return committed_; }

  // Fresh weights from the seed, statistics at their start, optimizer state zero, step 0.
  void initialize();

  // One step of these micro-batches that nobody waits for, where the device ends steps itself
  // (backend/device_step.hpp); elsewhere, the same as step(). Gradients are those of the sum of all ranks' losses,
  // divided by global_rows. What the steps came to is in take_metrics(). Returns the flags of all ranks: of this step,
  // but on a device with several ranks of the step before, on all ranks alike. A loss that is not finite ends the run
  // some steps later: no step since has changed the weights, and NotFiniteError names the step.
  std::uint32_t step_async(std::span<const BatchView> parts, std::int64_t global_rows, double lr,
                           std::uint32_t flags = 0);
  // The same, waited for, with its own flags and metrics; these are not in take_metrics().
  StepResult step(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags = 0);
  StepResult step(const BatchView& batch, std::int64_t global_rows, double lr, std::uint32_t flags = 0) {
    return step(std::span(&batch, 1), global_rows, lr, flags);
  }
  // Of this rank's rows, summed over the step_async() calls since it was called last. Waits for them.
  Metrics take_metrics();
  // Whether step_async() returns before the step is over.
  [[nodiscard]] bool runs_ahead() const noexcept;

  // A step in two calls, for who looks at the gradients in between. The host waits for both, on every backend.
  //
  // One micro-batch: gradients of the sum of this rank's losses, divided by the rows of all ranks and all micro-batches
  // of the step together. `last`: the step's last one; only then do gradients travel, and with them the flags.
  Metrics accumulate(const BatchView& batch, std::int64_t global_rows, bool first, bool last, std::uint32_t flags = 0);

  // Ends a step: updates the weights with this rate, each bucket's as soon as its reduction is done. Returns the union
  // of all ranks' flags. Throws NotFiniteError, with the weights as they were, if any rank saw a loss that is not
  // finite.
  std::uint32_t update(double lr, const Metrics& mine);

  // Seconds that this rank has waited for the others' gradients; nothing where a device does so by itself.
  [[nodiscard]] std::optional<double> seconds_waited() const;

  // The share of its last second or less in which this rank's device computed, 0..1, where it tells.
  [[nodiscard]] std::optional<double> utilisation() const { return b_.utilisation(); }

  // What weight decay adds to the loss: half of its rate times the squared norm of the weights that decay.
  [[nodiscard]] double decay_term();

  Metrics evaluate(const BatchView& batch) { return executor_->evaluate(batch); }
  // Sums over all ranks.
  Metrics reduce(Metrics m) {
    double v[] = {m.loss, m.top1, m.topk, m.rows};
    s_.sum(v);
    return {v[0], v[1], v[2], v[3]};
  }

  // Runs f with the EMA weights (and the statistics averaged with them) in place of the weights.
  void with_ema(FunctionRef<void()> f);
  [[nodiscard]] bool has_ema() const noexcept { return o_.ema_decay > 0; }

  // Takes the second copy of the state.
  void commit();
  // Goes back to it.
  void restore();
  // The committed tensors by name: torchvision's for the model; momentum.<name> and so on for the optimizer.
  [[nodiscard]] std::vector<StateSpan> committed_tensors(bool optimizer);
  // Prepares the committed copy to be filled by name; restore() then takes it.
  void prepare_restore(const Counters& c);
  // Everyone takes the authority's committed state.
  void synchronise();

  // Of build, options, precision and plan; equal on all ranks or they must not train together.
  [[nodiscard]] JobFacts fingerprint() const;

 private:
  struct Erased {};
  Trainer(Erased, Backend& backend, AnyStrategy strategy, const Graph& model, TrainerOptions options);

  // What the device decides by itself needs neither the optimizer's code on the host nor a strategy there.
  void make_device_steps();
  std::uint32_t start(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags,
                      bool counts);
  StepResult step_on_host(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags);
  static void require_parts(std::span<const BatchView> parts);
  // Waits for the steps that run; what they came to is then in the counters.
  void settle();
  void forget();

  void fill(const ArenaLayout& layout, void* to);

  void look_at(const Metrics& m);

  void reduce_until(std::size_t ready, const Metrics& m);
  [[nodiscard]] std::vector<StateArena> arenas();

  struct Parts;  // trainer_definitions.hpp

  Backend& b_;
  AnyStrategy s_;
  TrainerOptions o_;
  std::unique_ptr<Parts> parts_;
  Executor* executor_ = nullptr;  // one of them
  std::uint32_t flags_ = 0;
  StepTrace* trace_ = nullptr;
  Stopwatch since_;
  Metrics waiting_;  // of steps on the host that nobody asked for yet
  Counters counters_;
  CommittedState committed_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/trainer_definitions.hpp>
#endif
