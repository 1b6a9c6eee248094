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
  int workers = 1, servers = 0;  // that the job begins with
  Time rank_timeout = std::chrono::seconds(10);
  // A member that is lost, or joins later, starts the next generation. Otherwise the loss of one ends the job.
  bool elastic = false;
  // A server may come back under its number, which starts the next generation too.
  bool servers_restart = false;
  // The servers have the trained state, so an elastic job loses it with a server and not with its last worker.
  // Otherwise servers may leave as workers do, except for the last one.
  bool servers_hold = false;
  // The next generation waits until each worker has reported that it has left the one before. Otherwise each member
  // enters it separately.
  bool reports = true;
  // The caller of the arbiter ends all processes of a job that is over, so waiting processes need no message.
  bool starter_ends = false;
  // The caller of the arbiter replaces lost processes by new ones.
  bool lost_are_replaced = false;
  int min_workers = 1;
  // A process that joins waits for the end of an epoch, and so does a member that is asked from outside to leave.
  bool at_epoch = false;
};

// What the arbiter has decided, for its caller.
struct Decision {
  enum class Kind {
    lost,      // by its end or its silence (`why`); `fatal`: this ends the job
    refused,   // `why`; `fatal` as above
    left,      // as it wanted to
    issued,    // a generation: `generation`
    standing,  // all its members have formed their group
  };
  Kind kind = Kind::lost;
  ConnectionId connection = 0;
  Member member{};
  std::string why{};
  std::uint64_t generation = 0;
  bool fatal = false;
  bool work_done = false;    // left: a member has done the work of the job, and was not about to leave before
  bool unreachable = false;  // lost: it and another member do not reach each other
};

}  // namespace tutti::control
