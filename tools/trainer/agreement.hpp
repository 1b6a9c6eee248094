// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/backends/make.hpp>
#include <tutti/cluster/job_facts.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/strategy/any_strategy.hpp>

#include "tools/trainer/task.hpp"

// What the ranks of a run agree on before the first step.
namespace tutti::trainer {

// Returns the facts about options that all ranks must have in common. Call it before the data are open.
JobFacts facts(const RunOptions& o);

// Also adds the facts about the data. The trainer adds its own facts.
JobFacts facts(const RunOptions& o, const Images& images);

[[nodiscard]] Schema schema_of(RunOptions& o, const Task& task);

[[nodiscard]] Loaded load(RunOptions& o, const Task& task);

// Returns whether a run needs images and weights. If not, it only prints information.
[[nodiscard]] inline bool works(const RunOptions& o) { return !o.dry_run && !o.test_io && !o.print_schedule; }

// Rank 0 chooses the run's folder and tells the other ranks.
void agree_on_run_folder(AnyStrategy& strategy, RunOptions& o);

// If the options do not say otherwise, an evaluation uses the averaged weights if the checkpoint has them and they
// are not lookahead's.
void take_average(AnyStrategy& strategy, RunOptions& o);

// Returns whether this rank saves as the coordinator does. With --local-ckpt the first rank of each host saves too, in
// that host's own folder. Returns false for a rank that shares rank 0's folder over a network file system. All ranks
// call it.
bool saves_with_coordinator(AnyStrategy& strategy, const RunOptions& o);

}  // namespace tutti::trainer
