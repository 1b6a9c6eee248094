// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <tutti/graph/update_ops.hpp>

// What a backend offers whose device can end a training step without the host: Backend::device_step().
namespace tutti {

// The update of a whole model: fixed for as long as it trains. Addresses are the backend's, types f32.
struct DeviceUpdate {
  // Neighbouring elements with the same numbers; a tensor each where there is a trust ratio.
  struct Run {
    std::size_t begin = 0, end = 0;
    double rate = 1, weight_decay = 0;
  };
  std::vector<Run> runs;
  UpdateOp op;
  std::optional<TrustRatio> trust;
  double clip_norm = 0;             // largest norm of all runs' gradients; 0: none
  bool dynamic_loss_scale = false;  // its exponent lives on the device
  void* weights = nullptr;
  const void* gradients = nullptr;
  std::array<void*, 2> slots{};
  std::size_t count = 0;  // elements of the parameter arena
  // Running statistics, and where several ranks train their sums over the ranks; the update takes the mean.
  void* states = nullptr;
  const void* state_sums = nullptr;
  std::size_t state_count = 0;
  int ranks = 1;
  void* word = nullptr;  // the step's word (train/step_word.hpp) of several ranks, 8 values
  // Weight EMA: averages of both arenas, or null.
  void *average = nullptr, *state_average = nullptr;
};

// What changes from step to step.
struct StepNumbers {
  double lr = 0;
  double inverse_batch = 1;  // 1 / rows of all ranks and micro-batches together
  double loss_scale = 1;     // where it is static
  double ema_decay = 0;
  std::int64_t step = 1;     // from 1
  std::uint32_t flags = 0;   // of this rank
  bool counts = true;        // towards the sums of metrics
  bool begins_sums = false;  // they begin with this step
};

// Why a run cannot go on. `loss`: this rank's own is not finite.
enum class Halt : std::int32_t { none, loss, loss_elsewhere, gradients };

// What the device decided at the end of a step.
struct StepOutcome {
  std::int64_t step = 0;
  std::int64_t scale_exponent = 0, scale_steps = 0;
  std::int64_t halted_step = 0;  // the first step whose numbers were not finite; since then no weight has changed
  Halt halt = Halt::none;
  std::uint32_t flags = 0;  // of all ranks
  double halted_loss = 0, halted_rows = 0;
  std::array<double, 4> sums{}, metrics{};  // loss, top-1, top-k, rows; metrics: of this step
};

// The end of training steps, on a device. Per step: send(), then begin(), add() and update(), which a captured step
// replays instead, then started(). Outcomes are kept of the last `kept` steps. Nothing waits but wait(), and send() for
// the step `kept` before.
class DeviceStep {
 public:
  static constexpr std::uint64_t kept = 4;
  virtual ~DeviceStep() = default;

  // The numbers of the next step; the result names it.
  [[nodiscard]] virtual std::uint64_t send(const StepNumbers& n) = 0;
  // Before a step's first op: what its loss is multiplied by.
  virtual void begin() = 0;
  // After a micro-batch's forward pass; metrics may be null. last: writes the word.
  virtual void add(const void* metrics, bool first, bool last) = 0;
  // After backward and all reductions: decides, updates weights, statistics and averages.
  virtual void update() = 0;
  virtual void started(std::uint64_t step) = 0;

  [[nodiscard]] virtual bool done(std::uint64_t step) = 0;
  virtual void wait(std::uint64_t step) = 0;
  // Of a step that is done.
  [[nodiscard]] virtual StepOutcome outcome(std::uint64_t step) const = 0;
  // Throws where kernels found the data wrong.
  virtual void require_good_data() = 0;

  // For the steps to come.
  virtual void set_scale(std::int64_t exponent, std::int64_t steps) = 0;
  // Goes on after a step that was not finite.
  virtual void resume() = 0;
};

}  // namespace tutti
