// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>

#include <tutti/io/append_file.hpp>
#include <tutti/train/report.hpp>

#include "tools/trainer/options.hpp"
#include "tools/trainer/task.hpp"

// The tables of the TensorFlow and Horovod ResNet-50 trainer, which scripts read.
namespace tutti::trainer {

// Prints lines and appends them to a file in the run's folder.
class TextLog {
 public:
  TextLog(const RunOptions& o, const std::string& prefix)
      : file_(io::Path(o.run_dir) / (prefix + o.log_name), io::AppendFile::Mode::continue_file) {}

  // Sets whether the lines are also printed on the terminal.
  void set_shown(bool shown) { shown_ = shown; }

  void line(const std::string& text);

 private:
  io::AppendFile file_;
  bool failed_ = false, shown_ = true;
};

[[nodiscard]] std::string imagenet_row(const StepReport& r, double epoch, double l2_penalty);

// Returns the position of a step of the whole job in epochs: samples of `step` steps divided by `images`.
[[nodiscard]] double imagenet_epoch(const RunOptions& o, std::int64_t images, std::int64_t step);

// Prints the table on the terminal if RunOptions::as_table is set, and always to the log file. Speed is that of the
// whole job since the last row. FinLoss includes the term of weight decay. LR is lr(Step), the rate of the next update.
class ImagenetTable : public FitListener {
 public:
  ImagenetTable(const RunOptions& o, const RunStart& start, std::function<double()> l2_penalty);
  void step(const StepReport& r) override {
    log_.line(imagenet_row(r, imagenet_epoch(o_, images_, r.step), l2_penalty_()));
  }
  void finished(double seconds) override;
  void epoch(const EpochReport& r) override;
  void warning(const std::string& w) override { log_.line("warning: " + w); }

 private:
  static std::string text(double v);

  TextLog log_;
  RunOptions o_;
  std::int64_t images_;
  std::function<double()> l2_penalty_;
};

[[nodiscard]] std::string imagenet_evaluation_row(std::int64_t step, std::int64_t epoch, const EvaluationReport& e,
                                                  std::time_t saved);

// Prints one row for each checkpoint.
class ImagenetEvaluation {
 public:
  void begin(const RunOptions& o, std::int64_t images);
  void row(const EvaluationReport& e, const EvaluatedCheckpoint& c);
  void end() { log_->line("Finished evaluation"); }

 private:
  std::unique_ptr<TextLog> log_;
};

}  // namespace tutti::trainer
