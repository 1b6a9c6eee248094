// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/engine/metrics.hpp>
#include <tutti/optim/optimizer.hpp>

namespace tutti {

class ValueWatcher;  // engine/value_watcher.hpp

struct TrainerOptions {  // options of a Trainer
  DType compute = DType::f32;
  AnyOptimizer optimizer = Sgd{};
  double weight_decay = 1e-4;  // of the slices that decay: not batch norm, not biases
  bool decay_all = false;      // of those too
  double clip_norm = 0;        // largest global gradient norm; 0: none
  double loss_scale = 1;       // static
  // Begins at 2^16. Halves if gradients overflow, and that step then changes nothing. Doubles after 2,000 steps without
  // overflow (Micikevicius et al. 2018).
  bool dynamic_loss_scale = false;
  double ema_decay = 0;    // weight EMA; 0: none
  std::uint64_t seed = 1;  // of the initial weights
  // Maximum rows of a micro-batch: a rank's share of a step is cut into the smallest sufficient number of equal
  // micro-batches, so that a job of fewer ranks needs no more memory. 0: no limit.
  std::int64_t micro_batch = 0;
  // The step computes, bit for bit, what so many ranks would, on any number of processes (Placement::logical_ranks);
  // micro_batch then cuts the rows of each logical rank. Needs f32 or bf16, and a strategy whose ranks own the weights.
  // 0: each process is one rank.
  int logical_ranks = 0;
  // Continues checkpoints of another number of logical ranks, or of processes whose bits differ (Backend::
  // bits_depend_on), instead of refusing them.
  bool allow_other_bits = false;
  std::size_t bucket_bytes = std::size_t{16} << 20;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  JobFacts must_agree{};            // other facts that must be the same on all ranks: data, options
  ValueWatcher* watcher = nullptr;  // as in ExecutorOptions; must outlive the trainer
};

// The times of events in a step, in seconds from its beginning.
struct StepTrace {
  struct Reduction {  // of gradients over the ranks
    std::size_t bytes;
    double ready;  // the gradients were final and the bucket was handed to the strategy
    double taken;  // the update had waited for it
  };
  std::vector<Reduction> buckets;
  double backward_end = 0, waited = 0, end = 0;  // waited: what the update spent on waiting for reductions
};

// The result of one step.
struct StepResult {
  Metrics metrics;  // of this rank; with logical ranks, of all ranks
  std::uint32_t flags = 0;
};

}  // namespace tutti
