// SPDX-License-Identifier: MIT
#include "tools/launch/elastic/elastic.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/elastic/elastic_site.hpp"
#include "tools/launch/job/blame.hpp"

namespace tutti::launch {

Elastic::Elastic(const Options& o, const Plan& plan, JobMembers& members, JobFolder& folder, std::list<Link>& links,
                 std::function<void(const std::string&)> say)
    : ElasticAdditions(o, plan, members, folder, links, std::move(say)) {
  const std::string hosts = list_founders(plan);
  replace_hosts_file(file_, hosts);
  log_.hosts_are_written();
  watch_.emplace(file_, hosts);
  say_("Created worker host file " + file_.string());
  say_("Created worker host log file " + file_.string() + "_log");
  for (const char* role : {"server", "worker"})
    for (const Plan::Site& site : plan.sites)
      for (const ProcessOrder& p : site.order.processes) {
        if (p.role != role) continue;
        say_("Launching " + p.role + " node at ip: " + site.host.name);
        if (p.role == "worker") add_founder(p, site);
      }
}

Elastic::Meaning Elastic::meaning_of(const ProcessExit& e, bool given_up) {
  if (e.name.starts_with("prepare")) {
    prepared(e);
    return Meaning::none;
  }
  // The arbiter reports the loss of a server without which the job can continue, before this event or soon after it.
  if (e.name.starts_with("server") && stood_ && !e.good())
    return over() && !lost_servers_.contains(e.name) ? Meaning::noted : Meaning::none;
  ElasticWorker* w = find(e.name);
  // If a worker leaves the hosts file before it has registered with the arbiter, no table contains it.
  if (w == nullptr) return e.name.starts_with("worker") ? Meaning::none : Meaning::fails;
  w->ended = true;
  if (!stood_) return e.good() || !begins_without({w}, describe(e.end)) ? Meaning::fails : Meaning::noted;
  write_log();
  if (given_up && (w->done_without || over())) return Meaning::none;
  if (over() || ends_now_) return meaning_at_the_end(*w, e);
  if (w->asked || w->released) {
    say_(w->name() + " on " + e.host + " has left" + (e.good() ? "" : ", but with " + describe(e.end)));
    return Meaning::none;
  }
  if (!w->given_up) {
    say_("warning: " + w->name() + " on " + e.host + ": " + describe(e.end) + "; the other workers continue");
    failed(*w);
  }
  return w->member ? Meaning::noted : Meaning::none;
}

bool Elastic::takes_problem(Link& l, const Problem& p) {
  if (!stood_) return begins_without(started_on(l), p.message);
  // When the work is done, the last workers may finish without this host.
  if (over())
    return std::none_of(workers_.begin(), workers_.end(), [&](const auto& w) {
      return w.second.link == &l && w.second.member && !w.second.ended && !w.second.released && !w.second.given_up;
    });
  bool any = false;
  // Also ends additions to a host that is being prepared, on which no new worker runs yet.
  const std::set<int> coming = end_additions(l);
  for (auto& [number, w] : workers_)
    if (w.link == &l || (w.pending && (l.has(w.name()) || coming.contains(number)))) {
      if (w.pending) w.ended = true;
      if (!any) failed(w.key, p.message);
      any = true;
    }
  return true;
}

bool Elastic::has_given_up(const std::string& name) {
  const ElasticWorker* w = find(name);
  return w != nullptr && w->given_up;
}

bool Elastic::did_work(const std::string& name) {
  const ElasticWorker* w = find(name);
  return w != nullptr && w->did_work;
}

bool Elastic::ends_job(const ProcessExit& e) {
  ElasticWorker* w = find(e.name);
  const bool not_finite =
      e.is_own_failure() && !e.end.by_signal && e.end.code == static_cast<int>(ExitCode::not_finite);
  if (w == nullptr || !w->member || !stood_ || !not_finite) return false;
  w->ended = true;
  job_ends();
  return true;
}

void Elastic::drop(const std::string& name, const std::string& why) {
  if (ElasticWorker* w = find(name)) {
    w->ended = true;
    failed(w->key, why);
  }
}

void Elastic::forget(const Link& l) {
  for (auto& [number, w] : workers_)
    if (w.link == &l) {
      w.ended = w.ended || !members_.opened(w.name());
      w.link = nullptr;
    }
  forget_additions(l);
  write_log();
}

void Elastic::hear(const JobControl::MembershipUpdate& news) {
  using Kind = control::Decision::Kind;
  if (news.decision.kind == Kind::standing) return stands();
  if (news.decision.kind == Kind::lost && news.decision.member.role == control::Role::server) return lose_server(news);
  ElasticWorker* w = find(news.name);
  if (w == nullptr) return;
  // Also applies before the first generation works: workers of asynchronous servers may train and leave before it.
  if (news.decision.kind == Kind::left) w->released = true;
  if (!stood_) return;
  if (news.decision.kind == Kind::lost && !w->ended && !ends_now_ && !std::exchange(w->given_up, true)) {
    // At the end of the job, a process may end before its message that it leaves has arrived.
    if (!over())
      say_("warning: " + w->name() + " on " + host_of(*w) + ": " + news.decision.why + "; the other workers continue");
    // Processes of the worker may still run and must not rejoin. The agent ends them as soon as it can be reached.
    if (w->link != nullptr) w->link->say("signal 9 " + w->name());
    failed(*w);
    // Another worker on this host could not reach the other hosts either, and would delay the job until it is removed.
    if (news.decision.unreachable) hosts_[w->key].unreachable = true;
    write_log();
  }
  if (news.decision.kind == Kind::left) {
    w->did_work = news.decision.work_done;
    if (w->asked || over()) return;
    ++hosts_[w->key].unused;
    say_(w->name() + " on " + host_of(*w) +
         " leaves; its slot is not used until the host is removed from the hosts file and listed again");
  }
}

void Elastic::stop() {
  ending_ = true;
  members_.stop_all();
  for (auto& [number, w] : workers_)
    if (w.founder && w.link != nullptr && !w.ended && !members_.opened(w.name())) w.link->say("signal 15 " + w.name());
  stop_additions();
}

void Elastic::steer() {
  HostsWatch::HostsUpdate news = watch_->take();
  if (!news.problem.empty()) say_("warning: " + news.problem + " This edit is ignored.");
  if (news.hosts) wanted_ = std::move(news.hosts);
  if (!stood_) return;
  if (over()) return stop_additions();
  if (wanted_) list(*std::exchange(wanted_, {}));
  let_leave();
  let_join();
  go_on_with_additions();
  std::erase_if(hosts_, [&](const auto& s) {
    return !s.second.listed && !s.second.logged && workers_on(s.first, [](const auto&) { return true; }).empty();
  });
  std::erase_if(workers_, [&](const auto& w) { return w.second.gone() && w.second.link == nullptr; });
}

std::optional<Problem> Elastic::problem() {
  const auto least = static_cast<std::size_t>(o_.elastic.min_workers);
  if (over() || !members_.too_few()) {
    too_few_.reset();
    return {};
  }
  std::size_t there = 0;
  for (const auto& [number, w] : workers_) there += w.member && w.counts() ? 1 : 0;
  if (!too_few_) {
    too_few_ = Clock::now();
    say_("warning: " + count_text(there, "worker") + " of at least " + std::to_string(least) +
         "; the job waits for more");
  }
  if (seconds_since(*too_few_) < o_.elastic.min_timeout) return {};
  return Problem{
      static_cast<int>(ExitCode::communication),
      error_message("job",
                    "at least " + count_text(least, "worker") + " within " + seconds_text(o_.elastic.min_timeout),
                    std::to_string(there), "--resume continues from the last checkpoint")};
}

std::vector<ElasticWorker*> Elastic::started_on(const Link& l) {
  std::vector<ElasticWorker*> there;
  for (const ProcessOrder& p : l.site.order.processes) {
    ElasticWorker* w = find(process_name(p.role, p.rank));
    if (w == nullptr || w->link != &l) return {};
    if (!w->ended) there.push_back(w);
  }
  return there;
}

bool Elastic::begins_without(const std::vector<ElasticWorker*>& lost, const std::string& why) {
  for (ElasticWorker* w : lost) w->ended = true;
  const auto left = std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return !w.second.ended; });
  if (ending_ || over() || lost.empty() || left < std::max(1, o_.elastic.min_workers)) return false;
  for (ElasticWorker* w : lost) {
    say_("warning: " + w->name() + " on " + host_of(*w) + ": " + why + "; the job begins without it");
    failed(*w);
    members_.never_comes(w->number);
  }
  return true;
}

Elastic::Meaning Elastic::meaning_at_the_end(const ElasticWorker& w, const ProcessExit& e) {
  if (!w.member) return Meaning::none;
  work_is_done_ = work_is_done_ || (e.good() && e.did_work);
  if (!work_is_done_ || !e.end.by_signal || e.end.why != "own") return Meaning::noted;
  say_("warning: " + w.name() + " on " + e.host + ": " + describe(e.end) + "; the work was done");
  return Meaning::none;
}

void Elastic::lose_server(const JobControl::MembershipUpdate& news) {
  if (ends_now_) return;
  lost_servers_.insert(news.name);
  for (Link& l : links_) {
    if (!stood_ || !l.has(news.name)) continue;
    if (!over())
      say_("warning: " + news.name + " on " + l.host() + ": " + news.decision.why +
           "; the other servers take over its part");
    l.say("signal 9 " + news.name);
  }
}

void Elastic::stands() {
  const bool first = !std::exchange(stood_, true);
  for (const std::string& name : members_.standing())
    if (ElasticWorker* w = find(name); w != nullptr && !std::exchange(w->member, true)) w->since = Clock::now();
  for (auto& [number, w] : workers_) w.done_without = w.done_without || w.given_up;
  if (first) log_absent();
  write_log();
}

void Elastic::let_leave() {
  for (auto& [key, s] : hosts_) {
    auto there = workers_on(key, [](const ElasticWorker& w) { return w.counts(); });
    int wanted = s.wanted();
    if (wanted >= static_cast<int>(there.size())) continue;
    if (!s.listed && s.where.here() && std::exchange(wanted, 1) == 0)
      say_once(s, "warning: " + s.where.host.name + " stays in the job: the launcher runs there");
    // The newest worker leaves first.
    for (; static_cast<int>(there.size()) > wanted; there.pop_back())
      if (!ask_to_leave(s, *there.back())) break;
  }
}

bool Elastic::ask_to_leave(HostEntry& s, ElasticWorker& w) {
  if (!members_.opened(w.name())) {
    // The worker is not in the job yet.
    w.asked = true;
    end_addition(w);
    if (w.link != nullptr) w.link->say("signal 15 " + w.name());
    return true;
  }
  if (!members_.can_spare(w.name())) {
    say_once(s, "warning: " + s.where.host.name + " stays in the job until other workers have joined: without it " +
                    "there would be fewer than " +
                    count_text(static_cast<std::size_t>(o_.elastic.min_workers), "worker"));
    return false;
  }
  w.asked = true;
  w.edit = edit_;
  members_.ask_to_leave(w.name());
  return true;
}

bool Elastic::held(const HostEntry& s) const {
  return o_.elastic.at_epoch && std::any_of(workers_.begin(), workers_.end(), [&](const auto& w) {
           return w.second.asked && !w.second.gone() && w.second.edit != 0 && w.second.edit == s.edit;
         });
}

void Elastic::let_join() {
  int all = 0;
  for (const auto& [number, w] : workers_) all += w.gone() || w.given_up ? 0 : 1;
  for (auto& [key, s] : hosts_) {
    const auto there = workers_on(key, [](const ElasticWorker& w) { return w.counts(); });
    int more = s.wanted() - static_cast<int>(there.size());
    if (more <= 0) continue;
    const std::string name = s.where.host.name;
    if (o_.elastic.only_here && !s.where.here()) {
      say_once(s, "warning: " + name + " does not join: --launcher local starts no processes on other hosts");
      continue;
    }
    if (s.unreachable) {
      say_once(
          s,
          "warning: " + name +
              " is not used until it is removed from the hosts file and listed again: it cannot reach all other hosts");
      continue;
    }
    if (s.failures > o_.elastic.restart_budget) {
      say_once(s, "warning: " + name +
                      " is not used until it is removed from the hosts file and listed again: --restart-budget " +
                      std::to_string(o_.elastic.restart_budget));
      continue;
    }
    if (Clock::now() < s.next_try || held(s)) continue;
    if (o_.elastic.max_workers && more > *o_.elastic.max_workers - all) {
      more = *o_.elastic.max_workers - all;
      say_once(s, "warning: fewer workers are started than " + file_.string() + " lists: --max-workers " +
                      std::to_string(*o_.elastic.max_workers));
    }
    if (more <= 0) continue;
    all += more;
    add(s, more);
  }
}

}  // namespace tutti::launch
