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
#include <tutti/core/error.hpp>

#include "blame.hpp"
#include "commands.hpp"
#include "elastic.hpp"
#include "job_control.hpp"
#include "job_folder.hpp"
#include "job_output.hpp"
#include "job_verdict.hpp"
#include "link.hpp"
#include "mpi_generations.hpp"
#include "mpirun_output.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "process.hpp"
#include "progress_board.hpp"

namespace tutti::launch {

// What the launcher knows of the job that it runs, and what comes of it in the end.
class RunningJob {
 protected:
  explicit RunningJob(const Options& options) : o_(options), plan_(make_plan(options)) {}

  void say(const std::string& text) { output_.say(text); }

  [[nodiscard]] bool over() const {
    if (elastic_ && elastic_->waits() && !stopping_) return false;
    return std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.child.closed(); }) &&
           (!mpirun_ || mpirun_->closed());
  }

  // Without a word for so long a host is lost.
  [[nodiscard]] double host_timeout() const {
    return generations_ ? std::min(o_.host_timeout, o_.rank_timeout) : o_.host_timeout;
  }

  void tell_all(const std::string& line) {
    for (Link& l : links_) l.say(line);
  }

  void stop() {
    if (stopping_) return;
    stopping_ = true;
    stopped_at_ = Clock::now();
    if (elastic_) elastic_->job_ends();
    tell_all("stop");
  }

  // ---- the end ----
  // A host whose connection broke may still run what it was given.
  void end_lost_hosts(const SignalQueue& signals) {
    std::vector<Host> hosts = lost_hosts_;
    for (const Link& l : links_)
      if (l.lost) hosts.push_back(l.site.host);
    for (const std::string& why : end_left_over(hosts, o_, plan_.job, signals)) say(why);
  }

  // Decides how the job ended, says it, and returns the exit code.
  [[nodiscard]] int verdict() {
    const bool mpirun_failed = mpirun_ && mpirun_->code() != 0;
    const auto problem_of_mpirun = [&] {
      return mpirun_said_.problem(*mpirun_, generations_ ? generations_->plan() : plan_,
                                  [&](const auto& name) { return board_.last_report(name); });
    };
    JobEnd end;
    end.endings = endings_;
    end.elastic = o_.elastic.on;
    end.interrupted = interrupted_;
    end.problem = problems_.empty() ? 0 : problems_.front().code;
    end.lost_host = std::any_of(links_.begin(), links_.end(), [](const Link& l) { return l.lost; });
    end.mpirun = mpirun_failed ? problem_of_mpirun().code : 0;
    const JobResult v = judge(end);
    switch (v.cause) {
      case JobResult::Cause::done:
      case JobResult::Cause::problem:
        break;
      case JobResult::Cause::interrupted:
        say("ended by " + signal_text(interrupted_));
        return v.code;
      case JobResult::Cause::lost_host:
        // A host that does not answer explains why others lost it.
        for (const Link& l : links_)
          if (l.lost) problems_.push_back(lost_host(l, unended_, board_, "no answer"));
        break;
      case JobResult::Cause::process:
        problems_.push_back(problem_of(*v.blamed, board_.last_report(v.blamed->name), end.elastic));
        break;
      case JobResult::Cause::mpirun:
        problems_.push_back(problem_of_mpirun());
        mpirun_said_.repeat(output_.err);
        break;
      case JobResult::Cause::outside:
        problems_.push_back(problem_of_outside(*v.blamed, plan_.first().order.host_timeout));
        break;
    }
    output_.say(problems_);
    return v.code;
  }

  Options o_;
  Plan plan_;
  JobFolder folder_;
  std::list<Link> links_;
  std::vector<Host> lost_hosts_;  // whose links are gone
  std::unique_ptr<Child> mpirun_;
  JobOutput output_;
  ProgressBoard board_;
  std::optional<JobControl> control_;
  std::optional<MpiGenerations> generations_;  // of a job over MPI whose workers come and go
  std::optional<Elastic> elastic_;
  std::map<std::string, const Link*> unended_;
  std::vector<ProcessExit> endings_;
  std::vector<Problem> problems_;
  MpirunOutput mpirun_said_;
  bool began_ = false, stopping_ = false, failing_ = false, mpi_told_ = false, held_ = false;
  int interrupted_ = 0, restarts_ = 0;
  Clock::time_point stopped_at_{}, spoke_{}, interrupted_at_{}, watched_ = Clock::now();
  std::optional<Clock::time_point> stop_at_, mpi_ended_, workers_done_;
};

}  // namespace tutti::launch
