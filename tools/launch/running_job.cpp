// SPDX-License-Identifier: MIT
#include "tools/launch/running_job.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "tools/launch/job/blame.hpp"

namespace tutti::launch {

bool RunningJob::over() const {
  if (elastic_ && elastic_->waits() && !stopping_) return false;
  return std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.child.closed(); }) &&
         (!mpirun_ || mpirun_->closed());
}

void RunningJob::stop() {
  if (stopping_) return;
  stopping_ = true;
  stopped_at_ = Clock::now();
  if (elastic_) elastic_->job_ends();
  tell_all("stop");
}

void RunningJob::end_lost_hosts(const SignalQueue& signals) {
  std::vector<Host> hosts = lost_hosts_;
  for (const Link& l : links_)
    if (l.lost) hosts.push_back(l.site.host);
  for (const std::string& why : end_left_over(hosts, o_, plan_.job, signals)) say(why);
}

int RunningJob::verdict() {
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
  end.loss = losses_.empty() ? 0 : losses_.front().code;
  end.lost_host = std::any_of(links_.begin(), links_.end(), [](const Link& l) { return l.lost; });
  end.mpirun = mpirun_failed ? problem_of_mpirun().code : 0;
  const JobResult v = judge(end);
  switch (v.cause) {
    case JobResult::Cause::done:
      break;
    case JobResult::Cause::problem:
      problems_.insert(problems_.end(), losses_.begin(), losses_.end());
      break;
    case JobResult::Cause::interrupted:
      say("ended by " + signal_text(interrupted_));
      return v.code;
    case JobResult::Cause::lost_host:
      // The host that does not answer is the reason why other hosts lost its processes.
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

}  // namespace tutti::launch
