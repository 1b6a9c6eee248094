// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <utility>

#include <tutti/core/clock.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti::detail {

// The mean of the readings since the last take().
class UtilisationMean {
 public:
  void add(double reading) {
    sum_ += reading;
    ++readings_;
  }
  [[nodiscard]] bool empty() const noexcept { return readings_ == 0; }
  [[nodiscard]] std::optional<double> take() {
    const int n = std::exchange(readings_, 0);
    const double sum = std::exchange(sum_, 0);
    return n > 0 ? std::optional(sum / n) : std::nullopt;
  }

 private:
  double sum_ = 0;
  int readings_ = 0;
};

// Reads a device's utilisation once a second, because a device reports the mean of its last second or less. Also reads
// before a report that would have no reading.
class UtilisationReadings {
 public:
  UtilisationMean steps, summaries, epoch;

  explicit UtilisationReadings(const Trainer& of) : trainer_(&of) {}
  // Call it before the first step that is reported.
  void begin() {
    if (std::exchange(begun_, true)) return;
    // If the device gives no value now, it is not read again. The value is from before training: not used.
    if (!trainer_->utilisation()) trainer_ = nullptr;
  }
  // Call it after each step that is reported. The arguments say which means a report will take next.
  void step(bool of_steps, bool of_summaries, bool of_epoch) {
    begin();
    if (trainer_ == nullptr) return;
    const bool lacking =
        (of_steps && steps.empty()) || (of_summaries && summaries.empty()) || (of_epoch && epoch.empty());
    if (!lacking && since_.seconds() < 1) return;
    since_.restart();
    const auto reading = trainer_->utilisation();
    if (!reading) return;
    for (auto* m : {&steps, &summaries, &epoch}) m->add(*reading);
  }
  // Call it after an evaluation, because the device did not train in its last second.
  void pause_is_over() { since_.restart(); }

 private:
  const Trainer* trainer_;  // null: the device gives no value
  bool begun_ = false;
  Stopwatch since_;
};

}  // namespace tutti::detail
