// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include <tutti/core/clock.hpp>

namespace tutti::detail {

// The mean of readings since it was last taken.
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

// Reads a device's utilisation once a second, for a device tells the mean of its last second or less, and before a
// report that no reading has come before.
class UtilisationReadings {
 public:
  UtilisationMean steps, summaries, epoch;

  explicit UtilisationReadings(std::function<std::optional<double>()> read) : read_(std::move(read)) {}
  // Before the first step that somebody hears of.
  void begin() {
    if (std::exchange(begun_, true)) return;
    // A device that says nothing now is not asked again. What it says is of the time before training.
    if (!read_()) read_ = nullptr;
  }
  // After each step that somebody hears of. The flags: which means a report is about to take.
  void step(bool of_steps, bool of_summaries, bool of_epoch) {
    begin();
    if (!read_) return;
    const bool lacking =
        (of_steps && steps.empty()) || (of_summaries && summaries.empty()) || (of_epoch && epoch.empty());
    if (!lacking && since_.seconds() < 1) return;
    since_.restart();
    const auto reading = read_();
    if (!reading) return;
    for (auto* m : {&steps, &summaries, &epoch}) m->add(*reading);
  }
  // After an evaluation: the device's last second is not one of training.
  void pause_is_over() { since_.restart(); }

 private:
  std::function<std::optional<double>()> read_;
  bool begun_ = false;
  Stopwatch since_;
};

}  // namespace tutti::detail
