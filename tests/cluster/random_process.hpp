// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/arbiter.hpp>
#include <tutti/cluster/channel/lease.hpp>

// A process of test_membership_random.cpp.
namespace tutti::control::test {

inline constexpr Time turn = std::chrono::milliseconds(10), rank_timeout = std::chrono::seconds(2);
inline constexpr std::uint64_t steps_an_epoch = 10;

// One process, which behaves like ControlChannel and a training loop. A step ends only after all members have begun it,
// so two members are never more than one step apart.
struct Process {
  enum class Doing { starting, waiting, forming, formed, computing, left, over };

  ConnectionId connection = 0;
  int place = 0;
  bool odd = false;      // the process has another build
  double rate = 1;       // speed of its clock
  Time stopped_until{};  // the process does not run before this time
  Time cut_until{};      // no message passes before this time
  Time acts_at{};        // the end of its current action
  Doing doing = Doing::starting;
  bool alive = true, wants_to_leave = false, breaks = false, stop_asked = false;
  std::optional<MembershipChange> changing{};  // the announced change of its generation
  std::uint64_t generation = 0, step = 0;
  std::vector<ProcessId> members{};
  ProcessId id = 0, authority = 0;
  Lease lease{rank_timeout};
  Time next_beat{};
  // Messages that have not arrived, with the earliest time at which they may arrive.
  std::deque<std::pair<Time, Message>> to_arbiter{}, from_arbiter{};
};

}  // namespace tutti::control::test
