// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <tutti/cluster/arbiter/control_store.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/channel/lease.hpp>

namespace tutti::control {

struct ArbiterOptions {          // what an Arbiter can be told
  int workers = 1, servers = 0;  // that the job begins with
  Time rank_timeout = std::chrono::seconds(10);
  // A member that is lost, or joins later, makes the next generation; otherwise the loss of one ends the job.
  bool elastic = false;
  // A server may come back under its number, which makes the next generation too.
  bool servers_restart = false;
  // The servers have what is trained, so an elastic job loses it with a server rather than with its last worker.
  // Otherwise servers may go as workers do, except for the last one.
  bool servers_hold = false;
  // The next generation waits until each worker has reported that it has left the one before. Otherwise members change
  // over each for itself.
  bool reports = true;
  // Whoever runs the arbiter ends all processes of a job that is over, so that those who wait need not be told.
  bool starter_ends = false;
  // Whoever runs it starts others in the places of those that are lost.
  bool lost_are_replaced = false;
  int min_workers = 1;
  // Who joins, and a member that is asked from outside to leave, waits for the end of an epoch.
  bool at_epoch = false;
};

// What the arbiter has found, for whoever runs it.
struct Decision {
  enum class Kind {
    lost,      // by its death or its silence (`why`); `fatal`: which ends the job
    refused,   // `why`; `fatal` likewise
    left,      // as it wanted to
    issued,    // a generation: `generation`
    standing,  // all its members stand
  };
  Kind kind = Kind::lost;
  ConnectionId connection = 0;
  Member member{};
  std::string why{};
  std::uint64_t generation = 0;
  bool fatal = false;
  bool work_done = false;    // left: a member has done the work of the job, and was not on its way out before
  bool unreachable = false;  // lost: it and another member do not reach each other
};

}  // namespace tutti::control
