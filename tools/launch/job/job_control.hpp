// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/arbiter/arbiter_service.hpp>

#include "tools/launch/cli/options.hpp"
#include "tools/launch/job/commands.hpp"
#include "tools/launch/job/job_members.hpp"
#include "tools/launch/job/link.hpp"
#include "tools/launch/job/plan.hpp"
#include "tools/launch/job/progress_board.hpp"

namespace tutti::launch {

// Connects the arbiter in the launcher to the agents: passes the frames of processes to the arbiter, and its answers
// back. Ignores processes that never open their channel.
class JobControl final : public JobMembers {
 public:
  JobControl(const Options& o, const Plan& plan)
      : service_(arbiter_options(o, plan)), timeout_(o.rank_timeout), elastic_(o.elastic.on) {}

  // A decision of the arbiter, and the name of the process if the decision is about a process of the job.
  struct MembershipUpdate {
    control::Decision decision;
    std::string name;
  };
  [[nodiscard]] std::vector<MembershipUpdate> take_updates();
  [[nodiscard]] const control::Arbiter& arbiter() const noexcept { return service_.arbiter(); }
  // Returns whether the process has opened its channel.
  [[nodiscard]] bool opened(const std::string& name) const override;
  [[nodiscard]] bool can_spare(const std::string& name) const override {
    return arbiter().can_spare({connection(name)});
  }
  [[nodiscard]] bool too_few() const override { return arbiter().too_few(); }
  [[nodiscard]] bool finished() const override { return arbiter().finished(); }
  [[nodiscard]] bool stopping() const override { return arbiter().stopping(); }
  [[nodiscard]] std::uint64_t epoch() const override { return arbiter().epoch(); }
  [[nodiscard]] std::vector<std::string> standing() const override;
  void ask_to_leave(const std::string& name) override;
  // Call when an initial worker has ended before it asked for admission.
  void never_comes(int worker) override;
  void stop_all() override;
  // Call when a connection is closed. Processes on it may still run.
  void forget(const Link& link);

  // Call when a process has been started. It replaces an earlier process with the same name.
  void started(const std::string& name, Link& link);
  // Handles "control worker 0 <base64>" without the first word. Returns false for the first invalid frame of a process.
  [[nodiscard]] bool hear(const std::string& name, std::string_view base64);
  // in_order: the process ended with exit code 0.
  void ended(const std::string& name, bool in_order, const std::string& how);

  // Returns whether a running process has opened its channel.
  [[nodiscard]] bool any_open() const;

  // Returns whether this decision makes the job fail. After a worker has completed the work, the job needs no other
  // process: all end by themselves.
  [[nodiscard]] bool ends_job(const control::Decision& d) const { return d.fatal && !finished(); }
  // Returns a problem for each process that has been silent for too long. In an elastic job only for one whose loss
  // makes the job fail. Call in each round.
  [[nodiscard]] std::vector<Problem> lost(const ProgressBoard& board);

 private:
  [[nodiscard]] control::ConnectionId connection(const std::string& name) const {
    return processes_.at(name).connection;
  }
  struct Process {
    control::ConnectionId connection = 0;
    Link* link = nullptr;
  };

  [[nodiscard]] static control::ArbiterOptions arbiter_options(const Options& o, const Plan& plan);

  void send();
  void collect();

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
