// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/data/images/images.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/report.hpp>

namespace tutti {

struct FitRecipe {  // the arguments of fit(job, net, ...); only `train` has no default
  Images train;
  std::optional<Images> test{};  // evaluated after each epoch
  std::int64_t batch = 64;       // images of an update, of all processes together
  std::int64_t epochs = 1;
  AnyOptimizer optimizer = Sgd{};
  Schedule schedule = Constant(0.1);
  // The run's folder. It gets checkpoints with the model's card, log.jsonl, evaluation.json and TensorBoard's curves,
  // and a restarted run continues from its newest checkpoint. If empty, the run leaves no files.
  std::string run{};

  double weight_decay = 5e-4;
  DType precision = DType::f32;  // that activations are stored in, or bf16
  double clip_norm = 0;          // largest norm of all gradients; 0: no limit
  double average = 0;            // decay of averaged weights, e.g. 0.999, which are evaluated too; 0: off
  std::uint64_t seed = 1;        // of the weights, the order of the images and their augmentation
  int threads = 2;               // that read images
  bool skip_damaged = true;      // leaves out images that cannot be read, with a warning; false: ends the run
  int keep = 2;                  // the newest checkpoints, and the best
  std::int64_t evaluate_every = 1, save_every = 1;  // epochs
  std::int64_t max_steps = 0;                       // ends the run after so many updates; 0: off
  bool progress = true;                             // lines on the standard output
  // If processes come and go: images of an update for each of them, and the steps in which the rate follows.
  std::int64_t batch_per_worker = 0, ramp_steps = 0;
  // Rows of a process that are computed at once, at most; 0: all.
  std::int64_t micro_batch = 0;
  // The job computes, bit for bit, what so many ranks would, on any number of processes up to it, which may change at
  // any step (TrainerOptions::logical_ranks). 0: each process is a rank.
  int logical_ranks = 0;
  bool allow_other_bits = false;          // as TrainerOptions::allow_other_bits
  BatchMetric metric{};                   // of your own, by which the best checkpoint is chosen
  std::vector<FitListener*> listeners{};  // told on rank 0; they outlive the call
  // Called on every process before the run begins or continues, for example with load_weights().
  std::function<void(Trainer&)> prepare{};
  std::function<void(const EpochReport&)> after_epoch{};  // on every process
};

}  // namespace tutti
