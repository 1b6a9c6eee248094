// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tutti/core/dtype.hpp>
#include <tutti/core/function_ref.hpp>
#include <tutti/engine/call.hpp>

// The end of a training step: gradients become weights. On the host (host_step_end.hpp), or on a device whose backend
// offers it (Backend::step_end).
namespace tutti {

// Where a model's arenas lie in the backend's memory, for as long as it trains. All have the type of the weights.
struct ModelState {
  DType dtype = DType::f32;
  void* weights = nullptr;
  void* gradients = nullptr;
  std::array<void*, 2> slots{};  // of the optimizer; null: none
  std::size_t count = 0;         // elements of each
  // Running statistics, and their sums over the ranks where there are several.
  void* states = nullptr;
  void* state_sums = nullptr;
  std::size_t state_count = 0;
  void* flags = nullptr;  // of all ranks (StepFlags)
  // Weight EMA: averages of both, or null.
  void *average = nullptr, *state_average = nullptr;
};

// What ranks exchange in a step, as far as the end of a step knows of it. Errors are CommunicationErrors.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Sends what of the gradients is final, now that the first `slices` slices are; write_flags() is called ahead of the
  // first piece.
  virtual void send(std::size_t slices, FunctionRef<void()> write_flags) = 0;
  // Returns when all that was sent is summed, here and for the host.
  virtual void wait_on_host() = 0;
  // Makes the device's stream wait for it; the host goes on.
  virtual void wait_on_device() = 0;
};

// What changes from step to step.
struct StepNumbers {
  double lr = 0;
  double inverse_batch = 1;  // 1 / rows of all ranks and micro-batches together
  double loss_scale = 1;     // where it is static
  double ema_decay = 0;
  std::int64_t step = 1;     // from 1
  std::uint32_t flags = 0;   // of this rank
  bool begins_sums = false;  // of metrics
};

// Why a run cannot go on. `loss`: this rank's own is not finite.
enum class Halt : std::int32_t { none, loss, loss_elsewhere, gradients };

// What was decided at the end of a step.
struct StepOutcome {
  std::int64_t step = 0;
  std::int64_t scale_exponent = 0, scale_steps = 0;
  std::int64_t halted_step = 0;  // the first step whose numbers were not finite; since then no weight has changed
  Halt halt = Halt::none;
  std::uint32_t flags = 0;  // of all ranks
  double halted_loss = 0, halted_rows = 0;
  std::array<double, 4> sums{}, metrics{};  // loss, top-1, top-k, rows; metrics: of this step
};

// Per step: send(), then begin(), add() and update(), which a captured step replays instead, then started(). Outcomes
// are kept of the last `kept` steps. Of several ranks the update begins when all sums are there, so a step that breaks
// before has changed nothing that roll_back() does not bring back.
class StepEnd {
 public:
  static constexpr std::uint64_t kept = 4;
  virtual ~StepEnd() = default;

  // Whether it returns before the step is over, and nothing waits but wait(), and send() for the step `kept` before.
  [[nodiscard]] virtual bool runs_ahead() const = 0;
  // Of so many ranks from now on; what runs is over.
  virtual void begin_generation(int ranks) = 0;

  // The numbers of the step that comes; steps count up from 0, over all ends that a trainer has.
  virtual void send(std::uint64_t step, const StepNumbers& n) = 0;
  // Where the loss finds its scale; null: in the device's memory.
  [[nodiscard]] virtual const StepScalars* scalars() const = 0;
  // What of a captured step is not the same in every step.
  [[nodiscard]] virtual std::uint64_t variant(std::uint64_t /*step*/) const { return 0; }
  // Before a step's first op.
  virtual void begin() = 0;
  // After a micro-batch's forward pass; metrics, four f64 in the backend's memory, are null where it had no rows. last:
  // writes the flags.
  virtual void add(const void* metrics, bool first, bool last) = 0;
  // After the backward pass, with everything sent: decides, updates weights, statistics and averages.
  virtual void update(Exchange& sums) = 0;
  virtual void started(std::uint64_t step) = 0;

  [[nodiscard]] virtual bool done(std::uint64_t step) = 0;
  virtual void wait(std::uint64_t step) = 0;
  // Of a step that is done.
  [[nodiscard]] virtual StepOutcome outcome(std::uint64_t step) const = 0;
  // Throws where kernels found the data wrong.
  virtual void require_good_data() {}

  // For the steps to come.
  virtual void set_scale(std::int64_t exponent, std::int64_t steps) = 0;
  // Goes on after a step that was not finite.
  virtual void resume() = 0;
  // Brings back what was there when this step, of several ranks, began: one of the last two, nothing of which runs
  // any more.
  virtual void roll_back(std::uint64_t step) = 0;
  // Memory of the device with room for all of the state, while nothing runs and until the next step begins, for what
  // comes from another rank; empty: there is none.
  [[nodiscard]] virtual std::span<std::byte> spare() { return {}; }
};

}  // namespace tutti
