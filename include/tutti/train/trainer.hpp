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
#include <tutti/train/detail/trainer/micro_batches.hpp>
#include <tutti/train/detail/trainer/state.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

struct StepParts;  // detail/trainer/step_parts.hpp
namespace detail {
class SharedChoices;  // detail/trainer/shared_choices.hpp
}

// Trains a model on a backend with a strategy: forward, backward, reduction during the backward pass, update. Owns the
// optimizer state, the weight EMA and the committed copy of the whole state.
class Trainer {
 public:
  // Backend and strategy must outlive this object. A strategy of the user's own type is used directly.
  template <DistributedStrategy S>
  Trainer(Backend& backend, S& strategy, const Graph& model, TrainerOptions options)
      : Trainer(Erased{}, backend, AnyStrategy::refer(strategy), model, std::move(options)) {}
  ~Trainer();

  // The parts of the object refer to each other, so it cannot be copied.
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  [[nodiscard]] Executor& executor() noexcept { return *executor_; }
  [[nodiscard]] const TrainerOptions& options() const noexcept { return o_; }
  [[nodiscard]] AnyStrategy& strategy() noexcept { return s_; }
  // Returns the model as it was built, with its loss and without gradients.
  [[nodiscard]] const Graph& model() const noexcept;
  // Returns the schema of the images in the last step() with a Batch, or in the last evaluate(). Checkpoints read
  // classes and image preparation from it. Null if it is not known.
  [[nodiscard]] const std::shared_ptr<const Schema>& training_images() const noexcept { return training_images_; }
  [[nodiscard]] const std::shared_ptr<const Schema>& test_images() const noexcept { return test_images_; }
  void set_test_images(std::shared_ptr<const Schema> schema) noexcept { test_images_ = std::move(schema); }
  // Returns the factor by which the loss is multiplied in this step.
  [[nodiscard]] double loss_scale() {
    return o_.dynamic_loss_scale ? LossScale{counters().scale_exponent}.value() : o_.loss_scale;
  }
  // Returns the counters of all started steps. Waits for the steps if a device changes the loss scale.
  [[nodiscard]] Counters& counters() {
    if (o_.dynamic_loss_scale) settle();
    return counters_;
  }
  // Only with servers that own the weights: the number of steps of all workers that are in the pulled weights but not
  // yet counted in the counters' epoch and position. synchronise() sets both.
  [[nodiscard]] std::int64_t steps_behind() const noexcept { return behind_; }
  // Returns false before the first synchronise().
  [[nodiscard]] bool synchronised() const noexcept { return synchronised_; }
  // Records each step from now on, and lets the host end the steps. null: stops recording. Waits for running steps.
  void trace(StepTrace* t);
  [[nodiscard]] const CommittedState& committed() const noexcept { return committed_; }

  // Makes new weights from the seed. Statistics get their initial values, the optimizer state becomes zero, and the
  // step 0.
  void initialize();

  // A step that was started.
  class Pending {
   public:
    // Flags OR-ed over all ranks. They are those of this step if it has ended when step() returns or the job has one
    // rank. With several ranks and asynchronous steps, they are those of the previous step, on all ranks.
    [[nodiscard]] std::uint32_t flags() const noexcept { return flags_; }
    // Waits for this step and all other steps. It must be one of the last StepFinisher::kept steps, and trace() must
    // not have been called since.
    StepResult wait();

   private:
    friend class Trainer;
    Pending(Trainer& t, std::uint64_t number, std::uint32_t flags) : t_(t), number_(number), flags_(flags) {}
    Trainer& t_;
    std::uint64_t number_;
    std::uint32_t flags_;
  };
  // Runs one step: this rank's share of a loader's batch, divided into micro-batches of at most
  // TrainerOptions::micro_batch rows; with logical ranks, the share of each of them is divided by itself. Computes the
  // gradient of the mean loss over the rows of all ranks; the gradient arena holds that of the last step. flags: the
  // flags of this rank (core/step_flag.hpp). If a device ends steps itself, the call returns before the step has ended,
  // and a later call or wait() throws its errors; otherwise this call throws them. Throws NotFiniteError if a rank saw
  // a loss that is not finite; weights and counters are as before that step. Throws CommunicationError if ranks are
  // lost (see roll_back()).
  Pending step(const Batch& batch, double lr, std::uint32_t flags = 0);
  // The same for explicit micro-batches. global_rows: the rows of all micro-batches of all ranks. With logical ranks:
  // one part for each logical rank of this process, in their order, with any number of rows; micro-batches are cut from
  // it.
  Pending step(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags = 0);
  Pending step(const BatchView& batch, std::int64_t global_rows, double lr, std::uint32_t flags = 0) {
    return step(std::span(&batch, 1), global_rows, lr, flags);
  }
  // With logical ranks: gives each process those from bounds[r] to bounds[r + 1] in the following steps and evaluations
  // (Placement::bounds); empty: equal shares. All ranks must set the same ones, and the results are the same bits. They
  // are equal again after reform(). Throws UsageError for bounds of another number of processes or logical ranks.
  // Without logical ranks: in the following steps the running statistics are the mean over the processes weighted by
  // their rows, so that a process without rows changes nothing. Throws UsageError if the backend is that of a device.
  void set_shares(std::vector<std::int32_t> bounds);
  // Returns how the following steps are divided, without their batch.
  [[nodiscard]] Placement placement() const;
  // Sets the momentum of the following steps, of Adam and LAMB beta1 (with_momentum()). All ranks must set the same
  // one. The host then ends the steps. Not for servers that own the weights: they have their own schedule.
  void set_momentum(double momentum);
  // Returns the metrics of this rank's rows, summed over the steps since the last call. Waits for them. Contains a step
  // that was broken on this rank if reform() has taken its result from another rank. With logical ranks, those of all
  // ranks' rows, without rows that could not be read (Batch::skipped), and without such a step.
  Metrics take_metrics();
  // Returns true if step() returns before the step has ended.
  [[nodiscard]] bool runs_ahead() const noexcept;

  // Compares the facts of all ranks, if that is not done yet for the strategy's present members. The constructor does
  // it: call this only if the members have changed before the first step. Throws UsageError on all ranks if facts
  // differ, and CommunicationError if ranks are lost. If the members may change and one is lost during the constructor,
  // it returns, and the next operation with other ranks throws CommunicationError.
  void attach();

  // Undoes the changes of a broken step: weights, statistics and counters are those of the last step that is known to
  // be complete. Waits for running steps. Has no effect if no step is broken.
  void roll_back();
  // Call it after the strategy's members have changed. Continues from the last complete step, with the state of the
  // strategy's authority (default: rank 0). All remaining members call it. A joining process constructs a Trainer and
  // calls this or synchronise(). The ranks compare their facts again. The gradients keep their memory. If it throws,
  // the state is as before, or completely that of the authority. extra: state that is synchronised together with the
  // trainer's; the caller uses its part after this call has returned.
  void reform(std::span<const StateSpan> extra = {});

  // Returns the seconds that this rank has waited for gradients of other ranks. No value if a device waits instead of
  // the host.
  [[nodiscard]] std::optional<double> seconds_waited() const;

  // Returns the seconds in which this rank computed the gradients of the last step, without waiting for other ranks.
  // Not for devices whose steps run ahead; steps with logical ranks never do.
  [[nodiscard]] double seconds_computed() const;

  // Returns the share of the last second or less in which this rank's device computed, 0..1, if the device reports it.
  [[nodiscard]] std::optional<double> utilisation() const { return b_.utilisation(); }

  // Returns the memory for training with steps of `rows` rows of this rank (with logical ranks: of one of them, which
  // does not depend on the number of processes), and for evaluations of `evaluation_rows` rows at a time, without the
  // batches in a loader. On a host it is calculated from a few rows, so that no large memory is allocated. On a device
  // the plans are made, and DeviceError names the amount that is missing.
  [[nodiscard]] MemoryEstimate memory(std::int64_t rows, std::int64_t evaluation_rows);
  // Makes the plans for these largest batches and returns their memory, which smaller batches share. evaluation_rows
  // may be 0.
  MemoryEstimate prepare(std::int64_t rows, std::int64_t evaluation_rows);
  // Makes a plan for a later step of `rows` rows of this rank (or of one logical rank), if it needs no more memory than
  // exists. On a host without a limit of micro-batches it may need more. Returns false if no plan is left to be made.
  // Waits for running steps before it makes a plan.
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
  // Returns whether the average is evaluated too. With lookahead, the weights become the average.
  [[nodiscard]] bool evaluates_ema() const noexcept { return has_ema() && !o_.ema.lookahead; }

  // Copies the current weights and optimizer state from the servers that own them (OwnsWeights). Otherwise has no
  // effect.
  void pull();
  // Commits the state: copies it to the second copy.
  void commit();
  // Restores the state from the second copy.
  void restore();
  // Returns the committed tensors by name: torchvision's names for the model, and momentum.<name> and so on for the
  // optimizer.
  [[nodiscard]] std::vector<StateSpan> committed_tensors(bool optimizer);
  // Prepares the committed copy, which the caller then fills by name. restore() uses it.
  void prepare_restore(const Counters& c);
  // Gives the authority's committed state, and also `extra`, to all ranks. If the strategy reads the memory of devices,
  // all ranks also take the kernels that the authority's backend has chosen so far (Backend::choices), for example in
  // prepare(). Other executors on the same backend must then be prepared again (Executor::prepare_again).
  void synchronise(std::span<const StateSpan> extra = {});

  // Returns facts of build, options, precision and plan. If they differ between ranks, the ranks must not train
  // together.
  [[nodiscard]] JobFacts facts() const;

  // Returns a parameter or running statistic by its name, after the last step, in f32. Throws UsageError for an unknown
  // name, with some existing ones.
  [[nodiscard]] Tensor<float> parameter(const std::string& name);
  // Returns the logits [rows, classes] of any number of images [rows, height, width, channels], with the running
  // statistics. Runs on this rank only, `batch` rows at a time. Use with_ema() for the averaged weights.
  [[nodiscard]] Tensor<float> predict(const Tensor<std::uint8_t>& images, std::int64_t batch = 256);

 private:
  struct Erased {};
  Trainer(Erased, Backend& backend, AnyStrategy strategy, const Graph& model, TrainerOptions options);

  [[nodiscard]] ModelState model_state() const;
  // Waits for the running steps and writes their results to the counters.
  void settle();

  [[nodiscard]] const Placement& placed();
  void fill(const ArenaLayout& layout, void* to);
  Pending step_by_rank(const Batch& batch, double lr, std::uint32_t flags);
  Pending step_by_rank(std::int64_t global_rows, double lr, std::uint32_t flags);
  Pending start(const StepParts& parts, std::int64_t global_rows, double lr, std::uint32_t flags);

  void synchronise_on_device(std::span<std::byte> second, std::span<const StateSpan> extra,
                             detail::SharedChoices& choices);

  [[nodiscard]] std::vector<StateArena> arenas();
  [[nodiscard]] std::vector<StateSpan> arena_spans();

  // Returns the micro-batches of a share of `rows` rows.
  [[nodiscard]] MicroBatches micro_batches_of(std::int64_t rows) const { return {rows, o_.micro_batch}; }
  // Returns TrainerOptions::image_sizes, or {0, 0} for the net's own size.
  [[nodiscard]] std::vector<ImageSize> sizes() const;
  [[nodiscard]] MemoryEstimate memory_in_use(std::int64_t rows) const;

  struct Parts;  // trainer_definitions.hpp

  Backend& b_;
  AnyStrategy s_;
  TrainerOptions o_;
  std::unique_ptr<Parts> parts_;
  Executor* executor_ = nullptr;  // belongs to parts_
  Placement placed_;              // of the steps
  std::vector<BatchView> micro_batches_;
  std::vector<BatchView> rank_views_;  // rows of each logical rank of this process
  ImageSize size_{};                   // of the images of the last batch
  std::vector<std::uint8_t> last_of_;  // for each micro-batch: 1 if it is the last one of its logical rank
  Counters counters_;
  std::int64_t behind_ = 0;
  bool synchronised_ = false;
  std::optional<std::uint64_t> attached_;  // the generation of the last comparison of facts
  CommittedState committed_;
  std::shared_ptr<const Schema> training_images_, test_images_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/trainer/trainer_definitions.hpp>
#endif
