// SPDX-License-Identifier: MIT
#include "tools/launch/mpi/mpi_generations.hpp"

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>

#include "tools/launch/elastic/elastic_file.hpp"
#include "tools/launch/job/mpi.hpp"
#include "tools/launch/mpi/mpi_verdict.hpp"

namespace tutti::launch {

void MpiGenerations::ask_to_leave(const std::string& name) {
  Worker& w = *find(name);
  w.asked = true;
  if (!w.member) leave(w);
}

void MpiGenerations::stop_all() {
  if (std::exchange(stop_, true)) return;
  if (phase_ == Phase::running) tell_members("signal " + std::to_string(SIGINT));
}

std::vector<std::string> MpiGenerations::standing() const {
  std::vector<std::string> names;
  for (const auto& [number, w] : workers_)
    if (w.member) names.push_back(w.name);
  return names;
}

Link* MpiGenerations::agent_of(const std::string& host) {
  for (const auto& [number, w] : workers_)
    if (w.key == host && w.link != nullptr && !w.link->settled) return w.link;
  return nullptr;
}

void MpiGenerations::add(Link& agent, const std::string& name, int number) {
  workers_[number] = {name, key_of(agent.site.host), number, &agent};
  added_ = Clock::now();
}

void MpiGenerations::progress(const RankProgress& p) {
  if (phase_ != Phase::running || p.phase == ProgressPhase::none || p.step == 0) return;
  furthest_ = std::max(furthest_, p.step);
  if (!std::exchange(stands_, true)) updates_.push_back({MembershipUpdate::Kind::standing});
  ever_stood_ = true;
}

void MpiGenerations::ended(const ProcessExit& e) {
  Worker* const w = find(e.name);
  if (w == nullptr || !w->member) return;
  w->end = e;
  if (!in_order(e) && !failed_at_) failed_at_ = Clock::now();
}

void MpiGenerations::forget(const Link& l) {
  awaited_.erase(&l);
  for (auto w = workers_.begin(); w != workers_.end();) {
    if (w->second.link != &l) {
      ++w;
      continue;
    }
    updates_.push_back({MembershipUpdate::Kind::lost, w->second.name, "its host was lost"});
    if (w->second.member && phase_ != Phase::none) host_lost_ = true;
    w = workers_.erase(w);
  }
  if (host_lost_ && phase_ == Phase::setting) phase_ = Phase::none;
  if (host_lost_ && phase_ == Phase::running) halt();
}

bool MpiGenerations::give_up(const std::string& name) {
  Worker* const w = find(name);
  if (w == nullptr || w->link == nullptr || phase_ != Phase::running || std::exchange(w->given_up, true)) return false;
  w->link->say("signal " + std::to_string(SIGKILL) + " " + name);
  return true;
}

void MpiGenerations::steer() {
  if (finished_) return;
  if (phase_ == Phase::none) begin();
  if (phase_ == Phase::setting && awaited_.empty()) start();
  if (phase_ == Phase::running) watch();
  if (phase_ == Phase::halting) finish_halt();
}

const MpiGenerations::Worker* MpiGenerations::find(const std::string& name) const {
  for (const auto& [number, w] : workers_)
    if (w.name == name) return &w;
  return nullptr;
}

int MpiGenerations::count() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return !w.second.asked; }));
}

std::set<Link*> MpiGenerations::agents() const {
  std::set<Link*> all;
  for (const auto& [number, w] : workers_) all.insert(w.link);
  return all;
}

void MpiGenerations::tell_members(const std::string& line) {
  std::set<Link*> told;
  for (const auto& [number, w] : workers_)
    if (w.member && told.insert(w.link).second) w.link->say(line);
}

void MpiGenerations::leave(const Worker& w) {
  updates_.push_back({MembershipUpdate::Kind::gone, w.name, "", {w.name, w.link->host(), End{}}});
  remove(w);
}

void MpiGenerations::remove(const Worker& w) {
  Link* const link = w.link;
  workers_.erase(w.number);
  if (!agents().contains(link)) link->say("stop");
}

std::vector<MpiGenerations::Worker*> MpiGenerations::next_members() {
  const bool any = std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.member; });
  const bool same = broken_ && o_.elastic.at_epoch && any;
  std::vector<Worker*> next, sorted;
  for (auto& [number, w] : workers_)
    if (same ? w.member : !w.asked) next.push_back(&w);
  std::stable_partition(next.begin(), next.end(), [](const Worker* w) { return w->link->site.here; });
  for (const Worker* first : next) {
    if (std::find(sorted.begin(), sorted.end(), first) != sorted.end()) continue;
    for (Worker* w : next)
      if (w->key == first->key) sorted.push_back(w);
  }
  return sorted;
}

void MpiGenerations::begin() {
  if (stop_) return over({});
  const std::vector<Worker*> next = next_members();
  too_few_ = next.empty() || static_cast<int>(next.size()) < o_.elastic.min_workers;
  if (too_few_) return;
  now_ = Plan{};
  now_.job = plan_.job;
  now_.generation = ++generation_;
  std::map<Link*, std::size_t> site_of;
  for (Worker* w : next) {
    const auto [at, fresh] = site_of.emplace(w->link, now_.sites.size());
    if (fresh) now_.sites.push_back({w->link->site.host, w->link->site.here, {}});
    auto& here = now_.sites[at->second].order.processes;
    here.push_back(
        {"worker", w->number, static_cast<int>(here.size()), 0, static_cast<int>(now_.site_of_mpi_rank.size())});
    now_.site_of_mpi_rank.push_back(at->second);
  }
  for (auto& [number, w] : workers_) {
    w.member = std::find(next.begin(), next.end(), &w) != next.end();
    w.end.reset();
    w.given_up = false;
  }
  awaited_.clear();
  for (const auto& [link, site] : site_of) {
    std::string line = "members " + std::to_string(generation_) + " " + std::to_string(next.size()) + " " +
                       (kept_.empty() ? "-" : kept_);
    const auto& processes = now_.sites[site].order.processes;
    for (const ProcessOrder& p : processes)
      line += " " + std::to_string(p.rank) + " " + std::to_string(p.local_rank) + " " +
              std::to_string(processes.size()) + " " + std::to_string(p.mpi_rank);
    link->say(line);
    awaited_.insert(link);
  }
  host_lost_ = false;
  phase_ = Phase::setting;
}

void MpiGenerations::start() {
  said_.forget();
  mpirun_ = std::make_unique<Child>(mpirun_start(now_, o_, folder_.path()), false);
  phase_ = Phase::running;
  stands_ = false;
  furthest_ = 0;
  failed_at_.reset();
  asked_at_ = {};
  if (stop_) tell_members("signal " + std::to_string(SIGINT));
}

void MpiGenerations::watch() {
  // mpirun needs a second to end the other ranks, and does not notice ranks that failed before MPI_Init.
  if (mpirun_->closed() || (failed_at_ && seconds_since(*failed_at_) > 0.3)) return halt();
  if (!stands_ || stop_ || seconds_since(asked_at_) < 1) return;
  bool change = false;
  for (const auto& [number, w] : workers_)
    // Workers that one edit adds join at nearly the same time, so this waits 0.3 s for more workers.
    change = change || (w.member ? w.asked : o_.elastic.at_epoch || seconds_since(added_) > 0.3);
  if (!change) return;
  // Repeats the signal every second: a process may have missed it while it started.
  asked_at_ = Clock::now();
  tell_members("signal " + std::to_string(o_.elastic.at_epoch ? SIGUSR2 : SIGUSR1));
}

void MpiGenerations::halt() {
  phase_ = Phase::halting;
  halted_at_ = Clock::now();
  awaited_.clear();
  for (const auto& [number, w] : workers_)
    if (w.member && awaited_.insert(w.link).second) w.link->say("halt");
}

void MpiGenerations::finish_halt() {
  const double since = seconds_since(halted_at_);
  if (!mpirun_->closed()) {
    if (since > 0.1 && !std::exchange(mpirun_told_, true)) mpirun_->signal(SIGTERM);
    if (since > 1.5) mpirun_->signal(SIGKILL);
    if (since > 2.5) mpirun_->hang_up();
  }
  if (!mpirun_->closed() || (!awaited_.empty() && since < 6)) return;
  mpirun_told_ = false;
  phase_ = Phase::none;
  conclude();
}

void MpiGenerations::conclude() {
  std::vector<ProcessExit> all;
  bool everyone = true;
  for (const auto& [number, w] : workers_) {
    if (!w.member) continue;
    everyone = everyone && w.end.has_value();
    if (w.end) all.push_back(*w.end);
  }
  const bool did_work = everyone && !host_lost_ && !all.empty() &&
                        std::all_of(all.begin(), all.end(), [](const ProcessExit& e) { return e.good(); });
  if (did_work) {
    for (ProcessExit& e : all) e.did_work = true;
    return finish(all);
  }
  if (stop_) return over(done_in_order(all));
  // A failure before the first generation worked would happen again, unless processes were killed.
  const bool early = !ever_stood_ && !host_lost_ &&
                     (culprits_of(all).empty() || std::any_of(all.begin(), all.end(), [](const ProcessExit& e) {
                        return !in_order(e) && !e.end.by_signal && e.end.why == "own";
                      }));
  if (early || ends_job(all)) return over(all);
  const bool orderly = everyone && !host_lost_ && std::all_of(all.begin(), all.end(), in_order);
  bool left = false;
  if (orderly) {
    for (const ProcessExit& e : all)
      if (e.good()) {
        left = true;
        updates_.push_back({MembershipUpdate::Kind::left, e.name});
        leave(*find(e.name));
      }
    same_step_.reset();
    vain_ = 0;
  } else if (!blame(all)) {
    return over(all);
  }
  broken_ = !orderly || left;
  if (!broken_ || !o_.elastic.at_epoch)
    for (const std::string& name : standing())
      if (const Worker* w = find(name); w->asked) leave(*w);
  for (auto& [number, w] : workers_) w.proven = w.proven || (w.member && stands_);
  said_.forget();
}

bool MpiGenerations::blame(const std::vector<ProcessExit>& all) {
  const std::vector<ProcessExit> culprits = culprits_of(all);
  bool newcomers = false, own = false;
  for (const ProcessExit& e : culprits) {
    newcomers = newcomers || !find(e.name)->proven;
    own = own || !e.end.by_signal;
    updates_.push_back({MembershipUpdate::Kind::gone, e.name, "", e});
    remove(*find(e.name));
  }
  if (!culprits.empty() || host_lost_) {
    vain_ = 0;
    // This is the second failure at the same step: it would happen again with any members.
    if (own && !newcomers && same_step_ && furthest_ <= *same_step_) return false;
    if (own && !newcomers) same_step_ = furthest_;
    return true;
  }
  const std::string why = error_message("mpirun", "exit code 0", std::to_string(mpirun_->code()), said_.held());
  bool any = false;
  for (const std::string& name : standing()) {
    const Worker* const w = find(name);
    if (stands_ || w->proven) continue;
    any = true;
    updates_.push_back({MembershipUpdate::Kind::failed, name, why});
    remove(*w);
  }
  return any || ++vain_ < 3;
}

void MpiGenerations::finish(const std::vector<ProcessExit>& all) {
  finished_ = true;
  updates_.push_back({MembershipUpdate::Kind::over, "", "", {}, all});
}

void MpiGenerations::over(const std::vector<ProcessExit>& all) {
  stop_ = true;
  finish(all);
}

}  // namespace tutti::launch
