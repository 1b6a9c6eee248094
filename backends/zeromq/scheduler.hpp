// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include <tutti/backends/zeromq/control.hpp>
#include <tutti/backends/zeromq/job_options.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>

// The arbiter of a job that scripts started. It runs in the job's scheduler or in server 0.
namespace tutti::zeromq {

namespace detail {

// Returns the options of the arbiter of such a job. With ps_async, workers may leave and return.
[[nodiscard]] inline ArbiterServerOptions arbiter_options(const LaunchEnvironment& start, const JobOptions& o) {
  ArbiterServerOptions a;
  a.arbiter.workers = start.workers;
  a.arbiter.servers = start.servers;
  a.arbiter.rank_timeout = o.job->rank_timeout;
  a.arbiter.elastic = a.arbiter.servers_hold = o.strategy == "ps_async";
  a.arbiter.reports = !a.arbiter.elastic;
  a.log = o.log;
  return a;
}

}  // namespace detail

// Runs the scheduler of such a job: it numbers the processes, and is their arbiter until all of them have ended. Throws
// a CommunicationError that names a process that was lost, or the processes that have not arrived.
inline void schedule_job(const LaunchEnvironment& start, const JobOptions& o,
                         const std::function<bool()>& stop_requested) {
  const ArbiterServer endpoint(*o.job, o.job->terms(start.workers, start.servers), detail::arbiter_options(start, o));
  const auto until = std::chrono::steady_clock::now() + o.rendezvous_timeout;
  while (!endpoint.founded()) {
    if (stop_requested && stop_requested()) return;
    if (std::chrono::steady_clock::now() >= until && endpoint.empty())
      fail<CommunicationError>(
          "scheduler", {o.job->terms(start.workers, start.servers), " within ", o.rendezvous_timeout.count(), " ms"},
          "only some of them", "check whether they were started and can reach that port");
    if (!endpoint.fatal().empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  while (!endpoint.empty() && endpoint.fatal().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  // Waits until the other processes have learned of the loss.
  if (!endpoint.fatal().empty()) endpoint.wait_until_empty(std::chrono::seconds(5));
  for (const std::string& lost : {endpoint.fatal(), endpoint.lost_workers()})
    if (!lost.empty()) throw CommunicationError(lost);
}

}  // namespace tutti::zeromq
