// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic_manager.hpp"
#include "tools/launch/job/job_members.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/running_job.hpp"

namespace tutti::launch {

// The launcher's work for elastic jobs, done in each round.
class ElasticJob : protected RunningJob {
 protected:
  explicit ElasticJob(const Options& options) : RunningJob(options) {}

  void begin_elastic();
  void end_elastic() { manager_.reset(); }
  void watch_elastic();

  void watch_generations();
  // Ends a worker of a job over MPI that makes no progress. The other workers continue.
  void give_up(const std::string& name, const std::string& why) {
    if (generations_->give_up(name)) say("warning: " + why + "; it is ended, and the other workers continue");
  }

  // Call when a new generation works: the launcher then ignores earlier losses.
  void made_good();
  // Returns whether the arbiter has just reported that the job cannot continue.
  [[nodiscard]] bool fatal_news();
  // Over MPI: adds the workers of a host. They join with the next generation.
  void add_workers(Link& l);

 private:
  std::optional<ElasticManager> manager_;
};

}  // namespace tutti::launch
