// SPDX-License-Identifier: MIT
#pragma once

// Definitions of the functions in job.hpp.

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <tutti/backends/decoders.hpp>
#include <tutti/backends/make/job.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/cluster/launch/launch_info.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>
#include <tutti/engine/backend.hpp>

namespace tutti {

namespace detail {

// Returns the environment variable for an option that the program has not set, or an empty text if it is not set.
[[nodiscard]] inline std::string option_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline void read_job_variables(JobOptions& o) {
  const auto take = [](std::string& option, std::string& where, const char* name) {
    const std::string said = option_variable(name);
    if (option != "auto" || said.empty()) return;
    option = said;
    where = std::string("environment ") + name;
  };
  take(o.backend, o.of_backend.where, "TUTTI_BACKEND");
  take(o.strategy, o.of_strategy.where, "TUTTI_STRATEGY");
  const std::string threads = option_variable("TUTTI_THREADS");
  if (o.of_backend.threads != 0 || threads.empty()) return;
  const auto number = number_between(threads, 0, 4096);
  if (!number) fail<UsageError>("environment TUTTI_THREADS", "0 to 4096 threads", "'" + printable(threads) + "'");
  o.of_backend.threads = *number;
}

}  // namespace detail

TUTTI_CORE_FUNCTION Job::Job(JobOptions options) : options_(std::move(options)), start_(read_launch_environment()) {
  if (options_.of_backend.where == BackendOptions{}.where) options_.of_backend.where = "Job backend";
  if (options_.of_strategy.where == StrategyOptions{}.where) options_.of_strategy.where = "Job strategy";
  detail::read_job_variables(options_);
  // fit() continues from checkpoints, and ends with 75 if the launcher must restart the processes.
  options_.of_strategy.goes_on_from_checkpoint = true;
  // Refuses a process that cannot train before the program loads data. A server learns in join() what to serve.
  if (!start_.is_server()) require_worker(start_);
  if (is_launcher_query()) (void)join({});
}
TUTTI_CORE_FUNCTION Job::~Job() = default;

TUTTI_CORE_FUNCTION Backend& Job::backend() {
  if (backend_) return *backend_;
  BackendOptions o = options_.of_backend;
  // A process that only answers the launcher's query does not warn of an unused GPU. The process that trains warns.
  if (is_launcher_query()) o.warn = nullptr;
  // A server computes updates on the host, even if the workers use GPUs.
  if (start_.is_server()) o.gpu = false;
  const bool on_host = start_.is_server() && options_.backend == "cuda";
  backend_ = make_backend(on_host ? "auto" : options_.backend, o);
  return *backend_;
}

TUTTI_CORE_FUNCTION const ImageDecoders& Job::decoders() {
  if (!decoders_) decoders_ = std::make_unique<ImageDecoders>(make_image_decoders("auto", "Job decoders"));
  return *decoders_;
}

TUTTI_CORE_FUNCTION AnyStrategy& Job::join(const JoinOptions& o) {
  if (strategy_) return *strategy_;
  StrategyOptions as = options_.of_strategy;
  as.backend = &backend();
  as.facts = o.facts;
  if (!as.make_weights) as.make_weights = o.make_weights;
  strategy_.emplace(make_strategy(options_.strategy, as));
  return *strategy_;
}

}  // namespace tutti
