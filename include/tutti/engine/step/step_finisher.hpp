// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/engine/step/matrix_shares.hpp>

// The end of a training step: gradients become weights. On the host (host_step_finisher.hpp), or on a device if its
// backend supports it (Backend::step_finisher).
namespace tutti {

// Addresses of a model's arenas in the backend's memory, valid while it trains. All have the type of the weights.
struct ModelState {
  DType dtype = DType::f32;
  void* weights = nullptr;
  void* gradients = nullptr;
  std::array<void*, 2> slots{};  // of the optimizer; null: not used
  std::size_t count = 0;         // elements of each
  // Running statistics, and their sums over the ranks if there are several.
  void* states = nullptr;
  void* state_sums = nullptr;
  std::size_t state_count = 0;
  // Begins and ends of the running statistics that no step changes, in elements. A mean over ranks would round them.
  std::vector<std::pair<std::size_t, std::size_t>> frozen_states{};
  void* flags = nullptr;  // of all ranks (StepFlags)
  // Weight EMA: averages of weights and running statistics, or null.
  void *average = nullptr, *state_average = nullptr;
};

// Muon's matrices that the ranks of a job orthogonalise for each other.
struct SharedMatrices {
  MatrixShares shares;
  int rank = 0;
  std::span<std::byte> results;  // of all ranks, in the host's memory
};

// The exchange between ranks in a step, as the end of a step sees it. Errors are CommunicationErrors.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Sends the gradients that have become final: those of the first `slices` slices, without those sent before.
  // write_flags() is called before the first piece.
  virtual void send(std::size_t slices, FunctionRef<void()> write_flags) = 0;
  // Returns when everything that was sent is summed and readable by the host.
  virtual void wait_on_host() = 0;
  // Makes the device's stream wait for the sums; the host continues.
  virtual void wait_on_device() = 0;
  // Returns the matrices of Muon that ranks orthogonalise for each other; null: each rank computes all.
  [[nodiscard]] virtual const SharedMatrices* shared_matrices() const { return nullptr; }
  // Gives the results of each rank to all. The results of other ranks are zero before. Waits.
  virtual void exchange_matrices() {}
};

// Numbers that change from step to step.
struct StepNumbers {
  double lr = 0;
  double inverse_batch = 1;  // 1 / rows of all ranks and micro-batches together
  double loss_scale = 1;     // if it is static
  double ema_decay = 0;      // share of the average that remains; 1: this step does not change it
  std::int64_t step = 1;     // from 1
  std::uint32_t flags = 0;   // of this rank
  bool begins_sums = false;  // this step begins new sums of metrics
  bool takes_average =
      false;  // weights and statistics become their average at the end of the step; only HostStepFinisher
};

// The reason that a run cannot continue. `loss`: this rank's own loss is not finite.
enum class Halt : std::int32_t { none, loss, loss_elsewhere, gradients };

// The decisions at the end of a step.
struct StepOutcome {
  std::int64_t step = 0;
  std::int64_t scale_exponent = 0, scale_steps = 0;
  std::int64_t halted_step =
      0;  // the first step with numbers that were not finite; weights have not changed since then
  Halt halt = Halt::none;
  std::uint32_t flags = 0;  // of all ranks
  double halted_loss = 0, halted_rows = 0;
  std::array<double, 4> sums{}, metrics{};  // loss, top-1, top-k, rows; metrics: of this step
};

// Calls for each step: send(), then begin(), add() and update(), and then started(). A captured step replays begin(),
// add() and update(). Outcomes of the last `kept` steps are available. With several ranks the update starts when all
// sums have arrived, so if a step fails before that, roll_back() can restore everything that it has changed.
class StepFinisher {
 public:
  static constexpr std::uint64_t kept = 4;
  virtual ~StepFinisher() = default;

  // Returns whether the end of a step returns before the step is complete. Then only wait() blocks, and send() if the
  // step `kept` steps earlier is not complete.
  [[nodiscard]] virtual bool runs_ahead() const = 0;
  // Sets the number of ranks from now on. No step may be running.
  virtual void begin_generation(int ranks) = 0;

  // Sets the numbers of the next step. Steps count from 0, over all StepFinisher objects of a trainer.
  virtual void send(std::uint64_t step, const StepNumbers& n) = 0;
  // Returns the scale for the loss; null: it is in the device's memory.
  [[nodiscard]] virtual const StepScalars* scalars() const = 0;
  // Returns a number for the parts of a captured step that are not the same in every step.
  [[nodiscard]] virtual std::uint64_t variant(std::uint64_t /*step*/) const { return 0; }
  // Called before a step's first op.
  virtual void begin() = 0;
  // Called after a micro-batch's forward pass. metrics: four f64 in the backend's memory; null if the micro-batch had
  // no rows. last: also writes the flags.
  virtual void add(const void* metrics, bool first, bool last) = 0;
  // Called after the backward pass, when everything has been sent. Decides, and updates weights, statistics and
  // averages.
  virtual void update(Exchange& sums) = 0;
  virtual void started(std::uint64_t step) = 0;

  [[nodiscard]] virtual bool done(std::uint64_t step) = 0;
  virtual void wait(std::uint64_t step) = 0;
  // Returns the outcome of a step that is done.
  [[nodiscard]] virtual StepOutcome outcome(std::uint64_t step) const = 0;
  // Throws if kernels found invalid data.
  virtual void require_good_data() {}

  // Sets the loss scale (LossScale) for the following steps.
  virtual void set_scale(std::int64_t exponent, std::int64_t steps) = 0;
  // Continues after a step that was not finite.
  virtual void resume() = 0;
  // Restores the state at the start of this step. Only with several ranks. It must be one of the last two steps, and no
  // part of it may be running.
  virtual void roll_back(std::uint64_t step) = 0;
  // Returns memory of the device that can hold the complete state, for data that arrives from another rank. Usable
  // while nothing runs, until the next step begins. Empty: no such memory.
  [[nodiscard]] virtual std::span<std::byte> spare() { return {}; }
};

}  // namespace tutti
