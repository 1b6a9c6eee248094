// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include <tutti/data/sampler.hpp>
#include <tutti/engine/metrics.hpp>

namespace tutti::detail {

// What all members know of a run beside the trainer's state; after a change they have the authority's.
struct RunShare {
  Metrics epoch;       // of the epoch's steps, all ranks': those of members that have left are known to nobody else
  double skipped = 0;  // records in it
  // The last step: where it began, by how many ranks, of which batch, what they said in it.
  Position began{};
  std::int64_t step = 0, before = 0, epoch_number = 1, step_in_epoch = 0;
  std::int64_t world = 1, batch = 0, generation = 0, flags = 0, last_of_epoch = 0;
  double lr = 0;
  // The global batch that the run began with, in whose steps the schedule counts, and what generations began from.
  std::int64_t first_batch = 0, before_generations = 0;
  // What ranks do together behind it, such as an evaluation, is not over yet.
  std::int64_t finish_pending = 0;
};
static_assert(std::is_trivially_copyable_v<RunShare> && sizeof(RunShare) % sizeof(std::int64_t) == 0);

}  // namespace tutti::detail
