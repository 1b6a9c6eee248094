// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/core/run_main.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/builder.hpp>
#include <tutti/strategy/training_job.hpp>
#include <tutti/train/fit_recipe.hpp>
#include <tutti/train/report.hpp>

// A whole training in one call: what a program of one's own gives is a net, images and a recipe.
namespace tutti {

// Trains `net` on `recipe.train` with the processes of the job, and returns the report of the last epoch. A run that
// had been finished before is evaluated once. SIGINT and SIGTERM finish the step and save. RunEnded in a process whose
// part ends earlier; every other error is an Error, as elsewhere, and ends the other processes too.
TUTTI_CORE_FUNCTION EpochReport fit(TrainingJob& job, const Builder& net, const FitRecipe& recipe);

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/train/detail/fit/fit_job_definitions.hpp>
#endif
