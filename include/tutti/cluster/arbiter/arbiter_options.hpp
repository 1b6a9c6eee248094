// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <tutti/cluster/arbiter/control_store.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/channel/lease.hpp>

namespace tutti::control {

struct ArbiterOptions {          // the options of an Arbiter
  int workers = 1, servers = 0;  // processes with which the job begins
  Time rank_timeout = std::chrono::seconds(10);
  // Whether a process that joins or is lost starts the next generation. If false, the loss of a member ends the job.
  bool elastic = false;
  // A lost server may be started again with its number. This starts the next generation too.
  bool servers_restart = false;
  // The servers have the trained state, so an elastic job loses the state with a server, not with its last worker. If
  // false, an elastic job can lose each server but the last one.
  bool servers_hold = false;
  // The next generation waits until each worker has reported that it left the current one. If false, each member enters
  // the next generation separately.
  bool reports = true;
  // The arbiter's caller ends all processes of a job that has failed, so waiting processes get no message.
  bool starter_ends = false;
  // The caller of the arbiter replaces lost processes by new ones.
  bool lost_are_replaced = false;
  int min_workers = 1;
  // A worker that joins, and a member that Arbiter::ask_to_leave() asks to leave, wait for the end of an epoch.
  bool at_epoch = false;
};

// A decision of the arbiter, for its caller.
struct Decision {
  enum class Kind {
    lost,      // a process ended, was silent or unreachable (`why`); `fatal`: this ends the job
    refused,   // a process was not admitted (`why`); `fatal` as above
    left,      // a process left in order
    issued,    // a new generation: `generation`
    standing,  // all members of the generation have formed their group
  };
  Kind kind = Kind::lost;
  ConnectionId connection = 0;
  Member member{};
  std::string why{};
  std::uint64_t generation = 0;
  bool fatal = false;
  bool work_done = false;    // left: a member has completed the work of the job
  bool unreachable = false;  // lost: the process and another member cannot reach each other
};

}  // namespace tutti::control
