// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/step/loss_scale.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/tensor/tensor.hpp>
#include <tutti/train/memory_estimate.hpp>
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
  // The model as it was built, with its loss and without a gradient.
  [[nodiscard]] const Graph& model() const noexcept;
  // The images of the last step() that was given a Batch, and of the last evaluate(): what Checkpoints write into a
  // checkpoint about classes and image preparation. Null: not known.
  [[nodiscard]] const std::shared_ptr<const Schema>& training_images() const noexcept { return training_images_; }
  [[nodiscard]] const std::shared_ptr<const Schema>& test_images() const noexcept { return test_images_; }
  void set_test_images(std::shared_ptr<const Schema> schema) noexcept { test_images_ = std::move(schema); }
  // What the loss is multiplied by in this step.
  [[nodiscard]] double loss_scale() {
    return o_.dynamic_loss_scale ? LossScale{counters().scale_exponent}.value() : o_.loss_scale;
  }
  // Of all steps that were started. Waits for them where a device moves the loss scale.
  [[nodiscard]] Counters& counters() {
    if (o_.dynamic_loss_scale) settle();
    return counters_;
  }
  // Where servers own the weights: steps of all workers that are in these and not in the epoch and position of the
  // counters, as synchronise() has brought both.
  [[nodiscard]] std::int64_t steps_behind() const noexcept { return behind_; }
  // False before the first synchronise().
  [[nodiscard]] bool synchronised() const noexcept { return synchronised_; }
  // Writes down each step from now on, which the host then ends; null: no more. Waits for what runs.
  void trace(StepTrace* t);
  [[nodiscard]] const CommittedState& committed() const noexcept { return committed_; }

  // Fresh weights from the seed, statistics at their start, optimizer state zero, step 0.
  void initialize();

  // A step that was started.
  class Pending {
   public:
    // Of all ranks, as far as they were known when the call was back: of this step where it is over by then or the rank
    // is alone; of several ranks that run ahead those of the step before, on all ranks alike.
    [[nodiscard]] std::uint32_t flags() const noexcept { return flags_; }
    // Waits for this step and all others. It is one of the last StepFinisher::kept, and trace() was not called since.
    StepResult wait();

   private:
    friend class Trainer;
    Pending(Trainer& t, std::uint64_t number, std::uint32_t flags) : t_(t), number_(number), flags_(flags) {}
    Trainer& t_;
    std::uint64_t number_;
    std::uint32_t flags_;
  };
  // One step: this rank's share of a loader's batch, cut into micro-batches of at most TrainerOptions::micro_batch
  // rows. Gradients are those of the sum of all ranks' losses, divided by the rows of all ranks; the last step's lie in
  // the gradient arena. flags: what this rank has to say (core/step_flag.hpp). Where a device ends steps itself the
  // call is back before the step is over; otherwise it throws, and else a later call or wait(): NotFiniteError, where
  // any rank saw a loss that is not finite, with the weights and counters as they were before that step;
  // CommunicationError, where ranks are gone (roll_back).
  Pending step(const Batch& batch, double lr, std::uint32_t flags = 0);
  // One of these micro-batches: global_rows are those of all ranks and micro-batches together.
  Pending step(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags = 0);
  Pending step(const BatchView& batch, std::int64_t global_rows, double lr, std::uint32_t flags = 0) {
    return step(std::span(&batch, 1), global_rows, lr, flags);
  }
  // Of this rank's rows, summed over the steps since it was called last. Waits for them.
  Metrics take_metrics();
  // Whether step() returns before the step is over.
  [[nodiscard]] bool runs_ahead() const noexcept;

  // Undoes what a step that broke off has changed: weights, statistics and counters are those of the last step that is
  // known to be whole. Waits for what runs; changes nothing where no step broke.
  void roll_back();
  // The strategy's members are others: goes on with them from the last whole step, with the state of the strategy's
  // authority, its rank 0 where nobody says otherwise. All members that stay call it; who joins makes a Trainer and
  // calls it, too, or synchronise(). What ranks compare is compared anew, and the memory of the gradients stays where
  // it is. Where it throws, the state is as it was, or all of the authority's. beside: taken along; the caller takes
  // its part over when this returns.
  void reform(std::span<const StateSpan> extra = {});

  // Seconds that this rank has waited for the others' gradients; nothing where a device does so by itself.
  [[nodiscard]] std::optional<double> seconds_waited() const;

  // The share of its last second or less in which this rank's device computed, 0..1, where it tells.
  [[nodiscard]] std::optional<double> utilisation() const { return b_.utilisation(); }

  // What training takes with steps of so many rows of this rank and evaluations of so many at a time, without batches
  // that a loader holds. On a host it is reckoned from a few rows, so that nothing large is allocated; on a device the
  // plans are made, and DeviceError says what is lacking.
  [[nodiscard]] MemoryEstimate memory(std::int64_t rows, std::int64_t evaluation_rows);
  // Makes these largest plans, whose memory shorter batches share, and tells what they take.
  MemoryEstimate prepare(std::int64_t rows, std::int64_t evaluation_rows);
  // Makes a plan that a step with so many rows of this rank will need, where it needs no more memory than there is; on
  // the host also where it does, if micro-batches have no limit.
  // False: there is none left to be made. Waits for the steps that run before it makes one.
  bool plan_ahead(std::int64_t rows);

  // What weight decay adds to the loss: half of its rate times the squared norm of the weights that decay.
  [[nodiscard]] double l2_penalty();

  Metrics evaluate(const BatchView& batch) { return executor_->evaluate(batch); }
  // Sums over all ranks.
  Metrics reduce(Metrics m) {
    double v[] = {m.loss, m.top1_hits, m.topk_hits, m.rows};
    s_.sum(v);
    return {v[0], v[1], v[2], v[3]};
  }

  // Runs f with the EMA weights (and the statistics averaged with them) in place of the weights.
  void with_ema(FunctionRef<void()> f);
  [[nodiscard]] bool has_ema() const noexcept { return o_.ema_decay > 0; }

  // Takes weights and optimizer state from whoever owns them, as they are now (OwnsWeights); elsewhere nothing.
  void pull();
  // Takes the second copy of the state.
  void commit();
  // Goes back to it.
  void restore();
  // The committed tensors by name: torchvision's for the model; momentum.<name> and so on for the optimizer.
  [[nodiscard]] std::vector<StateSpan> committed_tensors(bool optimizer);
  // Prepares the committed copy to be filled by name; restore() then takes it.
  void prepare_restore(const Counters& c);
  // Everyone takes the authority's committed state; what is `beside` it, too.
  void synchronise(std::span<const StateSpan> extra = {});

  // Of build, options, precision and plan; equal on all ranks or they must not train together.
  [[nodiscard]] JobFacts facts() const;

  // A parameter or running statistic by its name, as it is after the last step; in f32. UsageError names some that
  // there are.
  [[nodiscard]] Tensor<float> parameter(const std::string& name);
  // What the net says of images [rows, height, width, channels], as many as there are: logits [rows, classes], with the
  // running statistics. Of this rank alone, `batch` rows at a time. with_ema() is for the averaged weights.
  [[nodiscard]] Tensor<float> predict(const Tensor<std::uint8_t>& images, std::int64_t batch = 256);

 private:
  struct Erased {};
  Trainer(Erased, Backend& backend, AnyStrategy strategy, const Graph& model, TrainerOptions options);

  [[nodiscard]] ModelState model_state() const;
  // Waits for the steps that run; what they came to is then in the counters.
  void settle();

  void fill(const ArenaLayout& layout, void* to);

  void synchronise_on_device(std::span<std::byte> second, std::span<const StateSpan> extra);

  [[nodiscard]] std::vector<StateArena> arenas();
  [[nodiscard]] std::vector<StateSpan> arena_spans();

  // In how many micro-batches a share of so many rows is computed, and where the i-th of n begins.
  [[nodiscard]] std::int64_t micro_batches(std::int64_t rows) const {
    const std::int64_t most = o_.micro_batch > 0 ? o_.micro_batch : std::max<std::int64_t>(rows, 1);
    return std::max<std::int64_t>((rows + most - 1) / most, 1);
  }
  [[nodiscard]] static std::int64_t begin_of(std::int64_t i, std::int64_t n, std::int64_t rows) { return rows * i / n; }
  [[nodiscard]] std::int64_t rows_at_a_time(std::int64_t rows) const;
  [[nodiscard]] MemoryEstimate memory_in_use(std::int64_t rows) const;

  struct Parts;  // trainer_definitions.hpp

  Backend& b_;
  AnyStrategy s_;
  TrainerOptions o_;
  std::unique_ptr<Parts> parts_;
  Executor* executor_ = nullptr;  // one of them
  std::vector<BatchView> micro_batches_;
  Counters counters_;
  std::int64_t behind_ = 0;
  bool synchronised_ = false;
  CommittedState committed_;
  std::shared_ptr<const Schema> training_images_, test_images_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/trainer_definitions.hpp>
#include <tutti/train/trainer_memory.hpp>
#include <tutti/train/trainer_tensors.hpp>
#endif
