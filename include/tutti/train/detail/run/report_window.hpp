// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/clock.hpp>
#include <tutti/engine/metrics.hpp>

namespace tutti::detail {

// Measures images per second of the whole job between two readings.
class Rate {
 public:
  void add(std::int64_t n) { images_ += n; }
  // Excludes the time until resume(), for example of an evaluation.
  void pause() {
    before_ = seconds();
    running_ = false;
  }
  void resume() {
    running_ = true;
    watch_.restart();
  }
  [[nodiscard]] double seconds() const { return before_ + (running_ ? watch_.seconds() : 0); }
  [[nodiscard]] double value() const { return seconds() > 0 ? static_cast<double>(images_) / seconds() : 0; }
  void restart() {
    images_ = 0;
    before_ = 0;
    running_ = true;
    watch_.restart();
  }

 private:
  std::int64_t images_ = 0;
  double before_ = 0;
  bool running_ = true;
  Stopwatch watch_;
};

// What has happened since the last report of one kind.
struct ReportWindow {
  Metrics metrics;
  Rate rate;
  double waited = 0, exchanged = 0;  // at the window's start: seconds of waiting for data, and for other ranks
};

}  // namespace tutti::detail
