// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/separate.hpp>

namespace tutti {

// When a moving average of the weights is updated, and how its decay grows. It depends only on the step, so a run that
// resumes or changes its size needs no state for it.
struct EmaSchedule {
  enum class Warmup : std::uint8_t {
    counted,  // min(decay, (1 + t) / (10 + t)) in step t, as TensorFlow's
    none,
    cubic,  // decay * (t / total)^3
    power   // max(min_decay, min(decay, 1 - (1 + t / gamma)^-power)), t counted after `copies`, as timm's
  };
  Warmup warmup = Warmup::counted;
  std::int64_t every = 1;  // steps between two updates
  // Steps of an epoch, if the steps between updates are counted from its beginning and an update follows its first
  // step, as torchvision's. 0: they are counted through the run, and an update follows the last one.
  std::int64_t epoch = 0;
  // The average is a copy of the weights after each update up to this step. 0: it starts at the initial weights.
  std::int64_t copies = 0;
  double gamma = 1, power = 2.0 / 3, min_decay = 0;  // of Warmup::power
  std::int64_t total = 0;                            // steps of the run, for Warmup::cubic
  // Lookahead (Zhang et al. 2019): after each update of the average, and after step `total`, weights and running
  // statistics become the average. Not for servers that own the weights.
  bool lookahead = false;

  // Returns the share of the average that remains after step `step`, from 1; 1 if the step does not update it.
  [[nodiscard]] double remaining(double decay, std::int64_t step) const {
    const std::int64_t counted = epoch > 0 ? (step - 1) % epoch : step;
    if (counted % every != 0) return 1;
    if (step <= copies) return 0;
    const auto t = static_cast<double>(warmup == Warmup::power ? step - copies : step);
    if (warmup == Warmup::counted) return std::min(decay, (1 + t) / (10 + t));
    if (warmup == Warmup::none) return decay;
    if (warmup == Warmup::cubic) {
      const double share = std::min(t / static_cast<double>(total), 1.0);
      return decay * share * share * share;
    }
    return std::max(std::min(1 - math::pow(1 + t / gamma, -power), decay), min_decay);
  }
  // Returns whether the weights become the average after step `step`, from 1.
  [[nodiscard]] bool returns(std::int64_t step) const {
    return lookahead && (step == total || remaining(0.5, step) != 1);
  }
  // Throws a UsageError if a number is out of its range.
  TUTTI_CORE_FUNCTION void require_valid() const;

  // airbench94's lookahead: every 5 steps of `total`. The decay is 0.95^5.
  [[nodiscard]] static EmaSchedule airbench(std::int64_t every, std::int64_t total) {
    return {.warmup = Warmup::cubic, .every = every, .total = total, .lookahead = true};
  }
  // timm's ModelEmaV3: from step after + 1 on.
  [[nodiscard]] static EmaSchedule timm(bool warmup, std::int64_t after = 0) {
    return {.warmup = warmup ? Warmup::power : Warmup::none, .copies = after + 1};
  }
  // torchvision's --model-ema-steps: until the end of the rate's warmup, each update is a copy. torchvision_decay()
  // adjusts the decay.
  [[nodiscard]] static EmaSchedule torchvision(std::int64_t every, std::int64_t steps_per_epoch,
                                               std::int64_t warmup_steps) {
    return {.warmup = Warmup::none, .every = every, .epoch = steps_per_epoch, .copies = warmup_steps + 1};
  }
  // Returns the decay of an update for images of a batch, e.g. 0.99998 -> 0.99891 for 1,024 images, 32 steps, 600
  // epochs.
  [[nodiscard]] static double torchvision_decay(double decay, std::int64_t global_batch, std::int64_t every,
                                                std::int64_t epochs) {
    const double adjust = static_cast<double>(global_batch * every) / static_cast<double>(epochs);
    return 1 - std::min(1.0, (1 - decay) * adjust);
  }
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void EmaSchedule::require_valid() const {
  if (every < 1) fail<UsageError>("EMA", "1 step or more between updates", every);
  if (epoch < 0 || copies < 0) fail<UsageError>("EMA", "0 steps or more", std::min(epoch, copies));
  if (warmup == Warmup::cubic && total < 1) fail<UsageError>("EMA", "1 step or more of the run", total);
  if (!(gamma > 0)) fail<UsageError>("EMA", "a gamma above 0", gamma);
  if (!(power > 0)) fail<UsageError>("EMA", "a power above 0", power);
  if (!(min_decay >= 0 && min_decay < 1)) fail<UsageError>("EMA", "a least decay in [0, 1)", min_decay);
}
#endif

}  // namespace tutti
