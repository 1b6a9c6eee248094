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
#include <tutti/train/detail/trainer/memory_estimate.hpp>
#include <tutti/train/detail/trainer/state.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

struct StepParts;  // detail/trainer/step_runner.hpp

// Trains a model on a backend with a strategy: forward, backward, reduction during the backward pass, update. Owns the
// optimizer state, the weight EMA and the committed copy of the whole state.
class Trainer {
 public:
  // Backend and strategy must outlive this. A strategy of the user's own type is used directly.
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
  // Returns the model as it was built, with its loss and without gradients.
  [[nodiscard]] const Graph& model() const noexcept;
  // Returns the schema of the images of the last step() that was given a Batch, or of the last evaluate(). Checkpoints
  // take classes and image preparation from it. Null: not known.
  [[nodiscard]] const std::shared_ptr<const Schema>& training_images() const noexcept { return training_images_; }
  [[nodiscard]] const std::shared_ptr<const Schema>& test_images() const noexcept { return test_images_; }
  void set_test_images(std::shared_ptr<const Schema> schema) noexcept { test_images_ = std::move(schema); }
  // Returns the factor of the loss in this step.
  [[nodiscard]] double loss_scale() {
    return o_.dynamic_loss_scale ? LossScale{counters().scale_exponent}.value() : o_.loss_scale;
  }
  // Returns the counters of all started steps. Waits for the steps if a device changes the loss scale.
  [[nodiscard]] Counters& counters() {
    if (o_.dynamic_loss_scale) settle();
    return counters_;
  }
  // Parameter server only: steps of all workers that are in the pulled weights but not yet counted in the epoch and
  // position of the counters; synchronise() sets both.
  [[nodiscard]] std::int64_t steps_behind() const noexcept { return behind_; }
  // Returns false before the first synchronise().
  [[nodiscard]] bool synchronised() const noexcept { return synchronised_; }
  // Records each step from now on; the host then ends the steps. null: stops recording. Waits for running steps.
  void trace(StepTrace* t);
  [[nodiscard]] const CommittedState& committed() const noexcept { return committed_; }

  // Makes new weights from the seed; statistics are at their start, the optimizer state is zero, and the step is 0.
  void initialize();

  // A step that was started.
  class Pending {
   public:
    // Flags OR-ed over all ranks: those of this step if it has ended when step() returns or the job has one rank. With
    // several ranks and asynchronous steps, those of the step before, the same on all ranks.
    [[nodiscard]] std::uint32_t flags() const noexcept { return flags_; }
    // Waits for this step and all others. It must be one of the last StepFinisher::kept steps, with no trace() call
    // since.
    StepResult wait();

   private:
    friend class Trainer;
    Pending(Trainer& t, std::uint64_t number, std::uint32_t flags) : t_(t), number_(number), flags_(flags) {}
    Trainer& t_;
    std::uint64_t number_;
    std::uint32_t flags_;
  };
  // Runs one step: this rank's share of a loader's batch, cut into micro-batches of at most TrainerOptions::micro_batch
  // rows; or its logical ranks' shares, each cut by itself. Gradients are those of the sum of all ranks' losses,
  // divided by the rows of all ranks; those of the last step are in the gradient arena. flags: those of this rank
  // (core/step_flag.hpp). If a device ends steps itself, the call returns before the step has ended, and a later call
  // or wait() throws its errors; otherwise this call throws them. NotFiniteError: a rank saw a loss that is not finite;
  // weights and counters are as before that step. CommunicationError: ranks are lost (roll_back).
  Pending step(const Batch& batch, double lr, std::uint32_t flags = 0);
  // The same for explicit micro-batches. global_rows: those of all ranks and micro-batches together. With logical ranks
  // there is one part for each of this process, in their order, of any number of rows, and micro-batches are cut from
  // it.
  Pending step(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags = 0);
  Pending step(const BatchView& batch, std::int64_t global_rows, double lr, std::uint32_t flags = 0) {
    return step(std::span(&batch, 1), global_rows, lr, flags);
  }
  // Returns the metrics of this rank's rows, summed over the steps since the last call. Waits for them. With logical
  // ranks, those of all ranks' rows, without rows that could not be read (Batch::skipped).
  Metrics take_metrics();
  // Returns true if step() returns before the step has ended.
  [[nodiscard]] bool runs_ahead() const noexcept;

  // Undoes the changes of a broken step: weights, statistics and counters are those of the last step that is known to
  // be complete. Waits for running steps. Has no effect if no step is broken.
  void roll_back();
  // Call it after the strategy's members have changed. Continues from the last complete step, with the state of the
  // strategy's authority (default: rank 0). All remaining members call it; a joining process makes a Trainer and calls
  // this or synchronise(). The ranks compare their facts again, and the memory of the gradients stays in place. If it
  // throws, the state is as before, or completely that of the authority. extra: state that is synchronised together
  // with the trainer's; the caller takes its part over when this returns.
  void reform(std::span<const StateSpan> extra = {});

  // Returns the seconds that this rank has waited for the others' gradients; no value if a device waits by itself.
  [[nodiscard]] std::optional<double> seconds_waited() const;

  // Returns the share of its last second or less in which this rank's device computed, 0..1, if the device reports it.
  [[nodiscard]] std::optional<double> utilisation() const { return b_.utilisation(); }

  // Returns the memory of training with steps of `rows` rows of this rank (with logical ranks: of one of them, which
  // does not depend on the number of processes) and evaluations of `evaluation_rows` at a time, without batches that a
  // loader holds. On a host it is calculated from a few rows, so that no large memory is allocated. On a device the
  // plans are made, and DeviceError has the amount that is lacking.
  [[nodiscard]] MemoryEstimate memory(std::int64_t rows, std::int64_t evaluation_rows);
  // Makes these largest plans and returns their memory; smaller batches share it.
  MemoryEstimate prepare(std::int64_t rows, std::int64_t evaluation_rows);
  // Makes a plan for a later step of `rows` rows of this rank (or one logical rank), if it needs no more memory than
  // there is; on the host also if it needs more, if micro-batches have no limit. Returns false if no plan is left to be
  // made. Waits for running steps before it makes one.
  bool plan_ahead(std::int64_t rows);

  // Returns the part of the loss from weight decay: half of its rate times the squared norm of the decayed weights.
  [[nodiscard]] double l2_penalty();

  Metrics evaluate(const BatchView& batch) { return executor_->evaluate(batch); }
  // Returns the sums over all ranks.
  Metrics reduce(Metrics m) {
    double v[] = {m.loss, m.top1_hits, m.topk_hits, m.rows};
    s_.sum(v);
    return {v[0], v[1], v[2], v[3]};
  }

  // Runs f with the EMA weights (and the statistics averaged with them) in place of the weights.
  void with_ema(FunctionRef<void()> f);
  [[nodiscard]] bool has_ema() const noexcept { return o_.ema_decay > 0; }

  // Copies the current weights and optimizer state from the servers that own them (OwnsWeights); otherwise it has no
  // effect.
  void pull();
  // Commits: copies the state to the second copy.
  void commit();
  // Restores the state from the second copy.
  void restore();
  // Returns the committed tensors by name: torchvision's for the model; momentum.<name> and so on for the optimizer.
  [[nodiscard]] std::vector<StateSpan> committed_tensors(bool optimizer);
  // Prepares the committed copy to be filled by name; restore() then uses it.
  void prepare_restore(const Counters& c);
  // All ranks take the authority's committed state, and also `extra`.
  void synchronise(std::span<const StateSpan> extra = {});

  // Facts of build, options, precision and plan. They must be equal on all ranks; otherwise the ranks must not train
  // together.
  [[nodiscard]] JobFacts facts() const;

  // Returns a parameter or running statistic by its name, as it is after the last step, in f32. The UsageError for an
  // unknown name lists some existing ones.
  [[nodiscard]] Tensor<float> parameter(const std::string& name);
  // Returns the logits [rows, classes] of any number of images [rows, height, width, channels], with the running
  // statistics. Runs on this rank only, `batch` rows at a time. Use with_ema() for the averaged weights.
  [[nodiscard]] Tensor<float> predict(const Tensor<std::uint8_t>& images, std::int64_t batch = 256);

 private:
  struct Erased {};
  Trainer(Erased, Backend& backend, AnyStrategy strategy, const Graph& model, TrainerOptions options);

  [[nodiscard]] ModelState model_state() const;
  // Waits for the running steps; their results are then in the counters.
  void settle();

  void fill(const ArenaLayout& layout, void* to);
  Pending step_by_rank(const Batch& batch, double lr, std::uint32_t flags);
  Pending step_by_rank(std::int64_t global_rows, double lr, std::uint32_t flags);
  Pending start(const StepParts& parts, std::int64_t global_rows, double lr, std::uint32_t flags);

  void synchronise_on_device(std::span<std::byte> second, std::span<const StateSpan> extra);

  [[nodiscard]] std::vector<StateArena> arenas();
  [[nodiscard]] std::vector<StateSpan> arena_spans();

  // Returns the number of micro-batches for a share of `rows` rows, and the begin of the i-th of n.
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
  std::vector<BatchView> rank_views_;  // rows of each logical rank of this process
  std::vector<std::uint8_t> last_of_;  // for each micro-batch: 1 if it is the last one of its logical rank
  Counters counters_;
  std::int64_t behind_ = 0;
  bool synchronised_ = false;
  CommittedState committed_;
  std::shared_ptr<const Schema> training_images_, test_images_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/trainer/trainer_definitions.hpp>
#include <tutti/train/detail/trainer/trainer_memory.hpp>
#include <tutti/train/detail/trainer/trainer_tensors.hpp>
#endif
