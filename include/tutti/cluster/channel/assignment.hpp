// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <tutti/cluster/channel/control_messages.hpp>

namespace tutti {

// The role, the rank and the peers of a process in one generation of its job.
struct Assignment {
  std::uint64_t generation = 0;
  control::ProcessId id = 0, authority = 0;  // authority: the process that sends its state to the others
  control::Role role = control::Role::worker;
  int rank = 0;                                   // among the processes of its role
  std::vector<control::Member> workers, servers;  // by rank
  std::chrono::milliseconds rank_timeout{0};
};

// Converts the message of the arbiter.
[[nodiscard]] inline Assignment assignment_of(const control::NewGeneration& m) {
  Assignment a;
  a.generation = m.generation;
  a.id = m.you;
  a.authority = m.authority;
  a.rank_timeout = std::chrono::milliseconds(m.rank_timeout_ms);
  for (const control::Member& member : m.members) {
    auto& list = member.role == control::Role::worker ? a.workers : a.servers;
    if (member.id == m.you) {
      a.role = member.role;
      a.rank = static_cast<int>(list.size());
    }
    list.push_back(member);
  }
  return a;
}

}  // namespace tutti
