// SPDX-License-Identifier: MIT
#include "tools/launch/job/job_control.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/channel/lease.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/base64.hpp>

#include "tools/launch/host/process.hpp"
#include "tools/launch/host/wire.hpp"

namespace tutti::launch {

namespace {

[[nodiscard]] control::Time rank_timeout(double seconds) {
  return control::Time(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace

std::vector<JobControl::MembershipUpdate> JobControl::take_updates() {
  collect();
  return std::exchange(updates_, {});
}

bool JobControl::opened(const std::string& name) const {
  const auto at = processes_.find(name);
  return at != processes_.end() && service_.knows(at->second.connection);
}

std::vector<std::string> JobControl::standing() const {
  std::vector<std::string> names;
  for (const control::Member& m : arbiter().members())
    if (m.role == control::Role::worker) names.push_back(process_name("worker", m.place));
  return names;
}

void JobControl::ask_to_leave(const std::string& name) {
  service_.arbiter().ask_to_leave(connection(name));
  send();
}

void JobControl::never_comes(int worker) {
  service_.arbiter().never_comes(control::Role::worker, worker);
  send();
}

void JobControl::stop_all() {
  service_.arbiter().stop_all();
  send();
}

void JobControl::forget(const Link& link) {
  for (auto& [name, p] : processes_)
    if (p.link == &link) p.link = nullptr;
}

void JobControl::started(const std::string& name, Link& link) {
  const Process& p = processes_[name] = {++last_connection_, &link};
  names_[p.connection] = name;
}

bool JobControl::hear(const std::string& name, std::string_view base64) {
  const auto at = processes_.find(name);
  if (at == processes_.end()) return true;
  const auto frame = io::from_base64(base64);
  const bool good =
      service_.receive(at->second.connection, frame ? std::string_view(*frame) : std::string_view(), control::now());
  send();
  return good;
}

void JobControl::ended(const std::string& name, bool in_order, const std::string& how) {
  const auto at = processes_.find(name);
  if (at == processes_.end()) return;
  const control::ConnectionId connection = at->second.connection;
  if (in_order) service_.arbiter().receive(connection, control::Leave{true}, control::now());
  service_.ended(connection, how);
  collect();
  // The launcher of a job that is not elastic does not need the updates.
  if (!elastic_) updates_.clear();
  names_.erase(connection);
  processes_.erase(at);
  send();
}

bool JobControl::any_open() const {
  for (const auto& [connection, name] : names_)
    if (service_.knows(connection)) return true;
  return false;
}

std::vector<Problem> JobControl::lost(const ProgressBoard& board) {
  const control::Time now = control::now();
  // The arbiter may have missed messages while the launcher itself was paused.
  const control::Time gap = now - looked_;
  if (control::is_pause(gap, rank_timeout(timeout_))) service_.arbiter().forgive(now, gap);
  looked_ = now;
  collect();
  const std::size_t known = updates_.size();
  service_.tick(now);
  collect();
  std::vector<Problem> problems;
  for (std::size_t i = known; i < updates_.size(); ++i) {
    const auto& [d, name] = updates_[i];
    if (d.kind != control::Decision::Kind::lost || name.empty() || (elastic_ && !ends_job(d))) continue;
    const auto* entry = board.find(name);
    const bool stopped = entry != nullptr && entry->stopped;
    const Link* const link = processes_[name].link;
    if (d.unreachable) {
      problems.push_back({static_cast<int>(ExitCode::communication),
                          error_message(name + " on " + (link == nullptr ? d.member.host : link->host()),
                                        "to reach the other processes within " + seconds_text(timeout_), d.why,
                                        "check the network between these hosts")});
      continue;
    }
    problems.push_back(
        {static_cast<int>(ExitCode::communication),
         error_message(name + " on " + (link == nullptr ? d.member.host : link->host()),
                       "a sign of life within " + seconds_text(timeout_),
                       "none" + board.last_report(name) + (stopped ? "; it is stopped, as by SIGSTOP" : ""),
                       "set a longer time with --rank-timeout")});
  }
  if (!elastic_) updates_.clear();
  send();
  return problems;
}

control::ArbiterOptions JobControl::arbiter_options(const Options& o, const Plan& plan) {
  control::ArbiterOptions a;
  a.workers = plan.first().order.workers;
  a.servers = plan.first().order.servers;
  a.rank_timeout = rank_timeout(o.rank_timeout);
  // Only a server that is started again changes the membership. The other processes continue meanwhile.
  a.servers_restart = o.server_restarts > 0;
  a.servers_hold = o.servers_hold;
  a.reports = !a.servers_restart && !(o.servers_hold && o.elastic.on);
  a.elastic = o.elastic.on;
  a.starter_ends = !a.elastic;
  a.at_epoch = o.elastic.at_epoch;
  a.min_workers = o.elastic.min_workers;
  a.lost_are_replaced = o.elastic.on && o.elastic.restart_budget > 0;
  return a;
}

void JobControl::send() {
  service_.send([&](control::ConnectionId connection, std::string_view frame) {
    const auto name = names_.find(connection);
    if (name == names_.end()) return;
    if (Link* const link = processes_[name->second].link)
      link->say("control " + name->second + " " + io::to_base64(frame));
  });
}

void JobControl::collect() {
  for (auto& d : service_.arbiter().take_decisions()) {
    const auto name = names_.find(d.connection);
    const bool of_one = d.kind != control::Decision::Kind::issued && d.kind != control::Decision::Kind::standing;
    updates_.push_back({std::move(d), of_one && name != names_.end() ? name->second : ""});
  }
}

}  // namespace tutti::launch
