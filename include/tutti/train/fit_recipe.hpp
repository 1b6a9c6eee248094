// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/data/images/images.hpp>
#include <tutti/data/rank_rows.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/optim/sam.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/report.hpp>

namespace tutti {

struct FitRecipe {  // arguments of fit(job, net, ...); only `train` has no default
  Images train;
  std::optional<Images> test{};  // evaluated after each epoch
  std::int64_t batch = 64;       // images of an update, over all processes
  std::int64_t epochs = 1;
  AnyOptimizer optimizer = Sgd{};
  Schedule schedule = Constant(0.1);
  std::optional<Schedule> momentum{};  // of each step, e.g. schedule::CycledMomentum(); default: the optimizer's
  // The run's folder. fit() writes checkpoints with the model's card, log.jsonl, evaluation.json and TensorBoard's
  // curves to it, and a restarted run continues from its newest checkpoint. If empty, the run writes no files.
  std::string run{};

  double weight_decay = 5e-4;
  DType precision = DType::f32;    // type in which activations are stored, or bf16
  double clip_norm = 0;            // largest norm of all gradients together; 0: no limit
  double average = 0;              // decay of averaged weights, e.g. 0.999, which are evaluated too; 0: no average
  EmaSchedule average_schedule{};  // when these are updated, and how the decay grows
  Sam sam{};                       // sharpness-aware minimisation, every few steps
  std::uint64_t seed = 1;          // for the weights, the order of the images and their augmentation
  int threads = 2;                 // number of threads that read images
  bool skip_damaged = true;        // skips images that cannot be read, with a warning; false: an unreadable image ends
                                   // the run
  int keep = 2;                    // number of newest checkpoints to keep, in addition to the best one
  std::int64_t evaluate_every = 1, save_every = 1;  // in epochs
  std::int64_t max_steps = 0;                       // ends the run after this number of updates; 0: no limit
  bool progress = true;                             // print lines to the standard output
  // For processes that join and leave: images of an update for each process, and the number of steps in which the rate
  // follows a change.
  std::int64_t batch_per_worker = 0, ramp_steps = 0;
  // The largest number of rows that a process computes at once. 0: all its rows.
  std::int64_t micro_batch = 0;
  // Each update computes, bit for bit, what this number of ranks would compute, on any number of processes up to it,
  // which may change at any step (TrainerOptions::logical_ranks). 0: each process is a rank.
  int logical_ranks = 0;
  bool allow_other_bits = false;  // as TrainerOptions::allow_other_bits
  Shares shares = Shares::equal;  // measured: those of the logical ranks follow the speed of the processes; rows: those
                                  // of the rows, with other bits
  // Mixes the training images of a batch, for example mixer({.mixup_alpha = 0.2}) of data/augment/mix.hpp.
  RowMixer mix{};
  BatchMetric metric{};                   // your own metric, which selects the best checkpoint
  std::vector<FitListener*> listeners{};  // called on rank 0; must outlive the call
  // Called on every process before the run begins or continues, for example with load_weights().
  std::function<void(Trainer&)> prepare{};
  std::function<void(const EpochReport&)> after_epoch{};  // called on every process
};

}  // namespace tutti
