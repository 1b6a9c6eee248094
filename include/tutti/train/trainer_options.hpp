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

struct TrainerOptions {  // what a Trainer can be told
  DType compute = DType::f32;
  AnyOptimizer optimizer = Sgd{};
  double weight_decay = 1e-4;  // of the slices that decay: not batch norm, not biases
  bool decay_all = false;      // of those too
  double clip_norm = 0;        // largest global gradient norm; 0: none
  double loss_scale = 1;       // static
  // Begins at 2^16, halves where gradients overflow, whose step then changes nothing, and doubles after 2,000 steps
  // without (Micikevicius et al. 2018).
  bool dynamic_loss_scale = false;
  double ema_decay = 0;    // weight EMA; 0: none
  std::uint64_t seed = 1;  // of the initial weights
  // Rows of a micro-batch at most: a rank's share of a step is cut into as few equal ones as that takes, so that a job
  // of fewer ranks needs no more memory. 0: no limit.
  std::int64_t micro_batch = 0;
  std::size_t bucket_bytes = std::size_t{16} << 20;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  JobFacts must_agree{};            // what else must be the same on all ranks: data, options
  ValueWatcher* watcher = nullptr;  // as ExecutorOptions has it; outlives the trainer
};

// When things happened in a step, in seconds from its beginning.
struct StepTrace {
  struct Reduction {  // of gradients over the ranks
    std::size_t bytes;
    double ready;  // the gradients were final and the bucket was handed to the strategy
    double taken;  // the update had waited for it
  };
  std::vector<Reduction> buckets;
  double backward_end = 0, waited = 0, end = 0;  // waited: what the update spent on waiting for reductions
};

// What one step came to.
struct StepResult {
  Metrics metrics;  // of all ranks, if reduced
  std::uint32_t flags = 0;
};

}  // namespace tutti
