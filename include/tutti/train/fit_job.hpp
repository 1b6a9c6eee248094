// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/run_main.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/strategy/training_job.hpp>
#include <tutti/train/fit_recipe.hpp>
#include <tutti/train/report.hpp>

// A whole training in one call: the program provides a net, images and a recipe.
namespace tutti {

// Trains `net` on `recipe.train` with the processes of the job, and returns the report of the last epoch. A run that is
// already finished is evaluated once. SIGINT and SIGTERM end the run after the current step and save it. Throws
// RunEnded in a process that ends earlier than the run. Every other error is an Error, which also ends the other
// processes.
TUTTI_CORE_FUNCTION EpochReport fit(TrainingJob& job, const Builder& net, const FitRecipe& recipe);

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/fit/fit_job_definitions.hpp>
#endif
