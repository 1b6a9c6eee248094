// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/strategy/any_strategy.hpp>
#ifdef TUTTI_HAS_MPI
#include <tutti/backends/mpi/mpi.hpp>
#include <tutti/strategy/all_reduce.hpp>
#include <tutti/strategy/restarted_per_generation.hpp>

namespace tutti::detail {

inline MpiOptions mpi_options(const StrategyOptions& o, const LaunchEnvironment& start) {
  // Without mpirun MPI would treat each process as a separate job.
  if (!start.mpi) require_launched_size(start, "mpi", 1);
#ifdef OPEN_MPI
  // From srun Open MPI accepts only PMIx, and would end the process.
  if (!start.mpi && start.step && !start.step->pmix)
    fail<UsageError>("--strategy mpi", "PMIx, through which Open MPI gets its job from srun", "srun without PMIx",
                     "use 'srun --mpi=pmix', or 'mpirun' or 'tutti-launch' within the allocation");
#endif
  MpiOptions m;
  m.shared_memory = o.shared_memory;
  m.hierarchical = o.hierarchical;
  m.wire = o.bf16_wire ? MpiOptions::Wire::bf16 : MpiOptions::Wire::same;
  m.deadline = o.deadline;
  return m;
}
inline AnyStrategy make_mpi(const StrategyOptions& o, const LaunchEnvironment& start) {
  return AnyStrategy::make<OwningAllReduce<MpiCommunicator>>(mpi_options(o, start));
}
// Makes the strategy of one generation. Each generation is a separate mpirun.
inline AnyStrategy make_elastic_mpi(const StrategyOptions& o, const LaunchEnvironment& start) {
  if (!o.goes_on_from_checkpoint)
    fail<UsageError>(o.where,
                     "a strategy that keeps its processes, because this program does not continue from checkpoints",
                     "mpi", "use gloo, or set StrategyOptions::goes_on_from_checkpoint");
  if (!start.mpi || start.generation == 0)
    fail<UsageError>(o.where, "tutti-launch --elastic to start the ranks of mpi, with mpirun", "another launcher");
  AnyStrategy strategy =
      AnyStrategy::make<RestartedPerGeneration<OwningAllReduce<MpiCommunicator>>>(mpi_options(o, start));
  require_launched_size(start, "mpi", strategy.size());
  return strategy;
}

}  // namespace tutti::detail

#endif
