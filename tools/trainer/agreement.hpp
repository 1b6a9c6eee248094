// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/backends/make.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/strategy/any_strategy.hpp>

#include "tools/trainer/task.hpp"

// What the ranks of a run settle among them before the first step.
namespace tutti::trainer {

// What all must have alike, before there are data: what the run is to do.
JobFacts facts(const RunOptions& o);

// With the data; beside it there are the trainer's own facts.
JobFacts facts(const RunOptions& o, const Images& images);

[[nodiscard]] Schema schema_of(RunOptions& o, const Task& task);

[[nodiscard]] Loaded load(RunOptions& o, const Task& task);

// Whether a run needs images and weights; otherwise it only tells what it would do.
[[nodiscard]] inline bool works(const RunOptions& o) { return !o.dry_run && !o.test_io && !o.print_schedule; }

// Rank 0 settles the run's folder; the others learn it.
void agree_on_run_folder(AnyStrategy& strategy, RunOptions& o);

// An evaluation shows the averaged weights of a checkpoint that has them, whether the options name them or not.
void take_average(AnyStrategy& strategy, RunOptions& o);

// With --local-ckpt the first rank on every host saves beside rank 0, in that host's own folder. Ranks whose folder is
// rank 0's, over a network file system, leave it to that. All ranks call it.
bool saves_beside_chief(AnyStrategy& strategy, const RunOptions& o);

}  // namespace tutti::trainer
