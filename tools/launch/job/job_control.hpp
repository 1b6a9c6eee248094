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
  [[nodiscard]] std::vector<MembershipUpdate> take_updates();
  [[nodiscard]] const control::Arbiter& arbiter() const noexcept { return service_.arbiter(); }
  // Whether the process has opened its channel.
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
  // A worker that the job was to begin with has ended before it asked to be let in.
  void never_comes(int worker) override;
  void stop_all() override;
  // A connection is gone; its processes may run on.
  void forget(const Link& link);

  // A process has been started; one that had its name before is another.
  void started(const std::string& name, Link& link);
  // "control worker 0 <base64>", without its first word. False, once for a process, where it makes no sense.
  [[nodiscard]] bool hear(const std::string& name, std::string_view base64);
  // in_order: with exit code 0.
  void ended(const std::string& name, bool in_order, const std::string& how);

  // Whether a process that runs has opened its channel.
  [[nodiscard]] bool any_open() const;

  // What is said of each process that has been silent for too long. To be called in each round.
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
