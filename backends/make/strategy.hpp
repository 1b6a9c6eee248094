// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/make/separate.hpp>
#include <tutti/backends/make/strategy_options.hpp>
#include <tutti/job/launch_environment.hpp>
#include <tutti/strategy/any_strategy.hpp>

namespace tutti {

// Of this program: "solo", "mpi", "nccl", "gloo", "ps", "ps_async".
[[nodiscard]] std::vector<std::string> built_strategies();
// Every strategy that there is, built or not.
struct KnownStrategy {
  const char* word;
  const char* packages;  // what a build needs to have it
};
[[nodiscard]] std::vector<KnownStrategy> known_strategies();  // every word, those of other builds too

// How this process was started, as a worker; UsageError for anything else.
[[nodiscard]] inline LaunchEnvironment launched() {
  LaunchEnvironment e = read_launch_environment();
  require_worker(e);
  return e;
}

// The strategy that a word of MXNet's elastic scripts stands for ("local", "device", "dist_sync", "dist_async", ...).
// gpus: the processes have one each. servers: that were started beside them.
[[nodiscard]] std::string strategy_of_kv_store(std::string_view word, int processes, bool gpus, int servers = 0);
// Returns a strategy by name, by a word of those scripts, or by "auto": one process trains alone, several train over
// NCCL if each has a GPU, otherwise over MPI; with servers they train with "ps". It has as many ranks as `start` says
// were started; UsageError if that does not go together. Does not return in a process that trains nothing: if
// tutti-launch only asks how to start the program, gives the answer and exits; in a server or a scheduler of the
// strategy, serves until the workers are done and exits with 0, or with 128 + N if signal N ended it. What goes wrong
// there is an Error, as elsewhere.
[[nodiscard]] AnyStrategy make_strategy(std::string_view word, const StrategyOptions& options,
                                        const LaunchEnvironment& start);
[[nodiscard]] AnyStrategy make_strategy(std::string_view word = "auto", const StrategyOptions& options = {});

// Whether the processes of a strategy may come and go while it trains, as tutti-launch --elastic has it.
[[nodiscard]] bool changes_members(std::string_view strategy);
// Whether a strategy has servers, processes with TUTTI_ROLE=server.
[[nodiscard]] bool has_servers(std::string_view strategy);
// What such a process does: it serves the workers of this strategy until they are done. stop_requested: asked until
// they have come. UsageError for a strategy without servers.
void serve_workers(std::string_view strategy, const StrategyOptions& options, const LaunchEnvironment& start,
                   const std::function<bool()>& stop_requested = {});

// What the scheduler of such a strategy does where scripts start the processes (StrategyOptions::job): it is the
// arbiter of who is in the job, until all have ended.
void schedule_workers(std::string_view strategy, const StrategyOptions& options, const LaunchEnvironment& start,
                      const std::function<bool()>& stop_requested = {});

}  // namespace tutti

#if TUTTI_MAKE_DEFINITIONS
#include <tutti/backends/make/strategy_definitions.hpp>
#endif
