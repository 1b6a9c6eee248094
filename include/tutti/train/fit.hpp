// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/separate.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/sources.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti {

class MistakeSum;  // train/mistakes.hpp

// A metric of one's own: a sum over the rows of a batch, of which evaluate() makes the mean over all rows of all ranks.
// logits: [rows, classes]. A row with the label -1 could not be read and is not counted.
using BatchMetric = std::function<double(std::span<const float> logits, std::span<const std::int32_t> labels)>;

// A step of fit() that was done, or started where steps run ahead of the host.
struct FitStep {
  std::int64_t epoch = 0, step = 0, step_in_epoch = 0;  // from 1
  double lr = 0;
  // Of this rank's own rows. Where steps run ahead of the host, of those since the last report, and elsewhere 0.
  double own_loss = 0;
  std::int64_t own_images = 0;
};

struct FitOptions {  // what fit() can be told
  std::int64_t epochs = 1;
  // Images of a step, of all ranks together; 0: as the training source has it, or 128 if a function makes the sources.
  std::int64_t global_batch = 0;
  Schedule schedule = schedule::Constant{0.1};
  std::int64_t report_every = 20;     // steps
  std::int64_t summary_every = 0;     // steps; 0: no summaries
  std::int64_t evaluate_every = 1;    // epochs, and at the end of the run; 0: never
  std::int64_t save_every = 1;        // epochs, and at the end of the run; 0: never
  std::int64_t save_every_steps = 0;  // 0: never
  double save_every_seconds = 0;      // since the last checkpoint, by the clock of rank 0; 0: never
  bool save_last = false;             // at the end of the run, whatever the intervals
  bool save_best = true;              // after an evaluation that is the best so far, if anything above saves
  std::int64_t max_steps = 0;         // stop after this many updates in all; 0: run all epochs. See EpochEnd for theirs
  std::int64_t total_steps = 0;       // that the schedule spans; 0: those of all epochs
  // Where members come and go: the images of a step that each of them has, so that the global batch and with it the
  // rate follow their number; 0: the global batch stays that of the beginning. The schedule counts by images in either
  // case, in steps of the batch that the run began with, and so does total_steps, which then ends the run.
  std::int64_t batch_per_worker = 0;
  // Steps in which the rate goes over to that of another number of workers, linearly.
  std::int64_t ramp_steps = 0;
  // The global batch that the schedule's rate is for; 0: that which the run began with, also when it is resumed.
  std::int64_t rate_batch = 0;
  bool report_first = false;  // the first step too
  bool report_epochs = true;  // the last step of an epoch too; of the run always
  std::int64_t evaluation_batch = 256;
  // Evaluations tell the listeners their confusion matrix and the worst-classified images; where weights are averaged,
  // those with the averaged ones.
  bool mistakes = false;
  double stop_at_train_top1 = 0;  // end after the first epoch that reaches it; 0: never
  // Larger is better: the best checkpoint is that of the largest. Without one it goes by the test images' top-1.
  BatchMetric metric{};
  // Called on every rank: after each step, and after each epoch, its evaluation and its checkpoint.
  std::function<void(const FitStep&)> after_step{};
  std::function<void(const EpochReport&)> after_epoch{};
  std::function<bool()> stop_requested = [] { return false; };
  // This process is to leave the job, where its members may change; the others go on.
  std::function<bool()> leave_requested{};
  // Called with the reason for each record of this rank, training or test, that was skipped; once for each record.
  std::function<void(const std::string&)> record_skipped = [](const std::string&) {};
};

// How a call of fit() ended.
struct FitResult {
  bool interrupted = false;  // stop_requested
  bool left = false;         // this process was let go; the others train on
  bool changes = false;      // the members change, and other processes go on from what was saved: end with 75
  bool saved = false;        // the last checkpoint was written here, which held the state when the run was interrupted
  bool lost = false;         // the last checkpoint could not be written
  Counters counters;
  std::optional<EpochReport> last;
};

// One pass over a data set with the present weights (or their EMA), over all ranks. A batch, not the pass, has the
// deadline of a reduction. mistakes: gets what this rank has seen.
TUTTI_CORE_FUNCTION EvaluationReport evaluate(Trainer& trainer, BatchSource& source, const BatchMetric& metric = {},
                                              MistakeSum* mistakes = nullptr);

// The training loop: from the trainer's counters to the end of the last epoch, or where steps run on into the next one
// (EpochEnd) to the last full step of all epochs. Evaluates on `test`, which may be null; reports, commits and saves
// through the coordinator. Where members come and go (ElasticMembership), each generation goes on where the one before
// it stood: the sources begin anew with the shares of those who are there, a step that a lost member broke off is done
// again, and so is what came behind it. A callback may call Trainer::reform() and start the sources anew with what
// members there are. Where somebody owns the weights (OwnsWeights), steps are those of all workers together, reports
// are each worker's own, and rank 0 alone evaluates, all of `test`, whose placement says so.
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, Coordinator& coordinator,
                                  const FitOptions& o);
// The same as most programs want it: rank 0 saves, and who listens is in the options.
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource& test, Checkpoints& checkpoints,
                                  const FitOptions& o);
// And where nothing is saved.
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, BatchSource& train, BatchSource* test, const FitOptions& o);
// With sources of one's own making for each number of ranks.
TUTTI_CORE_FUNCTION FitResult fit(Trainer& trainer, const MakeSources& make, Coordinator& coordinator,
                                  const FitOptions& o);

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/fit_definitions.hpp>
#endif
