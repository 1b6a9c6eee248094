// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/arbiter/arbiter_service.hpp>
#include <tutti/core/error.hpp>

#include "commands.hpp"
#include "control_socket.hpp"
#include "job_members.hpp"
#include "link.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "process.hpp"
#include "progress_board.hpp"
#include "wire.hpp"

namespace tutti::launch {

// The arbiter in the launcher: what agents hand on from the processes goes to it, and its answers back to them. A
// process that never opens its channel is none of its matter.
class JobControl final : public JobMembers {
 public:
  JobControl(const Options& o, const Plan& plan)
      : service_(arbiter_options(o, plan)), timeout_(o.rank_timeout), elastic_(o.elastic.on) {}

  // What the arbiter has decided of a process, if it is one of the job's.
  struct MembershipUpdate {
    control::Decision decision;
    std::string name;
  };
  [[nodiscard]] std::vector<MembershipUpdate> take_updates() {
    collect();
    return std::exchange(updates_, {});
  }
  [[nodiscard]] const control::Arbiter& arbiter() const noexcept { return service_.arbiter(); }
  // Whether the process has opened its channel.
  [[nodiscard]] bool opened(const std::string& name) const override {
    const auto at = processes_.find(name);
    return at != processes_.end() && service_.knows(at->second.connection);
  }
  [[nodiscard]] bool can_spare(const std::string& name) const override {
    return arbiter().can_spare({connection(name)});
  }
  [[nodiscard]] bool too_few() const override { return arbiter().too_few(); }
  [[nodiscard]] bool finished() const override { return arbiter().finished(); }
  [[nodiscard]] bool stopping() const override { return arbiter().stopping(); }
  [[nodiscard]] std::uint64_t epoch() const override { return arbiter().epoch(); }
  [[nodiscard]] std::vector<std::string> standing() const override {
    std::vector<std::string> names;
    for (const control::Member& m : arbiter().members())
      if (m.role == control::Role::worker) names.push_back(process_name("worker", m.place));
    return names;
  }
  void ask_to_leave(const std::string& name) override {
    service_.arbiter().ask_to_leave(connection(name));
    send();
  }
  // A worker that the job was to begin with has ended before it asked to be let in.
  void never_comes(int worker) override {
    service_.arbiter().never_comes(control::Role::worker, worker);
    send();
  }
  void stop_all() override {
    service_.arbiter().stop_all();
    send();
  }
  // A connection is gone; its processes may run on.
  void forget(const Link& link) {
    for (auto& [name, p] : processes_)
      if (p.link == &link) p.link = nullptr;
  }

  // A process has been started; one that had its name before is another.
  void started(const std::string& name, Link& link) {
    const Process& p = processes_[name] = {++last_connection_, &link};
    names_[p.connection] = name;
  }
  // "control worker 0 <base64>", without its first word. False, once for a process, where it makes no sense.
  [[nodiscard]] bool hear(const std::string& name, std::string_view base64) {
    const auto at = processes_.find(name);
    if (at == processes_.end()) return true;
    const auto frame = io::from_base64(base64);
    const bool good =
        service_.receive(at->second.connection, frame ? std::string_view(*frame) : std::string_view(), control::now());
    send();
    return good;
  }
  // in_order: with exit code 0.
  void ended(const std::string& name, bool in_order, const std::string& how) {
    const auto at = processes_.find(name);
    if (at == processes_.end()) return;
    const control::ConnectionId connection = at->second.connection;
    if (in_order) service_.arbiter().receive(connection, control::Leave{true}, control::now());
    service_.ended(connection, how);
    collect();
    // The launcher knows by itself.
    if (!elastic_) updates_.clear();
    names_.erase(connection);
    processes_.erase(at);
    send();
  }

  // Whether a process that runs has opened its channel.
  [[nodiscard]] bool any_open() const {
    for (const auto& [connection, name] : names_)
      if (service_.knows(connection)) return true;
    return false;
  }

  // What is said of each process that has been silent for too long. To be called in each round.
  [[nodiscard]] std::vector<Problem> lost(const ProgressBoard& board) {
    const control::Time now = control::now();
    // A launcher that was stopped itself has heard nobody.
    if (now - looked_ > std::chrono::seconds(1)) service_.arbiter().forgive(now);
    looked_ = now;
    collect();
    const std::size_t known = updates_.size();
    service_.tick(now);
    collect();
    std::vector<Problem> problems;
    for (std::size_t i = known; i < updates_.size(); ++i) {
      const auto& [d, name] = updates_[i];
      if (d.kind != control::Decision::Kind::lost || name.empty() || (elastic_ && !d.fatal)) continue;
      const auto* entry = board.find(name);
      const bool stopped = entry != nullptr && entry->stopped;
      const Link* const link = processes_[name].link;
      if (d.unreachable) {
        problems.push_back({static_cast<int>(ExitCode::communication),
                            error_message(name + " on " + (link == nullptr ? d.member.host : link->host()),
                                          "to reach the other processes within " + seconds_text(timeout_), d.why,
                                          "look at the network between these hosts")});
        continue;
      }
      problems.push_back(
          {static_cast<int>(ExitCode::communication),
           error_message(name + " on " + (link == nullptr ? d.member.host : link->host()),
                         "a sign of life within " + seconds_text(timeout_),
                         "none" + board.last_report(name) + (stopped ? "; it is stopped, as by SIGSTOP" : ""),
                         "--rank-timeout sets the time")});
    }
    if (!elastic_) updates_.clear();
    send();
    return problems;
  }

 private:
  [[nodiscard]] control::ConnectionId connection(const std::string& name) const {
    return processes_.at(name).connection;
  }
  struct Process {
    control::ConnectionId connection = 0;
    Link* link = nullptr;
  };

  [[nodiscard]] static control::ArbiterOptions arbiter_options(const Options& o, const Plan& plan) {
    control::ArbiterOptions a;
    a.workers = plan.first().order.workers;
    a.servers = plan.first().order.servers;
    a.rank_timeout = std::chrono::nanoseconds(static_cast<std::int64_t>(o.rank_timeout * 1e9));
    // Only a server that is started again changes the members; the others go on meanwhile.
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

  void send() {
    service_.send([&](control::ConnectionId connection, std::string_view frame) {
      const auto name = names_.find(connection);
      if (name == names_.end()) return;
      if (Link* const link = processes_[name->second].link)
        link->say("control " + name->second + " " + io::to_base64(frame));
    });
  }
  void collect() {
    for (auto& d : service_.arbiter().take_decisions()) {
      const auto name = names_.find(d.connection);
      const bool of_one = d.kind != control::Decision::Kind::issued && d.kind != control::Decision::Kind::standing;
      updates_.push_back({std::move(d), of_one && name != names_.end() ? name->second : ""});
    }
  }

  control::ArbiterService service_;
  double timeout_;
  bool elastic_;
  std::vector<MembershipUpdate> updates_;
  control::ConnectionId last_connection_ = 0;
  control::Time looked_ = control::now();
  std::map<std::string, Process> processes_;
  std::map<control::ConnectionId, std::string> names_;
};

}  // namespace tutti::launch
