// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include <tutti/data/sampler.hpp>
#include <tutti/engine/metrics.hpp>

namespace tutti::detail {

// The common facts of a run in addition to the trainer's state. After a change all members have the authority's.
struct RunShare {
  Metrics epoch;       // of the epoch's steps and all ranks; the only copy of those of members that have left
  double skipped = 0;  // records in it
  // The last step: its position, number of ranks, batch, and flags.
  Position began{};
  std::int64_t step = 0, before = 0, epoch_number = 1, step_in_epoch = 0;
  std::int64_t world = 1, batch = 0, generation = 0, flags = 0, last_of_epoch = 0;
  double lr = 0;
  // The global batch at the beginning of the run; the schedule counts in its steps. The generation number after which
  // this run's generations are numbered.
  std::int64_t first_batch = 0, before_generations = 0;
  // The common work after it, such as an evaluation, is not complete yet.
  std::int64_t finish_pending = 0;
};
static_assert(std::is_trivially_copyable_v<RunShare> && sizeof(RunShare) % sizeof(std::int64_t) == 0);

}  // namespace tutti::detail
