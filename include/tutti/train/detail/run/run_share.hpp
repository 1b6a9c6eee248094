// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include <tutti/data/sampler.hpp>
#include <tutti/engine/metrics.hpp>

namespace tutti::detail {

// The common facts of a step: its position, its numbers, and the ranks and the batch that it had.
struct StepShare {
  Position began{};
  // Steps done with it, and before it. Workers that do not wait for each other may have done steps in between.
  std::int64_t number = 0, before = 0;
  std::int64_t epoch = 1, in_epoch = 0;  // from 1
  std::int64_t world = 1, batch = 0, generation = 0, flags = 0, ends_epoch = 0;
  double lr = 0;
};

// The common facts of a run in addition to the trainer's state. After a change all members have the authority's.
struct RunShare {
  Metrics epoch;       // of the epoch's steps and all ranks; the only copy of those of members that have left
  double skipped = 0;  // records in it
  // The same since the last report and the last summary. Only with logical ranks: each rank then knows the sums of all.
  Metrics steps, summaries;
  StepShare step;  // the last one
  // The global batch at the beginning of the run; the schedule counts in its steps. The generation number after which
  // this run's generations are numbered.
  std::int64_t first_batch = 0, before_generations = 0;
  // The common work after the last step, such as an evaluation, is not complete yet.
  std::int64_t finish_pending = 0;
};
static_assert(std::is_trivially_copyable_v<RunShare> && sizeof(RunShare) % sizeof(std::int64_t) == 0);

}  // namespace tutti::detail
