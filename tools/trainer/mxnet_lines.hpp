// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include <tutti/train/progress.hpp>
#include <tutti/train/report.hpp>

// Prints progress as MXNet's scripts do, for programs that read their logs, such as MXNet's parse_log.py. Epochs count
// from 0.
namespace tutti::trainer {

[[nodiscard]] std::string mxnet_step_line(const StepReport& r);

// Prints the lines of an epoch. The time is the time of training, without evaluation.
[[nodiscard]] std::string mxnet_epoch_lines(const EpochReport& r);

// Prints these lines instead of the progress display, on a terminal too.
class MxnetDisplay : public ProgressDisplay {
 public:
  explicit MxnetDisplay(ProgressOptions o) : ProgressDisplay(std::move(o)) {}
  void step(const StepReport& r) override { line(mxnet_step_line(r)); }
  void epoch(const EpochReport& r) override { line(mxnet_epoch_lines(r)); }
};

}  // namespace tutti::trainer
