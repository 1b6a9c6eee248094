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

// Returns the local time as Python prints datetime.now(), for example "2026-01-02 15:04:05.123456".
std::string date_and_time();

// Prints a line every 10 steps of this worker. The numbers are about the images of this worker.
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

// Prints only warnings and evaluated epochs, because the step lines show the rest.
class SparseDisplay : public ProgressDisplay {
 public:
  using ProgressDisplay::ProgressDisplay;
  void step(const StepReport&) override {}
  void epoch(const EpochReport& r) override {
    if (r.test) line(epoch_line(r));
  }
};

}  // namespace tutti::trainer
