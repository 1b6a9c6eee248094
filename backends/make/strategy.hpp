// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/make/separate.hpp>
#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/strategy/any_strategy.hpp>

namespace tutti {

// Returns the strategies of this program: "solo", "mpi", "nccl", "gloo", "ps", "ps_async", without those it lacks.
[[nodiscard]] std::vector<std::string> built_strategies();
// A strategy of tutti, which this program may lack.
struct KnownStrategy {
  const char* word;
  const char* packages;  // packages that a build needs for it
};
[[nodiscard]] std::vector<KnownStrategy> known_strategies();  // includes strategies that this build lacks

// Returns how this process was started. Throws UsageError if it is not a worker.
[[nodiscard]] inline LaunchEnvironment launched() {
  LaunchEnvironment e = read_launch_environment();
  require_worker(e);
  return e;
}

// Returns the strategy for a word of MXNet's kvstores ("local", "device", "dist_sync", "dist_async", ...). gpus: each
// process has a GPU. servers: number of servers of the job.
[[nodiscard]] std::string strategy_of_kv_store(std::string_view word, int processes, bool gpus, int servers = 0);
// Returns a strategy by its name, by a word of MXNet, or by "auto": one process trains alone; several processes train
// over NCCL if each has a GPU, otherwise over MPI; with servers they train with "ps". The number of ranks is that in
// `start`. Throws UsageError if that number does not fit the strategy.
// Does not return in a process that does not train. If tutti-launch only queries how to start the program, it answers
// and exits. In a server or a scheduler of the strategy, it serves until the workers have finished, and exits with 0,
// or with 128 + N if signal N ended it. A failure there throws an Error, as in workers.
[[nodiscard]] AnyStrategy make_strategy(std::string_view word, const StrategyOptions& options,
                                        const LaunchEnvironment& start);
[[nodiscard]] AnyStrategy make_strategy(std::string_view word = "auto", const StrategyOptions& options = {});

// Returns true if processes of the strategy may join and leave during the training, as with tutti-launch --elastic.
[[nodiscard]] bool changes_members(std::string_view strategy);
// Returns true if a strategy has servers: processes with TUTTI_ROLE=server.
[[nodiscard]] bool has_servers(std::string_view strategy);
// Runs a server of the strategy until its workers have finished. stop_requested: checked until the workers have
// arrived. Throws UsageError if the strategy has no servers.
void serve_workers(std::string_view strategy, const StrategyOptions& options, const LaunchEnvironment& start,
                   const std::function<bool()>& stop_requested = {});

// Runs the scheduler of such a strategy for a job that scripts started (StrategyOptions::job). The scheduler is the
// arbiter of the job until all processes have ended.
void schedule_workers(std::string_view strategy, const StrategyOptions& options, const LaunchEnvironment& start,
                      const std::function<bool()>& stop_requested = {});

}  // namespace tutti

#if TUTTI_MAKE_DEFINITIONS
#include <tutti/backends/make/strategy_definitions.hpp>
#endif
