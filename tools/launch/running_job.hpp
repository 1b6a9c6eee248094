// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tutti/cluster/launch/hosts_file.hpp>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/elastic/elastic.hpp"
#include "tools/launch/host/process.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/job_control.hpp"
#include "tools/launch/job/job_folder.hpp"
#include "tools/launch/job/job_output.hpp"
#include "tools/launch/job/job_verdict.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/job/progress_board.hpp"
#include "tools/launch/mpi/mpi_generations.hpp"
#include "tools/launch/mpi/mpirun_output.hpp"

namespace tutti::launch {

// State of the job that the launcher runs. Decides how the job ended.
class RunningJob {
 protected:
  explicit RunningJob(const Options& options) : o_(options), plan_(make_plan(options)) {}

  void say(const std::string& text) { output_.say(text); }

  [[nodiscard]] bool over() const;

  // Returns the time-out for hosts, in seconds: a connection without a message for this time is lost.
  [[nodiscard]] double host_timeout() const {
    return generations_ ? std::min(o_.host_timeout, o_.rank_timeout) : o_.host_timeout;
  }

  void tell_all(const std::string& line) {
    for (Link& l : links_) l.say(line);
  }

  void stop();

  // ---- the end ----
  // Ends processes that may still run on hosts with a broken connection.
  void end_lost_hosts(const SignalQueue& signals);

  // Decides how the job ended, prints it, and returns the exit code.
  [[nodiscard]] int verdict();

  Options o_;
  Plan plan_;
  JobFolder folder_;
  std::list<Link> links_;
  std::vector<Host> lost_hosts_;  // lost hosts, after their links were removed
  std::unique_ptr<Child> mpirun_;
  JobOutput output_;
  ProgressBoard board_;
  std::optional<JobControl> control_;
  std::optional<MpiGenerations> generations_;  // of an elastic job over MPI
  std::optional<Elastic> elastic_;
  std::map<std::string, const Link*> unended_;
  std::vector<ProcessExit> endings_;
  std::vector<Problem> problems_;
  std::vector<Problem> losses_;  // losses that ended an elastic job, see JobEnd::loss
  MpirunOutput mpirun_said_;
  bool began_ = false, stopping_ = false, failing_ = false, mpi_told_ = false, held_ = false;
  int interrupted_ = 0, restarts_ = 0;
  Clock::time_point stopped_at_{}, spoke_{}, interrupted_at_{}, watched_ = Clock::now();
  std::optional<Clock::time_point> stop_at_, mpi_ended_, workers_done_;
};

}  // namespace tutti::launch
