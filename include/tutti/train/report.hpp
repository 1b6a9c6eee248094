// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdio>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>

namespace tutti {

struct Mistakes;  // train/mistakes.hpp

// The values of a logged step: means over the steps since the last report, over the whole job.
struct StepReport {
  std::int64_t epoch = 0;          // from 1
  std::int64_t step = 0;           // number of updates done, from 1
  std::int64_t step_in_epoch = 0;  // from 1
  std::int64_t steps_per_epoch = 0;
  std::int64_t epochs = 0;
  double train_loss = 0;  // cross entropy, without L2
  double train_top1 = 0;  // 0..1
  double images_per_second = 0;
  double lr = 0;         // of this step
  double next_lr = 0;    // of the next step
  double data_wait = 0;  // share of the time that waited for data, 0..1
  double seconds = 0;    // since the start of this process's training
  // Share of the time in which the update waited for gradients of other ranks, 0..1; the rest is computation. No value
  // if a device waits instead of the host.
  std::optional<double> comm_wait{};
  // Share of the time in which rank 0's GPU computed, 0..1, by the GPU's own counters: the mean of at least one
  // reading, one for each second. A reading is the mean of the last second or less. No value without a GPU, or if it
  // does not report.
  std::optional<double> gpu_utilisation{};
  std::int64_t global_batch = 0;  // images of this step, over all ranks; fewer in a short last step of an epoch
};

struct EvaluationReport {               // of held-out images; shares lie in 0..1
  double loss = 0, top1 = 0, topk = 0;  // rates 0..1
  std::int64_t images = 0;
  double images_per_second = 0;
  std::optional<double> metric{};  // of the user's metric, if the options have one

  // Returns the share of correctly classified images, 0..1: another name of top1.
  [[nodiscard]] double accuracy() const { return top1; }
  // Returns the value by which nets are compared.
  [[nodiscard]] double judged_by() const { return metric.value_or(top1); }
};

// The evaluation after an epoch, or no value if there was none: report.test.accuracy(), or report.test->loss.
class EpochEvaluation : public std::optional<EvaluationReport> {
 public:
  using std::optional<EvaluationReport>::optional;
  using std::optional<EvaluationReport>::operator=;

  // Returns a share in 0..1. Throws UsageError if the epoch was not evaluated.
  [[nodiscard]] double accuracy() const { return evaluated().accuracy(); }
  [[nodiscard]] double loss() const { return evaluated().loss; }

 private:
  [[nodiscard]] const EvaluationReport& evaluated() const {
    if (!has_value())
      fail<UsageError>("report", "an evaluation of this epoch", "no evaluation", "give fit() test images");
    return **this;
  }
};

struct EpochReport {       // passed to FitListener::epoch()
  std::int64_t epoch = 0;  // the first epoch is 1
  std::int64_t step = 0;
  std::int64_t epochs = 0;
  double train_loss = 0, train_top1 = 0, train_topk = 0;
  EpochEvaluation test, test_ema;
  double images_per_second = 0;                    // of training only
  double lr = 0;                                   // of the last step of the epoch
  double seconds = 0;                              // training and evaluation
  bool best = false;                               // the best test_top1, or value of the user's metric, so far
  std::int64_t skipped = 0;                        // unreadable training records
  std::optional<double> data_wait{}, comm_wait{};  // as in StepReport, but over the epoch's training time
  std::optional<double> gpu_utilisation{};         // as in StepReport
  std::int64_t global_batch = 0;                   // of the last step of the epoch, as in StepReport
};

// Formats "epoch 3 of 20: loss 0.4120, accuracy 85.10 %, test loss 0.5011, test accuracy 82.40 %"
[[nodiscard]] inline std::string to_string(const EpochReport& r) {
  char text[160];
  std::snprintf(text, sizeof text, "epoch %lld of %lld: loss %.4f, accuracy %.2f %%", static_cast<long long>(r.epoch),
                static_cast<long long>(r.epochs), r.train_loss, 100 * r.train_top1);
  std::string line = text;
  const auto add = [&](const char* name, const EpochEvaluation& e) {
    if (!e) return;
    std::snprintf(text, sizeof text, ", %s loss %.4f, %s accuracy %.2f %%", name, e.loss(), name, 100 * e.accuracy());
    line += text;
  };
  add("test", r.test);
  add("averaged", r.test_ema);
  return line;
}
// Writes to_string().
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const EpochReport& r) {
  return out << to_string(r);
}

// The evaluation by several views of each image that may follow the last epoch.
struct ViewsReport {
  std::int64_t step = 0, views = 0;
  bool averaged = false;  // the averaged weights were evaluated
  EvaluationReport test;
  double share = 1;  // of the images, the least certain ones, of which all views were evaluated
};

// A change of the job's ranks, which takes effect after `step`.
struct MembersReport {
  std::int64_t step = 0;
  int ranks = 1;
  double seconds = 0;             // duration of the change, from the event that ended the previous generation; 0:
                                  // unknown
  std::int64_t generation = 0;    // the new generation; it grows over the whole run
  std::int64_t global_batch = 0;  // of the new generation's steps; 0: unknown
};

// The shares of the logical ranks (Shares::measured) or rows (Shares::rows) after `step`. All lists have one number for
// each rank.
struct SharesReport {
  std::int64_t step = 0;
  std::vector<std::int32_t> shares;  // numbers of logical ranks or rows
  std::vector<double> seconds;       // measured, for one logical rank or row
  double before = 0, after = 0;      // predicted seconds of a step without communication, with the earlier shares and
                                     // these; equal if the shares did not change
  std::string note{};                // about a rank that is too slow, for the user
  bool by_rows = false;              // shares of rows
};

// How a run ended: "finished", "interrupted" or "failed", and the reason.
struct RunEnd {
  std::string status;
  std::int64_t step = 0;
  std::string message{};
};

// Interface for events of a training loop, for progress lines and log files. Called on the thread of the loop, on the
// job's coordinator.
class FitListener {
 public:
  virtual ~FitListener() = default;
  virtual void step(const StepReport&) {}
  // The same at another interval, FitOptions::summary_every.
  virtual void summary(const StepReport&) {}
  virtual void epoch(const EpochReport&) {}
  // Called for the evaluation that the next epoch() reports, if FitOptions::mistakes is set.
  virtual void mistakes(const Mistakes&) {}
  // Called with a message that the user must see although training continues, e.g. if a checkpoint could not be
  // written.
  virtual void warning(const std::string&) {}
  virtual void saved(const std::string& /*path*/) {}
  virtual void members(const MembersReport&) {}
  virtual void shares(const SharesReport&) {}
  // Called when all steps are done. The argument is the time since the call of fit().
  virtual void finished(double /*seconds*/) {}
  // The program calls these two functions, not fit().
  virtual void views(const ViewsReport&) {}
  virtual void ended(const RunEnd&) {}
};

}  // namespace tutti
