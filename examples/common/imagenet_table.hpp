// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

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
#include "task.hpp"

// The tables of the TensorFlow and Horovod ResNet-50 trainer, which scripts read.
namespace tutti::examples {

// Prints lines and keeps them in a file of the run's folder.
class TextLog {
 public:
  TextLog(const RunOptions& o, const std::string& prefix)
      : file_(io::Path(o.run_dir) / (prefix + o.log_name), io::AppendFile::Mode::continue_file) {}

  // Does the terminal show what is logged?
  void set_shown(bool shown) { shown_ = shown; }

  void line(const std::string& text) {
    if (shown_) {
      std::printf("%s\n", text.c_str());
      std::fflush(stdout);
    }
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
  bool failed_ = false, shown_ = true;
};

[[nodiscard]] inline std::string imagenet_row(const StepReport& r, double epoch, double l2_penalty) {
  char row[160];
  std::snprintf(row, sizeof row, "%6lld %5.1f %7.1f %6.3f %6.3f %7.5f", static_cast<long long>(r.step), epoch,
                r.images_per_second, r.train_loss, r.train_loss + l2_penalty, r.next_lr);
  return row;
}

// Of a step of the whole job: as many samples as `step` steps have, in passes over `images`.
[[nodiscard]] inline double imagenet_epoch(const RunOptions& o, std::int64_t images, std::int64_t step) {
  return static_cast<double>(step) * static_cast<double>(o.global_batch_size) /
         static_cast<double>(images * steps_of_all(o));
}

// Shown on the terminal if RunOptions::as_table, and always in the log file. Speed is that of the whole job since the
// row before; FinLoss has the term of weight decay; LR is lr(Step), which the next update will have.
class ImagenetTable : public FitListener {
 public:
  ImagenetTable(const RunOptions& o, const RunStart& start, std::function<double()> l2_penalty)
      : log_(o, ""), o_(o), images_(start.images), l2_penalty_(std::move(l2_penalty)) {
    log_.set_shown(false);
    log_.line(start.versions);  // the program has printed it
    log_.set_shown(o.as_table);
    log_.line("Horovod size: " + std::to_string(start.ranks));
    log_.line("Using data from: " + (o.benchmark            ? std::string("synthetic images")
                                     : o.data_train.empty() ? o.data_dir
                                                            : o.data_train));
    log_.line("Found  " + std::to_string(start.images) + " training samples");
    log_.line("Using a learning rate of " + text(o.lr.value_or(0)));
    log_.line("Checkpointing every " + std::to_string(start.save_every_steps) + " steps");
    log_.line("Saving summary every " + std::to_string(start.summary_every) + " steps");
    log_.line("Using preprocessing threads per GPU: " + std::to_string(o.data_nthreads));
    log_.line("  Step Epoch Speed   Loss  FinLoss   LR");
  }
  void step(const StepReport& r) override {
    log_.line(imagenet_row(r, imagenet_epoch(o_, images_, r.step), l2_penalty_()));
  }
  void finished(double seconds) override {
    char line[64];
    std::snprintf(line, sizeof line, "Finished in %.2f", seconds);
    log_.line(line);
  }
  void epoch(const EpochReport& r) override {
    if (r.skipped > 0)
      log_.line("Epoch " + std::to_string(r.epoch) + ": " + std::to_string(r.skipped) +
                (r.skipped == 1 ? " record" : " records") + " skipped");
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
  RunOptions o_;
  std::int64_t images_;
  std::function<double()> l2_penalty_;
};

[[nodiscard]] inline std::string imagenet_evaluation_row(std::int64_t step, std::int64_t epoch,
                                                         const EvaluationReport& e, std::time_t saved) {
  std::tm utc{};
  ::gmtime_r(&saved, &utc);
  char time[32], row[160];
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S", &utc);
  std::snprintf(row, sizeof row, "%5lld  %5.1f  %5.3f  %6.2f  %6.2f  UTC:%s", static_cast<long long>(step),
                static_cast<double>(epoch), 100 * e.top1, 100 * e.topk, e.loss, time);
  return row;
}

// One row a checkpoint.
class ImagenetEvaluation {
 public:
  void begin(const RunOptions& o, std::int64_t images) {
    log_ = std::make_unique<TextLog>(o, "eval_");
    log_->line("Evaluating");
    log_->line("Validation dataset size: " + std::to_string(images));
    log_->line(" step  epoch  top1    top5     loss   checkpoint_time");
  }
  void row(const EvaluationReport& e, const EvaluatedCheckpoint& c) {
    struct stat status {};
    const bool known = ::stat(c.path.c_str(), &status) == 0;
    log_->line(imagenet_evaluation_row(c.step, c.epoch, e, known ? status.st_mtime : std::time(nullptr)) +
               (c.averaged ? "  averaged weights" : ""));
  }
  void end() { log_->line("Finished evaluation"); }

 private:
  std::unique_ptr<TextLog> log_;
};

}  // namespace tutti::examples
