// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <tutti/optim/schedule.hpp>
#include <tutti/train/detail/evaluation/evaluate.hpp>
#include <tutti/train/detail/trainer/state.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/shares.hpp>

// The options and the result of fit().
namespace tutti {

// A step of fit() that has ended, or has started if steps run asynchronously on a device.
struct FitStep {
  std::int64_t epoch = 0, step = 0, step_in_epoch = 0;  // from 1
  double lr = 0;
  // Of this rank's rows; with logical ranks, of all rows. Asynchronous steps on a device: of all since the last report,
  // or 0 if no report is due.
  double own_loss = 0;
  std::int64_t own_images = 0;
};

struct FitOptions {  // options of fit()
  std::int64_t epochs = 1;
  // Images of a step, of all ranks together; 0: those of the training source, or 128 if a function makes the sources.
  std::int64_t global_batch = 0;
  Schedule schedule = schedule::Constant{0.1};
  // The momentum of each step, or beta1 of Adam and LAMB, e.g. schedule::CycledMomentum. Default: the optimizer's.
  std::optional<Schedule> momentum{};
  std::int64_t report_every = 20;     // steps
  std::int64_t summary_every = 0;     // steps; 0: no summaries
  std::int64_t evaluate_every = 1;    // epochs, and at the end of the run; 0: never
  std::int64_t save_every = 1;        // epochs, and at the end of the run; 0: never
  std::int64_t save_every_steps = 0;  // 0: never
  double save_every_seconds = 0;      // since the last checkpoint, by the clock of rank 0; 0: never
  bool save_last = false;             // save at the end of the run, whatever the intervals are
  bool save_best = true;              // after an evaluation that is the best so far, if any option above saves
  std::int64_t max_steps = 0;         // stop after this number of updates in all; 0: run all epochs; EpochEnd
                                      // says how many updates they have
  std::int64_t total_steps = 0;       // steps that the schedule spans; 0: the steps of all epochs
  // For jobs with changing members: images of each member in a step. The global batch and the rate are then
  // proportional to the number of members, and total_steps ends the run. 0: the global batch does not change. In both
  // cases the schedule and total_steps count images, in steps of the batch at the beginning of the run.
  std::int64_t batch_per_worker = 0;
  // Number of steps in which the rate changes linearly after a change of the number of workers.
  std::int64_t ramp_steps = 0;
  // The global batch that the schedule's rate is meant for; 0: the batch at the beginning of the run, which a resumed
  // run keeps.
  std::int64_t rate_batch = 0;
  // Whether the shares of the processes follow their measured speed (train/shares.hpp). All ranks have the same value.
  Shares shares = Shares::equal;
  // For tests of measured shares: returns the seconds that this process is taken to have computed in a step.
  std::function<double(std::int64_t step, std::int64_t share)> share_seconds{};
  bool report_first = false;  // also report the first step
  bool report_epochs = true;  // also report the last step of each epoch; that of the run is always reported
  std::int64_t evaluation_batch = 256;
  // Evaluations report the confusion matrix and the worst-classified images to the listeners. If weights are averaged,
  // both are of the averaged weights.
  bool mistakes = false;
  double stop_at_train_top1 = 0;  // end after the first epoch that reaches it; 0: never
  // Early stopping: end after so many evaluations in succession that are not better than the best one so far, by the
  // value that selects the best checkpoint. A resumed run counts on. 0: never. Not for servers that own the weights.
  std::int64_t patience = 0;
  // Larger is better: the best checkpoint is that with the largest value. Default: the top-1 of the test images.
  BatchMetric metric{};
  // Called on each rank: after each step, and after each epoch with its evaluation and its checkpoint.
  std::function<void(const FitStep&)> after_step{};
  std::function<void(const EpochReport&)> after_epoch{};
  std::function<bool()> stop_requested = [] { return false; };
  // If the members may change: returns true if this process shall leave the job. The other processes continue.
  std::function<bool()> leave_requested{};
  // Called with the reason for each skipped record of this rank, training or test; once for each record.
  std::function<void(const std::string&)> record_skipped = [](const std::string&) {};
};

// How a call of fit() ended.
struct FitResult {
  bool interrupted = false;  // ended by stop_requested()
  bool left = false;         // this process was released; the other members continue
  bool changes = false;      // the members change, and other processes continue from the saved state: exit with 75
  bool saved = false;        // the last checkpoint, with the state at the interruption, was written here
  bool lost = false;         // the last checkpoint could not be written
  bool stale = false;        // ended early, because of FitOptions::patience
  Counters counters;
  std::optional<EpochReport> last;
};

}  // namespace tutti
