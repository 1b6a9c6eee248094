// SPDX-License-Identifier: MIT
#include "tools/trainer/imagenet_table.hpp"

#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace tutti::trainer {

void TextLog::line(const std::string& text) {
  if (shown_) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
  try {
    file_.append(text + "\n");
  } catch (const Error& e) {
    // If the log cannot be written, the run continues. Reports it once.
    if (!failed_) std::fprintf(stderr, "warning: %s\n", e.what());
    failed_ = true;
  }
}

std::string imagenet_row(const StepReport& r, double epoch, double l2_penalty) {
  char row[160];
  std::snprintf(row, sizeof row, "%6lld %5.1f %7.1f %6.3f %6.3f %7.5f", static_cast<long long>(r.step), epoch,
                r.images_per_second, r.train_loss, r.train_loss + l2_penalty, r.next_lr);
  return row;
}

double imagenet_epoch(const RunOptions& o, std::int64_t images, std::int64_t step) {
  return static_cast<double>(step) * static_cast<double>(o.global_batch_size) /
         static_cast<double>(images * steps_of_all(o));
}

ImagenetTable::ImagenetTable(const RunOptions& o, const RunStart& start, std::function<double()> l2_penalty)
    : log_(o, ""), o_(o), images_(start.images), l2_penalty_(std::move(l2_penalty)) {
  log_.set_shown(false);
  log_.line(start.versions);  // the program has printed this line already
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

void ImagenetTable::finished(double seconds) {
  char line[64];
  std::snprintf(line, sizeof line, "Finished in %.2f", seconds);
  log_.line(line);
}

void ImagenetTable::epoch(const EpochReport& r) {
  if (r.skipped > 0)
    log_.line("Epoch " + std::to_string(r.epoch) + ": " + std::to_string(r.skipped) +
              (r.skipped == 1 ? " record" : " records") + " skipped");
  if (!r.test) return;
  char line[160];
  std::snprintf(line, sizeof line, "Evaluation after epoch %lld: top1 %.3f top5 %.3f loss %.4f",
                static_cast<long long>(r.epoch), 100 * r.test->top1, 100 * r.test->topk, r.test->loss);
  log_.line(line);
}

std::string ImagenetTable::text(double v) {
  char t[32];
  std::snprintf(t, sizeof t, "%g", v);
  return t;
}

std::string imagenet_evaluation_row(std::int64_t step, std::int64_t epoch, const EvaluationReport& e,
                                    std::time_t saved) {
  std::tm utc{};
  ::gmtime_r(&saved, &utc);
  char time[32], row[160];
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S", &utc);
  std::snprintf(row, sizeof row, "%5lld  %5.1f  %5.3f  %6.2f  %6.2f  UTC:%s", static_cast<long long>(step),
                static_cast<double>(epoch), 100 * e.top1, 100 * e.topk, e.loss, time);
  return row;
}

void ImagenetEvaluation::begin(const RunOptions& o, std::int64_t images) {
  log_ = std::make_unique<TextLog>(o, "eval_");
  log_->line("Evaluating");
  log_->line("Validation dataset size: " + std::to_string(images));
  log_->line(" step  epoch  top1    top5     loss   checkpoint_time");
}

void ImagenetEvaluation::row(const EvaluationReport& e, const EvaluatedCheckpoint& c) {
  struct stat status {};
  const bool known = ::stat(c.path.c_str(), &status) == 0;
  log_->line(imagenet_evaluation_row(c.step, c.epoch, e, known ? status.st_mtime : std::time(nullptr)) +
             (c.averaged ? "  averaged weights" : ""));
}

}  // namespace tutti::trainer
