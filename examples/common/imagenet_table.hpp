// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <tutti/io/append_file.hpp>
#include <tutti/train/report.hpp>

#include "options.hpp"

// The tables of the TensorFlow and Horovod ResNet-50 trainer, which scripts read.
namespace tutti::examples {

// Prints lines and keeps them in a file of the run's folder.
class TextLog {
 public:
  TextLog(const RunOptions& o, const std::string& prefix)
      : file_(io::Path(o.run_dir) / (prefix + o.log_name), io::AppendFile::Mode::continue_file) {}

  void line(const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    try {
      file_.append(text + "\n");
    } catch (const Error& e) {
      // The run matters more than its log; said once.
      if (!failed_) std::fprintf(stderr, "warning: %s\n", e.what());
      failed_ = true;
    }
  }

 private:
  io::AppendFile file_;
  bool failed_ = false;
};

[[nodiscard]] inline std::string imagenet_row(const StepReport& r, double epoch, double decay_term) {
  char row[160];
  std::snprintf(row, sizeof row, "%6lld %5.1f %7.1f %6.3f %6.3f %7.5f", static_cast<long long>(r.step), epoch,
                r.images_per_second, r.train_loss, r.train_loss + decay_term, r.lr);
  return row;
}

// Speed is that of the whole job since the row before; FinLoss has the term of weight decay.
class ImagenetTable : public FitListener {
 public:
  ImagenetTable(const RunOptions& o, std::function<double()> decay_term)
      : log_(o, ""), decay_term_(std::move(decay_term)) {
    log_.line("Using a learning rate of " + text(o.lr.value_or(0)));
    log_.line(o.save_steps > 0 ? "Checkpointing every " + std::to_string(o.save_steps) + " steps"
                               : std::string("Checkpointing every epoch"));
    log_.line("Using preprocessing threads per rank: " + std::to_string(o.data_nthreads));
    log_.line("  Step Epoch Speed   Loss  FinLoss   LR");
  }
  void step(const StepReport& r) override {
    const double epoch =
        static_cast<double>(r.epoch - 1) +
        static_cast<double>(r.step_in_epoch) / static_cast<double>(std::max<std::int64_t>(r.steps_per_epoch, 1));
    log_.line(imagenet_row(r, epoch, decay_term_()));
  }
  void epoch(const EpochReport& r) override {
    if (!r.test) return;
    char line[160];
    std::snprintf(line, sizeof line, "Evaluation after epoch %lld: top1 %.3f top5 %.3f loss %.4f",
                  static_cast<long long>(r.epoch), 100 * r.test->top1, 100 * r.test->topk, r.test->loss);
    log_.line(line);
  }
  void warning(const std::string& w) override { log_.line("warning: " + w); }

 private:
  static std::string text(double v) {
    char t[32];
    std::snprintf(t, sizeof t, "%g", v);
    return t;
  }

  TextLog log_;
  std::function<double()> decay_term_;
};

[[nodiscard]] inline std::string imagenet_evaluation_row(std::int64_t step, std::int64_t epoch,
                                                         const EvaluationReport& e, std::time_t saved) {
  std::tm utc{};
  ::gmtime_r(&saved, &utc);
  char time[32], row[160];
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S", &utc);
  std::snprintf(row, sizeof row, "%5lld %5lld %7.3f %7.3f %8.4f   UTC:%s", static_cast<long long>(step),
                static_cast<long long>(epoch), 100 * e.top1, 100 * e.topk, e.loss, time);
  return row;
}

// One row a checkpoint. An epoch is one of --num-gpus ranks with batches of --batch-size.
class ImagenetEvaluation {
 public:
  void row(const RunOptions& o, const EvaluationReport& e, std::int64_t step, std::int64_t train_images,
           const io::Path& checkpoint) {
    if (!log_) {
      log_ = std::make_unique<TextLog>(o, "eval_");
      log_->line("Evaluating");
      log_->line("Validation dataset size: " + std::to_string(e.images));
      log_->line(" step  epoch  top1    top5     loss   checkpoint_time");
    }
    const double per_epoch = static_cast<double>(train_images) / static_cast<double>(o.batch_size * o.num_gpus);
    struct stat status {};
    const bool known = ::stat(checkpoint.c_str(), &status) == 0;
    log_->line(imagenet_evaluation_row(step,
                                       std::llround(std::ceil(static_cast<double>(step) / std::max(per_epoch, 1.0))), e,
                                       known ? status.st_mtime : std::time(nullptr)));
  }

 private:
  std::unique_ptr<TextLog> log_;
};

}  // namespace tutti::examples
