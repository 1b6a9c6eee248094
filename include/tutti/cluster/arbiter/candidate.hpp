// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/control_store.hpp>
#include <tutti/cluster/channel/control_messages.hpp>
#include <tutti/cluster/channel/lease.hpp>

namespace tutti::control {

// What the arbiter (arbiter.hpp) knows about a process that has asked for admission.
struct Candidate {
  enum class State { waiting, member, gone };

  Member member{};
  ConnectionId connection = 0;
  State state = State::waiting;
  std::string facts{};
  Time heard{};
  bool leaving = false, leaves_at_epoch = false, done = false, standing = false;
  bool newcomer = false;  // it came after the founders of the job, so it takes the state from a member
  bool holds = false;     // it has the trained state: true after its group was formed
  bool reported = false, epoch_end = false, preparing = false;  // its Report about the current generation
  std::uint64_t step = 0;
  std::uint64_t operation = 0;           // the operation in which it has waited for longer than the time-out
  std::vector<ProcessId> unreachable{};  // members that it cannot reach in this operation
  std::string why{};                     // why it is gone

  [[nodiscard]] bool is(Role role) const noexcept { return state != State::gone && member.role == role; }
  // Returns whether it can give the state to a newcomer. Founders have the initial state before their group was formed.
  [[nodiscard]] bool has_state() const noexcept { return is(Role::worker) && (holds || !newcomer); }
};

// Returns the candidates that are not gone and for which f(candidate) is true: workers by age, then servers by number.
// A server that is started again keeps its number.
template <class F>
[[nodiscard]] std::vector<Candidate*> order_members(std::vector<Candidate>& all, F&& f) {
  std::vector<Candidate*> members;
  for (Candidate& c : all)
    if (c.state != Candidate::State::gone && f(std::as_const(c))) members.push_back(&c);
  const auto order = [](const Member& m) {
    return std::pair(m.role, m.role == Role::worker ? m.id : static_cast<std::uint64_t>(m.place));
  };
  std::sort(members.begin(), members.end(),
            [&](const Candidate* a, const Candidate* b) { return order(a->member) < order(b->member); });
  return members;
}
// Returns a text such as "10 s" or "2.5 s".
[[nodiscard]] inline std::string seconds_text(Time t) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(t).count();
  return std::to_string(ms / 1000) + (ms % 1000 == 0 ? "" : "." + std::to_string(ms % 1000 / 100)) + " s";
}
// Returns the valid numbers of `count` processes of a role, as a text.
[[nodiscard]] inline std::string numbers_text(int count) {
  if (count == 0) return "no number, because the job begins without processes of this role";
  return count == 1 ? "number 0" : "a number from 0 to " + std::to_string(count - 1);
}
// Returns the member with this identity, which must exist.
[[nodiscard]] inline Candidate& member_of(std::vector<Candidate>& all, ProcessId id) {
  return *std::find_if(all.begin(), all.end(),
                       [&](const Candidate& c) { return c.state == Candidate::State::member && c.member.id == id; });
}
// Removes from the list, and returns, the processes of a role with facts that differ from `usual`. If `usual` is null,
// removes all processes of the role.
[[nodiscard]] inline std::vector<Candidate> take_mismatched(std::vector<Candidate>& all, Role role,
                                                            const std::string* usual) {
  std::vector<Candidate> odd;
  std::erase_if(all, [&](const Candidate& c) {
    const bool is_odd = c.is(role) && !(usual != nullptr && c.facts == *usual);
    if (is_odd) odd.push_back(c);
    return is_odd;
  });
  return odd;
}
// Returns how many workers stay in the job without these processes and without those that are leaving.
[[nodiscard]] inline int workers_without(const std::vector<Candidate>& all, const std::set<ConnectionId>& without) {
  return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const Candidate& c) {
    return c.is(Role::worker) && !c.leaving && !without.contains(c.connection);
  }));
}
// Returns whether f(candidate) is true for any candidate that is not gone.
template <class F>
[[nodiscard]] bool any_candidate(const std::vector<Candidate>& all, F&& f) {
  return std::any_of(all.begin(), all.end(),
                     [&](const Candidate& c) { return c.state != Candidate::State::gone && f(c); });
}

}  // namespace tutti::control
