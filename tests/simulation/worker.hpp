// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/channel/control_messages.hpp>

#include "clock.hpp"
#include "scheduler.hpp"

namespace tutti::simulation {

// A process of a simulated job, as the launcher knows it and as the checks need it: a worker, or a server.
struct Worker {
  control::ConnectionId connection = 0;
  control::Role role = control::Role::worker;
  int place = 0;       // its number among the processes of its role
  bool joins = false;  // it was not started with the job
  Process* process = nullptr;
  int descriptor = -1;  // the launcher's end of its channel
  int channel = -1;     // its own end
  bool closed = false;  // its channel has ended
  bool ended = false;   // the launcher knows its end
  bool asked_to_leave = false, signalled = false;
  bool holds = false;  // it has trained in a generation, so it has the state
  bool left = false, did_work = false, unreachable = false, refused = false;
  bool unwanted = false;     // it was asked to leave before it asked for admission
  Nanos lost_at = never;     // the arbiter has removed it
  Nanos replace_at = never;  // the launcher starts another worker for it
  // What the arbiter has received from it, and has sent to it.
  control::MessageAssembler assembler{}, told{};
  control::ProcessId id = 0;
  bool member = false, reported = false, epoch_end = false, leaves_at_epoch = false;
  std::uint64_t step = 0;
  int stood = 0;  // generations that it has formed with all others
  std::vector<control::ProcessId> cut_from{};
  std::int64_t joins_after = -1, leaves_after = -1;  // the newest step when it asked; -1: it has not asked
  Nanos asked_at = 0, heard_at = 0;                  // heard_at: its last heartbeat
  int beats = 0;                                     // heartbeats since its generation was issued
  std::uint64_t entered = 0;                         // the newest generation that it has begun
  Nanos busy = 0;                                    // its next step takes this much longer
  Nanos works_until = 0;                             // the end of such a step
  Nanos asks = 0;                                    // in its next step it asks for its lease for this time
  std::set<std::size_t> owed{};                      // the kinds of messages that it must get now
  bool rejected = false, told_stop = false, said_done = false, told_change = false;

  [[nodiscard]] bool enrolled() const noexcept { return joins_after >= 0; }
  // Returns whether the arbiter has it in the job: as a member, or as a process that waits.
  [[nodiscard]] bool in_job() const noexcept { return enrolled() && lost_at == never && !left && !rejected; }
  [[nodiscard]] bool trains() const noexcept { return member && role == control::Role::worker; }
};

}  // namespace tutti::simulation
