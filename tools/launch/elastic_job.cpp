// SPDX-License-Identifier: MIT
#include "tools/launch/elastic_job.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/elastic/elastic_site.hpp"
#include "tools/launch/host/wire.hpp"
#include "tools/launch/job/job_control.hpp"
#include "tools/launch/mpi/mpi_generations.hpp"

namespace tutti::launch {

void ElasticJob::begin_elastic() {
  if (o_.launcher == "mpi") generations_.emplace(o_, plan_, folder_, mpirun_, mpirun_said_);
  JobMembers& members = generations_ ? static_cast<JobMembers&>(*generations_) : *control_;
  elastic_.emplace(o_, plan_, members, folder_, links_, [this](const std::string& text) { say(text); });
  std::vector<Host> base;
  for (const ListedHost& l : hosts_at_begin(plan_)) base.push_back(l.host);
  manager_.emplace(elastic_folder(o_.elastic), base, [this](const std::string& text) { say(text); });
}

void ElasticJob::watch_elastic() {
  manager_->watch();
  for (const JobControl::MembershipUpdate& news : control_->take_updates()) {
    if (news.decision.kind == control::Decision::Kind::standing) made_good();
    if (news.decision.kind == control::Decision::Kind::lost) board_.ended(news.name);
    elastic_->hear(news);
  }
  if (generations_) watch_generations();
  elastic_->steer();
  if (auto problem = elastic_->problem()) {
    problems_.push_back(*std::move(problem));
    stop();
  }
  for (auto l = links_.begin(); l != links_.end();) {
    if (!l->child.closed() || !l->settled) {
      ++l;
      continue;
    }
    const auto known = [&](const Host& h) { return h.name == l->site.host.name && h.port == l->site.host.port; };
    if (l->lost && std::none_of(lost_hosts_.begin(), lost_hosts_.end(), known)) lost_hosts_.push_back(l->site.host);
    control_->forget(*l);
    if (generations_) generations_->forget(*l);
    elastic_->forget(*l);
    std::erase_if(unended_, [&](const auto& u) { return u.second == &*l; });
    l = links_.erase(l);
  }
}

void ElasticJob::watch_generations() {
  try {
    generations_->steer();
  } catch (const Error& e) {
    problems_.push_back({e.exit_code(), e.what()});
    stop();
  }
  using Kind = MpiGenerations::MembershipUpdate::Kind;
  for (const MpiGenerations::MembershipUpdate& n : generations_->take_updates()) {
    control::Decision d;
    d.why = n.why;
    switch (n.kind) {
      case Kind::standing:
        d.kind = control::Decision::Kind::standing;
        elastic_->hear({d, ""});
        break;
      case Kind::left:
      case Kind::lost:
        d.kind = n.kind == Kind::left ? control::Decision::Kind::left : control::Decision::Kind::lost;
        elastic_->hear({d, n.name});
        break;
      case Kind::gone:
        (void)elastic_->meaning_of(n.ending);
        break;
      case Kind::failed:
        elastic_->drop(n.name, n.why);
        break;
      case Kind::over:
        endings_ = n.endings;
        stop();
        break;
    }
  }
  if (!mpirun_said_.held().empty() && mpirun_ && !mpirun_->exited() && mpirun_said_.quiet_for() > 1.5)
    mpirun_said_.repeat(output_.err);
}

void ElasticJob::made_good() {
  if (failing_) return;
  endings_.clear();
  board_.forget_ended();
}

bool ElasticJob::fatal_news() {
  bool fatal = false;
  for (const JobControl::MembershipUpdate& news : control_->take_updates()) {
    if (news.decision.kind == control::Decision::Kind::standing) made_good();
    fatal = fatal || control_->ends_job(news.decision);
    elastic_->hear(news);
  }
  return fatal;
}

void ElasticJob::add_workers(Link& l) {
  for (const ProcessOrder& p : l.site.order.processes) {
    const std::string name = process_name(p.role, p.rank);
    generations_->add(l, name, p.rank);
    elastic_->started(name, l);
  }
}

}  // namespace tutti::launch
