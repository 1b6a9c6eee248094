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

// What the launcher does in each round for workers that come and go.
class ElasticJob : protected RunningJob {
 protected:
  explicit ElasticJob(const Options& options) : RunningJob(options) {}

  void begin_elastic();
  void end_elastic() { manager_.reset(); }
  void watch_elastic();

  void watch_generations();
  // Of a job over MPI the others go on without it.
  void give_up(const std::string& name, const std::string& why) {
    if (generations_->give_up(name)) say("warning: " + why + "; it is ended, and the others go on");
  }

  // The members stand: what was lost before does not decide how the job ends.
  void made_good();
  // Whether the arbiter has just said that the job cannot go on.
  [[nodiscard]] bool fatal_news();
  // Over MPI: they wait to be let in.
  void add_workers(Link& l);

 private:
  std::optional<ElasticManager> manager_;
};

}  // namespace tutti::launch
