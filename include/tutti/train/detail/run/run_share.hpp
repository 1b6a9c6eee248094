// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include <tutti/data/sampler.hpp>
#include <tutti/engine/metrics.hpp>

namespace tutti::detail {

// The common facts of a step: its position, its numbers, and its ranks and batch.
struct StepShare {
  Position began{};
  // number: steps done, including this one. before: steps done before this one began. They may differ by more than 1:
  // workers that do not wait for each other finish steps in the meantime.
  std::int64_t number = 0, before = 0;
  std::int64_t epoch = 1, in_epoch = 0;  // from 1
  std::int64_t world = 1, batch = 0, generation = 0, flags = 0, ends_epoch = 0;
  double lr = 0;
};

// The common facts of a run in addition to the trainer's state. After a change, all members use those of the authority.
struct RunShare {
  Metrics epoch;       // over the epoch's steps and all ranks; contains the metrics of members that have left
  double skipped = 0;  // number of skipped records in `epoch`
  // The same since the last report and since the last summary. Without logical ranks, only while the common work after
  // a step is done: before it, each rank knows the metrics of its rows.
  Metrics steps, summaries;
  std::int64_t sums = 0;  // number of sums over all ranks that these facts contain (RunReports)
  StepShare step;         // the last step
  // first_batch: the global batch at the beginning of the run; the schedule counts in steps of this batch.
  // before_generations: the number that is added to a generation of the job to number the generations of the run.
  // test_rows: the rows of a step of an evaluation for each rank. The sources of a joining process do not know it: they
  // are made before the number of ranks is known.
  std::int64_t first_batch = 0, before_generations = 0, test_rows = 1;
  // 1 if the common work after the last step, such as an evaluation, is not complete yet.
  std::int64_t finish_pending = 0;
};
static_assert(std::is_trivially_copyable_v<RunShare> && sizeof(RunShare) % sizeof(std::int64_t) == 0);

}  // namespace tutti::detail
