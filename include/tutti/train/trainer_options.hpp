// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/engine/metrics.hpp>
#include <tutti/optim/ema_schedule.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/optim/sam.hpp>
#include <tutti/optim/update_rules.hpp>

namespace tutti {

class ValueWatcher;  // engine/value_watcher.hpp

struct TrainerOptions {  // options of a Trainer
  DType compute = DType::f32;
  AnyOptimizer optimizer = Sgd{};
  double weight_decay = 1e-4;  // for the slices that decay, which are all except batch norm and biases
  bool decay_all = false;      // weight decay also for batch norm and biases
  double clip_norm = 0;        // largest norm of all gradients together; 0: no limit
  double loss_scale = 1;       // constant factor of the loss
  // The scale begins at 2^16. If gradients overflow, it halves, and the step changes nothing. It doubles after 2,000
  // steps without overflow (Micikevicius et al. 2018).
  bool dynamic_loss_scale = false;
  double ema_decay = 0;    // decay of the averaged weights; 0: no average
  EmaSchedule ema{};       // when the average is updated, and how its decay grows
  EarlyTraining early{};   // parameters that only the first steps train
  Sam sam{};               // each rank perturbs the weights by the gradient of its own rows
  std::uint64_t seed = 1;  // for the initial weights and for dropouts
  // Largest number of rows in a micro-batch: a rank's share of a step is divided into the smallest sufficient number of
  // equal micro-batches, so that a job with fewer ranks needs no more memory. 0: no limit.
  std::int64_t micro_batch = 0;
  // The step computes, bit for bit, what so many ranks would, on any number of processes (Placement::logical_ranks);
  // micro_batch then cuts the rows of each logical rank. Needs f32 or bf16, and a strategy whose ranks own the weights.
  // 0: each process is one rank.
  int logical_ranks = 0;
  // Continues checkpoints of another number of logical ranks, or of processes whose bits differ (Backend::
  // bits_depend_on), instead of refusing them.
  bool allow_other_bits = false;
  // Sizes of the training images in the course of the run, for which plans are made before it begins; empty: the net's
  // own. Batches have the size of their schema.
  std::vector<ImageSize> image_sizes{};
  std::size_t bucket_bytes = std::size_t{16} << 20;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  JobFacts must_agree{};            // other facts that must be equal on all ranks: data, options
  ValueWatcher* watcher = nullptr;  // as in ExecutorOptions; must outlive the trainer
};

// The times of events in a step, in seconds from its beginning.
struct StepTrace {
  struct Reduction {  // of gradients over the ranks
    std::size_t bytes;
    double ready;  // when the gradients were final and the strategy got the bucket
    double taken;  // when the update had waited for the bucket
  };
  std::vector<Reduction> buckets;
  double backward_end = 0, waited = 0, end = 0;  // waited: time that the update waited for reductions
};

// The result of one step.
struct StepResult {
  Metrics metrics;  // of this rank; with logical ranks, of all ranks
  std::uint32_t flags = 0;
};

}  // namespace tutti
