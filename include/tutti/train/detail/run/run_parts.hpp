// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/train/detail/run/run_checkpoints.hpp>
#include <tutti/train/detail/run/run_context.hpp>
#include <tutti/train/detail/run/run_reports.hpp>
#include <tutti/train/detail/run/run_schedule.hpp>
#include <tutti/train/detail/run/run_shares.hpp>

namespace tutti::detail {

// The parts of a run that are the same for every kind of members. They refer to each other.
struct RunParts {
  // Takes either the sources, or a function that makes them.
  RunParts(Trainer& trainer, BatchSource* train, BatchSource* test, const MakeSources* make, Coordinator& coordinator,
           const FitOptions& o)
      : run{trainer, trainer.strategy(), coordinator,
            o,       trainer.counters(), RunSources(train, test, make, trainer.options().logical_ranks)} {}
  RunParts(const RunParts&) = delete;
  RunParts& operator=(const RunParts&) = delete;

  RunContext run;
  RunSchedule schedule{run};
  RunReports reports{run, schedule};
  RunCheckpoints checkpoints{run};
  RunShares shares{run};
};

}  // namespace tutti::detail
