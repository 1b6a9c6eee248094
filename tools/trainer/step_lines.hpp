// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include <tutti/core/clock.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/progress.hpp>

// Progress as TensorFlow's CIFAR-10 scripts print it.
namespace tutti::trainer {

// "2026-01-02 15:04:05.123456", local time, as Python's datetime.now() is printed.
std::string date_and_time();

// A line every 10 steps of this worker, about its own rows.
class StepLines {
 public:
  void operator()(const FitStep& s) {
    images_ += s.own_images;
    if (++step_ % every != 0) return;
    const double seconds = watch_.seconds();
    std::printf("%s: step %lld, loss = %.2f (%.1f examples/sec; %.3f sec/batch)\n", date_and_time().c_str(),
                static_cast<long long>(step_), s.own_loss, static_cast<double>(images_) / seconds, seconds / every);
    std::fflush(stdout);
    images_ = 0;
    watch_.restart();
  }

 private:
  static constexpr int every = 10;
  std::int64_t step_ = 0, images_ = 0;
  Stopwatch watch_;
};

// Warnings, and epochs that were evaluated: beside such lines the rest would be said twice.
class SparseDisplay : public ProgressDisplay {
 public:
  using ProgressDisplay::ProgressDisplay;
  void step(const StepReport&) override {}
  void epoch(const EpochReport& r) override {
    if (r.test) line(epoch_line(r));
  }
};

}  // namespace tutti::trainer
