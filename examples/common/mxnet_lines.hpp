// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <tutti/train/progress.hpp>
#include <tutti/train/report.hpp>

// Progress as MXNet's scripts log it, for programs that read their logs, such as its parse_log.py. Epochs count from 0.
namespace tutti::examples {

[[nodiscard]] inline std::string mxnet_step_line(const StepReport& r) {
  char line[160];
  std::snprintf(line, sizeof line, "Epoch[%lld] Batch [%lld]\tSpeed: %.2f samples/sec\taccuracy=%.6f",
                static_cast<long long>(r.epoch - 1), static_cast<long long>(r.step_in_epoch), r.images_per_second,
                r.train_top1);
  return line;
}

// The lines of an epoch. Its time is that of training alone.
[[nodiscard]] inline std::string mxnet_epoch_lines(const EpochReport& r) {
  const auto epoch = static_cast<long long>(r.epoch - 1);
  char lines[320];
  const auto text = [&](const char* form, double value) {
    std::snprintf(lines, sizeof lines, form, epoch, value);
    return std::string(lines);
  };
  double evaluation = 0;
  if (r.test) evaluation = static_cast<double>(r.test->images) / std::max(r.test->images_per_second, 1e-9);
  std::string all = text("Epoch[%lld] Train-accuracy=%.6f", r.train_top1) +
                    text("\nEpoch[%lld] Time cost=%.3f", std::max(r.seconds - evaluation, 0.0));
  if (r.test) all += text("\nEpoch[%lld] Validation-accuracy=%.6f", r.test->top1);
  return all;
}

// Shows a run by these lines, on a terminal too.
class MxnetDisplay : public ProgressDisplay {
 public:
  explicit MxnetDisplay(ProgressOptions o) : ProgressDisplay(std::move(o)) {}
  void step(const StepReport& r) override { line(mxnet_step_line(r)); }
  void epoch(const EpochReport& r) override { line(mxnet_epoch_lines(r)); }
};

}  // namespace tutti::examples
