// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backends/make/encryption.hpp>
#include <tutti/backends/make/strategy.hpp>
#include <tutti/backends/make/strategy_rows.hpp>
#include <tutti/backends/make/table.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/cluster/launch/server_process.hpp>
#include <tutti/core/error.hpp>
#include <tutti/engine/backend.hpp>

namespace tutti {

TUTTI_CORE_FUNCTION std::vector<std::string> built_strategies() { return detail::built(detail::strategy_rows()); }

TUTTI_CORE_FUNCTION std::vector<KnownStrategy> known_strategies() {
  std::vector<KnownStrategy> known;
  for (const detail::StrategyRow& r : detail::strategy_rows()) known.push_back({r.word, r.packages});
  return known;
}

TUTTI_CORE_FUNCTION std::string strategy_of_kv_store(std::string_view word, int processes, bool gpus, int servers) {
  if (word == "dist_async") return "ps_async";
  if (word == "nccl") return "nccl";
  if (word.starts_with("dist") && servers > 0) return "ps";
  if (word.starts_with("dist")) return gpus ? "nccl" : "mpi";
  return word == "device" && gpus && processes > 1 ? "nccl" : "solo";
}

namespace detail {

// Serves the workers of the job, or is the arbiter of its processes. Then ends the program.
[[noreturn]] inline void serve_and_exit(const std::string& strategy, StrategyOptions o,
                                        const LaunchEnvironment& start) {
  std::shared_ptr<ps::WeightStore> made;
  if (start.is_server() && strategy == "ps_async" && o.weights == nullptr && o.make_weights) {
    made = o.make_weights(start);
    o.weights = made.get();
  }
  std::exit(run_server_process([&](const std::function<bool()>& stop_requested) {
    start.is_server() ? serve_workers(strategy, o, start, stop_requested)
                      : schedule_workers(strategy, o, start, stop_requested);
  }));
}

}  // namespace detail

TUTTI_CORE_FUNCTION AnyStrategy make_strategy(std::string_view word, const StrategyOptions& o,
                                              const LaunchEnvironment& start) {
  static constexpr std::string_view kv_store[] = {
      "local", "device", "dist_sync", "dist_device_sync", "dist_sync_device", "dist_async"};
  const std::vector<std::string> built = built_strategies();
  const bool gpus = o.backend != nullptr && o.backend->name() == "cuda" &&
                    std::find(built.begin(), built.end(), "nccl") != built.end();
  std::string name(word);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool alone = start.size == 1 && start.servers == 0;
  if (name == "auto")
    name = start.servers > 0 ? "ps" : start.elastic ? "gloo" : alone ? "solo" : gpus ? "nccl" : "mpi";
  else if (std::find(std::begin(kv_store), std::end(kv_store), name) != std::end(kv_store))
    name = alone ? "solo" : strategy_of_kv_store(name, start.size, gpus, start.servers);
  const detail::StrategyRow* row = detail::find_row(detail::strategy_rows(), name);
  if (row == nullptr) fail<UsageError>(o.where, detail::listed(built), {"'", word, "'"});
  if (row->make == nullptr)
    fail<UsageError>(o.where, {"a strategy of this build: ", detail::listed(built)}, {"'", word, "'"},
                     {"install ", row->packages, " and build again"});
  detail::check_encryption(o, name, start.size);
  if (is_launcher_query())
    std::exit(answer_launcher_query({name, row->over_mpi, row->serve != nullptr, false,
                                     row->make_elastic != nullptr && (!row->over_mpi || o.goes_on_from_checkpoint),
                                     name == "ps_async"}));
  if (start.is_server() || start.is_scheduler()) detail::serve_and_exit(name, o, start);
  if (start.elastic) {
    if (row->make_elastic == nullptr)
      fail<UsageError>(o.where, "an elastic strategy, because tutti-launch --elastic started the processes", name,
                       "start the job without --elastic");
    return row->make_elastic(o, start);
  }
  AnyStrategy strategy = row->make(o, start);
  require_launched_size(start, name, strategy.size());
  return strategy;
}
TUTTI_CORE_FUNCTION AnyStrategy make_strategy(std::string_view word, const StrategyOptions& o) {
  const LaunchEnvironment start = read_launch_environment();
  // A scheduler needs a job that scripts started. Without such a job require_worker() reports what is missing.
  if (!start.is_server() && !(start.is_scheduler() && o.job != nullptr)) require_worker(start);
  return make_strategy(word, o, start);
}

TUTTI_CORE_FUNCTION bool changes_members(std::string_view strategy) {
  const detail::StrategyRow* row = detail::find_row(detail::strategy_rows(), strategy);
  return row != nullptr && row->make_elastic != nullptr;
}
TUTTI_CORE_FUNCTION bool has_servers(std::string_view strategy) {
  const detail::StrategyRow* row = detail::find_row(detail::strategy_rows(), strategy);
  return row != nullptr && row->serve != nullptr;
}
TUTTI_CORE_FUNCTION void serve_workers(std::string_view strategy, const StrategyOptions& o,
                                       const LaunchEnvironment& start, const std::function<bool()>& stop) {
  if (!has_servers(strategy))
    fail<UsageError>(o.where, "a strategy with servers, because this process is one", {"'", strategy, "'"},
                     "tutti-launch -n N without -s starts only workers");
  detail::find_row(detail::strategy_rows(), strategy)->serve(o, start, stop);
}

TUTTI_CORE_FUNCTION void schedule_workers(std::string_view strategy, const StrategyOptions& o,
                                          const LaunchEnvironment& start, const std::function<bool()>& stop) {
  const detail::StrategyRow* row = detail::find_row(detail::strategy_rows(), strategy);
  if (row == nullptr || row->schedule == nullptr || o.job == nullptr)
    fail<UsageError>(o.where, "a strategy with servers, because this process is their scheduler", {"'", strategy, "'"});
  row->schedule(o, start, stop);
}

}  // namespace tutti
