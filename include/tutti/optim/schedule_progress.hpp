// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>

#include <tutti/core/error.hpp>

namespace tutti {

// Where a run stands when it is about to make update number `step`, counted from 0.
struct Progress {
  std::int64_t step = 0;
  std::int64_t steps_per_epoch = 1;
  std::int64_t total_steps = 1;
  std::int64_t global_batch = 1;
  int world = 1;

  // Epochs done so far, with their fraction.
  [[nodiscard]] double epoch() const noexcept {
    return static_cast<double>(step) / static_cast<double>(steps_per_epoch);
  }
};

// A learning rate that depends on the progress alone, so that a run that resumes or changes its size needs no state.
template <class L>
concept LrSchedule = requires(const L& l, const Progress& p) {
  { l(p) } -> std::convertible_to<double>;
};

// What the last, incomplete batch of an epoch becomes.
enum class ShortBatch : std::uint8_t { drop, keep };

// Batches of `batch` samples in one pass over `samples`.
[[nodiscard]] inline std::int64_t steps_per_epoch(std::int64_t samples, std::int64_t batch, ShortBatch rule) {
  if (samples < 0) fail<UsageError>("steps_per_epoch", "0 samples or more", std::to_string(samples));
  if (batch < 1) fail<UsageError>("steps_per_epoch", "a batch of 1 or more", std::to_string(batch));
  return samples / batch + (rule == ShortBatch::keep && samples % batch != 0 ? 1 : 0);
}

// Updates in `epochs` passes when batches run on across the ends of epochs: samples * epochs / batch, rounded down.
[[nodiscard]] inline std::int64_t steps_across_epochs(std::int64_t samples, std::int64_t epochs, std::int64_t batch) {
  if (epochs < 0) fail<UsageError>("steps_across_epochs", "0 epochs or more", std::to_string(epochs));
  if (samples > 0 && epochs > std::numeric_limits<std::int64_t>::max() / samples) {
    fail<UsageError>("steps_across_epochs", "samples * epochs below 2^63",
                     std::to_string(samples) + " * " + std::to_string(epochs));
  }
  return steps_per_epoch(samples * epochs, batch, ShortBatch::drop);
}

// 0.1 for every 256 samples of the global batch: Goyal et al., "Accurate, large minibatch SGD", 2017.
[[nodiscard]] inline double default_lr(std::int64_t global_batch) {
  if (global_batch < 1) fail<UsageError>("default_lr", "a global batch of 1 or more", std::to_string(global_batch));
  return 0.1 * static_cast<double>(global_batch) / 256.0;
}

}  // namespace tutti
