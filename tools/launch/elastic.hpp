// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "blame.hpp"
#include "commands.hpp"
#include "elastic_additions.hpp"
#include "elastic_file.hpp"
#include "elastic_options.hpp"
#include "elastic_table.hpp"
#include "job_control.hpp"
#include "job_folder.hpp"
#include "link.hpp"
#include "options.hpp"
#include "plan.hpp"

namespace tutti::launch {

// Workers that come and go while the job runs: what the hosts file asks for against what there is. It begins once the
// first generation of the job stands. Who dies before that is left out, as long as enough others are there; what keeps
// processes from being started ends the job as any.
class Elastic : ElasticAdditions {
 public:
  Elastic(const Options& o, const Plan& plan, JobMembers& members, JobFolder& folder, std::list<Link>& links,
          std::function<void(const std::string&)> say)
      : ElasticAdditions(o, plan, members, folder, links, std::move(say)) {
    replace_hosts_file(file_, list_founders(plan));
    watch_.emplace(file_);
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

  // ---- what the launcher hears ----
  using ElasticAdditions::started;
  // What the end of a process means: that of the job; nothing; or something only if no other one finishes the work.
  enum class Meaning { fails, none, noted };
  // given_up: it was before the end was heard of, so that all has been said.
  [[nodiscard]] Meaning meaning_of(const ProcessExit& e, bool given_up = false) {
    if (e.name.starts_with("prepare")) {
      prepared(e);
      return Meaning::none;
    }
    // The arbiter has told of one that the job can do without, before or soon.
    if (e.name.starts_with("server") && stood_ && !e.good())
      return over() && !lost_servers_.contains(e.name) ? Meaning::noted : Meaning::none;
    ElasticWorker* w = find(e.name);
    // A worker that was not wanted any more before it was heard of is in no table.
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
      say_("warning: " + w->name() + " on " + e.host + ": " + describe(e.end) + "; the others go on");
      failed(*w);
    }
    return w->member ? Meaning::noted : Meaning::none;
  }
  // Whether what is wrong with a host is no end of the job.
  [[nodiscard]] bool takes_problem(Link& l, const Problem& p) {
    if (!stood_) return begins_without(started_on(l), p.message);
    // The last ones may be without it at the very end.
    if (over())
      return std::none_of(workers_.begin(), workers_.end(), [&](const auto& w) {
        return w.second.link == &l && w.second.member && !w.second.ended && !w.second.released && !w.second.given_up;
      });
    bool any = false;
    // To a host that is prepared, where nothing of theirs runs yet.
    const std::set<int> coming = end_additions(l);
    for (auto& [number, w] : workers_)
      if (w.link == &l || (w.pending && (l.has(w.name()) || coming.contains(number)))) {
        if (w.pending) w.ended = true;
        if (!any) failed(w.key, p.message);
        any = true;
      }
    return true;
  }
  [[nodiscard]] bool has_given_up(const std::string& name) {
    const ElasticWorker* w = find(name);
    return w != nullptr && w->given_up;
  }
  // Whether the worker, a member, was heard to have done its work.
  [[nodiscard]] bool did_work(const std::string& name) {
    const ElasticWorker* w = find(name);
    return w != nullptr && w->did_work;
  }
  // Whether others could only repeat the failure of this worker: a member whose weights or loss are not finite has got
  // them from all. Then nothing is said of the others, and no other worker is started for it.
  [[nodiscard]] bool ends_job(const ProcessExit& e) {
    ElasticWorker* w = find(e.name);
    const bool not_finite =
        e.is_own_failure() && !e.end.by_signal && e.end.code == static_cast<int>(ExitCode::not_finite);
    if (w == nullptr || !w->member || !stood_ || !not_finite) return false;
    w->ended = true;
    job_ends();
    return true;
  }
  // A worker that came, and with which nothing worked.
  void drop(const std::string& name, const std::string& why) {
    if (ElasticWorker* w = find(name)) {
      w->ended = true;
      failed(w->key, why);
    }
  }
  // A connection is gone, and with it its link.
  void forget(const Link& l) {
    for (auto& [number, w] : workers_)
      if (w.link == &l) {
        w.ended = w.ended || !members_.opened(w.name());
        w.link = nullptr;
      }
    forget_additions(l);
    write_log();
  }
  void hear(const JobControl::MembershipUpdate& news) {
    using Kind = control::Decision::Kind;
    if (news.decision.kind == Kind::standing) return stands();
    if (news.decision.kind == Kind::lost && news.decision.member.role == control::Role::server)
      return lose_server(news);
    ElasticWorker* w = find(news.name);
    if (w == nullptr || !stood_) return;
    if (news.decision.kind == Kind::lost && !w->ended && !ends_now_ && !std::exchange(w->given_up, true)) {
      say_("warning: " + w->name() + " on " + host_of(*w) + ": " + news.decision.why + "; the others go on");
      // What still runs of it may not come back; its agent is told, as soon as it can be reached.
      if (w->link != nullptr) w->link->say("signal 9 " + w->name());
      failed(*w);
      // Another worker there would not reach the others either, and would hold them up until it is given up.
      if (news.decision.unreachable) hosts_[w->key].unreachable = true;
      write_log();
    }
    if (news.decision.kind == Kind::left) {
      w->released = true;
      w->did_work = news.decision.work_done;
      if (w->asked || over()) return;
      ++hosts_[w->key].unused;
      say_(w->name() + " on " + host_of(*w) + " leaves; its place is not used until the host is listed anew");
    }
  }
  // The launcher ends all processes of the job.
  void job_ends() noexcept { ending_ = ends_now_ = true; }
  // The job is to stop, as its user says.
  void stop() {
    ending_ = true;
    members_.stop_all();
    for (auto& [number, w] : workers_)
      if (w.founder && w.link != nullptr && !w.ended && !members_.opened(w.name()))
        w.link->say("signal 15 " + w.name());
    stop_additions();
  }

  // ---- what it does ----
  // To be called in each round.
  void steer() {
    HostsWatch::HostsUpdate news = watch_->take();
    if (!news.problem.empty()) say_("warning: " + news.problem + " Nobody joins or leaves for it.");
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
  // Whether the job waits for workers although none may be left.
  [[nodiscard]] bool waits() const { return stood_ && !over(); }
  // Too few of them for too long.
  [[nodiscard]] std::optional<Problem> problem() {
    const auto least = static_cast<std::size_t>(o_.elastic.min_workers);
    if (!stood_ || over() || !members_.too_few()) {
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
                      std::to_string(there), "--resume goes on from the last checkpoint")};
  }

 private:
  // ---- before the first generation ----
  // Those of a host whose processes have all been started; none where one has not.
  [[nodiscard]] std::vector<ElasticWorker*> started_on(const Link& l) {
    std::vector<ElasticWorker*> there;
    for (const ProcessOrder& p : l.site.order.processes) {
      ElasticWorker* w = find(process_name(p.role, p.rank));
      if (w == nullptr || w->link != &l) return {};
      if (!w->ended) there.push_back(w);
    }
    return there;
  }
  // Whether the job can begin without these, which are lost; then it does.
  [[nodiscard]] bool begins_without(const std::vector<ElasticWorker*>& lost, const std::string& why) {
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

  // Who is killed when another one has done the whole work takes nothing of that with it.
  [[nodiscard]] Meaning meaning_at_the_end(const ElasticWorker& w, const ProcessExit& e) {
    if (!w.member) return Meaning::none;
    work_is_done_ = work_is_done_ || (e.good() && e.did_work);
    if (!work_is_done_ || !e.end.by_signal || e.end.why != "own") return Meaning::noted;
    say_("warning: " + w.name() + " on " + e.host + ": " + describe(e.end) + "; the work was done");
    return Meaning::none;
  }

  // A server that still runs may not come back. One that the launcher itself ended is not lost.
  void lose_server(const JobControl::MembershipUpdate& news) {
    if (ends_now_) return;
    lost_servers_.insert(news.name);
    for (Link& l : links_) {
      if (!stood_ || over() || !l.has(news.name)) continue;
      say_("warning: " + news.name + " on " + l.host() + ": " + news.decision.why + "; the others do its part");
      l.say("signal 9 " + news.name);
    }
  }

  void stands() {
    const bool first = !std::exchange(stood_, true);
    for (const std::string& name : members_.standing())
      if (ElasticWorker* w = find(name); w != nullptr && !std::exchange(w->member, true)) w->since = Clock::now();
    for (auto& [number, w] : workers_) w.done_without = w.done_without || w.given_up;
    if (first) log_absent();
    write_log();
  }
  // ---- the hosts file ----
  void let_leave() {
    for (auto& [key, s] : hosts_) {
      auto there = workers_on(key, [](const ElasticWorker& w) { return w.counts(); });
      int wanted = s.wanted();
      if (wanted >= static_cast<int>(there.size())) continue;
      if (!s.listed && s.where.here() && std::exchange(wanted, 1) == 0)
        say_once(s, "warning: " + s.where.host.name + " stays in the job: the launcher runs there");
      // The youngest first.
      for (; static_cast<int>(there.size()) > wanted; there.pop_back())
        if (!ask_to_leave(s, *there.back())) break;
    }
  }
  [[nodiscard]] bool ask_to_leave(HostEntry& s, ElasticWorker& w) {
    if (!members_.opened(w.name())) {
      // It is not in the job yet.
      w.asked = true;
      end_addition(w);
      if (w.link != nullptr) w.link->say("signal 15 " + w.name());
      return true;
    }
    if (!members_.can_spare(w.name())) {
      say_once(s, "warning: " + s.where.host.name + " stays in the job until others have joined: without it there " +
                      "would be fewer than " + count_text(static_cast<std::size_t>(o_.elastic.min_workers), "worker"));
      return false;
    }
    w.asked = true;
    w.edit = edit_;
    members_.ask_to_leave(w.name());
    return true;
  }
  // At the end of an epoch who was removed goes first, and who came in the same edit an epoch later.
  [[nodiscard]] bool held(const HostEntry& s) const {
    return o_.elastic.at_epoch && std::any_of(workers_.begin(), workers_.end(), [&](const auto& w) {
             return w.second.asked && !w.second.gone() && w.second.edit != 0 && w.second.edit == s.edit;
           });
  }
  void let_join() {
    int all = 0;
    for (const auto& [number, w] : workers_) all += w.gone() || w.given_up ? 0 : 1;
    for (auto& [key, s] : hosts_) {
      const auto there = workers_on(key, [](const ElasticWorker& w) { return w.counts(); });
      int more = s.wanted() - static_cast<int>(there.size());
      if (more <= 0) continue;
      const std::string name = s.where.host.name;
      if (o_.elastic.only_here && !s.where.here()) {
        say_once(s, "warning: " + name + " does not join: --launcher local starts nothing elsewhere");
        continue;
      }
      if (s.unreachable) {
        say_once(s, "warning: " + name + " is not used until it is listed anew: it does not reach all others");
        continue;
      }
      if (s.failures > o_.elastic.restart_budget) {
        say_once(s, "warning: " + name + " is not used until it is listed anew: --restart-budget " +
                        std::to_string(o_.elastic.restart_budget));
        continue;
      }
      if (Clock::now() < s.next_try || held(s)) continue;
      if (o_.elastic.max_workers && more > *o_.elastic.max_workers - all) {
        more = *o_.elastic.max_workers - all;
        say_once(s, "warning: not all that " + file_.string() + " asks for is started: --max-workers " +
                        std::to_string(*o_.elastic.max_workers));
      }
      if (more <= 0) continue;
      all += more;
      add(s, more);
    }
  }

  std::optional<HostsWatch> watch_;
  std::optional<std::vector<ListedHost>> wanted_;
  std::set<std::string> lost_servers_;
  std::optional<Clock::time_point> too_few_;
  bool ending_ = false;        // no worker is to come any more
  bool ends_now_ = false;      // by the launcher, which ends all processes
  bool work_is_done_ = false;  // by a worker whose end was good
};

}  // namespace tutti::launch
